"""Spark data source for Service Bus entities: tables and streams."""
