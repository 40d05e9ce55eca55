"""Reconciliation as a command: from directories of ledgers to a report, on a temporary Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql.functions import col, lit, when
from pyspark.sql.functions import max as greatest_of

from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_lives, read_operations
from pairbus.jobs.ledger.tables import FAILURES, failure_line, has_files_since, plain_places, session_config
from pairbus.jobs.reconcile.open_messages import OpenMessages, OpenMessagesDirectory
from pairbus.jobs.reconcile.page import printable
from pairbus.jobs.reconcile.reconciliation import (
    CLOCK_SLACK,
    LedgersMixedError,
    ReconcileError,
    ReconcileInputError,
    Reconciliation,
    read_since,
    reconcile,
)
from pairbus.jobs.reconcile.report import Coverage, ReconcileReport, ReconcileVerdict, report, utc
from pairbus.ledger.events import LIVES, SUCCEEDED, OperationKind, Stage
from pairbus.spark.file_systems import FileSystemError, check_file_systems
from pairbus.spark.formats import UnavailableFormatError, check_format
from pairbus.spark.java import JavaNotFoundError
from pairbus.spark.session import SparkStartError, ensured_session

LISTED: Final = 20
"""Maximum number of changes in a note."""


def fault_note(
    spark: SparkSession, ledgers: Sequence[str], start: datetime | None, end: datetime | None, listed: int = LISTED
) -> str | None:
    """Return a note with the faults that were injected and ended from ``start`` until before ``end``; this runs a job.

    Return ``None`` if there are none. If the operations cannot be read, the note says so: no verdict depends on them.
    """
    try:
        changes = read_operations(spark, ledgers, start, end).where(col("kind") == OperationKind.FAULT.value)
    except LedgerReadError as error:
        return f"injected faults are unknown, since the operations of a ledger cannot be read: {error}"
    in_order = changes.orderBy("at", col("result").contains(" engaged ").desc(), "namespace", "result")
    rows = in_order.select("at", "namespace", "entity", "result", "who").limit(listed + 1).collect()
    if not rows:
        return None
    return "injected faults: " + "; ".join([*map(_change, rows[:listed]), *["and more"] * (len(rows) > listed)])


def _change(row: Row) -> str:
    at, place = row["at"], f" entity={row['entity']}" if row["entity"] else ""
    facts = f"{row['result']} namespace={row['namespace']}{place} key={row['who'] or '-'}"
    return f"{_second(at)} {printable(facts)}"


SESSION: Final = {
    "spark.sql.shuffle.partitions": "64",  # large ones fit into memory; Spark combines small ones:
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # kept tables are read a few times only
    "spark.driver.memory": "4g",  # a maximum: it takes what it needs
    # Only code that runs for each row is worth Java's optimizing compiler, which otherwise takes a third of the time.
    "spark.driver.extraJavaOptions": (
        "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
        "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
    ),
}


HORIZONS: Final = (timedelta(hours=1), timedelta(days=1))
"""Times after the end of a time range within which most of its messages have ended: the ledgers are read so far first.
Only if messages are still open then, or anything is doubtful, they are read to their ends."""

_RECORDED_WITHIN: Final = timedelta(minutes=1)
"""Maximum time between the records of an operation and of the event that belongs to it."""

_OF_SENDS: Final = (Stage.DIRECT, Stage.BACKLOG, Stage.SYPHON)
"""Stages of sends that accept a message, or drop it as a duplicate; either is an event, and so is any receive."""


def is_settled(found: ReconcileReport) -> bool:
    """Return whether no later event can change a result: all of its messages have ended."""
    counts = found.total.counts
    return found.verdict is ReconcileVerdict.FINE and not counts["waiting"] and not counts["backlog_waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterOperations:
    """Operations after the last event of each ledger."""

    until: Mapping[str, datetime]
    """Time of the last one, by namespace."""

    unrecorded: Sequence[str]
    """Reasons to doubt the result, for ledgers in which some of them have no event."""


def _operations(
    spark: SparkSession, ledgers: Sequence[str], since: datetime | None, until: datetime | None
) -> DataFrame | None:
    """Return the operations; ``None`` if they cannot be read.

    They are read before the events, so that these are not behind.
    """
    try:
        return read_operations(spark, ledgers, since, until)
    except LedgerReadError:
        return None  # which the note about injected faults says


def _later_operations(operations: DataFrame | None, found: Reconciliation) -> LaterOperations:
    """Return the operations after the last events: they show that a namespace was idle, or that events are absent."""
    ends = {
        name: (side, contents.last_at)
        for side, contents in (("primary", found.primary), ("secondary", found.secondary))
        for name in contents.namespaces
        if contents.last_at is not None
    }
    if operations is None or not ends:
        return LaterOperations(until={}, unrecorded=())
    later = (
        (col("namespace") == name) & (col("at") > lit(last_at + _RECORDED_WITHIN))
        for name, (_, last_at) in ends.items()
    )
    rows = (
        operations.where(reduce(or_, later))
        .groupBy("namespace")
        .agg(greatest_of("at").alias("at"), greatest_of(when(_is_recorded(), col("at"))).alias("recorded_at"))
        .collect()
    )
    return LaterOperations(
        until={row["namespace"]: row["at"] for row in rows},
        unrecorded=[
            _unrecorded_note(*ends[row["namespace"]], row["recorded_at"]) for row in rows if row["recorded_at"]
        ],
    )


def _is_recorded() -> Column:
    """Return whether an operation has an event for each of its messages."""
    is_send = (col("kind") == OperationKind.SEND) & col("stage").isin(*_OF_SENDS)
    return (is_send | (col("kind") == OperationKind.RECEIVE)) & (col("result") == SUCCEEDED)


def _unrecorded_note(side: str, last_at: datetime, recorded_at: datetime) -> str:
    return (
        f"the {side}'s ledger has sends or receives until {_second(recorded_at)}, but its last message event is of "
        f"{_second(last_at)}: a file was deleted, or message events are no longer recorded"
    )


def _second(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Places for results other than the report."""

    tables: str | None = None
    """The directory, or the address, for the tables of the result."""

    table_format: str = "parquet"
    state: str | None = None
    """The directory, or the address, for the open messages of each hour, from which the next one continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilable:
    """The ledgers of a pair, and the selection of messages."""

    primary: Sequence[str]
    secondary: Sequence[str]
    start: datetime | None
    end: datetime | None
    name: str | None
    outputs: Outputs = Outputs()

    def report(self, master: str, listed: int) -> ReconcileReport:
        """Return the report. Raise ``ReconcileInputError`` for an invalid ledger, ``ReconcileError`` if Spark fails."""
        try:
            check_ledgers([*self.secondary, *self.primary])
            self._expect_two()
            config = session_config([*self.secondary, *self.primary], SESSION)
            with ensured_session(master, app_name="pairbus reconcile", config=config) as spark:
                self._check_outputs(spark)
                reports = (self._report(spark, listed, until) for until in (*self._horizons(), None))
                return next(found for found in reports if found is not None)
        except (LedgerReadError, FileSystemError, UnavailableFormatError) as error:
            raise ReconcileInputError(str(error)) from error
        except (SparkStartError, JavaNotFoundError) as error:
            raise ReconcileError(str(error)) from error
        except FAILURES as error:
            raise ReconcileError(f"the Spark job failed: {failure_line(error)}") from error

    def _check_outputs(self, spark: SparkSession) -> None:
        """Raise ``FileSystemError`` or ``UnavailableFormatError`` before the work, not after it."""
        check_file_systems(spark, self.outputs.tables, self.outputs.state)
        if self.outputs.tables is not None:
            check_format(spark, self.outputs.table_format)

    def _horizons(self) -> Iterator[datetime]:
        for until in () if self.end is None else (self.end + horizon for horizon in HORIZONS):
            if has_files_since([*self.secondary, *self.primary], LIVES, until):
                yield until

    def _report(self, spark: SparkSession, listed: int, until: datetime | None) -> ReconcileReport | None:
        """Return the report from events before ``until``; ``None`` if later ones may change it."""
        since, ledgers = read_since(self.start), [*self.primary, *self.secondary]
        state = None if self.outputs.state is None else OpenMessagesDirectory(spark=spark, place=self.outputs.state)
        carried = None if state is None or since is None else state.latest(since)
        operations = _operations(spark, ledgers, since, until)
        # The secondary is read completely: messages in the backlog at the start were diverted before it. It is
        # read first, so that of a message that leaves the backlog meanwhile, only the arrival is seen.
        secondary = read_lives(spark, self.secondary, None if carried is None else carried.until, until)
        primary = read_lives(spark, self.primary, since, None if until is None else until + CLOCK_SLACK)
        earlier = partial(self._earlier, spark, carried)
        found = reconcile(primary, secondary, self.start, self.end, self.name, earlier, carried)
        try:
            note = fault_note(spark, ledgers, since, self.end)
            later = _later_operations(operations, found)
            coverage = Coverage(until=until, operations_until=later.until)
            result = report(found, listed, [] if note is None else [note], later.unrecorded, coverage)
            if until is not None and not is_settled(result):
                return None
            if self.outputs.tables is not None:
                found.save(self.outputs.tables, self.outputs.table_format)
            if state is not None:
                self._keep_open(state, found, since)
            return result
        finally:
            found.release()

    def _earlier(self, spark: SparkSession, carried: OpenMessages | None) -> DataFrame:
        """Return the primary's events before the ones that are read: with a state, only those since then."""
        since = read_since(self.start)
        if carried is not None:
            recent = read_lives(spark, self.primary, carried.until, since).unionByName(carried.primary)
            if not recent.isEmpty():
                return recent
        return read_lives(spark, self.primary, end=since)

    def _keep_open(self, state: OpenMessagesDirectory, found: Reconciliation, since: datetime | None) -> None:
        """Keep the messages that were open an hour before the end, with which the next time range begins."""
        end = self.end or utc(found.secondary.last_at)
        if end is None:
            return
        until = end.replace(minute=0, second=0, microsecond=0) - CLOCK_SLACK
        if since is None or until > since:
            state.write(found.open_messages(until))

    def _expect_two(self) -> None:
        """Raise ``LedgersMixedError`` before Spark is started, which takes longer than this check."""
        for place in plain_places(self.primary):
            if place in plain_places(self.secondary):
                raise LedgersMixedError(f"{place} is given as --primary and as --secondary; a pair has two namespaces")
