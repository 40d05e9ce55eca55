"""Ledgers written by tests, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.ledger.events import COLUMNS, LIVES, NUMBER, OPERATIONS, TEXT, TIME, VERSION, VERSION_KEY

Row = Mapping[str, Any]

_TYPES: Final[Mapping[str, Any]] = {TIME: pa.timestamp("ms", tz="UTC"), TEXT: pa.string(), NUMBER: pa.int64()}


def at(text: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def operation(time: str, **values: Any) -> dict[str, Any]:
    """Return a row of operations; by default one send of one small message."""
    row = {
        "at": at(time),
        "namespace": "contoso",
        "kind": "send",
        "stage": "direct",
        "entity": "orders",
        "result": "ok",
        "who": "app",
        "operations": 1,
        "messages": 1,
        "bytes": 1_000,
        "units": 1,
        "request_units": 1,
        "connections": 0,
    }
    return row | values


def life(time: str, **values: Any) -> dict[str, Any]:
    """Return a row of lives."""
    row = {
        "at": at(time),
        "namespace": "contoso",
        "ordinal": 1,
        "event": "accepted",
        "stage": "direct",
        "entity": "orders",
        "sequence": 1,
        "original_sequence": 1,
        "message_id": "one",
        "session_id": None,
        "destination": None,
        "size": 1_000,
    }
    return row | values


def arrow_schema(table: str) -> Any:
    return pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS[table].items()])


def arrow_table(rows: Sequence[Row], table: str = OPERATIONS) -> Any:
    return pa.Table.from_pylist([dict(row) for row in rows], arrow_schema(table))


def write(directory: Path, rows: Iterable[Row], table: str = OPERATIONS) -> list[Path]:
    """Write rows to files of a ledger, by hour."""
    hours: dict[datetime, list[Row]] = {}
    for row in rows:
        hours.setdefault(row["at"].replace(minute=0, second=0, microsecond=0), []).append(row)
    return [write_file(directory, hour, arrow_table(mine, table), table) for hour, mine in hours.items()]


def write_file(
    directory: Path, hour: datetime, rows: Any, table: str = OPERATIONS, version: int | None = VERSION
) -> Path:
    place = directory / table / f"day={hour:%Y-%m-%d}" / f"hour={hour:%H}"
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{table}-{hour:%Y-%m-%dT%H}-{uuid4().hex[:8]}.parquet"
    if version is not None:
        rows = rows.replace_schema_metadata({VERSION_KEY: str(version)})
    pq.write_table(rows, file, compression="zstd")
    return file


def write_events(directory: Path, rows: Iterable[Row]) -> list[Path]:
    return write(directory, rows, LIVES)
