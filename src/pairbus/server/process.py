"""Process-wide services: the event loop, the interpreter, and returning free memory to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

try:
    import uvloop
except ImportError:  # it is faster, but not available everywhere
    _new: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new = uvloop.new_event_loop

new_event_loop: Final = _new


def trim() -> None:
    """Return free memory to the system, if the C library can; it takes some milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library, which does it automatically, or cannot
        return


SWITCH_INTERVAL_S: Final = 0.0002
"""Time after which a waiting thread gets the interpreter.

The thread that commits waits for the interpreter several times in each commit. An event loop with many short callbacks
releases it briefly after each, which restarts the wait: with Python's default of 5 ms, a commit took half a second
beside such a loop.
"""

YOUNG_OBJECTS: Final = 10_000
"""Number of new objects after which the collector looks for cycles; connections and messages are part of none.

With Python's default of 700, a request with many small values takes twice as long.
"""


def tune_interpreter() -> None:
    """Set a shorter switch interval, for commits beside a busy event loop, and collect garbage less often."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _, middle, old = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, middle, old)


def freeze_modules() -> None:
    """Exclude all existing objects from garbage collection: those of modules and of a new namespace stay.

    A full collection goes through all objects and holds the event loop meanwhile: about 20 ms for those of the start.
    """
    gc.freeze()
