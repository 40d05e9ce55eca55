"""Reconciliation as a command: from directories of ledgers to a report, on a temporary Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col

from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_lives, read_operations
from pairbus.jobs.ledger.tables import FAILURES, failure_line, plain_places, session_config
from pairbus.jobs.reconcile.page import printable
from pairbus.jobs.reconcile.reconciliation import (
    LedgersMixedError,
    ReconcileError,
    ReconcileInputError,
    read_since,
    reconcile,
)
from pairbus.jobs.reconcile.report import ReconcileReport, report
from pairbus.ledger.events import OperationKind
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
    at, place = row["at"].astimezone(UTC), f" entity={row['entity']}" if row["entity"] else ""
    facts = f"{row['result']} namespace={row['namespace']}{place} key={row['who'] or '-'}"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC {printable(facts)}"


SESSION: Final = {
    "spark.sql.shuffle.partitions": "64",  # Spark combines small partitions; large ones fit into memory
    "spark.driver.memory": "4g",  # a maximum: it takes what it needs
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilable:
    """The ledgers of a pair, and the selection of messages."""

    primary: Sequence[str]
    secondary: Sequence[str]
    start: datetime | None
    end: datetime | None
    name: str | None

    def report(self, master: str, listed: int) -> ReconcileReport:
        """Return the report. Raise ``ReconcileInputError`` for an invalid ledger, ``ReconcileError`` if Spark fails."""
        try:
            check_ledgers([*self.secondary, *self.primary])
            self._expect_two()
            config = session_config([*self.secondary, *self.primary], SESSION)
            with ensured_session(master, app_name="pairbus reconcile", config=config) as spark:
                # The secondary is read completely: messages in the backlog at the start were diverted before it. It is
                # read first, so that of a message that leaves the backlog meanwhile, only the arrival is seen.
                secondary = read_lives(spark, self.secondary)
                primary = read_lives(spark, self.primary, read_since(self.start))
                earlier = partial(read_lives, spark, self.primary, end=read_since(self.start))
                found = reconcile(primary, secondary, self.start, self.end, self.name, earlier)
                try:
                    note = fault_note(spark, [*self.primary, *self.secondary], read_since(self.start), self.end)
                    return report(found, listed, [] if note is None else [note])
                finally:
                    found.release()
        except LedgerReadError as error:
            raise ReconcileInputError(str(error)) from error
        except (SparkStartError, JavaNotFoundError) as error:
            raise ReconcileError(str(error)) from error
        except FAILURES as error:
            raise ReconcileError(f"the Spark job failed: {failure_line(error)}") from error

    def _expect_two(self) -> None:
        """Raise ``LedgersMixedError`` before Spark is started, which takes longer than this check."""
        for place in plain_places(self.primary):
            if place in plain_places(self.secondary):
                raise LedgersMixedError(f"{place} is given as --primary and as --secondary; a pair has two namespaces")
