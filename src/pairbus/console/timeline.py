"""The last hour in numbers, a point every five seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

STEP_MS: Final = 5_000
KEPT_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """How it was at a time, and how much happened a second since the point before."""

    at_ms: int
    waiting: int
    """Messages of all entities that are to be received, backlog queues left out."""

    dead_letters: int
    sent: float
    """Messages that senders have sent here, a second."""

    received: float
    backlog: int
    """Diverted messages that wait here to be brought home."""

    diverted: float
    syphoned: float
    pings: int
    """Since the point before."""


class Timeline:
    """Points in the order of their times, for an hour; then they are dropped."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=KEPT_MS // STEP_MS)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def is_due(self, now_ms: int) -> bool:
        return self.last is None or now_ms - self.last.at_ms >= STEP_MS

    def add(self, point: Point) -> None:
        self._points.append(point)
