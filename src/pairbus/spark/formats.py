"""Formats of tables: whether a session has one, and what to do if not."""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pairbus.client.validation import shown

_PACKAGES: Final = {
    "avro": "org.apache.spark:spark-avro_2.13:{spark}",
    "delta": "io.delta:delta-spark_2.13:VERSION",
}
_OF_CATALOGS: Final = frozenset({"iceberg"})
"""Formats whose tables Spark creates in a catalog, and not by their path."""


class UnavailableFormatError(ValueError):
    """A session of Spark cannot write files in a format."""


def check_format(spark: SparkSession, name: str) -> None:
    """Raise ``UnavailableFormatError`` if a session cannot write directories in a format, before any work.

    A session of Spark Connect is not checked: only its server knows its formats.
    """
    if name.lower() in _OF_CATALOGS:
        raise UnavailableFormatError(
            f"tables in the format {name} belong to a catalog, and cannot be written to a directory: use parquet, or"
            " write the DataFrames with writeTo()"
        )
    java: Any = getattr(spark, "_jvm", None)
    if java is None:
        return
    sources = java.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(name, spark._jsparkSession.sessionState().conf())  # noqa: SLF001
    except (Py4JJavaError, PySparkException):
        package = _PACKAGES.get(name.lower(), "a package with it").format(spark=spark.version)
        raise UnavailableFormatError(
            f"Spark has no format {shown(name)}: use parquet, or add it with --packages {package}, and its settings"
            " with --conf"
        ) from None
