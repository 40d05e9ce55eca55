"""Capture to a URL, such as one of an object store, with Spark's own writers of files.

A batch is one directory, whose name the query and the number of the batch determine. A batch that Spark repeats after a
failure replaces its directory, so that each message is in the files once, for every reader. A directory that has
``_SUCCESS`` is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, functions

from pairbus.jobs.capture.files import COMPRESSION, CapturedFile
from pairbus.jobs.capture.window import OpenWindows
from pairbus.spark.file_systems import file_system

_QUERY: Final = "sql.streaming.queryId"


class StoreCapture:
    """Writes each batch to a directory of its own."""

    def __init__(self, url: str, on_file: Callable[[CapturedFile], None]) -> None:
        self._url = url.rstrip("/")
        self._on_file = on_file
        self._lock = Lock()
        """Batches arrive in a thread of Spark."""

        self.messages = 0

    @property
    def checkpoint(self) -> str:
        """The checkpoint directory of Spark, which readers of the files ignore."""
        return f"{self._url}/_capture/checkpoint"

    def write(self, batch: DataFrame, number: int, now_ms: Callable[[], int]) -> None:
        """Write a batch, and replace what an earlier attempt may have written of it."""
        spark = batch.sparkSession
        with self._lock:
            query = spark.sparkContext.getLocalProperty(_QUERY)
            directory = f"{self._url}/batch={str(query)[:8]}-{number:09d}"
            time_ms = now_ms()
            kept = batch.persist()
            try:
                counts = {row["entity"]: row["count"] for row in kept.groupBy("entity").count().collect()}
                if counts:
                    self._write(kept, directory, time_ms)
            finally:
                kept.unpersist()
        for entity, count in counts.items():
            self.messages += count
            self._on_file(self._file(spark, directory, entity, count, time_ms))

    def _write(self, batch: DataFrame, directory: str, time_ms: int) -> None:
        time = functions.timestamp_millis(functions.lit(time_ms))
        rows = batch.withColumns({"window_start": time, "window_end": time, "source": functions.col("entity")})
        sorted_rows = rows.repartition("source").sortWithinPartitions("source", "sequence_number")
        writer = sorted_rows.write.mode("overwrite").partitionBy("source")
        writer.option("compression", COMPRESSION).parquet(directory)

    def _file(self, spark: SparkSession, directory: str, entity: str, count: int, time_ms: int) -> CapturedFile:
        java: Any = spark._jvm  # noqa: SLF001 (there is no public access to Hadoop)
        escaped = java.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName(entity)
        path = f"{directory}/source={escaped}"
        summary = file_system(spark, path).getContentSummary(java.org.apache.hadoop.fs.Path(path))
        return CapturedFile(
            path=path,
            entity=entity,
            messages=count,
            size_bytes=int(summary.getLength()),
            window_start_ms=time_ms,
            window_end_ms=time_ms,
        )

    # What a capture to a directory has beyond this.

    def close_due(self, now_ms: int) -> None:
        """Do nothing: a batch is written as a whole."""

    def close_all(self, now_ms: int) -> None:
        """Do nothing: nothing is open."""

    @contextmanager
    def at_rest(self) -> Iterator[OpenWindows]:
        """Wait for the batch in progress, and block the next one."""
        with self._lock:
            yield OpenWindows()
