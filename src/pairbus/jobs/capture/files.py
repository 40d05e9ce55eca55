"""The files of a capture, each of which is written completely or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairbus.durable import make_directory, put_in_place, try_lock
from pairbus.jobs.capture.config import CaptureDamagedError, CaptureError, CaptureInUseError
from pairbus.jobs.capture.window import Catch, OpenWindows, Piece, Window
from pairbus.spark.offset import NOTHING, Portion
from pairbus.spark.schema import MESSAGE_SCHEMA, arrow_schema
from pairbus.spark.sequences import SequenceRanges


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears at its path, durably, once the block has succeeded.

    Until then it has a name with a leading dot next to it, which readers of a directory ignore. A process that writes
    the same file again after it was killed reuses that name, so that nothing is left behind.
    """
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        yield file
    put_in_place(part, path)


_TIME: Final = pa.timestamp("us", tz="UTC")

MESSAGE_COLUMNS: Final[pa.Schema] = arrow_schema(MESSAGE_SCHEMA)
WINDOW_COLUMNS: Final[pa.Schema] = pa.schema([pa.field("window_start", _TIME), pa.field("window_end", _TIME)])
FILE_COLUMNS: Final[pa.Schema] = pa.schema([*MESSAGE_COLUMNS, *WINDOW_COLUMNS])


def with_window(batch: pa.RecordBatch, start_ms: int, end_ms: int) -> pa.RecordBatch:
    """Add the columns of the window to messages."""
    columns = [pa.repeat(pa.scalar(time_ms * 1_000, _TIME), batch.num_rows) for time_ms in (start_ms, end_ms)]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=FILE_COLUMNS)


COMPRESSION: Final = "zstd"

_MAX_PIECE_BYTES: Final = 32 * 1024 * 1024
"""Maximum number of bytes of a piece that a task keeps in memory."""

_SHARE: Final = 4
"""Minimum number of pieces in a window closed by size, so that its file comes close to the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWriter:
    """Function for ``mapInArrow`` that writes messages to pieces, and returns a description of each.

    Names of pieces are unique: a task that runs twice writes two, of which the driver uses one.
    """

    directory: str
    largest_bytes: int = _MAX_PIECE_BYTES
    """Maximum size of a piece in memory. As Parquet it is smaller, apart from a footer."""

    known: Mapping[str, Portion]
    """Messages that are captured already, by entity in lower case."""

    @classmethod
    def of(cls, directory: Path, size_bytes: int | None, known: Mapping[str, Portion]) -> PieceWriter:
        """Return a writer for files of a given size."""
        limit_bytes = _MAX_PIECE_BYTES if size_bytes is None else min(_MAX_PIECE_BYTES, size_bytes // _SHARE)
        return cls(directory=str(directory), largest_bytes=limit_bytes, known=known)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for catch in self.write(batches):
            yield catch.to_batch()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Catch]:
        waiting: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            for entity, messages in _by_entity(batch):
                known, new = _split_known(messages, self.known.get(entity.lower(), NOTHING))
                if known.num_rows:
                    yield Catch(entity=entity, portion=_portion([known]), piece=None)
                for part in _split(new, self.largest_bytes):
                    held = waiting.setdefault(entity, [])
                    if held and _size_bytes(held) + part.nbytes > self.largest_bytes:
                        yield self._write_piece(entity, held)
                        held = waiting[entity] = []
                    held.append(part)
        for entity, held in waiting.items():
            if held:
                yield self._write_piece(entity, held)

    def _write_piece(self, entity: str, batches: list[pa.RecordBatch]) -> Catch:
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


def describe_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Describe messages that Spark writes itself; a function for ``mapInArrow``."""
    for batch in batches:
        for entity, messages in _by_entity(batch):
            yield Catch(entity=entity, portion=_portion([messages]), piece=None).to_batch()


def _by_entity(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split a batch by entity. A task reads one entity, but Spark's plan may have combined several."""
    entities = batch.column("entity").unique().to_pylist()
    for entity in entities:
        yield entity, batch if len(entities) == 1 else batch.filter(pc.equal(batch.column("entity"), entity))


def _split_known(batch: pa.RecordBatch, known: Portion) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Split a batch into known and new messages. Numbers increase, so usually one comparison is enough."""
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


def _split(batch: pa.RecordBatch, largest_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into parts that are small enough, or have one message."""
    if batch.num_rows > 1 and batch.nbytes > largest_bytes:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half), largest_bytes)
        yield from _split(batch.slice(half), largest_bytes)
    elif batch.num_rows:
        yield batch


