"""All files of a side buffer, in order. Its methods belong to one thread, and wait for the disk."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pairbus.server.side_buffer.segment import Damage, Segment

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
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def bases(self) -> list[int]:
        return [segment.base for segment in self._segments]

    def scan(self, mark: bytes) -> Iterator[tuple[Placed, bytes] | Damage]:
        """At the start: everything that is there.

        What is damaged at the very end is the rest of a write that nobody was told of, and is cut off.
        """
        last = self._segments[-1] if self._segments else None
        for segment in self._segments:
            for found in segment.scan(mark):
                if not isinstance(found, Damage):
                    yield Placed(segment.base, found[0]), found[1]
                elif segment is last and found.position + len(found.raw) == segment.end:
                    _log.warning("%d bytes at the end of %s were never confirmed", len(found.raw), segment.path)
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

    def remove(self, bases: Collection[int]) -> int:
        """Remove files; how many bytes they had. Raises ``OSError``."""
        gone = [segment for segment in self._segments if segment.base in bases]
        for segment in gone:
            segment.remove()
            self._segments.remove(segment)
        return sum(segment.size for segment in gone)

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
