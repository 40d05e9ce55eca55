"""File systems of Spark: whether a session has the one of a path, and what to do if not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pairbus.spark.added_settings import scheme_of

_PACKAGES: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:VERSION",
}
_MISSING: Final = re.compile(r"No FileSystem for scheme|ClassNotFoundException|NoClassDefFoundError")


class FileSystemError(RuntimeError):
    """Spark cannot use the file system of a path."""


def check_file_systems(spark: SparkSession, *places: str | Path | None) -> None:
    """Check that Spark can use the file systems of URLs, before any work. Raise ``FileSystemError``.

    Paths without a scheme are not checked, nor is a session of Spark Connect: only its server knows its file systems.
    """
    if getattr(spark, "_jvm", None) is None:
        return
    for place in map(str, filter(None, places)):
        if scheme_of(place) is not None:
            file_system(spark, place)


def file_system(spark: SparkSession, url: str) -> Any:
    """Return Java's file system of a URL. Raise ``FileSystemError`` if Spark has none, or cannot use it."""
    java: Any = spark._jvm  # noqa: SLF001 (there is no public access to Hadoop)
    scheme = scheme_of(url)
    try:
        found = java.org.apache.hadoop.fs.Path(url).getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        found.exists(java.org.apache.hadoop.fs.Path(url))
    except Py4JJavaError as error:
        reason = java_reason(error)
        if _MISSING.search(reason) is None:
            raise FileSystemError(f"{url} cannot be used: {reason}; check its name, and --conf for its keys") from None
        hadoop = java.org.apache.hadoop.util.VersionInfo.getVersion()
        package = _PACKAGES.get(str(scheme), "a package with it").format(hadoop=hadoop)
        raise FileSystemError(
            f"Spark has no file system for {scheme}: add it with --packages {package}, and its settings with --conf"
        ) from None
    return found


def java_reason(error: Py4JJavaError) -> str:
    """Return the messages of a Java exception and its causes, without their stack traces."""
    text: list[str] = []
    cause = error.java_exception
    while cause is not None and len(text) < 5:
        text.append(str(cause.toString()).partition("\n")[0])
        cause = cause.getCause()
    return "; ".join(text)
