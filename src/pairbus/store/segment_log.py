"""Append-only log of checksummed frames in segment files, used by the side buffer and by the ledger's journals.

A frame is a length, a checksum and the content, and is read whole or not at all. A log is a sequence of segments, which
are deleted as a whole. Everything here waits for the disk and belongs to one thread at a time.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final, NamedTuple, Self
from zlib import crc32

from pairbus.durable import sync_content, sync_directory

_LENGTH: Final = Struct("<I")
_HEADER: Final = Struct("<II")
HEADER_BYTES: Final = _HEADER.size

SUFFIX: Final = ".parcels"
"""Suffix of the segments of a log. It is a part of the stored format."""

SEGMENT_BYTES: Final = 16 * 1024 * 1024
"""Size at which the next append starts a new segment. Smaller segments are deleted sooner."""

_log = logging.getLogger(__name__)


# Frames


def frame_header(content: bytes | memoryview) -> bytes:
    """Return the header of a frame. The checksum covers the length, too, so that zeros are not a valid frame."""
    length = _LENGTH.pack(len(content))
    return length + _LENGTH.pack(crc32(content, crc32(length)))


def read_frames(file: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of a file's frames up to the first one that is damaged or incomplete."""
    while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
        length, checksum = _HEADER.unpack(header)
        content = _read_at_most(file, length)
        if len(content) < length or crc32(content, crc32(header[: _LENGTH.size])) != checksum:
            return
        yield content


def framed_size(contents: Sequence[bytes]) -> int:
    """Return how many bytes these contents take on disk."""
    return sum(map(len, contents)) + HEADER_BYTES * len(contents)


def _read_at_most(file: BinaryIO, length: int) -> bytes:
    """Read no more than the file holds: a damaged length may be gigabytes."""
    here = file.tell()
    end = file.seek(0, 2)
    file.seek(here)
    return file.read(min(length, end - here))


class Damage(NamedTuple):
    """Unreadable bytes that are not a torn write: they may have held frames that were confirmed."""

    position: int
    raw: bytes


# Segments


class Segment:
    """An open segment file. Its frames have positions in the log: ``base`` plus the offset in the file."""

    def __init__(self, path: Path, descriptor: int, base: int = 0) -> None:
        self.path = path
        self.base = base
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._has_partial_append = False
        """True while there may be data after the last frame that is known to be durable."""

    @classmethod
    def create(cls, directory: Path, base: int) -> Self:
        """Create the segment of a log that starts at a position. Raise ``OSError``."""
        path = directory / f"{base:020d}{SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            sync_directory(directory)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, base)

    @classmethod
    def open_all(cls, directory: Path) -> list[Self]:
        """Open the segments of a log, in order. Raise ``OSError``."""
        paths = sorted(path for path in directory.glob("*" + SUFFIX) if path.stem.isdigit())
        return [cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), int(path.stem)) for path in paths]

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def is_at_its_path(self) -> bool:
        """Return whether the file is still at its path; its directory may have been deleted or moved."""
        try:
            return self.path.stat().st_ino == os.fstat(self._descriptor).st_ino
        except FileNotFoundError:
            return False

    def append(self, contents: Sequence[bytes | memoryview]) -> list[int]:
        """Append frames durably, and return their positions.

        On failure raise ``OSError``: what was written of them is cut off now, or before the next append.
        """
        self.trim()
        positions: list[int] = []
        parts: list[bytes | memoryview] = []
        end = self.end
        for content in contents:
            positions.append(end)
            parts += (frame_header(content), content)
            end += HEADER_BYTES + len(content)
        self._has_partial_append = True
        try:
            self._write(memoryview(b"".join(parts)))
            sync_content(self._descriptor)
        except OSError:
            with suppress(OSError):
                self.trim()
            raise
        self._has_partial_append = False
        self.size = end - self.base
        return positions

    def trim(self) -> None:
        """Cut off what a failed append has left: its caller knows of the failure, and may append the content again."""
        if self._has_partial_append:
            self.truncate(self.size)
            self._has_partial_append = False

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        sync_content(self._descriptor)
        self.size = size

    def open(self) -> BinaryIO:
        """Return a file for reading the segment from its start; the caller closes it."""
        file = os.fdopen(os.dup(self._descriptor), "rb")
        file.seek(0)
        return file

    def read(self, position: int, mark: bytes) -> bytes | Damage:
        """Return the content at a position, or the damage found there. Raise ``OSError``."""
        offset = position - self.base
        header = os.pread(self._descriptor, HEADER_BYTES, offset)
        length = min(int.from_bytes(header[: _LENGTH.size], "little"), self.size)
        frame = header + os.pread(self._descriptor, length, offset + HEADER_BYTES)
        content = next(read_frames(BytesIO(frame)), None)
        if content is not None:
            return content
        rest = os.pread(self._descriptor, self.size - offset, offset)
        return Damage(position, rest[: _next_frame(rest, mark, 0)])

    def scan(self, mark: bytes) -> Iterator[tuple[int, bytes] | Damage]:
        """Yield all contents with their positions, and all damage, from the front. Raise ``OSError``.

        Every content starts with ``mark``, by which the first frame after damage is found.
        """
        data = os.pread(self._descriptor, self.size, 0)
        file, valid = BytesIO(data), 0
        while valid < len(data):
            for content in read_frames(file):
                yield self.base + valid, content
                valid = file.tell()
            if valid < len(data):
                resumed = _next_frame(data, mark, valid)
                yield Damage(self.base + valid, data[valid:resumed])
                valid = resumed
                file.seek(resumed)

    def close(self) -> None:
        os.close(self._descriptor)

    def delete(self) -> None:
        """Delete the file, whose content is stored elsewhere.

        The directory is not synced: a power failure may bring the file back, so its owner must recognize its content.
        """
        self.path.unlink(missing_ok=True)
        self.close()

    def _write(self, data: memoryview) -> None:
        offset = self.size
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written


