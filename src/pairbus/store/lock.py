"""The lock on a data directory, where the system has such locks."""

from __future__ import annotations

import sys

from pairbus.durable import try_lock as lock_file
from pairbus.store.errors import UnsupportedSystemError


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; tells whether nobody else has."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    return lock_file(descriptor)
