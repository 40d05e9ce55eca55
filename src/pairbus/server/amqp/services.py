"""Services that all connections of a namespace share, and the protocols of connections and transports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from typing import Final, Protocol, cast

from pairbus.dialect.annotations import NAMESPACE
from pairbus.server.access import Authorizer
from pairbus.server.amqp.claims_recheck import ClaimsRecheck, Holds
from pairbus.server.amqp.frame_trace import ConnectionTrace, FrameTracing
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.metering import OperationMeter
from pairbus.server.peer_limits import AddressLimit, LoginLimiter
from pairbus.server.process import trim
from pairbus.server.settings import DEFAULT_NAME
from pairbus.server.supervision.diagnostics import Diagnostics
from pairbus.server.supervision.supervisor import Supervisor
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.server.turns import Share, Turns
from pairbus.wire import Bounds, Configuration, Symbol

VALUES: Final = 512
"""Most values in a frame, or in a request to ``$cbs``."""

TOKEN_BYTES: Final = 32 * 1024
"""The largest request that ``$cbs`` accepts: tokens of an identity provider with many claims have some 12 KB."""

_MUCH_BYTES: Final = 4 * 1024 * 1024
_TRANSPORT_BYTES: Final = 64 * 1024
"""Memory that a connection may have taken although it holds nothing: the buffers of its socket and of its responses."""

_TLS_SMALL_BYTES: Final = 16 * 1024
_TLS_BYTES: Final = 256 * 1024
"""About what the buffers of a TLS connection take once it has received more than a few kilobytes."""

_SESSIONS: Final = 8
_LINKS: Final = 16


def unproven_bounds(limits: ConnectionLimits) -> Bounds:
    """Return the bounds of an unproven connection: the links to ``$cbs``, and one token at a time."""
    return Bounds(
        sessions=min(_SESSIONS, limits.max_sessions_per_connection),
        links=min(_LINKS, limits.max_links_per_connection),
        incomplete_bytes=limits.unproven_connection_bytes,
        values=VALUES,
        names={
            "sessions": "unproven_sessions",
            "links": "unproven_links",
            "incomplete_bytes": "unproven_connection_bytes",
        },
    )


BOUNDS: Final = unproven_bounds(ConnectionLimits())


def tls_buffer_bytes(received_bytes: int) -> int:
    """Return the memory of the TLS library for a connection that has received so much."""
    return received_bytes if received_bytes <= _TLS_SMALL_BYTES else _TLS_BYTES


class UnprovenConnection(Protocol):
    """An unproven connection."""

    def abort(self) -> None:
        """Close now."""


class BufferingConnection(UnprovenConnection, Protocol):
    """An unproven connection for which the server buffers data."""

    def shed(self) -> None:
        """Drop all data buffered for the connection, and close it: other connections need the memory."""


class Probation:
    """The traffic of a connection while it is unproven."""

    __slots__ = ("carried_bytes", "is_over", "received_bytes", "share")

    def __init__(self) -> None:
        self.is_over = False
        """True if the peer has sent a valid key or token."""
        self.share = Share()
        self.received_bytes = 0
        self.carried_bytes = 0
        """Bytes that its transport has buffered and not passed on."""


class UnprovenConnections:
    """The unproven connections, oldest first, with the bytes that each holds."""

    def __init__(
        self,
        total_bytes: int = ConnectionLimits().unproven_total_bytes,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_bytes = total_bytes
        self._now_s = now_s
        self._unproven: dict[UnprovenConnection, tuple[float, Callable[[], bool]]] = {}
        """With the time since when they are here, and a function that returns whether they are proven meanwhile."""
        self._held: dict[UnprovenConnection, int] = {}
        """Connections that hold buffered bytes, and how many; the longest-holding first."""
        self.held_bytes = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._unproven)

    @property
    def oldest_s(self) -> float:
        """Return the time at which the oldest one was added; infinity if there is none."""
        return next((since_s for since_s, _ in self._unproven.values()), inf)

    def add(self, connection: UnprovenConnection, is_proven: Callable[[], bool] = lambda: False) -> None:
        """Add a connection, unless it is here. ``is_proven`` is called before it is evicted."""
        self._unproven.setdefault(connection, (self._now_s(), is_proven))

    def hold(self, connection: BufferingConnection, size_bytes: int) -> None:
        """Record the bytes that a connection holds now. If all together hold too much, the longest-holding one is
        closed.

        That is never an honest one: a token is sent at once, and read at once.
        """
        if connection not in self._unproven:
            return
        self.held_bytes += size_bytes - self._held.get(connection, 0)
        if size_bytes:
            self._held[connection] = size_bytes
        else:
            self._held.pop(connection, None)
        while self.held_bytes > self._total_bytes:
            oldest = cast("BufferingConnection", next(iter(self._held)))
            self.discard(oldest)
            self.evicted_count += 1
            oldest.shed()

    def discard(self, connection: UnprovenConnection) -> None:
        """Remove a connection: it is proven, or closed."""
        self._unproven.pop(connection, None)
        self.held_bytes -= self._held.pop(connection, 0)

    def evict(self) -> bool:
        """Close the oldest connection, to make room for another; return whether there was one."""
        while self._unproven:
            connection, (_, is_proven) = next(iter(self._unproven.items()))
            self.discard(connection)
            if not is_proven():
                self.evicted_count += 1
                connection.abort()
                return True
        return False


_TRIM_AFTER_S: Final = 1.0
_TRIM_EVERY_S: Final = 2.0
_LEAST_INCOMPLETE_BYTES: Final = 16 * 1024 * 1024
_NAMES: Final = {"sessions": "max_sessions_per_connection", "links": "max_links_per_connection"}


class Connected(Protocol):
    """A connection as seen by the server."""

    @property
    def unconfirmed_sends(self) -> int:
        """Return the number of sends that are neither confirmed nor refused."""

    def shut_down(self) -> None:
        """Close the connection with an error that the server is stopping."""

    def abort(self) -> None:
        """Abort the connection."""

    def fail(self) -> None:
        """Log the error that is being handled, and end the connection."""

    def resume_requests(self) -> None:
        """Continue with requests that waited for the namespace."""

    def recheck_claims(self, holds: Holds) -> Generator[int, None, None]:
        """Check one grant at each step; at the last, end what revoked ones authorized. Yield the cost of each step."""


class ProvableConnection(Connected, UnprovenConnection, Protocol):
    """A connection that may become proven."""


class ConnectionTransport(Protocol):
    """The transport of a connection."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close after everything has been sent."""

    def abort(self) -> None:
        """Close now."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        """Set how much may be buffered before ``pause_writing`` is called."""

    def get_write_buffer_size(self) -> int: ...


class AmqpServices:
    """The services that all connections of a namespace share."""

    def __init__(
        self,
        host: NamespaceHost,
        authorizer: Authorizer,
        dispatcher: Dispatcher,
        counters: Counters,
        idle_timeout_ms: int,
        meter: OperationMeter | None = None,
        connections_per_address: int = 0,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.limits = limits = limits or ConnectionLimits()
        self.host = host
        self.authorizer = authorizer
        self.dispatcher = dispatcher
        self.counters = counters
        self.meter = meter
        self.supervisor = Supervisor(host.loop.time, host.name)
        self.watchdog = LoopWatchdog(host.loop, self.supervisor, on_blocked=self._report_blocked)
        self.diagnostics: Diagnostics | None = None
        """Collects and keeps diagnostic bundles, if the server has a data directory."""
        self.configuration = Configuration(
            container_id=host.name,
            # Backlog queues are named after it. The default is not unique: two primaries would share their backlog.
            properties={} if host.name == DEFAULT_NAME else {Symbol(NAMESPACE): host.name},
            idle_time_out_ms=idle_timeout_ms,
            channel_max=limits.max_sessions_per_connection - 1,
            max_links=limits.max_links_per_connection,
            # Required by the SDK for Python: it ignores credit and window, and a link that is detached for one
            # oversized message would lose the others.
            strict=False,
            reject_oversized=True,
            # A few of the largest messages; much less before a peer has sent a token.
            max_incomplete_bytes=max(_LEAST_INCOMPLETE_BYTES, 2 * host.limits.largest_bytes),
        )
        self.bounds = replace(self.configuration.bounds, names=_NAMES)
        """Bounds of a proven connection."""
        self.unproven_bounds = unproven_bounds(limits)
        self.connections: set[Connected] = set()
        self.unproven = UnprovenConnections(limits.unproven_total_bytes, host.loop.time)
        """Unproven connections of any protocol."""
        self._released_bytes = 0
        self._trimming: asyncio.TimerHandle | None = None
        self._trimmed_s = -_TRIM_EVERY_S
        self.turns = Turns(host.loop)
        self.addresses = AddressLimit(connections_per_address)
        self.guesses = LoginLimiter()
        self.receptions: set[ConnectionTransport] = set()
        """Transports of connections whose protocol is not detected yet."""
        self.tracing: FrameTracing | None = None
        """Selects the connections that log their frames, if any."""
        self.is_draining = False
        self.stopwatch: Callable[[], float] = time.perf_counter
        """Measures turns, in seconds."""
        self.worker = ThreadPoolExecutor(1, "pairbus-decode")
        """Decodes what would hold the event loop for long: the interpreter switches between threads."""
        self.recheck = ClaimsRecheck(self.connections, authorizer.holds, self._call_later, host.loop.time)
        host.on_access_changed.add(self.recheck.start)
        host.on_resumed.add(self._resume_requests)

    def _report_blocked(self, loop_thread: int) -> str | None:
        return None if self.diagnostics is None else self.diagnostics.report_blocked_loop(loop_thread)

    def start_trace(self, peer: str) -> ConnectionTrace | None:
        """Return the frame trace of a new connection; ``None`` if frames are not traced."""
        return None if self.tracing is None else self.tracing.start(peer, self.configuration.max_frame_size)

    def admit(self, connection: ProvableConnection, protocol: str) -> None:
        """Add a new connection, unproven until it has shown a key."""
        self.connections.add(connection)
        self.unproven.add(connection)
        self.counters.connected(protocol)

    def note_released(self, received_bytes: int) -> None:
        """Count a closed connection that has received so much; return memory to the system if that adds up to much."""
        self._released_bytes += received_bytes + _TRANSPORT_BYTES
        if self._released_bytes >= _MUCH_BYTES and self._trimming is None:
            self._released_bytes = 0
            loop = self.host.loop
            at_s = max(loop.time() + _TRIM_AFTER_S, self._trimmed_s + _TRIM_EVERY_S)
            self._trimming = loop.call_at(at_s, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        self._trimmed_s = self.host.loop.time()
        trim()

    def _resume_requests(self) -> None:
        for connection in [*self.connections]:
            connection.resume_requests()

    def _call_later(self, pause_s: float, work: Callable[[], object]) -> None:
        """Call ``work`` after a pause, or else not in the next pass of the loop, which serves the connections."""
        if pause_s:
            self.host.loop.call_later(pause_s, work)
        else:
            self.host.loop.call_soon(self.host.loop.call_soon, work)

    @property
    def stream_count(self) -> int:
        """Return the number of connections without those of HTTP and WebSockets."""
        return len(self.receptions) + self.counters.connections["amqp"] + self.counters.connections["amqps"]
