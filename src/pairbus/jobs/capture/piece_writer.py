"""Writes the messages of a task into pieces. It runs on an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairbus.jobs.capture.catch import Catch
from pairbus.jobs.capture.columns import MESSAGE_COLUMNS
from pairbus.jobs.capture.piece import Piece
from pairbus.jobs.capture.whole_file import whole_file
from pairbus.spark.offset import NOTHING, Portion
from pairbus.spark.sequence_ranges import SequenceRanges

COMPRESSION: Final = "zstd"

_LARGEST_BYTES: Final = 32 * 1024 * 1024
"""What a task has in memory of a piece before it is written."""

_SHARE: Final = 4
"""A window that is closed by size has so many pieces at least, so that its file comes near to the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWriter:
    """For ``mapInArrow``: messages in, and what became of them out.

    The name of a piece is one of its own, so a task that is run twice writes two, and the driver hears of one.
    """

    directory: str
    largest_bytes: int = _LARGEST_BYTES
    """How large a piece becomes, as Arrow has it in memory. As Parquet it is smaller, but for a footer."""

    known: Mapping[str, Portion]
    """What has been captured already, by entity in lower case."""

    @classmethod
    def of(cls, directory: Path, size_bytes: int | None, known: Mapping[str, Portion]) -> PieceWriter:
        """For files of some size."""
        largest = _LARGEST_BYTES if size_bytes is None else min(_LARGEST_BYTES, size_bytes // _SHARE)
        return cls(directory=str(directory), largest_bytes=largest, known=known)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for catch in self.write(batches):
            yield catch.to_batch()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Catch]:
        waiting: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            for entity, messages in _by_entity(batch):
                old, new = _sifted(messages, self.known.get(entity.lower(), NOTHING))
                if old.num_rows:
                    yield Catch(entity=entity, portion=_portion([old]), piece=None)
                for part in _cut(new, self.largest_bytes):
                    held = waiting.setdefault(entity, [])
                    if held and _size_bytes(held) + part.nbytes > self.largest_bytes:
                        yield self._written(entity, held)
                        held = waiting[entity] = []
                    held.append(part)
        for entity, held in waiting.items():
            if held:
                yield self._written(entity, held)

    def _written(self, entity: str, batches: list[pa.RecordBatch]) -> Catch:
        portion = _portion(batches)
        path = Path(self.directory) / f"{uuid4().hex}.parquet"
        table = pa.Table.from_batches(batches)
        with whole_file(path) as file:
            pq.write_table(table.cast(MESSAGE_COLUMNS), file, compression=COMPRESSION)
        piece = Piece(
            name=path.name,
            messages=table.num_rows,
            size_bytes=path.stat().st_size,
            first=portion.numbers.ranges[0].first,
        )
        return Catch(entity=entity, portion=portion, piece=piece)


def _by_entity(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """A task reads one entity; but whoever plans it may have joined some."""
    entities = batch.column("entity").unique().to_pylist()
    for entity in entities:
        yield entity, batch if len(entities) == 1 else batch.filter(pc.equal(batch.column("entity"), entity))


def _sifted(batch: pa.RecordBatch, known: Portion) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """What is known already, and the others. Numbers only grow, so mostly one look is enough."""
    lowest = pc.min(batch.column("sequence_number")).as_py()
    if not known or lowest is None or lowest > known.numbers.ranges[-1].last:
        return batch.slice(0, 0), batch
    pairs = zip(batch.column("sequence_number").to_pylist(), _times_ms(batch), strict=True)
    is_old = pa.array([known.holds(number, time_ms) for number, time_ms in pairs], pa.bool_())
    return batch.filter(is_old), batch.filter(pc.invert(is_old))


def _portion(batches: list[pa.RecordBatch]) -> Portion:
    numbers = [number for batch in batches for number in batch.column("sequence_number").to_pylist()]
    return Portion(
        numbers=SequenceRanges.of(numbers),
        until_ms=max(time_ms for batch in batches for time_ms in _times_ms(batch)),
    )


def _times_ms(batch: pa.RecordBatch) -> list[int]:
    times_us = batch.column("enqueued_time").cast(pa.int64()).to_pylist()
    return [0 if time_us is None else time_us // 1_000 for time_us in times_us]


def _cut(batch: pa.RecordBatch, largest_bytes: int) -> Iterator[pa.RecordBatch]:
    """Parts that are small enough, or have one message."""
    if batch.num_rows > 1 and batch.nbytes > largest_bytes:
        half = batch.num_rows // 2
        yield from _cut(batch.slice(0, half), largest_bytes)
        yield from _cut(batch.slice(half), largest_bytes)
    elif batch.num_rows:
        yield batch


def _size_bytes(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)
