"""The settings of a factory and its resources."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

from pairbus.backoff import Backoff
from pairbus.client.errors import MessagingError, ServerBusyError
from pairbus.client.validation import check_type, shown


class ReceiveMode(Enum):
    """Determines when the namespace removes a message."""

    PEEK_LOCK = "peek-lock"
    """Lock the message until the application completes, abandons, defers or dead-letters it: at least once."""

    RECEIVE_AND_DELETE = "receive-and-delete"
    """Remove the message as soon as it is received: at most once."""

    @classmethod
    def _missing_(cls, value: object) -> ReceiveMode:
        raise ValueError(f"{shown(value)} is not a receive mode; use ReceiveMode.PEEK_LOCK or RECEIVE_AND_DELETE")


_RANDOM: Final = Random()  # noqa: S311 (spreads the load, hides nothing)
if hasattr(os, "register_at_fork"):  # or forked processes would all wait equally long
    os.register_at_fork(after_in_child=_RANDOM.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    Only transient errors are retried. An operation fails when its timeout has passed, or after ``maximum_retries`` if
    that is set.
    """

    minimum_backoff: timedelta = timedelta(milliseconds=100)
    maximum_backoff: timedelta = timedelta(seconds=3)
    server_busy_backoff: timedelta = timedelta(seconds=10)
    """The minimum wait after a server-busy error."""

    maximum_retries: int | None = None

    def __post_init__(self) -> None:
        for name in ("minimum_backoff", "maximum_backoff", "server_busy_backoff"):
            check_type(name, getattr(self, name), (timedelta,))
        if not timedelta() < self.minimum_backoff <= self.maximum_backoff:
            raise ValueError("minimum_backoff must be > 0 and <= maximum_backoff")
        if self.server_busy_backoff < timedelta():
            raise ValueError("server_busy_backoff must be >= 0")
        if self.maximum_retries is not None and self.maximum_retries < 0:
            raise ValueError("maximum_retries must be >= 0 or None")

    def delay_s(self, failures: int, error: MessagingError, random: Random = _RANDOM) -> float | None:
        """Return how many seconds to wait after this many consecutive failures; ``None`` to stop retrying."""
        if not error.is_transient or (self.maximum_retries is not None and failures > self.maximum_retries):
            return None
        backoff = Backoff(self.minimum_backoff.total_seconds(), self.maximum_backoff.total_seconds())
        delay_s = backoff.delay_s(failures) * random.uniform(0.5, 1.0)
        if isinstance(error, ServerBusyError):
            delay_s += self.server_busy_backoff.total_seconds()
        return delay_s


NO_RETRY: Final = RetryPolicy(maximum_retries=0)
"""Raise every error at once."""


_LONGEST: Final = timedelta(days=24)
"""The longest time that the fields of AMQP can hold."""

_OPERATION_TIMEOUT: Final = timedelta(minutes=1)


class Transport(Enum):
    """The transport of AMQP."""

    TCP = "tcp"
    WEB_SOCKET = "websocket"
    """WebSocket on port 443, for networks whose firewall blocks other ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingFactorySettings:
    """Timeouts, retries and transport."""

    operation_timeout: timedelta = _OPERATION_TIMEOUT
    """The timeout of an operation, including all its attempts."""

    attempt_timeout: timedelta = timedelta(seconds=15)
    """The timeout of one attempt."""

    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    transport: Transport = Transport.TCP
    ca_file: Path | str | None = None
    """The certificate authority to trust, a PEM file, if the system does not know it; ``pairbus trust`` prints the path
    of a namespace's own."""

    ssl_context: ssl.SSLContext | None = None
    """The TLS context, for all other TLS settings; ``ca_file`` is ignored then."""

    idle_timeout: timedelta = timedelta(minutes=1)
    """A connection that receives nothing for twice this time is closed."""

    def __post_init__(self) -> None:
        for name in ("operation_timeout", "attempt_timeout", "idle_timeout"):
            check_type(name, getattr(self, name), (timedelta,))
            if not timedelta() < getattr(self, name) <= _LONGEST:
                raise ValueError(f"{name} must be > 0 and <= {_LONGEST}, got {getattr(self, name)}")
        check_type("retry_policy", self.retry_policy, (RetryPolicy,))
        check_type("transport", self.transport, (Transport,))
        if self.ca_file is not None:
            self.tls_context()  # fail now rather than at the first connection

    @property
    def attempt_s(self) -> float:
        """The timeout of one attempt in seconds, limited by the operation timeout."""
        return min(self.attempt_timeout, self.operation_timeout).total_seconds()

    def completed(self, operation_timeout: timedelta | None, transport: Transport | None) -> MessagingFactorySettings:
        """Return these settings with the values of a connection string for those that were not set.

        A timeout of one minute that was passed explicitly is another object than the default, so it counts as set.
        """
        found = self
        if operation_timeout is not None and self.operation_timeout is _OPERATION_TIMEOUT:
            found = replace(found, operation_timeout=operation_timeout)
        if transport is not None and self.transport is Transport.TCP:
            found = replace(found, transport=transport)
        return found

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context for connections."""
        return _tls_context(self.ca_file) if self.ssl_context is None else self.ssl_context


@cache
def _tls_context(ca_file: Path | str | None) -> ssl.SSLContext:
    """Return a cached context: creating one takes longer than connecting."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:  # TLS errors are OSErrors too
        raise ValueError(f"ca_file {shown(str(ca_file))} is not a readable certificate: {error}") from error
