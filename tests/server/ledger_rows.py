"""The content of a ledger, for tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyarrow import parquet

from pairbus.ledger import LIVES, OPERATIONS, read_open


def rows_of(directory: Path, table: str) -> list[dict[str, Any]]:
    """Every row of a table, in the order of time; of journals that are open, too."""
    journals = read_open(directory, table)
    files = [file for file in (directory / table).rglob("*.parquet") if file.stem not in journals]
    tables = [*journals.values(), *(parquet.ParquetFile(file).read() for file in files)]
    rows: list[dict[str, Any]] = [row for each in tables for row in each.to_pylist()]
    return sorted(rows, key=lambda row: (row["at"], row.get("ordinal", 0)))


def operations_in(directory: Path, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the number of messages, or operations without one, of each kind."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows_of(directory, OPERATIONS):
        if row["kind"] != "connection":
            found[tuple(row[column] for column in columns)] += row["messages"] or row["operations"]
    return found


def events_of(directory: Path) -> list[dict[str, Any]]:
    """Return the events of messages, in order, without those of the namespace itself."""
    rows = sorted(rows_of(directory, LIVES), key=lambda row: row["ordinal"])
    return [row for row in rows if row["event"] not in {"started", "stopped", "alive"}]


def lifecycle_events_in(directory: Path) -> list[tuple[str, str, int]]:
    """Return the kind, entity and sequence number of each event."""
    return [(row["event"], row["entity"], row["sequence"]) for row in events_of(directory)]
