"""Copies the messages of queues and subscriptions to Parquet files, by time or size."""
