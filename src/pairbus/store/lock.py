"""The lock on a data directory, where the system has such locks."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.durable import try_lock as lock_file
from pairbus.store.errors import StoreInUseError, UnsupportedSystemError

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""A link in place of our file would have us write into somebody else's."""


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; tells whether nobody else has."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    return lock_file(descriptor)


def take_lock(path: Path) -> int:
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
