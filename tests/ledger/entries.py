"""Rows for a ledger that are derived from their number, and ledgers as read back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.ledger import (
    COLUMNS,
    LIVES,
    OPERATIONS,
    SUCCEEDED,
    LedgerEvent,
    LifecycleEvent,
    OperationCounts,
    OperationKey,
    OperationKind,
    Stage,
    read_open,
)

NAMESPACE: Final = "contoso"
HOUR_MS: Final = 3_600_000
START_MS: Final = 1_794_798_000_000
"""2026-11-16T03:00Z."""

Row = dict[str, Any]


def event_of(number: int, at_ms: int = START_MS) -> LifecycleEvent:
    """Return an event that is different for every number."""
    return LifecycleEvent(
        at_ms + number % 1_000,
        number,
        [*LedgerEvent][number % (len(LedgerEvent) - 1)],
        [*Stage][number % len(Stage)],
        f"orders/{number % 7}",
        number * 3,
        number * 5,
        f"message {number} é",
        None if number % 3 else f"session {number % 11}",
        None if number % 4 else "bills",
        number % 300_000,
    )


def events_from(first: int, count: int, at_ms: int = START_MS) -> list[LifecycleEvent]:
    return [event_of(number, at_ms) for number in range(first, first + count)]


def key_of(number: int) -> OperationKey:
    return OperationKey(
        [*OperationKind][number % (len(OperationKind) - 1)],
        [*Stage][number % len(Stage)],
        f"orders/{number}",
        SUCCEEDED,
        "root",
    )


def counts_of(number: int) -> OperationCounts:
    tally = OperationCounts()
    for _ in range(1 + number % 3):
        tally.add(number % 5, number, 1 + number % 2, 1)
    return tally


def event_row(life: LifecycleEvent, namespace: str = NAMESPACE) -> Row:
    """Return the event as a row of the ledger."""
    ours = iter(life)
    return {name: namespace if name == "namespace" else _plain(next(ours)) for name in COLUMNS[LIVES]}


def operation_row(
    at_ms: int, sort: OperationKey, tally: OperationCounts, connections: int = 0, namespace: str = NAMESPACE
) -> Row:
    counts = (tally.operations, tally.messages, tally.bytes, tally.units, tally.request_units, connections)
    return dict(zip(COLUMNS[OPERATIONS], (at_ms, namespace, *map(str, sort), *counts), strict=True))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def read_ledger(directory: Path, table: str) -> list[Row]:
    """Return all rows as ``read_open`` documents it: journals first, then files, preferring the file of a name."""
    journals = dict(read_open(directory, table))
    files = parquet_files(directory, table)
    for file in files:
        journals.pop(file.stem, None)
    return rows_of([*(pq.ParquetFile(file).read() for file in files), *journals.values()])


def rows_of(tables: Iterable[Any]) -> list[Row]:
    return [
        row for table in tables for row in table.set_column(0, "at", table.column("at").cast(pa.int64())).to_pylist()
    ]


def parquet_files(directory: Path, table: str) -> list[Path]:
    return sorted((directory / table).rglob("*.parquet"))


def journals_in(directory: Path) -> list[Path]:
    return sorted((directory / "open").glob("*.journal"))


def ordinals(directory: Path) -> list[int]:
    return sorted(row["ordinal"] for row in read_ledger(directory, LIVES))
