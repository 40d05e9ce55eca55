"""Latencies at a fixed rate, and their percentiles."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

FEWEST_FOR_P999: Final = 1_000
"""With fewer samples, 999 of 1,000 is the slowest of all."""


async def open_loop(
    per_s: float, count: int, send: Callable[[int], Awaitable[None]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Send at a fixed rate; return the seconds from when each message was due until it was confirmed.

    A message is sent when it is due, whether or not the earlier ones are confirmed. If the client or the broker is
    late, the wait counts: a broker that pauses delays all messages that were due during the pause, not only one.
    """
    latencies_s = [0.0] * count

    async def send_due(number: int, due_s: float) -> None:
        await send(number)
        latencies_s[number] = clock() - due_s

    start_s = clock()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            due_s = start_s + number / per_s
            await asyncio.sleep(max(0.0, due_s - clock()))
            group.create_task(send_due(number, due_s))
    return latencies_s


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the ordered values that is at least as large as that share of them."""
    return ordered[max(0, math.ceil(round(share * len(ordered), 6)) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """The latency within which half of the messages were confirmed, 99 of 100, and 999 of 1,000, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float | None
    """``None`` with too few samples."""

    @classmethod
    def of(cls, latencies_s: Iterable[float]) -> Self:
        ordered_ms = sorted(seconds * 1e3 for seconds in latencies_s)
        return cls(
            count=len(ordered_ms),
            p50_ms=percentile(ordered_ms, 0.5),
            p99_ms=percentile(ordered_ms, 0.99),
            p999_ms=percentile(ordered_ms, 0.999) if len(ordered_ms) >= FEWEST_FOR_P999 else None,
        )