def _next_frame(data: bytes, mark: bytes, damaged: int) -> int:
    """Return where the first valid frame after a damaged one starts; the end of the data if there is none."""
    file = BytesIO(data)
    found = data.find(mark, damaged + HEADER_BYTES + 1)
    while found >= 0:
        file.seek(found - HEADER_BYTES)
        if next(read_frames(file), None) is not None:
            return found - HEADER_BYTES
        found = data.find(mark, found + 1)
    return len(data)


def _is_torn_write(raw: bytes, mark: bytes) -> bool:
    """Return whether the bytes at the end of a log are the start of a write that was cut off, and never confirmed.

    This cannot be distinguished from a frame whose end was lost together with the end of the file.
    """
    header, content = raw[:HEADER_BYTES], raw[HEADER_BYTES:]
    if len(header) < HEADER_BYTES:
        return True
    starts_like_a_frame = content.startswith(mark) or mark.startswith(content)
    only_length_is_wrong = frame_header(content)[_LENGTH.size :] == header[_LENGTH.size :]
    length = int.from_bytes(header[: _LENGTH.size], "little")
    return starts_like_a_frame and length > len(content) and not only_length_is_wrong


# The log


class LogPosition(NamedTuple):
    """The location of a frame."""

    base: int
    """The base of its segment."""

    position: int


class SegmentLog:
    """The segments of a directory, in order. Positions only grow: none is used twice, even after a truncation."""

    def __init__(self, directory: Path, mark: bytes, first: int = 0, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open a log. Raise ``OSError``.

        Every content starts with ``mark``, and ``first`` is a position that was never used.
        """
        self._directory = directory
        self._mark = mark
        self._segment_bytes = segment_bytes
        self._segments = Segment.open_all(directory)
        self._end = max([first, *(segment.end for segment in self._segments)])

    @property
    def sizes(self) -> dict[int, int]:
        """Return the sizes of the segments by their bases."""
        return {segment.base: segment.size for segment in self._segments}

    def scan(self) -> Iterator[tuple[LogPosition, bytes] | Damage]:
        """Yield all contents and all damage from the front, when the log is opened. Raise ``OSError``.

        A torn write at the end of the log is truncated, since it was never confirmed. Any other damage may have been
        confirmed, and stays where it is.
        """
        last = self._segments[-1] if self._segments else None
        for segment in self._segments:
            for found in segment.scan(self._mark):
                if not isinstance(found, Damage):
                    yield LogPosition(segment.base, found[0]), found[1]
                    continue
                is_at_end = segment is last and found.position + len(found.raw) == segment.end
                if is_at_end and _is_torn_write(found.raw, self._mark):
                    _log.warning("torn write truncated path=%s bytes=%d", segment.path, len(found.raw))
                    segment.truncate(found.position - segment.base)
                else:
                    yield found

    def append(self, contents: Sequence[bytes]) -> list[LogPosition]:
        """Append frames durably, all or none. Raise ``OSError``."""
        segment = self._writable_segment()
        positions = segment.append(contents)
        self._end = segment.end
        return [LogPosition(segment.base, position) for position in positions]

    def read(self, position: int) -> bytes | Damage:
        """Return the content at a position, or the damage found there. Raise ``OSError``."""
        index = bisect_right(self._segments, position, key=lambda segment: segment.base) - 1
        return self._segments[index].read(position, self._mark)

    def delete(self, base: int) -> None:
        """Delete a segment, if it exists. Raise ``OSError``."""
        for segment in [segment for segment in self._segments if segment.base == base]:
            segment.delete()
            self._segments.remove(segment)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()

    def _writable_segment(self) -> Segment:
        last = self._segments[-1] if self._segments else None
        # After a truncation the next segment starts at the old end: positions are not used twice.
        if last is None or last.size >= self._segment_bytes or last.end < self._end:
            last = Segment.create(self._directory, self._end)
            self._segments.append(last)
        return last
