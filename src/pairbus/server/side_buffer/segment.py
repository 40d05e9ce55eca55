"""One file of a side buffer: parcels, each with its length and a checksum, that are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple, Self

from pairbus.durable import sync_content, sync_directory
from pairbus.ledger.chunk import head_of, read_chunks

SUFFIX: Final = ".parcels"
HEAD_BYTES: Final = len(head_of(memoryview(b"")))


class Damage(NamedTuple):
    """Bytes that cannot be read, between others that can be, or that were synced before others were written."""

    position: int
    raw: bytes


class Segment:
    """A file by the position at which it begins: positions count the bytes of a buffer, and never begin anew."""

    def __init__(self, path: Path, base: int, descriptor: int) -> None:
        self.path = path
        self.base = base
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._is_ragged = False
        """Whether there may be something behind what is known to be on disk."""

    @classmethod
    def create(cls, directory: Path, base: int) -> Self:
        path = directory / f"{base:020d}{SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            sync_directory(directory)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, base, descriptor)

    @classmethod
    def all_in(cls, directory: Path) -> list[Self]:
        """Those that are there, in order."""
        paths = sorted(path for path in directory.glob("*" + SUFFIX) if path.stem.isdigit())
        return [cls(path, int(path.stem), os.open(path, os.O_RDWR | os.O_CLOEXEC)) for path in paths]

    @property
    def end(self) -> int:
        return self.base + self.size

    def append(self, contents: Sequence[bytes]) -> list[int]:
        """Put parcels on disk; their positions. Raises ``OSError``: then none of them is there, or will be trusted."""
        self.trim()
        positions: list[int] = []
        parts: list[bytes] = []
        end = self.end
        for content in contents:
            positions.append(end)
            parts += (head_of(memoryview(content)), content)
            end += HEAD_BYTES + len(content)
        self._is_ragged = True
        try:
            self._write(memoryview(b"".join(parts)))
            sync_content(self._descriptor)
        except OSError:
            with suppress(OSError):
                self.trim()
            raise
        self._is_ragged = False
        self.size = end - self.base
        return positions

    def trim(self) -> None:
        """Cut off what an append has left that failed: whoever sent it was told so."""
        if self._is_ragged:
            self.cut(self.size)
            self._is_ragged = False

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        sync_content(self._descriptor)
        self.size = size

    def read(self, position: int, mark: bytes) -> bytes | Damage:
        """The parcel at a position, or what is there instead. Raises ``OSError``."""
        offset = position - self.base
        head = os.pread(self._descriptor, HEAD_BYTES, offset)
        length = min(int.from_bytes(head[:4], "little"), self.size)
        content = next(read_chunks(BytesIO(head + os.pread(self._descriptor, length, offset + HEAD_BYTES))), None)
        if content is not None:
            return content
        rest = os.pread(self._descriptor, self.size - offset, offset)
        return Damage(position, rest[: _next_parcel(rest, mark, 0)])

    def scan(self, mark: bytes) -> Iterator[tuple[int, bytes] | Damage]:
        """Everything in it: parcels with their positions, and what is damaged. Raises ``OSError``."""
        data = os.pread(self._descriptor, self.size, 0)
        file, trusted = BytesIO(data), 0
        while trusted < len(data):
            for content in read_chunks(file):
                yield self.base + trusted, content
                trusted = file.tell()
            if trusted < len(data):
                again = _next_parcel(data, mark, trusted)
                yield Damage(self.base + trusted, data[trusted:again])
                trusted = again
                file.seek(again)

    def close(self) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """What was in it is elsewhere. Should its name come back after a power failure, the store knows of it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _write(self, data: memoryview) -> None:
        offset = self.size
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written


def is_unfinished(raw: bytes, mark: bytes) -> bool:
    """Whether these bytes, at the end of a file, are the beginning of a write that was cut off: nobody was told of it.

    It is not told from a parcel of which the end was lost with the end of the file.
    """
    head, content = raw[:HEAD_BYTES], raw[HEAD_BYTES:]
    if len(head) < HEAD_BYTES:
        return True
    begins_as_one = content.startswith(mark) or mark.startswith(content)
    only_its_length_is_wrong = head_of(memoryview(content))[4:] == head[4:]
    return begins_as_one and int.from_bytes(head[:4], "little") > len(content) and not only_its_length_is_wrong


def _next_parcel(data: bytes, mark: bytes, after: int) -> int:
    """Where the next parcel begins that is whole, behind something that is not; else the end."""
    file = BytesIO(data)
    found = data.find(mark, after + HEAD_BYTES + 1)
    while found >= 0:
        file.seek(found - HEAD_BYTES)
        if next(read_chunks(file), None) is not None:
            return found - HEAD_BYTES
        found = data.find(mark, found + 1)
    return len(data)
