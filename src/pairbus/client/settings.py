"""What can be set for a factory and all that it makes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from pairbus.client.retry import RetryPolicy
from pairbus.client.validation import check_type, shown

_LONGEST: Final = timedelta(days=24)
"""Longer times have no place in the fields of AMQP."""

_OPERATION_TIMEOUT: Final = timedelta(minutes=1)


class Transport(Enum):
    """How the bytes of AMQP travel."""

    TCP = "tcp"
    WEB_SOCKET = "websocket"
    """Through port 443, where a firewall lets nothing else pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingFactorySettings:
    """Time-outs, retries and the way to the namespace."""

    operation_timeout: timedelta = _OPERATION_TIMEOUT
    """How long an operation goes on, all its tries together, before it fails."""

    attempt_timeout: timedelta = timedelta(seconds=15)
    """How long one try waits for its answer before it counts as failed."""

    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    transport: Transport = Transport.TCP
    ca_file: Path | str | None = None
    """The certificate authority to trust, in PEM, where it is not one that the system knows; ``pairbus trust`` prints
    the path of a namespace's own."""

    ssl_context: ssl.SSLContext | None = None
    """For everything else about TLS; then ``ca_file`` is not used."""

    idle_timeout: timedelta = timedelta(minutes=1)
    """A connection on which nothing comes for twice as long is given up."""

    def __post_init__(self) -> None:
        for name in ("operation_timeout", "attempt_timeout", "idle_timeout"):
            check_type(name, getattr(self, name), (timedelta,))
            if not timedelta() < getattr(self, name) <= _LONGEST:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above zero, and at most {_LONGEST}")
        check_type("retry_policy", self.retry_policy, (RetryPolicy,))
        check_type("transport", self.transport, (Transport,))
        if self.ca_file is not None:
            self.tls_context()  # rather now than when it is needed

    @property
    def attempt_s(self) -> float:
        """How many seconds one try waits: no longer than the operation goes on."""
        return min(self.attempt_timeout, self.operation_timeout).total_seconds()

    def completed(self, operation_timeout: timedelta | None, transport: Transport | None) -> MessagingFactorySettings:
        """Return these settings with the values of a connection string where nothing was set.

        A time-out of one minute that was passed is another object than the default, so it counts as set.
        """
        found = self
        if operation_timeout is not None and self.operation_timeout is _OPERATION_TIMEOUT:
            found = replace(found, operation_timeout=operation_timeout)
        if transport is not None and self.transport is Transport.TCP:
            found = replace(found, transport=transport)
        return found

    def tls_context(self) -> ssl.SSLContext:
        """What a connection through TLS is made with."""
        return _tls_context(self.ca_file) if self.ssl_context is None else self.ssl_context


@cache
def _tls_context(ca_file: Path | str | None) -> ssl.SSLContext:
    """Made once: it takes longer than a connection."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:  # so are those of TLS
        raise ValueError(f"ca_file {shown(str(ca_file))} is no certificate that can be read: {error}") from error
