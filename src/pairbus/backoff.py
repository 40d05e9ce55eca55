"""Exponential back-off between retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 60
"""More would overflow, and every delay has reached its maximum by then."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays before retries: the first one, doubled after each failure up to the longest."""

    first_s: float
    longest_s: float

    def after(self, delay_s: float) -> float:
        """Return the delay that follows ``delay_s``; the first one after 0."""
        return min(max(2 * delay_s, self.first_s), self.longest_s)

    def delay_s(self, failures: int) -> float:
        """Return the delay after this many consecutive failures, which must be >= 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
