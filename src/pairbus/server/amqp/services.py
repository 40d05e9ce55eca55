"""What all connections of a namespace share, and what each of them is carried by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from pairbus.dialect.annotations import NAMESPACE
from pairbus.server.access import Gatekeeper
from pairbus.server.address_limit import AddressLimit
from pairbus.server.amqp.unproven import Unproven
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.guesses import Guesses
from pairbus.server.host import NamespaceHost
from pairbus.server.memory import trim
from pairbus.server.metering import Meter
from pairbus.server.settings import DEFAULT_NAME
from pairbus.wire import Configuration, Symbol

_TRIM_BYTES: Final = 4 * 1024 * 1024
_TRIM_AFTER_S: Final = 1.0
_LEAST_INCOMPLETE_BYTES: Final = 16 * 1024 * 1024


class Connected(Protocol):
    """A connection, as far as the whole server has to do with it."""

    def shut_down(self) -> None:
        """Say that the server stops, and hang up."""

    def abort(self) -> None:
        """Hang up without a word."""

    def recheck_claims(self) -> None:
        """End what was opened with keys that have been changed or removed."""


class Transport(Protocol):
    """What carries a connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close when everything has been sent."""

    def abort(self) -> None:
        """Close now."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int: ...


class AmqpServices:
    """What all connections of a namespace share."""

    def __init__(
        self,
        host: NamespaceHost,
        gatekeeper: Gatekeeper,
        dispatcher: Dispatcher,
        counters: Counters,
        idle_timeout_ms: int,
        meter: Meter | None = None,
        connections_per_address: int = 0,
    ) -> None:
        self.host = host
        self.gatekeeper = gatekeeper
        self.dispatcher = dispatcher
        self.counters = counters
        self.meter = meter
        self.configuration = Configuration(
            container_id=host.name,
            # Backlog queues are named after it. The default says nothing: two primaries would share their backlog.
            properties={} if host.name == DEFAULT_NAME else {Symbol(NAMESPACE): host.name},
            idle_time_out_ms=idle_timeout_ms,
            # What the SDK for Python needs: it looks at neither credit nor window, and a link that is detached for
            # one message that was too large would take the others with it.
            strict=False,
            reject_oversized=True,
            # No more than a few of the largest messages; much less before a peer has shown a token.
            max_incomplete_bytes=max(_LEAST_INCOMPLETE_BYTES, 2 * host.limits.largest_bytes),
        )
        self.connections: set[Connected] = set()
        self.unproven = Unproven()
        """Those that have shown nothing yet, whatever they speak."""
        self.addresses = AddressLimit(connections_per_address)
        self.guesses = Guesses()
        self.receptions: set[Transport] = set()
        """What carries the connections of which nobody knows yet what they speak."""
        self.is_draining = False
        self.stopwatch: Callable[[], float] = time.perf_counter
        """What turns are measured with, in seconds."""
        host.on_access_changed = self._recheck_claims

    def forget_unproven(self, connection: Connected) -> None:
        """A connection is proven or lost. The memory of many that held something is given back to the system."""
        self.unproven.discard(connection)
        if self.unproven.returned_bytes >= _TRIM_BYTES:
            self.unproven.returned_bytes = 0
            self.host.loop.call_later(_TRIM_AFTER_S, trim)

    def _recheck_claims(self) -> None:
        for connection in [*self.connections]:
            connection.recheck_claims()

    @property
    def stream_count(self) -> int:
        """How many connections there are, those of HTTP and WebSockets left out."""
        return len(self.receptions) + self.counters.connections["amqp"] + self.counters.connections["amqps"]
