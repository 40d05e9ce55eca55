""".NET's points in time: steps of 100 nanoseconds since the first of January of the year 1."""

from __future__ import annotations

from typing import Final

UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
TICKS_PER_MS: Final = 10_000


def to_ticks(time_ms: int) -> int:
    return UNIX_EPOCH_TICKS + time_ms * TICKS_PER_MS


def from_ticks(ticks: int) -> int:
    return (ticks - UNIX_EPOCH_TICKS) // TICKS_PER_MS
