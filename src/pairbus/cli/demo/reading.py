"""How the pair of the demo is doing at a moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from pairbus.pairing import EntityState

_SPAN_S: Final = 2.0
"""How far back a rate looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReading:
    """An entity of the primary namespace."""

    path: str
    state: EntityState
    diverted: int
    pings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that the table shows."""

    elapsed_s: float
    entities: tuple[EntityReading, ...]
    sent: int
    sent_rate: float
    received: int
    received_rate: float
    backlog: int
    syphoned: int
    syphon_rate: float

    @property
    def diverted(self) -> int:
        return sum(one.diverted for one in self.entities)

    @property
    def pings(self) -> int:
        return sum(one.pings for one in self.entities)

    def __str__(self) -> str:
        states = ", ".join(f"{one.path} {one.state.value}" for one in self.entities)
        return (
            f"{states}; sent {self.sent:,} ({self.sent_rate:,.0f}/s), diverted {self.diverted:,}, "
            f"in the backlog {self.backlog:,}, brought home {self.syphoned:,} ({self.syphon_rate:,.0f}/s), "
            f"received {self.received:,} ({self.received_rate:,.0f}/s), pings {self.pings:,}"
        )


class Rate:
    """How fast something that is counted grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, now_s: float, count: int) -> float:
        """Over the last two seconds, as far as it was asked for."""
        self._seen.append((now_s, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _SPAN_S:
            self._seen.popleft()
        first_s, first = self._seen[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0
