"""Limits per address: connections and failed logins."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network
from typing import Final, NamedTuple

from pairbus.callbacks import Callbacks
from pairbus.server.errors import ServerBusyError
from pairbus.server.log_context import ContextLog, LogValue

_IPV6_HOST_PREFIX: Final = 64


def network_of(address: str) -> str:
    """Return what an address counts as in limits: itself, or the network of an IPv6 address.

    A host usually has a whole /64 network, and could use another address for each attempt.
    """
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed), _IPV6_HOST_PREFIX), strict=False))


class AddressLimit:
    """Counts connections by the peer's address, from when they are accepted until they are closed."""

    def __init__(self, maximum: int = 0) -> None:
        """Allow at most ``maximum`` connections per address; 0 means no limit."""
        self.maximum = maximum
        self.refused_count = 0
        self._counts: Counter[str] = Counter()
        self._networks: dict[object, str] = {}
        """The networks of the connections, which are sockets at first, and then transports."""

    def add(self, accepted: object, address: str) -> bool:
        """Count a connection; return ``False``, without counting it, if its address has too many."""
        network = network_of(address)
        if self.maximum and self._counts[network] >= self.maximum:
            self.refused_count += 1
            return False
        self._networks[accepted] = network
        self._counts[network] += 1
        return True

    def move(self, accepted: object, transport: object) -> None:
        """Count a connection as its transport from now on, unless it was discarded meanwhile."""
        network = self._networks.pop(accepted, None)
        if network is not None:
            self._networks[transport] = network

    def discard(self, connection: object) -> None:
        """Stop counting a closed connection. Doing so twice is allowed."""
        network = self._networks.pop(connection, None)
        if network is not None:
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network]


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the peer, without its port; empty if the transport does not know it."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple | list) and peer else ""


_log = logging.getLogger(__name__)

_MOST_DEBT: Final = 8.0
"""Failures beyond the rate that are answered with a delay; further attempts are refused unchecked."""
_MOST_BUCKETS: Final = 10_000
_MOST_KNOWN: Final = 10_000
_SWEEP_S: Final = 1.0
"""The minimum interval between two searches for full buckets, each of which takes milliseconds."""


class LoginRate(NamedTuple):
    """The number of failures that are answered at once, and the rate after that, per second."""

    burst: float
    per_second: float


BY_KEY: Final = LoginRate(20, 2)
"""For one address with one key name: a client that retries with an old key is not slowed down by much."""
BY_ADDRESS: Final = LoginRate(100, 10)
"""For one address with any names."""


class _Bucket(NamedTuple):
    """The rest of a burst, negative for a debt, at a time."""

    left: float
    at_s: float
    rate: LoginRate

    def left_at(self, now_s: float) -> float:
        return min(self.rate.burst, self.left + (now_s - self.at_s) * self.rate.per_second)


class _Counted(NamedTuple):
    """The key under which failures are counted."""

    address: str
    key: str | None = None
    """``None`` for all keys."""
    is_apart: bool = False
    """True for failures while the limit of the address is used up."""

    @property
    def alone(self) -> _Counted:
        """Return what failures with any key are counted for."""
        return _Counted(self.address)

    @property
    def apart(self) -> _Counted:
        return self._replace(is_apart=True)


def _counted(address: str, key: str) -> _Counted:
    """Return what a login counts for. Keys are found whatever the case of their name, so all spellings are one."""
    return _Counted(network_of(address), key.lower())


class LoginFailure(NamedTuple):
    """A failed login: the peer, the name of the key that it claimed to have, the protocol, and the container."""

    peer: str
    key: str
    protocol: str
    container: str = ""
    """Empty if it is not known: over HTTP, and before an AMQP connection is opened."""


class LoginRefusal(NamedTuple):
    """The answer to a failed login."""

    error: Exception
    delay_s: float
    """The seconds by which to delay it."""


