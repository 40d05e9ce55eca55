"""Files and names that survive a power failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pairbus.ledger.errors import UnsupportedSystemError

if sys.platform != "win32":
    import fcntl

sync_content: Final = getattr(os, "fdatasync", os.fsync)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing. Who may read it is up to the process's umask."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete file its final name."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed, or its process has ended; tells whether nobody else has."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
