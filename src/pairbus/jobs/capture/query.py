"""The streaming query of a capture: read entities, and write what there is into pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.jobs.capture.capture import Capture
from pairbus.jobs.capture.catch import CATCHES, Catch
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.capture.piece_writer import PieceWriter
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.options import ReadMode

_PACE = timedelta(seconds=5)
"""How often there is a batch, while messages come one by one; when many come, the next follows at once."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def start_query(spark: SparkSession, order: CaptureOrder, capture: Capture, checkpoint: str) -> StreamingQuery:
    """Begin; each batch is in the book of the capture before Spark hears that it is done."""

    def take(batch: DataFrame, number: int) -> None:
        def write(writer: PieceWriter) -> Iterator[Catch]:
            for row in batch.mapInArrow(writer, CATCHES).collect():
                yield Catch.from_row(row.asDict())

        capture.take(write, now_ms)

    writer = (
        _messages(spark, order)
        .writeStream.foreachBatch(take)
        .queryName(f"pairbus-capture-{uuid4().hex[:8]}")
        .option("checkpointLocation", checkpoint)
    )
    if order.once:
        return writer.trigger(availableNow=True).start()
    pace = min(_PACE, order.limits.length / 2)
    return writer.trigger(processingTime=f"{pace // timedelta(milliseconds=1)} milliseconds").start()


def _messages(spark: SparkSession, order: CaptureOrder) -> DataFrame:
    spark.dataSource.register(PairbusDataSource)
    mode = ReadMode.BROWSE if order.keep else ReadMode.CONSUME
    return (
        spark.readStream.format(PairbusDataSource.name())
        .option("connection", str(order.source))
        .option("entities", ",".join(order.entities))
        .option("mode", mode.value)
        .option("maxMessagesPerTrigger", str(order.max_messages))
        .load()
    )