class LoginLimiter:
    """Limits failed logins.

    A client with the right key is not delayed, unless others at its address guess that key; or guess many names, and no
    client there has logged in with its key before.

    While the limit of an address is used up, the keys that have logged in from there are still checked. Whatever else
    such an attempt shows is answered like an unchecked one, and limited apart from the other failures: otherwise a peer
    could find out which keys these are.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._paid: dict[_Counted, _Bucket] = {}
        """Buckets without a debt when they were used last; least recent first."""
        self._owing: dict[_Counted, _Bucket] = {}
        """Buckets with one; least recent first."""
        self._swept_s = -math.inf
        self._known: dict[_Counted, None] = {}
        """The addresses of successful logins, with their keys; least recent first."""
        self.failed_counts: Counter[str] = Counter()
        """Failed logins by protocol."""
        self.refused_counts: Counter[str] = Counter()
        """Logins by protocol that were answered with *server busy*."""
        self.on_failed: Callbacks[[LoginFailure]] = Callbacks()

    def check(self, address: str, key: str, protocol: str) -> None:
        """Raise ``ServerBusyError`` if so many attempts have failed that further ones are refused for now."""
        login = _counted(address, key)
        if self._is_spent(login, BY_KEY) or (
            self._is_spent(login.alone, BY_ADDRESS)
            and (login not in self._known or self._is_spent(login.apart, BY_KEY))
        ):
            self.refused_counts[protocol] += 1
            raise _busy()

    def succeeded(self, address: str, key: str) -> None:
        """Record a successful login: attempts with other names at its address do not delay the next one."""
        login = _counted(address, key)
        self._known.pop(login, None)
        self._known[login] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def failed(
        self, address: str, key: str, protocol: str, reason: Exception, peer: str = "", container: str = ""
    ) -> LoginRefusal:
        """Record a failed login; return the answer to it. ``peer`` and ``container`` are for the log."""
        failure = LoginFailure(peer=peer or address, key=key, protocol=protocol, container=container)
        log = ContextLog(_log, peer=failure.peer, container=container, key=key, protocol=protocol)
        log.warning("login failed reason=%s", LogValue(reason))
        self.on_failed(failure)
        login = _counted(address, key)
        if self._is_spent(login.alone, BY_ADDRESS):
            self.refused_counts[protocol] += 1
            self._take(login.apart, BY_KEY)
            return LoginRefusal(_busy(), 0.0)
        self.failed_counts[protocol] += 1
        return LoginRefusal(reason, max(self._take(login, BY_KEY), self._take(login.alone, BY_ADDRESS)))

    def answer(self, address: str, error: Exception) -> Exception:
        """Return the error to answer a credential with that was refused for another reason than a wrong key."""
        return _busy() if self._is_spent(_Counted(network_of(address)), BY_ADDRESS) else error

    def _take(self, counted: _Counted, rate: LoginRate) -> float:
        left = self._left(counted, rate) - 1
        self._paid.pop(counted, None)
        self._owing.pop(counted, None)
        buckets = self._paid if left >= 0 else self._owing
        buckets[counted] = _Bucket(left, self._now_s(), rate)
        self._evict()
        return max(0.0, -left / rate.per_second)

    def _evict(self) -> None:
        """Bound the memory: forget full buckets first, and those with a debt last.

        Otherwise failures from many networks would forgive a client that guesses.
        """
        if len(self._paid) + len(self._owing) <= _MOST_BUCKETS:
            return
        now_s = self._now_s()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._paid, self._owing = _not_full(self._paid, now_s), _not_full(self._owing, now_s)
        while len(self._paid) + len(self._owing) > _MOST_BUCKETS:
            buckets = self._paid or self._owing
            del buckets[next(iter(buckets))]

    def _is_spent(self, counted: _Counted, rate: LoginRate) -> bool:
        return self._left(counted, rate) <= -_MOST_DEBT

    def _left(self, counted: _Counted, rate: LoginRate) -> float:
        bucket = self._owing.get(counted) or self._paid.get(counted)
        return rate.burst if bucket is None else bucket.left_at(self._now_s())


def _not_full(buckets: dict[_Counted, _Bucket], now_s: float) -> dict[_Counted, _Bucket]:
    return {counted: each for counted, each in buckets.items() if each.left_at(now_s) < each.rate.burst}


def _busy() -> ServerBusyError:
    return ServerBusyError("too many logins from your address have failed; wait a few seconds")
