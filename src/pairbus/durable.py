"""Files and names that survive a power failure, and locks on files that end with their process, however that ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

OURS_ALONE: Final = 0o700
"""The mode of a directory that only its owner may read."""

OWNER_ONLY: Final = 0o600
"""The mode of a file that only its owner may read."""

sync_content: Final = getattr(os, "fdatasync", os.fsync)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory and its missing parents durably, with ``mode`` less the umask."""
    if path.is_dir():
        return
    make_directory(path.parent, mode)
    path.mkdir(mode=mode, exist_ok=True)  # another process may create it at the same time
    sync_directory(path.parent)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete file its final name."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically: readers see the old content or the new one, with the permissions ``mode``."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or its process ends; return ``False`` if another process holds the lock."""
    if sys.platform == "win32":
        raise NotImplementedError(f"file locks are not supported on {sys.platform}; use Linux or macOS")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
