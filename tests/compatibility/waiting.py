"""Waiting for what a client, a server or the clock does, always with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import pytest

T = TypeVar("T")

DEADLINE_S = 20.0


async def eventually(condition: Callable[[], Awaitable[T]]) -> T:
    """Ask again and again until the answer is true, and return it; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = await condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"still not so after {DEADLINE_S:.0f} s", pytrace=True)
        await asyncio.sleep(0.01)


async def past(moment: datetime) -> None:
    """Wait until a moment is over."""

    async def is_over() -> bool:
        return now() > moment

    await eventually(is_over)


def now() -> datetime:
    return datetime.now(UTC)
