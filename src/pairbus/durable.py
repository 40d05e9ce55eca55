"""Files and names that survive a power failure, and locks on files that end with their process, however that ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

OURS_ALONE: Final = 0o700
"""The mode of a directory that nobody else may look into."""

sync_content: Final = getattr(os, "fdatasync", os.fsync)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Make a directory, and those above it that are missing; what others may do there is less what the umask takes."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)  # another process may make it, too
    sync_directory(path.parent)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete file its final name."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Have the names in a directory kept."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed, or its process has ended; tells whether nobody else has."""
    if sys.platform == "win32":
        raise NotImplementedError(f"there are no such locks on {sys.platform}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
