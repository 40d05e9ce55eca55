"""Spark pipelines that are run as commands."""
