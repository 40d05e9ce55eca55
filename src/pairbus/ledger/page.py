"""Rows on their way into a journal, as Arrow has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pairbus.ledger.columns import COLUMNS, LIVES, NUMBER, OPERATIONS, TEXT, TIME
from pairbus.ledger.life import Life
from pairbus.ledger.schema import SCHEMAS, TYPES
from pairbus.ledger.stem import HOUR_MS, hour_of

_SLICE: Final = 1_000
"""So many rows are converted in one go: the interpreter serves nobody else meanwhile."""

OperationRow = tuple[int, str, str, str, str, str, int, int, int, int, int, int]
"""The columns of an operation but for the namespace."""


_MOST_ATTEMPTS: Final = 1_000
"""So often rows are converted to find those that cannot be; what is left then is refused together."""


class Page(NamedTuple):
    """Rows of one table and one hour: what a flush appends to a journal."""

    table: str
    hour: str
    batches: list[Any]

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def content(self) -> memoryview:
        """As bytes, that can be read with no knowledge of other pages."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMAS[self.table]) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
        return memoryview(sink.getvalue())


class Sifted(NamedTuple):
    """Rows that were converted, and those that cannot be."""

    pages: list[Page]
    """By their hours."""

    refused: list[Any]
    failure: Exception | None
    """Why some were refused."""


def operation_pages(namespace: str, rows: Sequence[OperationRow], pause: Callable[[], object]) -> Sifted:
    return _sifted(OPERATIONS, namespace, rows, pause)


def life_pages(namespace: str, lives: Sequence[Life], pause: Callable[[], object]) -> Sifted:
    return _sifted(LIVES, namespace, lives, pause)


_PASSING: Final = (OSError, MemoryError, ImportError)
"""What is no fault of a row: without descriptors or memory nothing can be converted, nor can modules be loaded."""


def _sifted(table: str, namespace: str, rows: Sequence[Any], pause: Callable[[], object]) -> Sifted:
    """Convert rows. One that is no good costs none of the others: it is found by halving.

    Raises what may pass (``OSError``, ``MemoryError``, ``ImportError``): then nothing is refused.
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
        except _PASSING:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it would be the same the next time)
            failure = error
            if len(piece) == 1 or attempts > _MOST_ATTEMPTS:
                refused += piece
            else:
                middle = len(piece) // 2
                pieces += [piece[middle:], piece[:middle]]
            pause()
        else:
            for hour, some in found.items():
                batches[hour] += some
    return Sifted([Page(table, hour, found) for hour, found in batches.items()], refused, failure)


def _batches(table: str, namespace: str, rows: Sequence[Any], pause: Callable[[], object]) -> Mapping[str, list[Any]]:
    batches: dict[str, list[Any]] = defaultdict(list)
    for start in range(0, len(rows), _SLICE):
        if start:
            pause()
        for hour_ms, columns in _by_hour(rows[start : start + _SLICE]):
            batches[hour_of(hour_ms)].append(_batch(table, namespace, columns))
    return batches


def _by_hour(rows: Sequence[Any]) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Rows as columns, hour by hour; the time is the first. Mostly they are of one hour."""
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
    """A text that has a form in UTF-8: half a pair of surrogates is replaced, as everywhere, by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
