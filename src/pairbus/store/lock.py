"""A lock on a file that ends with the process, however that ends."""

from __future__ import annotations

import sys

from pairbus.store.errors import UnsupportedSystemError

if sys.platform != "win32":
    import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; tells whether nobody else has."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
