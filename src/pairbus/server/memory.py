"""Memory that is free and that the allocator keeps: given back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give free memory back to the system, where the C library can; it takes some milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library, which does it by itself, or cannot
        return
