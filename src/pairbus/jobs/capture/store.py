"""Capture to a URL, such as one of an object store, with Spark's own writers of files.

A batch is one directory below its window. The query and the number of the batch determine its name, and the time of the
batch, which Spark has in its checkpoint, determines the window. A batch that Spark repeats after a failure replaces its
directory, so that each message is in the files once, for every reader. A directory that has ``_SUCCESS`` is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession, functions

from pairbus.jobs.capture.config import WindowLimits
from pairbus.jobs.capture.files import COMPRESSION, CapturedFile, describe_messages
from pairbus.jobs.capture.window import CATCHES, Catch, OpenWindows
from pairbus.spark.file_systems import file_system

_QUERY: Final = "sql.streaming.queryId"
_TIME: Final = "batch_time"
"""A column with the time of the batch, which is not written."""

_HOUR_MS: Final = 3_600_000


def with_batch_time(messages: DataFrame) -> DataFrame:
    """Add the time of the batch to the messages of a stream. A repeated batch has the same time."""
    return messages.withColumn(_TIME, functions.current_timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWindow:
    """A time range whose batches are next to each other. Ranges start anew with each hour, and end with it."""

    start_ms: int
    end_ms: int

    @classmethod
    def at(cls, time_ms: int, limits: WindowLimits) -> Self:
        """Return the window of a time."""
        hour_ms = time_ms - time_ms % _HOUR_MS
        start_ms = time_ms - (time_ms - hour_ms) % limits.length_ms
        return cls(start_ms=start_ms, end_ms=min(start_ms + limits.length_ms, hour_ms + _HOUR_MS))

    @property
    def hour(self) -> str:
        """The path of the hour."""
        return f"day={self._start:%Y-%m-%d}/hour={self._start:%H}"

    @property
    def path(self) -> str:
        return f"{self.hour}/window={self._start:%Y%m%dT%H%M%SZ}"

    @property
    def _start(self) -> datetime:
        return datetime.fromtimestamp(self.start_ms / 1_000, UTC)


class StoreCapture:
    """Writes each batch to a directory of its own."""

    def __init__(self, url: str, limits: WindowLimits, on_file: Callable[[CapturedFile], None]) -> None:
        self._url = url.rstrip("/")
        self._limits = limits
        self._on_file = on_file
        self._lock = Lock()
        """Batches arrive in a thread of Spark."""

        self._last = OpenWindows()
        self._is_first = True
        """True until the first batch, which an earlier process may have written with windows of another length."""

        self.messages = 0

    @property
    def checkpoint(self) -> str:
        """The checkpoint directory of Spark, which readers of the files ignore."""
        return f"{self._url}/_capture/checkpoint"

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch of ``with_batch_time``, and replace what an earlier attempt may have written of it."""
        with self._lock:
            kept = batch.persist()
            try:
                found = kept.select(functions.unix_millis(_TIME)).first()
                if found is not None:
                    self._write(kept, number, StoreWindow.at(found[0], self._limits))
            finally:
                kept.unpersist()

    def _write(self, batch: DataFrame, number: int, window: StoreWindow) -> None:
        spark = batch.sparkSession
        query = spark.sparkContext.getLocalProperty(_QUERY)
        name = f"batch={str(query)[:8]}-{number:09d}"
        directory = f"{self._url}/{window.path}/{name}"
        if self._is_first:
            self._delete_others(spark, window, name)
            self._is_first = False
        rows = batch.select("entity", "sequence_number", "enqueued_time").mapInArrow(describe_messages, CATCHES)
        catches = [Catch.from_row(row.asDict()) for row in rows.collect()]
        _write_files(batch.drop(_TIME), directory, window)
        self._last = OpenWindows().entered(catches, window.start_ms, self._limits)
        counts: Counter[str] = Counter()
        for catch in catches:
            counts[catch.entity] += len(catch.portion.numbers)
        for entity, count in sorted(counts.items()):
            self.messages += count
            self._on_file(_written_file(spark, directory, entity, count, window))

    def _delete_others(self, spark: SparkSession, window: StoreWindow, name: str) -> None:
        """Delete what earlier attempts wrote of a batch, below windows of another length."""
        java: Any = spark._jvm  # noqa: SLF001 (there is no public access to Hadoop)
        path = java.org.apache.hadoop.fs.Path
        files = file_system(spark, self._url)
        hour, written = path(f"{self._url}/{window.hour}"), path(f"{self._url}/{window.path}")
        for one in files.listStatus(hour) if files.exists(hour) else ():
            if one.getPath().getName() != written.getName():
                files.delete(path(one.getPath(), name), True)

    # What a capture to a directory has beyond this.

    def close_due(self, now_ms: int) -> None:
        """Do nothing: a batch is written as a whole."""

    def close_all(self, now_ms: int) -> None:
        """Do nothing: nothing is open."""

    @contextmanager
    def at_rest(self) -> Iterator[OpenWindows]:
        """Wait for the batch in progress, and block the next one. Provide the messages of the last batch."""
        with self._lock:
            yield self._last


def _write_files(batch: DataFrame, directory: str, window: StoreWindow) -> None:
    bounds = {"window_start": window.start_ms, "window_end": window.end_ms}
    times = {name: functions.timestamp_millis(functions.lit(time_ms)) for name, time_ms in bounds.items()}
    rows = batch.withColumns({**times, "source": functions.col("entity")})
    sorted_rows = rows.repartition("source").sortWithinPartitions("source", "sequence_number")
    writer = sorted_rows.write.mode("overwrite").partitionBy("source")
    writer.option("compression", COMPRESSION).parquet(directory)


def _written_file(spark: SparkSession, directory: str, entity: str, count: int, window: StoreWindow) -> CapturedFile:
    java: Any = spark._jvm  # noqa: SLF001 (there is no public access to Hadoop)
    escaped = java.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName(entity)
    path = f"{directory}/source={escaped}"
    summary = file_system(spark, path).getContentSummary(java.org.apache.hadoop.fs.Path(path))
    return CapturedFile(
        path=path,
        entity=entity,
        messages=count,
        size_bytes=int(summary.getLength()),
        window_start_ms=window.start_ms,
        window_end_ms=window.end_ms,
    )
