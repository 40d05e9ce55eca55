"""The streaming query of the syphon: finds out which backlog queues have messages, and delivers them in tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pairbus.jobs.syphon.delivery_task import DeliveryTask
from pairbus.jobs.syphon.outcome import OUTCOMES, BatchReport, DeliveryOutcome, OutcomeKind
from pairbus.jobs.syphon.share_source import SHARES, ShareDataSource
from pairbus.pairing.syphon.interface import Held, TimeToLive
from pairbus.spark.connections import ConnectionReference

_OBSERVED: Final = "syphon"
_PROCESSING: Final = "Processing new data"
"""The status of a query while it runs a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """The destinations that must not be sent to at the moment, as the driver knows it."""

    held: Held
    busy: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonQuery:
    """The query of one pair."""

    primary: str
    secondary: str
    """References to the connection strings, as in the options of the source."""

    backlog_queues: tuple[str, ...]
    time_to_live: TimeToLive
    long_poll: timedelta
    max_messages: int
    checkpoint: str

    def backlog(self, spark: SparkSession) -> DataFrame:
        """Return the backlog queues that have messages, one partition for each, which keeps it in order."""
        spark.dataSource.register(ShareDataSource)
        return (
            spark.readStream.format(ShareDataSource.name())
            .schema(SHARES)
            .option("connection", self.secondary)
            .option("queues", ",".join(self.backlog_queues))
            .option("longPoll", f"{self.long_poll.total_seconds():g}")
            .option("maxMessages", str(self.max_messages))
            .load()
        )

    def delivered(self, batch: DataFrame, obstacles: Obstacles) -> DataFrame:
        """Return the outcomes of a batch; their evaluation delivers the messages."""
        task = DeliveryTask(
            primary=ConnectionReference.parse(self.primary),
            secondary=ConnectionReference.parse(self.secondary),
            time_to_live=self.time_to_live,
            held=obstacles.held,
            busy=obstacles.busy,
        )
        tasks = parallelism(batch.sparkSession)
        return (batch if tasks is None else batch.coalesce(tasks)).mapInArrow(task, OUTCOMES)

    def start(
        self,
        spark: SparkSession,
        obstacles: Callable[[], Obstacles | None],
        on_batch: Callable[[int, list[DeliveryOutcome], float], None],
        *,
        once: bool = False,
    ) -> StreamingQuery:
        """Start the query; call ``on_batch`` with each batch before the next one is planned.

        ``obstacles`` is called before each batch. If it returns ``None`` the batch is not delivered, because the query
        is to end.
        """

        def deliver(batch: DataFrame, number: int) -> None:
            known = obstacles()
            if known is None:
                return
            started_s = time.monotonic()
            rows = self.delivered(batch, known).collect()
            outcomes = [DeliveryOutcome.from_row(row.asDict()) for row in rows]
            on_batch(number, outcomes, time.monotonic() - started_s)

        return self._start(self.backlog(spark).writeStream.foreachBatch(deliver), once=once)

    def start_remotely(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        """Start the query with Spark Connect, where the driver is not called for each batch: use ``reports_of``.

        The obstacles are not known there either, so a message may overtake a parked one.
        """
        outcomes = self.delivered(self.backlog(spark), Obstacles(held=Held(), busy=frozenset()))
        counts = (
            functions.sum(functions.when(outcomes.kind == kind.value, outcomes["count"]).otherwise(0)).alias(kind.name)
            for kind in OutcomeKind
        )
        return self._start(outcomes.observe(_OBSERVED, *counts).writeStream.format("noop"), once=once)

    def _start(self, writer: DataStreamWriter, *, once: bool) -> StreamingQuery:
        # A session runs one query of a name, and there may be several syphons in it.
        named = writer.queryName(f"pairbus-syphon-{uuid4().hex[:8]}").option("checkpointLocation", self.checkpoint)
        return (named.trigger(availableNow=True) if once else named).start()


def is_remote(spark: SparkSession) -> bool:
    """Return whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_processing(query: StreamingQuery) -> bool:
    """Return whether a batch is running, as the query reports it."""
    return query.isActive and query.status["message"] == _PROCESSING


def _named(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name; Spark Connect returns them apart from their names."""
    if set(observed) != {"values", "schema"}:
        return dict(observed)
    names = (field["name"] for field in observed["schema"]["fields"])
    return dict(zip(names, observed["values"], strict=True))


def reports_of(progresses: Iterable[StreamingQueryProgress], after: int) -> list[BatchReport]:
    """Return the reports of the batches after ``after`` from the progress of a query."""
    found: list[BatchReport] = []
    for progress in progresses:
        observed = progress.observedMetrics.get(_OBSERVED)
        if observed is not None and progress.batchId > after and progress.numInputRows:
            named = _named(observed.asDict())
            counts = {kind: int(named.get(kind.name) or 0) for kind in OutcomeKind}
            found.append(
                BatchReport(batch=progress.batchId, counts=counts, seconds=progress.durationMs["addBatch"] / 1_000)
            )
    return found


def parallelism(spark: SparkSession) -> int | None:
    """Return how many tasks run at a time; more partitions would only add overhead."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect does not report it
        return None


def receives_of(progress: StreamingQueryProgress) -> int:
    """Return the number of receives, as the source reports it."""
    return int(_source_report(progress).get("receives", 0))


def missing_of(progress: StreamingQueryProgress) -> frozenset[str]:
    """Return the backlog queues that do not exist, as the source reports it."""
    return frozenset(_source_report(progress).get("missing", ()))


def _source_report(progress: StreamingQueryProgress) -> dict[str, Any]:
    for source in progress.sources:
        report = json.loads(source.latestOffset or "null")  # Spark reports null for a source that has not responded
        if report:
            return dict(report)
    return {}
