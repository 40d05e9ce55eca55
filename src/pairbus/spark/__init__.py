"""Service Bus entities as tables and streams of Spark."""
