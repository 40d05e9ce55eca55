"""A file that a window ends in, and how it is made of pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.jobs.capture.columns import FILE_COLUMNS, with_window
from pairbus.jobs.capture.errors import CaptureDamagedError
from pairbus.jobs.capture.piece_writer import COMPRESSION
from pairbus.jobs.capture.whole_file import whole_file
from pairbus.jobs.capture.window import Window

_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedFile:
    """A file that readers see."""

    path: Path
    entity: str
    messages: int
    size_bytes: int
    window_start_ms: int
    window_end_ms: int

    @classmethod
    def written(cls, window: Window, root: Path, pieces: Path) -> Self:
        """Put the pieces of a closed window together. Written again, it is the same file."""
        if window.closed_ms is None:
            raise ValueError("the window is still open")
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
    """Groups of a good size for readers, one at a time in memory: a piece may be a single message."""
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
                    raise CaptureDamagedError(f"{path} has {file.metadata.num_rows} messages, and not {piece.messages}")
                yield from file.iter_batches(_AT_ONCE)
        except (OSError, pa.ArrowInvalid) as error:
            raise CaptureDamagedError(
                f"{path} cannot be read, and {piece.messages} messages of '{window.entity}' are nowhere else: {error}"
            ) from error
