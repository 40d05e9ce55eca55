"""Lets Spark find the data source ``pairbus`` by itself: it imports each module ``pyspark_…`` when it looks for one."""

from pairbus.spark.data_source import PairbusDataSource as DefaultSource

__all__ = ["DefaultSource"]
