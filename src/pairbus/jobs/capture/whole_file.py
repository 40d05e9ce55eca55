"""A file that is there as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pairbus.durable import make_directory, put_in_place


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
    put_in_place(part, path)
