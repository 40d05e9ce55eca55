"""A file that is there as a whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """What is written is at the path when the block has ended well, and stays there when the power goes.

    Until then it lies beside it, under a name with a dot in front, which readers of a directory pass over. Whoever
    writes the same file again after having been killed takes that name again, so that nothing is left behind.
    """
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory with all above it, each of which stays when the power goes."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)  # tasks of other processes make it, too
    _sync(path.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
