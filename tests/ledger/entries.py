"""Rows for a ledger that can be told from their number, and ledgers as they are read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.ledger import COLUMNS, LIVES, OPERATIONS, SUCCEEDED, Event, Kind, Life, Sort, Stage, Tally, read_open

NAMESPACE: Final = "contoso"
HOUR_MS: Final = 3_600_000
START_MS: Final = 1_794_798_000_000
"""2026-11-16T03:00Z."""

Row = dict[str, Any]


def life_of(number: int, at_ms: int = START_MS) -> Life:
    """An event that is different for every number."""
    return Life(
        at_ms + number % 1_000,
        number,
        [*Event][number % (len(Event) - 1)],
        [*Stage][number % len(Stage)],
        f"orders/{number % 7}",
        number * 3,
        number * 5,
        f"message {number} é",
        None if number % 3 else f"session {number % 11}",
        None if number % 4 else "bills",
        number % 300_000,
    )


def lives_from(first: int, count: int, at_ms: int = START_MS) -> list[Life]:
    return [life_of(number, at_ms) for number in range(first, first + count)]


def sort_of(number: int) -> Sort:
    return Sort([*Kind][number % (len(Kind) - 1)], [*Stage][number % len(Stage)], f"orders/{number}", SUCCEEDED, "root")


def tally_of(number: int) -> Tally:
    tally = Tally()
    for _ in range(1 + number % 3):
        tally.add(number % 5, number, 1 + number % 2, 1)
    return tally


def life_row(life: Life, namespace: str = NAMESPACE) -> Row:
    """As it stands in the ledger."""
    ours = iter(life)
    return {name: namespace if name == "namespace" else _plain(next(ours)) for name in COLUMNS[LIVES]}


def operation_row(at_ms: int, sort: Sort, tally: Tally, connections: int = 0, namespace: str = NAMESPACE) -> Row:
    counts = (tally.operations, tally.messages, tally.bytes, tally.units, tally.request_units, connections)
    return dict(zip(COLUMNS[OPERATIONS], (at_ms, namespace, *map(str, sort), *counts), strict=True))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def read_ledger(directory: Path, table: str) -> list[Row]:
    """All rows, in the way that ``read_open`` asks for: journals first, then files, and of one name the file."""
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


def eventually(condition: Callable[[], object], deadline_s: float = 120.0) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            pytest.fail(f"still not so after {deadline_s:.0f} s", pytrace=True)
        time.sleep(0.005)