def _size_bytes(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)


_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_BATCH_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFile:
    """A completed file, or the files of an entity in a batch that was written to a URL."""

    path: Path | str
    entity: str
    messages: int
    size_bytes: int
    window_start_ms: int
    window_end_ms: int

    @classmethod
    def written(cls, window: Window, root: Path, pieces: Path) -> Self:
        """Write the file of a closed window from its pieces. Repeating it writes the same file."""
        if window.closed_ms is None:
            raise ValueError(f"the window of '{window.entity}' is still open; close it first")
        path = root / window.path
        with whole_file(path) as file, pq.ParquetWriter(file, FILE_COLUMNS, compression=COMPRESSION) as writer:
            for group in _row_groups(window, pieces):
                writer.write_table(group, row_group_size=group.num_rows)
        return cls(
            path=path,
            entity=window.entity,
            messages=window.messages,
            size_bytes=path.stat().st_size,
            window_start_ms=window.opened_ms,
            window_end_ms=window.closed_ms,
        )


def _row_groups(window: Window, pieces: Path) -> Iterator[pa.Table]:
    """Yield row groups of a good size for readers, one at a time in memory: a piece may be a single message."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in _batches(window, pieces):
        held.append(with_window(batch, window.opened_ms, window.closed_ms or window.opened_ms))
        size_bytes += batch.nbytes
        if size_bytes >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _batches(window: Window, pieces: Path) -> Iterator[pa.RecordBatch]:
    for piece in window.pieces:
        path = pieces / piece.name
        try:
            with pq.ParquetFile(path) as file:
                if file.metadata.num_rows != piece.messages:
                    raise CaptureDamagedError(
                        f"{path} must have {piece.messages} messages, got {file.metadata.num_rows}; restore it"
                    )
                yield from file.iter_batches(_BATCH_ROWS)
        except (OSError, pa.ArrowInvalid) as error:
            raise CaptureDamagedError(
                f"{path} cannot be read, and has the only copy of {piece.messages} messages of '{window.entity}':"
                f" {error}; restore it"
            ) from error


_HIDDEN_NAME: Final = "_capture"
"""Spark and Arrow ignore names that start with an underscore."""


class CaptureDirectory:
    """The directory of a capture, locked until it is closed or its process ends."""

    def __init__(self, root: Path) -> None:
        """Lock the directory. Raise ``CaptureInUseError``, and ``OSError`` if it is not writable."""
        self.root = root.absolute()
        hidden = self.root / _HIDDEN_NAME
        self.pieces: Final = hidden / "pieces"
        self.checkpoint: Final = hidden / "checkpoint"
        self._state = hidden / "book.json"
        make_directory(self.pieces)
        self._lock = _locked(hidden / "lock", self.root)

    def read(self) -> OpenWindows:
        """Return the stored state. Raise ``CaptureDamagedError``."""
        try:
            return OpenWindows.from_text(self._state.read_text("utf-8"))
        except FileNotFoundError:
            return OpenWindows()
        except (CaptureDamagedError, UnicodeDecodeError) as error:
            raise CaptureDamagedError(
                f"{self._state}, which lists the captured messages, cannot be used: {error};"
                " restore it, or capture into another directory"
            ) from error

    def keep(self, state: OpenWindows) -> None:
        with whole_file(self._state) as file:
            file.write(state.to_text().encode())

    def write(self, window: Window) -> CapturedFile:
        """Write the file of a closed window."""
        return CapturedFile.written(window, self.root, self.pieces)

    def sweep(self, state: OpenWindows) -> None:
        """Delete unneeded pieces: their windows have files, or their tasks were killed or ran twice."""
        needed = state.pieces
        for path in self.pieces.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()


def _locked(path: Path, root: Path) -> BinaryIO:
    """Return a locked file. The lock ends with the process, even if that is killed."""
    if sys.platform == "win32":
        raise CaptureError("a capture requires a system with POSIX file locks, such as Linux or macOS")
    file = path.open("wb")
    if not try_lock(file.fileno()):
        file.close()
        raise CaptureInUseError(
            f"another capture writes into {root}; use another directory, or capture all entities with one command"
        )
    return file
