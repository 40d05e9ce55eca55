"""Waiting for what happens elsewhere, in a bounded time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_S: Final = 120.0
"""Generous: whoever waits may share the processors with many."""


async def eventually(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = LIMIT_S) -> None:
    """Wait until something is so."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + limit_s
    while not await _holds(condition):
        assert loop.time() < ends_s, f"still not so after {limit_s:.0f} s"
        await asyncio.sleep(0.1)


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = condition()
    return await found if inspect.isawaitable(found) else found
