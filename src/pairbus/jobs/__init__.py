"""Pipelines on Spark that have a main."""
