"""Failed log-ins: slowed down by address and key, whatever the protocol, and logged (E5)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from pairbus.server.errors import ServerBusyError

_log = logging.getLogger(__name__)

_MOST_DEBT: Final = 8.0
"""How many failures beyond the rate are answered late; further attempts are not looked at."""
_MOST_BUCKETS: Final = 10_000


class Rate(NamedTuple):
    """How many failures are answered at once, and how many a second after that."""

    burst: float
    per_second: float


BY_KEY: Final = Rate(20, 2)
"""Of one address with one key name: a client that retries with an old key is not slowed down by much."""
BY_ADDRESS: Final = Rate(100, 10)
"""Of one address with whatever names."""


class Guesses:
    """Counts failed log-ins. Whoever shows the right key is not delayed, unless others at its address guess for it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._buckets: dict[tuple[str, str | None], tuple[float, float]] = {}
        """What is left of the burst, below zero for a debt, and when that was so; the least recent first."""
        self.failed_counts: Counter[str] = Counter()
        """Failed log-ins by protocol."""
        self.refused_counts: Counter[str] = Counter()
        """Log-ins by protocol that were not looked at."""

    def check(self, address: str, key: str, protocol: str) -> None:
        """Raise ``ServerBusyError`` if so many attempts have failed that no more are looked at for now."""
        for name, rate in ((key, BY_KEY), (None, BY_ADDRESS)):
            if self._left(address, name, rate) <= -_MOST_DEBT:
                self.refused_counts[protocol] += 1
                raise ServerBusyError("too many log-ins from your address have failed; wait a few seconds")

    def failed(self, address: str, key: str, protocol: str, reason: object) -> float:
        """Note a failed log-in; return for how many seconds its answer is to be held back."""
        self.failed_counts[protocol] += 1
        _log.warning("login failed peer=%s key=%.100r protocol=%s reason=%.300s", address, key, protocol, reason)
        return max(self._take(address, key, BY_KEY), self._take(address, None, BY_ADDRESS))

    def _take(self, address: str, name: str | None, rate: Rate) -> float:
        left = self._left(address, name, rate) - 1
        self._buckets.pop((address, name), None)
        self._buckets[address, name] = left, self._now_s()
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return max(0.0, -left / rate.per_second)

    def _left(self, address: str, name: str | None, rate: Rate) -> float:
        left, at_s = self._buckets.get((address, name), (rate.burst, 0.0))
        return min(rate.burst, left + (self._now_s() - at_s) * rate.per_second)
