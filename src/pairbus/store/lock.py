"""The lock on a data directory, where the system has such locks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from pairbus.durable import OURS_ALONE, make_directory
from pairbus.durable import try_lock as lock_file
from pairbus.store.errors import StoreFailedError, StoreInUseError, UnsupportedSystemError

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""A link in place of our file would have us write into somebody else's."""


class DirectoryLock:
    """Has a directory for this process alone, until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    @contextmanager
    def taken(cls, path: Path, name: str) -> Iterator[Self]:
        """Take a directory, made if it is not there, by a file in it. If what is done then fails, let go of it.

        Raises ``StoreInUseError``, and ``StoreFailedError`` for what the disk refuses, here or in the block.
        """
        with disk_failures_told(path):
            make_directory(path, OURS_ALONE)
            lock = cls(_take_lock(path / name))
            try:
                yield lock
            except BaseException:
                lock.close()
                raise

    def close(self) -> None:
        """To close twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def disk_failures_told(path: Path) -> Iterator[None]:
    """What the disk refuses is ``StoreFailedError``."""
    try:
        yield
    except OSError as error:
        raise StoreFailedError(str(path), str(error)) from error


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; tells whether nobody else has."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    return lock_file(descriptor)


def _take_lock(path: Path) -> int:
    """Lock the directory that a file is in, until the descriptor is closed. Raises ``StoreInUseError``, ``OSError``."""
    # The file stays when the lock goes: to remove it would let two processes lock two files of the same name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_FOLLOW, 0o600)
    if not try_lock(descriptor):
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StoreInUseError(path.parent, holder)
    with suppress(OSError):  # it is only for the other's error, and the disk may be full
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor


def _holder(descriptor: int) -> int | None:
    with suppress(ValueError):
        return int(os.pread(descriptor, 32, 0))
    return None
