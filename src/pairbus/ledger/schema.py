"""Arrow schemas, file names and row batches of a ledger."""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from pairbus.ledger.events import (
    COLUMNS,
    HOUR_MS,
    NUMBER,
    TEXT,
    TIME,
    VERSION,
    VERSION_KEY,
    LifecycleEvent,
    OperationRow,
)

TYPES: Final[Mapping[str, Any]] = {
    TIME: pa.timestamp("ms", tz="UTC"),
    TEXT: pa.string(),
    NUMBER: pa.int64(),
}

_NULLABLE: Final = frozenset({"session_id", "destination"})


def _schema_of(columns: Mapping[str, str]) -> Any:
    fields = [pa.field(name, TYPES[kind], nullable=name in _NULLABLE) for name, kind in columns.items()]
    return pa.schema(fields, metadata={VERSION_KEY: str(VERSION)})


SCHEMAS: Final[Mapping[str, Any]] = {table: _schema_of(columns) for table, columns in COLUMNS.items()}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FILE_NAME: Final = re.compile(rf"({'|'.join(COLUMNS)})-(\d{{4}}-\d\d-\d\d)T(\d\d)-\d+-[0-9a-f]+")


def hour_of(at_ms: int) -> str:
    """Return the hour of a time, as ``2026-11-16T04``. Raise ``OverflowError`` if it is outside the calendar."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat()[:13]


class LedgerFileName(NamedTuple):
    """The name of a ledger file, which states its table and hour."""

    name: str
    table: str
    day: str
    hour: str

    @classmethod
    def of_hour(cls, table: str, hour: str, now_ms: int) -> Self:
        """Return a new, unique name."""
        return cls(f"{table}-{hour}-{now_ms}-{secrets.token_hex(4)}", table, *hour.split("T"))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the parsed name, or ``None`` if it is not the name of a ledger file."""
        found = _FILE_NAME.fullmatch(name)
        return None if found is None else cls(name, found[1], found[2], found[3])

    def is_over(self, now_ms: int) -> bool:
        """Return whether the hour of the file has passed."""
        return f"{self.day}T{self.hour}" < hour_of(now_ms)

    def parquet_file(self, directory: Path) -> Path:
        """Return the path of the completed Parquet file."""
        return directory / self.table / f"day={self.day}" / f"hour={self.hour}" / f"{self.name}.parquet"


_SLICE: Final = 1_000
"""Rows converted without a pause: the conversion blocks all other threads of the interpreter."""

_MAX_ATTEMPTS: Final = 1_000
"""Conversions tried to isolate invalid rows; after that, all remaining rows are rejected together."""


class RowBatch(NamedTuple):
    """Rows of one table and one hour: the unit that a flush appends to a journal."""

    table: str
    hour: str
    batches: list[Any]

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def content(self) -> memoryview:
        """Return the rows as an Arrow stream, readable independently of other batches."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMAS[self.table]) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
        return memoryview(sink.getvalue())


class ConvertedRows(NamedTuple):
    """Rows that were converted, and rows that could not be."""

    row_batches: list[RowBatch]
    """One for each hour."""

    refused: list[Any]
    failure: Exception | None
    """The last error that led to a rejected row."""


_TEMPORARY: Final = (OSError, MemoryError, ImportError)
"""Errors that are not caused by a row: out of file descriptors or memory, or a module that cannot be loaded."""


def row_batches(
    table: str, namespace: str, rows: Sequence[OperationRow | LifecycleEvent], pause: Callable[[], object]
) -> ConvertedRows:
    """Convert rows of a table. An invalid row does not affect the others: it is isolated by bisection.

    Raise errors that may be temporary (``OSError``, ``MemoryError``, ``ImportError``): then no row is rejected.
    """
    batches: dict[str, list[Any]] = defaultdict(list)
    refused: list[Any] = []
    failure: Exception | None = None
    pieces, attempts = [rows], 0
    while pieces:
        piece = pieces.pop()
        attempts += 1
        try:
            found = _batches(table, namespace, piece, pause)
        except _TEMPORARY:
            raise
        except Exception as error:  # noqa: BLE001 (any other error would recur with the same row)
            failure = error
            if len(piece) == 1 or attempts > _MAX_ATTEMPTS:
                refused += piece
            else:
                middle = len(piece) // 2
                pieces += [piece[middle:], piece[:middle]]
            pause()
        else:
            for hour, some in found.items():
                batches[hour] += some
    return ConvertedRows([RowBatch(table, hour, found) for hour, found in batches.items()], refused, failure)


def _batches(table: str, namespace: str, rows: Sequence[Any], pause: Callable[[], object]) -> Mapping[str, list[Any]]:
    batches: dict[str, list[Any]] = defaultdict(list)
    for start in range(0, len(rows), _SLICE):
        if start:
            pause()
        for hour_ms, columns in _by_hour(rows[start : start + _SLICE]):
            batches[hour_of(hour_ms)].append(_batch(table, namespace, columns))
    return batches


def _by_hour(rows: Sequence[Any]) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield the rows of each hour as columns; the time is the first column. Usually there is one hour."""
    columns = [*zip(*rows, strict=True)]
    first, last = min(columns[0]) // HOUR_MS, max(columns[0]) // HOUR_MS
    if first == last:
        yield first * HOUR_MS, columns
        return
    hours: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        hours[row[0] // HOUR_MS].append(row)
    for hour, found in sorted(hours.items()):
        yield hour * HOUR_MS, [*zip(*found, strict=True)]


def _batch(table: str, namespace: str, columns: Sequence[tuple[Any, ...]]) -> Any:
    ours = iter(columns)
    arrays = [
        pa.repeat(pa.scalar(namespace), len(columns[0])) if name == "namespace" else _CONVERT[kind](next(ours))
        for name, kind in COLUMNS[table].items()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[table])


def _numbers(values: tuple[int, ...]) -> Any:
    return pa.array(values, TYPES[NUMBER])


def _times(values: tuple[int, ...]) -> Any:
    return _numbers(values).cast(TYPES[TIME])


def _texts(values: tuple[str | None, ...]) -> Any:
    try:
        return pa.array(values, TYPES[TEXT])
    except UnicodeEncodeError:
        return pa.array([None if text is None else well_formed(text) for text in values], TYPES[TEXT])


_CONVERT: Final[Mapping[str, Callable[[tuple[Any, ...]], Any]]] = {TIME: _times, TEXT: _texts, NUMBER: _numbers}


def well_formed(text: str) -> str:
    """Return a text that can be encoded as UTF-8: lone surrogates are replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
