"""A piece of a journal that is there as a whole, or not at all: its length, a checksum, and its content."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final
from zlib import crc32

_LENGTH: Final = Struct("<I")
_HEAD: Final = Struct("<II")


def head_of(content: memoryview) -> bytes:
    """What stands before the content. The checksum is over the length, too: zeros are no chunk."""
    length = _LENGTH.pack(len(content))
    return length + _LENGTH.pack(crc32(content, crc32(length)))


def read_chunks(file: BinaryIO) -> Iterator[bytes]:
    """The contents of a file, up to the first that is damaged or not complete: what comes behind is not trusted."""
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        content = _read_at_most(file, length)
        if len(content) < length or crc32(content, crc32(head[: _LENGTH.size])) != checksum:
            return
        yield content


def _read_at_most(file: BinaryIO, length: int) -> bytes:
    """A damaged length may be gigabytes: no more is asked for than there is."""
    here = file.tell()
    there = file.seek(0, 2)
    file.seek(here)
    return file.read(min(length, there - here))
