"""Injected faults of a pair, from the operations in its ledgers: they explain an outage that was an exercise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col

from pairbus.jobs.ledger import LedgerReadError, read_operations
from pairbus.jobs.reconcile.page import printable
from pairbus.ledger.events import OperationKind

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
