"""Limits per address: connections and failed logins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from pairbus.server.errors import ServerBusyError
from pairbus.server.log_context import ContextLog, LogValue


class AddressLimit:
    """Counts connections by the peer's address."""

    def __init__(self, maximum: int = 0) -> None:
        """Allow at most ``maximum`` connections per address; 0 means no limit."""
        self.maximum = maximum
        self.refused_count = 0
        self._counts: Counter[str] = Counter()
        self._addresses: dict[asyncio.BaseTransport, str] = {}

    def add(self, transport: asyncio.BaseTransport) -> bool:
        """Count a connection; return ``False``, without counting it, if its address has too many."""
        address = peer_address(transport)
        if self.maximum and self._counts[address] >= self.maximum:
            self.refused_count += 1
            return False
        self._addresses[transport] = address
        self._counts[address] += 1
        return True

    def discard(self, transport: asyncio.BaseTransport) -> None:
        """Stop counting a closed connection. Doing so twice is allowed."""
        address = self._addresses.pop(transport, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the peer, without its port; empty if the transport does not know it."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple | list) and peer else ""


_log = logging.getLogger(__name__)

_MOST_DEBT: Final = 8.0
"""Failures beyond the rate that are answered with a delay; further attempts are refused unchecked."""
_MOST_BUCKETS: Final = 10_000
_MOST_KNOWN: Final = 10_000


class LoginRate(NamedTuple):
    """The number of failures that are answered at once, and the rate after that, per second."""

    burst: float
    per_second: float


BY_KEY: Final = LoginRate(20, 2)
"""For one address with one key name: a client that retries with an old key is not slowed down by much."""
BY_ADDRESS: Final = LoginRate(100, 10)
"""For one address with any names."""


class LoginFailure(NamedTuple):
    """A failed login: the peer, the name of the key that it claimed to have, and the protocol."""

    peer: str
    key: str
    protocol: str


class LoginLimiter:
    """Limits failed logins.

    A client with the right key is not delayed, unless others at its address guess that key; or guess many names, and no
    client there has logged in with its key before.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._buckets: dict[tuple[str, str | None], tuple[float, float]] = {}
        """The rest of the burst, negative for a debt, and its time; least recent first."""
        self._known: dict[tuple[str, str], None] = {}
        """The addresses of successful logins, with their keys; least recent first."""
        self.failed_counts: Counter[str] = Counter()
        """Failed logins by protocol."""
        self.refused_counts: Counter[str] = Counter()
        """Logins by protocol that were refused unchecked."""
        self.on_failed: Callable[[LoginFailure], object] = lambda _failure: None

    def check(self, address: str, key: str, protocol: str) -> None:
        """Raise ``ServerBusyError`` if so many attempts have failed that further ones are refused for now."""
        if self._is_spent(address, key, BY_KEY) or (
            (address, key) not in self._known and self._is_spent(address, None, BY_ADDRESS)
        ):
            self.refused_counts[protocol] += 1
            raise ServerBusyError("too many logins from your address have failed; wait a few seconds")

    def succeeded(self, address: str, key: str) -> None:
        """Record a successful login: attempts with other names at its address do not delay the next one."""
        self._known.pop((address, key), None)
        self._known[address, key] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def failed(self, address: str, key: str, protocol: str, reason: object, peer: str = "") -> float:
        """Record a failed login; return the seconds by which to delay its response. ``peer`` is for the log."""
        self.failed_counts[protocol] += 1
        failure = LoginFailure(peer=peer or address, key=key, protocol=protocol)
        log = ContextLog(_log, peer=failure.peer, key=key, protocol=protocol)
        log.warning("login failed reason=%s", LogValue(reason))
        self.on_failed(failure)
        return max(self._take(address, key, BY_KEY), self._take(address, None, BY_ADDRESS))

    def _take(self, address: str, name: str | None, rate: LoginRate) -> float:
        left = self._left(address, name, rate) - 1
        self._buckets.pop((address, name), None)
        self._buckets[address, name] = left, self._now_s()
        if len(self._buckets) > _MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return max(0.0, -left / rate.per_second)

    def _is_spent(self, address: str, name: str | None, rate: LoginRate) -> bool:
        return self._left(address, name, rate) <= -_MOST_DEBT

    def _left(self, address: str, name: str | None, rate: LoginRate) -> float:
        left, at_s = self._buckets.get((address, name), (rate.burst, 0.0))
        return min(rate.burst, left + (self._now_s() - at_s) * rate.per_second)
