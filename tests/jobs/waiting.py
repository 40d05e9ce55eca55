"""Bounded waiting for events in other processes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_S: Final = 120.0
"""Generous: the processors may be shared with many."""


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = condition()
    return await found if inspect.isawaitable(found) else found
