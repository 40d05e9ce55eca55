"""Directories as small archives: the same content gives the same headers, and runs of zeros take no room.

Data files are allocated ahead of their use and mostly empty. In the archive they are sparse files, in the form that GNU
tar calls 1.0 and that ``tarfile`` reads but does not write.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

_PAGE: Final = 4096
_NOTHING: Final = bytes(_PAGE)
_BLOCK: Final = 512


def pack(directory: Path, archive: Path) -> None:
    """Write everything below a directory into an archive."""
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path in sorted(directory.rglob("*")):
            _add(tar, path, path.relative_to(directory).as_posix())


def unpack(archive: Path, directory: Path) -> None:
    """Restore what was packed, below a directory that is created if it is not there."""
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.mode = path.stat().st_mode & 0o777
    if path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        return
    size = path.stat().st_size
    extents = [*_extents(path)]
    with path.open("rb") as file:
        if sum(length for _, length in extents) == size:
            info.size = size
            tar.addfile(info, file)
            return
        content = _sparse_map(extents) + b"".join(os.pread(file.fileno(), length, at) for at, length in extents)
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": name,
        "GNU.sparse.realsize": str(size),
    }
    info.size = len(content)
    tar.addfile(info, BytesIO(content))


def _extents(path: Path) -> Iterator[tuple[int, int]]:
    """Yield where a file has something other than zeros: the position and the length of each run of pages."""
    begin: int | None = None
    position = 0
    with path.open("rb") as file:
        while page := file.read(_PAGE):
            is_empty = page == _NOTHING
            if is_empty and begin is not None:
                yield begin, position - begin
                begin = None
            elif not is_empty and begin is None:
                begin = position
            position += len(page)
    if begin is not None:
        yield begin, position - begin


def _sparse_map(extents: list[tuple[int, int]]) -> bytes:
    numbers = [len(extents), *(number for extent in extents for number in extent)]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text.ljust(-(-len(text) // _BLOCK) * _BLOCK, b"\0")
