"""Waiting for what another task, thread or process does, always with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias, TypeVar, overload

import pytest

T = TypeVar("T")
Found: TypeAlias = T | Literal[False] | None

DEADLINE_S: Final = 120.0
"""Generous: the other side may share the processors with many."""

_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.05


def pause() -> None:
    """Let the other side run for a moment."""
    time.sleep(_PAUSE_S)


def eventually(
    condition: Callable[[], Found[T]], limit_s: float = DEADLINE_S, *, step: Callable[[], object] = pause
) -> T:
    """Take ``step`` after ``step`` until ``condition`` is true, and return what it returned; fail at the deadline."""
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"still not so after {limit_s:.0f} s", pytrace=True)
        step()
    return value


@overload
async def eventually_async(
    condition: Callable[[], Awaitable[Found[T]]], limit_s: float = ..., *, every_s: float | None = ...
) -> T: ...
@overload
async def eventually_async(
    condition: Callable[[], Found[T]], limit_s: float = ..., *, every_s: float | None = ...
) -> T: ...
async def eventually_async(
    condition: Callable[[], object], limit_s: float = DEADLINE_S, *, every_s: float | None = None
) -> object:
    """Wait until ``condition`` is true, and return what it returned; fail when the loop's clock is past the limit.

    With ``every_s`` the pauses are all the same, which matters in virtual time.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    pause_s = _PAUSE_S if every_s is None else every_s
    while not (value := await _value_of(condition())):
        if loop.time() > deadline_s:
            pytest.fail(f"still not so after {limit_s:.0f} s", pytrace=True)
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S) if every_s is None else every_s
    return value


async def _value_of(found: object) -> object:
    return await found if inspect.isawaitable(found) else found
