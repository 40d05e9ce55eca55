"""All files of a side buffer, in order. Its methods belong to one thread, and wait for the disk."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pairbus.server.side_buffer.segment import Damage, Segment, is_unfinished

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""From which size on a file is followed by another one: what was merged is removed file by file."""


_log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """Where a parcel lies."""

    base: int
    """Of its file."""

    position: int


class Shelf:
    """Takes parcels, gives them back, and removes files when nobody needs them any more."""

    def __init__(self, directory: Path, first: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """``first`` is a position that no parcel had yet."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments = Segment.all_in(directory)
        self._end = max([first, *(segment.end for segment in self._segments)])

    @property
    def sizes(self) -> dict[int, int]:
        """Of its files, by where they begin."""
        return {segment.base: segment.size for segment in self._segments}

    def scan(self, mark: bytes) -> Iterator[tuple[Placed, bytes] | Damage]:
        """At the start: everything that is there.

        A write that was cut off at the very end is one that nobody was told of, and is removed. Whatever else is
        damaged there may have been confirmed, and stays where it is.
        """
        last = self._segments[-1] if self._segments else None
        for segment in self._segments:
            for found in segment.scan(mark):
                if not isinstance(found, Damage):
                    yield Placed(segment.base, found[0]), found[1]
                elif (
                    segment is last
                    and found.position + len(found.raw) == segment.end
                    and is_unfinished(found.raw, mark)
                ):
                    _log.warning(
                        "the last write to %s was not finished: %d bytes, of which nobody was told that they are kept",
                        segment.path,
                        len(found.raw),
                    )
                    segment.cut(found.position - segment.base)
                else:
                    yield found

    def append(self, contents: Sequence[bytes]) -> list[Placed]:
        """Put parcels on disk, all or none. Raises ``OSError``."""
        segment = self._open_segment()
        positions = segment.append(contents)
        self._end = segment.end
        return [Placed(segment.base, position) for position in positions]

    def read(self, position: int, mark: bytes) -> bytes | Damage:
        """The parcel at a position, or what is there instead. Raises ``OSError``."""
        return self._segment_of(position).read(position, mark)

    def remove(self, base: int) -> None:
        """Remove a file, unless it is gone. Raises ``OSError``."""
        for segment in [segment for segment in self._segments if segment.base == base]:
            segment.remove()
            self._segments.remove(segment)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()

    def _segment_of(self, position: int) -> Segment:
        return self._segments[bisect_right(self._segments, position, key=lambda segment: segment.base) - 1]

    def _open_segment(self) -> Segment:
        last = self._segments[-1] if self._segments else None
        # One that goes on where the last has ended, or further: positions that were in use never come again.
        if last is None or last.size >= self._segment_bytes or last.end < self._end:
            last = Segment.create(self._directory, self._end)
            self._segments.append(last)
        return last
