"""The event loop that a server runs on: uvloop's where it is installed, asyncio's elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

try:
    import uvloop
except ImportError:  # it is faster, and not everywhere
    _new: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new = uvloop.new_event_loop

new_event_loop: Final = _new
