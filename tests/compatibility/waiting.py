"""Waiting for what a client, a server or the clock does, always with a deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from tests.thoroughness import THOROUGH
from tests.waiting import eventually_async

T = TypeVar("T")

DEADLINE_S = 60.0

PATIENCE: Final = timedelta(seconds=30)
"""The timeout for expected events. Generous: many tests share a processor."""

BRIEF: Final = timedelta(seconds=8 if THOROUGH else 1)
"""A lock that is seen to end, and is long enough for what is done under it, where many tests share a processor; waits
overlap, so they cost little."""

BRIEF_MS: Final = round(BRIEF.total_seconds() * 1_000)

SELF_RENEWED: Final = 2 * BRIEF + timedelta(seconds=3)
"""A lock that an SDK renews by itself: that of Python looks once a second, and renews in the second half."""

SELF_RENEWED_MS: Final = round(SELF_RENEWED.total_seconds() * 1_000)


async def past(moment: datetime) -> None:
    """Wait until a moment is over."""

    async def is_over() -> bool:
        return now() > moment

    await eventually_async(is_over)


def now() -> datetime:
    return datetime.now(UTC)
