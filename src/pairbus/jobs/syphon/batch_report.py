"""What one batch of the syphon has come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pairbus.jobs.syphon.outcome import Kind, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """How many messages went which way, and how long that took."""

    batch: int
    counts: Mapping[Kind, int]
    seconds: float
    destinations: Mapping[str, int] = field(default_factory=dict)
    """Messages brought home, by destination."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """Why destinations did not take theirs."""

    @property
    def delivered(self) -> int:
        return self.counts.get(Kind.DELIVERED, 0) + self.counts.get(Kind.UNREMOVED, 0)

    @classmethod
    def of(cls, batch: int, outcomes: Iterable[Outcome], seconds: float) -> BatchReport:
        counts: Counter[Kind] = Counter()
        destinations: Counter[str] = Counter()
        causes: dict[str, str] = {}
        for outcome in outcomes:
            counts[outcome.kind] += outcome.count
            path = outcome.destination or ""
            if outcome.kind in (Kind.DELIVERED, Kind.UNREMOVED):
                destinations[path] += outcome.count
            elif outcome.cause is not None:
                causes[path] = outcome.cause
        return cls(batch=batch, counts=counts, destinations=destinations, seconds=seconds, causes=causes)

    def __str__(self) -> str:
        told = [f"{count:,} {kind.value}" for kind, count in self.counts.items() if count]
        rate = self.delivered / self.seconds if self.seconds else 0.0
        return f"batch {self.batch}: {', '.join(told) or 'nothing'} in {self.seconds:.1f} s ({rate:,.0f} messages/s)"
