"""The streaming query of the syphon: read the backlog, restore, bring home."""

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

from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.jobs.syphon.landing import REFERENCES, Landing
from pairbus.jobs.syphon.outcome import OUTCOMES, Kind, Outcome
from pairbus.jobs.syphon.restoration import Restoration
from pairbus.pairing.syphon import Held, TimeToLive
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.data_source import PairbusDataSource

_OBSERVED: Final = "syphon"
_PROCESSING: Final = "Processing new data"
"""The status of a query while it runs a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """What must not be sent at the moment, as whoever runs the query knows it."""

    held: Held
    busy: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonQuery:
    """How the messages of one pair are brought home."""

    primary: str
    secondary: str
    """The connections, as options say them."""

    backlog_queues: tuple[str, ...]
    time_to_live: TimeToLive
    long_poll: timedelta
    max_messages: int
    checkpoint: str

    def backlog(self, spark: SparkSession) -> DataFrame:
        """Which messages there are in the backlog, one partition a queue: so each is brought home in order."""
        spark.dataSource.register(PairbusDataSource)
        return (
            spark.readStream.format(PairbusDataSource.name())
            .schema(REFERENCES)
            .option("connection", self.secondary)
            .option("entities", ",".join(self.backlog_queues))
            .option("settle", "sink")
            .option("longPoll", f"{self.long_poll.total_seconds():g}s")
            .option("maxMessagesPerTrigger", str(self.max_messages))
            .load()
        )

    def landed(self, batch: DataFrame, obstacles: Obstacles) -> DataFrame:
        """What becomes of the messages of a batch; to ask for it brings them home."""
        landing = Landing(
            primary=ConnectionReference.parse(self.primary),
            secondary=ConnectionReference.parse(self.secondary),
            restoration=Restoration(time_to_live=self.time_to_live),
            held=obstacles.held,
            busy=obstacles.busy,
        )
        tasks = _parallelism(batch.sparkSession)
        return (batch if tasks is None else batch.coalesce(tasks)).mapInArrow(landing, OUTCOMES)

    def start(
        self,
        spark: SparkSession,
        obstacles: Callable[[], Obstacles | None],
        on_batch: Callable[[int, list[Outcome], float], None],
        *,
        once: bool = False,
    ) -> StreamingQuery:
        """Begin; ``on_batch`` is told of each batch before the next one is planned.

        ``obstacles`` are asked for before each batch; if there are none to be had, the query is to end, and the batch
        is left as it is.
        """

        def bring_home(batch: DataFrame, number: int) -> None:
            known = obstacles()
            if known is None:
                return
            started_s = time.monotonic()
            rows = self.landed(batch, known).collect()
            outcomes = [Outcome.from_row(row.asDict()) for row in rows]
            on_batch(number, outcomes, time.monotonic() - started_s)

        return self._start(self.backlog(spark).writeStream.foreachBatch(bring_home), once=once)

    def start_remotely(self, spark: SparkSession, *, once: bool = False) -> StreamingQuery:
        """The same with Spark Connect, where nobody is told of a batch: ``reports_of`` its progress tell.

        What must not be sent at the moment is not known there either. So what comes behind a message that is parked may
        overtake it.
        """
        outcomes = self.landed(self.backlog(spark), Obstacles(held=Held(), busy=frozenset()))
        counts = (
            functions.sum(functions.when(outcomes.kind == kind.value, outcomes["count"]).otherwise(0)).alias(kind.name)
            for kind in Kind
        )
        return self._start(outcomes.observe(_OBSERVED, *counts).writeStream.format("noop"), once=once)

    def _start(self, writer: DataStreamWriter, *, once: bool) -> StreamingQuery:
        # A session runs one query of a name, and there may be several syphons in it.
        named = writer.queryName(f"pairbus-syphon-{uuid4().hex[:8]}").option("checkpointLocation", self.checkpoint)
        return (named.trigger(availableNow=True) if once else named).start()


def is_remote(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_processing(query: StreamingQuery) -> bool:
    """Return whether a batch is under way, as the query reports it."""
    return query.isActive and query.status["message"] == _PROCESSING


def _named(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name; Spark Connect gives them apart from their names."""
    if set(observed) != {"values", "schema"}:
        return dict(observed)
    names = (field["name"] for field in observed["schema"]["fields"])
    return dict(zip(names, observed["values"], strict=True))


def reports_of(progresses: Iterable[StreamingQueryProgress], after: int) -> list[BatchReport]:
    """What the batches after one have come to, as the progress of a query says."""
    found: list[BatchReport] = []
    for progress in progresses:
        observed = progress.observedMetrics.get(_OBSERVED)
        if observed is not None and progress.batchId > after and progress.numInputRows:
            named = _named(observed.asDict())
            counts = {kind: int(named.get(kind.name) or 0) for kind in Kind}
            found.append(
                BatchReport(batch=progress.batchId, counts=counts, seconds=progress.durationMs["addBatch"] / 1_000)
            )
    return found


def _parallelism(spark: SparkSession) -> int | None:
    """How many tasks run at a time. More of them only begin and end more often: a queue is one anyway."""
    try:
        return spark.sparkContext.defaultParallelism
    except PySparkException:  # Spark Connect does not tell
        return None


def receives_of(progress: StreamingQueryProgress) -> int:
    """How often backlog queues have been asked for messages, as the source reports it."""
    for source in progress.sources:
        offset = json.loads(source.latestOffset or "null")  # Spark itself says null of a source that has not answered
        if offset:
            return int(offset.get("receives", 0))
    return 0
