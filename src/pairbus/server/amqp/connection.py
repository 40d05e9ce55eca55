"""One AMQP connection of the server: parses the bytes of the peer, executes its requests, and writes responses."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from pairbus.broker import Address, Right, SessionLockLostError
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.access import Grant, path_of, shown_path
from pairbus.server.amqp.attachment import attach_link
from pairbus.server.amqp.claims_recheck import REVOCATION_COST, Holds
from pairbus.server.amqp.consumer import Consumer
from pairbus.server.amqp.node import Claims, Keep, Node, Replies, Transactions
from pairbus.server.amqp.producer import Producer
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.amqp.services import AmqpServices, ConnectionTransport, Probation, tls_buffer_bytes
from pairbus.server.audit import Actor
from pairbus.server.errors import (
    REFUSABLE,
    BadRequestError,
    InvalidCredentialsError,
    ServerBusyError,
    UnauthorizedError,
    refusal_of,
)
from pairbus.server.log_context import ContextLog, LogValue
from pairbus.server.peer_limits import LoginRefusal
from pairbus.server.turns import Pace
from pairbus.store import CommitId, StoreError
from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    MSSBCBS,
    PLAIN,
    RECEIVER,
    Condition,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    Delivery,
    DeliveryAborted,
    DispositionReceived,
    Error,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    LocalProtocolError,
    ProtocolError,
    Rejected,
    SaslCode,
    SaslServer,
    SessionBegun,
    SessionEnded,
    accept_anonymous,
    parse_plain,
)
from pairbus.wire.settlement import shortened

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED: Final = 4
"""Maximum number of names in one fact of a log line."""

_MOST_UNCONFIRMED_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the messages of a connection that are not durable yet; beyond that it is not read."""
_MOST_UNSENT_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of the output for a peer that does not read; beyond that it is not served."""
_SECURE: Final = frozenset({"amqps", "wss"})
_NOTHING: Final = memoryview(b"")
_TURN_S: Final = 0.004
"""The time for which a connection is served before others get their turns."""
_SLICE_BYTES: Final = 16 * 1024
"""Number of bytes that are parsed between two checks of the time."""
_UNPROVEN_TURN_S: Final = 0.001
_UNPROVEN_SLICE_BYTES: Final = 1024
"""The same for unproven connections: a request of a few bytes may take a while."""
_WRITE_HIGH_BYTES: Final = 256 * 1024
_MAX_ANSWERS: Final = 16
_MAX_WRITTEN_BYTES: Final = 128 * 1024
_LONGEST_PAUSE_S: Final = 86_400.0
"""Longest timer: a token may expire at a time that no timer can be set to."""
_READ_WITHIN_S: Final = 5.0
_SMALL_FRAME_BYTES: Final = 4_096


class _Confirmations:
    """Messages of one turn to settle when they are durable, and their size."""

    __slots__ = ("answers", "size")

    def __init__(self, answers: list[tuple[Delivery, object]], size: int) -> None:
        self.answers = answers
        self.size = size


class ServerConnection:
    """The server's end of an AMQP connection.

    Requests are executed synchronously, in the call that passes their bytes, so that nothing can interleave.
    """

    def __init__(
        self,
        services: AmqpServices,
        transport: ConnectionTransport,
        protocol: str = "amqp",
        address: str = "",
        peer: str = "",
    ) -> None:
        self.host = services.host
        self.authorizer = services.authorizer
        self.dispatcher = services.dispatcher
        self.counters = services.counters
        self.meter = services.meter
        """Counts billed operations; ``None`` if they are not metered."""
        self.claims = Claims(services.limits.max_tokens_per_connection)
        self.replies = Replies(services.counters)
        self.transactions = Transactions(services.host)
        self._services = services
        self._stopwatch = services.stopwatch
        self._transport = transport
        self._protocol = protocol
        self.address = address
        """The address of the peer, without its port."""
        self._peer = peer or address
        """The address of the peer, with its port."""
        self._trace = services.start_trace(self._peer)
        self._penalty_s = 0.0
        """Delay of the response to a failed log-in."""
        self._engine = Connection(
            services.configuration,
            # The SDK for JavaScript omits SASL if its connection string has a token and no key, which grants nothing.
            SaslServer(mechanisms=(MSSBCBS, PLAIN, ANONYMOUS), authenticate=self._authenticate, required=False),
        )
        self._engine.bounds = services.unproven_bounds
        self._nodes: dict[Link, Node] = {}
        self._unread: memoryview = _NOTHING
        """Received bytes that have not been parsed yet."""
        self._received_bytes = self._written_bytes = 0
        self._events: deque[Event] = deque()
        """Parsed events that have not been handled yet."""
        self._answers = 0
        """Number of responses, which may be large, that wait for the commit or are being sent."""
        self._computing: Future[Any] | None = None
        """The work on the worker thread for the first event, for which all events wait."""
        self._pace = Pace(services.turns)
        self._held: set[Node] = set()
        """Nodes whose messages wait for the session window."""
        self._confirmations: list[tuple[Delivery, object]] = []
        self._unconfirmed_bytes = self._confirming_bytes = 0
        self._is_writable = self._is_reading = True
        self._reached = ""  # the limit for which the peer is not read
        self._flushes_soon = self._is_lost = False
        self._has_turn_left = False  # true if the next turn is scheduled
        self._probation = Probation()
        self.on_proven: Callable[[], object] = lambda: None
        """Called when the peer has shown a valid key or token."""
        self._heartbeat: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        services.admit(self, protocol)
        transport.set_write_buffer_limits(high=services.limits.unproven_connection_bytes)
        self._opening = self.host.loop.call_later(services.limits.token_timeout_s, self._time_out)

    # Events of the transport.

    def data_received(self, data: bytes) -> None:
        """Buffer received bytes, and handle them in a turn."""
        self._received_bytes += len(data)
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)
        if not self._has_turn_left:
            self._begin_turn()
        if self._has_turn_left:
            self._note_held()
            self._throttle_reading()

    def _begin_turn(self) -> None:
        """Take a turn now, or later if the last one was too long, or if the peer is unproven: others come first."""
        if self._probation.is_over and self._pace.rest_s(self._stopwatch()) <= 0:
            self.guard(self._take_turn)
        else:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._has_turn_left = True
        if not self._probation.is_over:
            self._services.turns.take(self._probation.share, partial(self.guard, self._take_turn))
        elif (rest_s := self._pace.rest_s(self._stopwatch())) > 0:
            self.host.loop.call_later(rest_s, self.guard, self._take_turn)
        else:
            # Not in the next pass of the loop: that one serves what other connections have received, and commits it.
            self.host.loop.call_soon(self.host.loop.call_soon, self.guard, self._take_turn)

    def _take_turn(self) -> None:
        """Handle requests of the peer for a few milliseconds; then other connections get their turns.

        While the peer does not read the responses, its requests wait as well, and no more is read.
        """
        self._has_turn_left = False
        if self._is_lost:
            return
        begun = self._stopwatch()
        ends = begun + (_TURN_S if self._probation.is_over else _UNPROVEN_TURN_S)
        is_early = True
        while self._handle_events(ends) and self._unread and is_early and self._may_parse:
            size = _SLICE_BYTES if self._probation.is_over else _UNPROVEN_SLICE_BYTES
            data, self._unread = self._unread[:size], self._unread[size:]
            self._parse(data)
            is_early = self._stopwatch() < ends
        self._send_confirmations()
        self._release_held()
        self.flush()
        if self._probation.is_over:
            ended = self._stopwatch()
            self._pace.end_turn(ends, ended)
            self.dispatcher.note_served(ended - begun)
        if self._can_continue and (self._unread or self._events):
            self._wait_for_turn()
        self._note_held()
        self._throttle_reading()

    def _parse(self, data: memoryview) -> None:
        events: Sequence[Event]
        violation: ProtocolError | None = None
        if self._trace is not None and not self._trace.received(data):
            self._trace = None
        try:
            events = self._engine.receive_data(data)
        except ProtocolError as error:
            events, violation = error.events, error
        self._events.extend(events)
        if violation is not None and self._penalty_s:
            self.host.loop.call_later(self._penalty_s, self.guard, partial(self._close_after_violation, violation))
        elif violation is not None:
            self._close_after_violation(violation)
        elif not self._probation.is_over:
            self._count_unproven(len(data))

    def _count_unproven(self, size_bytes: int) -> None:
        """Count the bytes of an unproven peer; end the connection if they are far more than a token needs."""
        self._probation.share.add(size_bytes, self._services.turns.now_s())
        self._probation.received_bytes += size_bytes
        max_bytes = self._services.limits.unproven_received_bytes
        if self._probation.received_bytes > max_bytes:
            limit = "unproven_received_bytes"
            self.counters.refuse(Condition.RESOURCE_LIMIT_EXCEEDED, limit)
            self._drop(Error(Condition.RESOURCE_LIMIT_EXCEEDED, f"{max_bytes} bytes have come and no token ({limit})"))

    def note_carried(self, size_bytes: int) -> None:
        """Note how many received bytes the transport buffers."""
        self._probation.carried_bytes = size_bytes
        self._note_held()

    def _note_held(self) -> None:
        """Record how many bytes are buffered for an unproven peer."""
        if not self._probation.is_over and not self._is_lost:
            unsent = self._transport.get_write_buffer_size()
            held = self._engine.held_bytes + len(self._unread) + self._probation.carried_bytes + unsent
            if self._protocol in _SECURE:
                held += tls_buffer_bytes(self._received_bytes)
            self._services.unproven.hold(self, held)

    def shed(self) -> None:
        limit = "unproven_total_bytes"
        self.counters.refuse(ServiceBusCondition.SERVER_BUSY, limit)
        self.guard(
            partial(
                self._drop,
                Error(ServiceBusCondition.SERVER_BUSY, f"too much is held for connections without a token ({limit})"),
            )
        )

    def _drop(self, error: Error) -> None:
        """End the connection of an unproven peer, and discard all that is buffered for it."""
        self.log_context().info("connection closed reason=%s", LogValue(error.description))
        self._end(error)
        self._engine.abandon()
        self._events.clear()
        self._unread = _NOTHING

    def _close_after_violation(self, violation: ProtocolError) -> None:
        self._penalty_s = 0.0
        self._handle_events(math.inf)
        self._send_confirmations()
        self.flush()
        self.log_context().info("protocol violation, connection closed error=%s", LogValue(violation))
        self.counters.refuse(violation.condition, violation.bound)
        self._disconnect()

    @property
    def _can_continue(self) -> bool:
        """True while the peer reads the responses to its requests, no request is being decoded, and the namespace is
        not being loaded. If that takes too long, requests are answered with *server busy*.
        """
        if self._computing is not None or (self.host.committer.is_loading and not self.host.is_stalled):
            return False
        return self._engine.is_closed or (self._is_writable and self._answers < _MAX_ANSWERS)

    @property
    def _may_parse(self) -> bool:
        """True if more bytes may be parsed. Frames may cause responses, so an unproven peer has to read them first."""
        return self._probation.is_over or self._can_continue

    def _handle_events(self, ends: float) -> bool:
        """Handle events until a time; return whether none is left."""
        events = self._events
        while events and self._can_continue:
            self._handle(events.popleft())
            if self._stopwatch() > ends:
                break
        return not events

    def _handle(self, event: Event) -> None:
        """Handle an event; the frequent ones first."""
        if isinstance(event, Delivery):
            self._delivered(event)
        elif isinstance(event, DispositionReceived):
            self._disposed(event)
        elif isinstance(event, CreditGranted):
            self._credited(event)
        elif isinstance(event, LinkAttached):
            self._attached(event)
        elif isinstance(event, LinkDetached):
            self._detached(event)
        elif isinstance(event, DeliveryAborted):
            self._aborted(event)
        elif isinstance(event, SessionBegun):
            self._begun(event)
        elif isinstance(event, SessionEnded):
            self._ended(event)
        elif isinstance(event, ConnectionOpened):
            self._opened(event)
        elif isinstance(event, ConnectionClosed):
            self._closed(event)

    def _release_held(self) -> None:
        """Let nodes continue whose messages have been sent: there is no event for a session window that has opened."""
        for node in [node for node in self._held if not node.link.queued]:
            self._held.discard(node)
            node.on_credit()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.guard(self._resume)

    def _resume(self) -> None:
        if not self._has_turn_left:
            self._begin_turn()
        for node in [*self._nodes.values()]:
            node.on_writable()
        self.flush()

    def connection_lost(self) -> None:
        """Handle what was received before the connection was lost, and release everything that it holds."""
        if self._is_lost:
            return
        # What was sent counts, although no response can be sent: the SDK for Python disconnects right after it has
        # released messages that it does not want.
        self.guard(self._handle_the_rest)
        self._is_lost = True
        self._services.connections.discard(self)
        self._services.unproven.discard(self)
        self._services.turns.drop(self._probation.share)
        self._services.note_released(self._received_bytes)
        self.counters.connections[self._protocol] -= 1
        for timer in (self._heartbeat, self._expiry, self._opening, self._abort_timer):
            if timer is not None:
                timer.cancel()
        for node in [*self._nodes.values()]:
            self._forget(node.link)
        if self._computing is not None:
            self._computing.cancel()  # nothing could be done with the result
        # References back to the connection would keep it in memory until the garbage collector runs.
        self._engine.abandon()
        self.on_proven = lambda: None
        self._unread = _NOTHING

    def _handle_the_rest(self) -> None:
        """Handle received messages and settlements. Requests are dropped, as no response can be sent."""
        if self._unread and self.claims:
            if self._trace is not None:
                self._trace.received(self._unread)
            with suppress(ProtocolError):
                self._events.extend(self._engine.receive_data(self._unread))
        while self._events:
            event = self._events.popleft()
            if isinstance(event, DispositionReceived) or (isinstance(event, Delivery) and self._is_message(event)):
                self._handle(event)

    def _is_message(self, delivery: Delivery) -> bool:
        return not isinstance(self._nodes.get(delivery.link), RequestNode)

    @property
    def unconfirmed_sends(self) -> int:
        return sum(node.link.unsettled for node in self._nodes.values() if isinstance(node, Producer))

    def shut_down(self) -> None:
        """Close the connection because the server stops."""
        self._end(Error(Condition.CONNECTION_FORCED, "the server is shutting down; connect again in a moment"))

    def abort(self) -> None:
        self._transport.abort()

    # For nodes.

    def log_context(self, link: Link | None = None) -> ContextLog:
        """Return a logger whose lines name the peer, its container and key, and the link and the entity, if given."""
        address = None if link is None else _address_of(link)
        return ContextLog(
            _log,
            peer=self._peer,
            container=self._container,
            link=None if link is None else link.name,
            entity=shown_path(address),
            key=self.claims.who(path_of(address or "")) or self.claims.names(),
        )

    @property
    def _container(self) -> str:
        """Return the container id of the peer; empty until it has opened the connection."""
        opened = self._engine.peer
        return "" if opened is None else opened.container_id

    def guard(self, work: Callable[[], object]) -> None:
        """Call ``work``; an unexpected error is logged, and ends only this connection."""
        try:
            work()
        except Exception:  # noqa: BLE001 (a defect must not affect other connections)
            self.fail()

    def fail(self) -> None:
        """Log the error that is being handled, and end the connection."""
        self.log_context().exception("connection failed")
        self._end(Error(Condition.INTERNAL_ERROR, "the server failed; its log says why"))

    def actor(self, path: str) -> Actor:
        """Return who acts on a path, for the audit log."""
        return Actor(
            key_name=self.claims.who(path),
            rights=self.claims.rights(path),
            peer=self._peer,
            protocol=self._protocol,
            container=self._container,
        )

    def compute(self, work: Callable[[], T]) -> Future[T]:
        """Call ``work`` on the worker thread; the events of this connection wait until it returns.

        ``work`` must not access anything that the event loop uses.
        """
        future = self._computing = self._services.worker.submit(work)
        future.add_done_callback(self._computed)
        return future

    def _computed(self, _future: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.host.loop.call_soon_threadsafe(self.guard, self._end_computing)

    def _end_computing(self) -> None:
        self._computing = None
        if not self._is_lost and not self._has_turn_left:
            self._begin_turn()

    def attempt(self, link: Link, work: Callable[[], object]) -> None:
        """Call ``work`` to attach a link; refuse the link with the error if it raises one."""
        try:
            work()
        except (*REFUSABLE, LocalProtocolError) as error:
            self._forget(link)
            refusal = refusal_of(error)
            self.counters.refuse(refusal.condition, refusal.limit)
            self.log_context(link).info("link refused condition=%s error=%s", refusal.condition, LogValue(error))
            link.refuse(refusal.error)
        self.flush()

    @property
    def is_draining(self) -> bool:
        """True while the server stops: nothing new may be started."""
        return self._services.is_draining

    @property
    def is_writable(self) -> bool:
        """True while the peer reads what it is sent."""
        return self._is_writable and not self._is_lost

    def allows(self, path: str, rights: Sequence[Right]) -> bool:
        """Return whether the tokens of the connection grant one of these rights."""
        return self.claims.allows(path, rights, self.host.wall_ms())

    def confirm(self, delivery: Delivery, state: object) -> None:
        """Settle a message of the peer once everything written so far is durable."""
        self._confirmations.append((delivery, state))
        self._unconfirmed_bytes += len(delivery.payload)
        self._confirming_bytes += len(delivery.payload)

    def divert(self, delivery: Delivery, keep: Keep) -> None:
        """Like ``keep``, after the confirmation of all earlier messages."""
        self._send_confirmations()  # the outcome of earlier messages comes first, should they fail
        self.keep(delivery, keep)

    def keep(self, delivery: Delivery, keep: Keep) -> None:
        """Store a message of the peer outside the store with ``keep``, and settle it with the result."""
        self._unconfirmed_bytes += len(delivery.payload)
        keep(partial(self._stored, delivery))

    def _stored(self, delivery: Delivery, error: Exception | None) -> None:
        self._unconfirmed_bytes -= len(delivery.payload)
        if not self._is_lost:
            if not delivery.settled:  # else it was refused, because that took too long
                self.guard(partial(self._settle, [(delivery, ACCEPTED)], error))
                self.wrote(0)
            self._throttle_reading()

    def is_connected(self) -> bool:
        """Return whether the connection was not lost."""
        return not self._is_lost

    def is_awaited(self, delivery: Delivery) -> bool:
        """Return whether the peer waits for the outcome of a message, and can still get it."""
        return not self._is_lost and not delivery.settled and delivery.link.is_attached

    def refuse(self, delivery: Delivery, error: Exception) -> None:
        """Reject a message of the peer now."""
        refusal = refusal_of(error)
        self.counters.refuse(refusal.condition, refusal.limit)
        self._settle([(delivery, Rejected(refusal.error))])

    def when_durable(
        self, done: Callable[[StoreError | None], object], overdue: Callable[[CommitId], object] | None = None
    ) -> None:
        """Call ``done`` once everything written so far is durable, or with the error, and flush after it.

        ``done`` is not called if the connection is lost meanwhile. If the storage stalls first, call ``overdue``.
        """

        def finish(error: StoreError | None) -> None:
            if not self._is_lost:
                self.guard(partial(done, error))
                self.flush()

        self.host.when_durable(finish, None if overdue is None else lambda commit: self.guard(partial(overdue, commit)))

    def resume_requests(self) -> None:
        """Continue with requests that waited for the namespace."""
        if (self._events or self._unread) and not self._has_turn_left and not self._is_lost:
            self._wait_for_turn()

    def answer_when_durable(self, done: Callable[[StoreError | None], object]) -> None:
        """Like ``when_durable``, for a response that may be large: with many of them, further requests wait."""
        self._answers += 1

        def finish(error: StoreError | None) -> None:
            self._answers -= 1
            done(error)
            if (self._events or self._unread) and not self._has_turn_left:
                self._wait_for_turn()

        self.when_durable(finish)

    def wrote(self, size_bytes: int) -> None:
        """Note the size of output for the peer; it is sent at the end of the turn, or now if it is large."""
        self._written_bytes += size_bytes
        if self._written_bytes > _MAX_WRITTEN_BYTES:
            self.flush()
        elif not self._flushes_soon:
            self._flushes_soon = True
            self.host.loop.call_soon(self.guard, self._flush_now)

    def _flush_now(self) -> None:
        self._flushes_soon = False
        self.flush()

    def hold(self, node: Node) -> None:
        """Call ``on_credit`` of a node once its messages that wait for the session window have been sent."""
        self._held.add(node)

    def flush(self) -> None:
        """Write the pending output to the transport."""
        self._written_bytes = 0
        if not self._is_lost and not self._penalty_s:
            data = self._engine.data_to_send()
            if data:
                if self._trace is not None and not self._trace.sent(data):
                    self._trace = None
                self._transport.write(data)

    def tokens_changed(self) -> None:
        """Handle a change of the tokens: set the timer for the next one that expires."""
        self._prove()
        if self._expiry is not None:
            self._expiry.cancel()
        due_ms = self.claims.next_expiry_ms()
        if due_ms is not None:
            pause_s = min(max(0, due_ms - self.host.wall_ms()) / 1_000, _LONGEST_PAUSE_S)
            self._expiry = self.host.loop.call_later(pause_s, self.guard, self._expire)

    def _prove(self) -> None:
        """Lift the limits of an unproven connection, once the peer has shown a valid key or token."""
        if self.claims and not self._probation.is_over:
            self._probation.is_over = True
            self._engine.bounds = self._services.bounds
            self._services.unproven.discard(self)
            self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
            self.on_proven()

    def recheck_claims(self, holds: Holds) -> Generator[int, None, None]:
        """Check one grant at each step; at the last, end what revoked ones authorized. Yield the cost of each step."""
        revoked: list[tuple[str, Grant]] = []
        for path, grant in self.claims.grants():
            if not holds(grant):
                revoked.append((path, grant))
            yield 1
        if revoked and not self._is_lost:
            self.claims.drop(revoked)
            self.guard(partial(self._revoke, [grant for _, grant in revoked]))
            yield REVOCATION_COST

    def _revoke(self, revoked: list[Grant]) -> None:
        reason = "the key that it was opened with was changed or removed"
        log = self.log_context().having(
            entity=_listed(shown_path(grant.path) for grant in revoked), key=_listed(grant.who for grant in revoked)
        )
        log.info("claims revoked remaining=%d", len(self.claims))
        self._end_unclaimed(UnauthorizedError(reason))
        if not self.claims:
            self._end(Error(Condition.UNAUTHORIZED_ACCESS, reason))

    def check_guesses(self, key: str) -> None:
        """Raise ``ServerBusyError`` if too many log-ins of this peer with such a key have failed."""
        self._services.guesses.check(self.address, key, self._protocol)

    def logged_in(self, key: str) -> None:
        """Note a log-in with this key."""
        self._services.guesses.succeeded(self.address, key)

    def login_failed(self, key: str, reason: UnauthorizedError) -> LoginRefusal:
        """Note a failed log-in; return the answer to it."""
        guesses = self._services.guesses
        if isinstance(reason, InvalidCredentialsError):
            return guesses.failed(self.address, key, self._protocol, reason, self._peer, self._container)
        return LoginRefusal(guesses.answer(self.address, reason), 0.0)

    def session_token(self, link_name: object, address: Address, session_id: object) -> bytes | None:
        """Return the lock token of the session that a link of the connection holds; ``None`` if it has no session.

        Raise ``SessionLockLostError`` if the link does not hold the requested session.
        """
        if not isinstance(session_id, str | None):
            raise BadRequestError(f"a session id must be text, got {session_id!r:.100}")
        for node in self._nodes.values():
            if isinstance(node, Consumer) and node.link.name == link_name and node.address == address:
                if node.session is None:
                    return None
                if session_id in {None, node.session.session_id}:
                    return node.session.session_token
        if session_id is None:
            return None
        raise SessionLockLostError(f"the request comes from no link that holds session '{session_id}'", str(address))

    # Events of the peer.

    def _authenticate(self, mechanism: str, response: bytes) -> SaslCode:
        if mechanism != PLAIN:
            return accept_anonymous(mechanism, response)
        name, key = parse_plain(response)
        try:
            self.check_guesses(name)
            self.claims.put("", self.authorizer.admit_key(name, key))
        except REFUSABLE as error:
            refused = self.login_failed(name, error) if isinstance(error, UnauthorizedError) else LoginRefusal(error, 0)
            self.counters.refuse(refusal_of(refused.error).condition)
            self._penalty_s = refused.delay_s
            return SaslCode.SYS_TEMP if isinstance(refused.error, ServerBusyError | StoreError) else SaslCode.AUTH
        self.logged_in(name)
        self._prove()
        return SaslCode.OK

    def _opened(self, _event: ConnectionOpened) -> None:
        self._opening.cancel()
        within_s = self._services.limits.token_timeout_s
        self._opening = self.host.loop.call_later(within_s, self.guard, self._expect_token)
        self._engine.open()
        self._keep_alive()
        self.log_context().debug("connection opened protocol=%s", self._protocol)

    def _closed(self, event: ConnectionClosed) -> None:
        self.log_context().having(error=event.error).debug("connection closed by the peer")
        self.flush()
        self._disconnect()

    def _begun(self, event: SessionBegun) -> None:
        event.session.begin()

    def _ended(self, event: SessionEnded) -> None:
        if event.violation is not None:
            self.log_context().info("protocol violation, session ended error=%s", LogValue(event.violation))
            self.counters.refuse(event.violation.condition, event.violation.bound)
        for link in [link for link in self._nodes if link.session is event.session]:
            self._forget(link)

    def _attached(self, event: LinkAttached) -> None:
        self.attempt(event.link, partial(attach_link, self, event.link, event.attach, self._adopt))

    def _adopt(self, node: Node) -> None:
        before = self._nodes.get(node.link)
        if before is not None:
            self.counters.links[before.kind] -= 1
        self._nodes[node.link] = node
        self.counters.links[node.kind] += 1
        self._log_link("link attached kind=%s", node)

    def _detached(self, event: LinkDetached) -> None:
        self._forget(event.link)

    def _forget(self, link: Link) -> None:
        node = self._nodes.pop(link, None)
        if node is not None:
            self._held.discard(node)
            self.counters.links[node.kind] -= 1
            self._log_link("link detached kind=%s", node)
            node.on_detached()

    def _log_link(self, text: str, node: Node) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            self.log_context(node.link).debug(text, node.kind)

    def _credited(self, event: CreditGranted) -> None:
        node = self._nodes.get(event.link)
        if node is not None:
            node.on_credit()

    def _delivered(self, delivery: Delivery) -> None:
        node = self._nodes.get(delivery.link)
        if node is None:
            return
        if node.prepare(delivery):
            node.on_delivery(delivery)
        else:
            self._events.appendleft(delivery)

    def _aborted(self, event: DeliveryAborted) -> None:
        if event.error is not None:
            self.counters.refuse(event.error.condition)

    def _disposed(self, event: DispositionReceived) -> None:
        answers: list[tuple[Delivery, object]] = []
        for delivery in event.deliveries:
            node = self._nodes.get(delivery.link)
            answer = None if node is None else node.settle(delivery, event.state)
            if answer is not None and not event.settled:
                answers.append((delivery, answer))
        if answers and self.host.has_withdrawn:  # all are refused: nothing was written
            self._settle_in_time(answers)
        elif answers:
            self.when_durable(partial(self._settle_in_time, answers))

    # Background work.

    def _send_confirmations(self) -> None:
        """Settle all messages of this turn once they are durable, which takes one commit."""
        if self._confirmations:
            self.dispatcher.note_requests(len(self._confirmations))
            batch = _Confirmations(self._confirmations, self._confirming_bytes)
            self._confirmations, self._confirming_bytes = [], 0
            self.when_durable(partial(self._confirm, batch), lambda commit: self._answer_overdue(batch, commit))

    def _confirm(self, batch: _Confirmations, error: StoreError | None) -> None:
        self._unconfirmed_bytes -= batch.size
        answers = batch.answers
        if error is not None:
            answers = [each for each in answers if not self._rescue(each[0], error)]
        self._settle_in_time(answers, error)
        self._throttle_reading()

    def _answer_overdue(self, batch: _Confirmations, commit: CommitId) -> None:
        """Answer the sends whose commit is overdue, as far as possible; the others wait for it."""
        answers, batch.answers = batch.answers, []
        for delivery, state in answers:
            node = delivery.context
            if isinstance(node, Producer) and node.on_overdue(delivery, commit):
                batch.size -= len(delivery.payload)
                self._unconfirmed_bytes -= len(delivery.payload)
            else:
                batch.answers.append((delivery, state))
        if not self._is_lost:
            self.flush()
            self._throttle_reading()

    def _settle_in_time(self, answers: list[tuple[Delivery, object]], error: StoreError | None = None) -> None:
        """Settle messages now, or after the delay of an injected fault."""
        if not self.host.faults:
            self._settle(answers, error)
            return
        for delivery, outcome in answers:
            node = self._nodes.get(delivery.link)
            delay_s = 0.0 if node is None else node.delay_s()
            if delay_s:
                self._unconfirmed_bytes += len(delivery.payload)
                settle = partial(self._settle_late, (delivery, outcome), error)
                self.host.loop.call_later(delay_s, self.guard, settle)
            else:
                self._settle([(delivery, outcome)], error)

    def _settle_late(self, answer: tuple[Delivery, object], error: StoreError | None) -> None:
        self._unconfirmed_bytes -= len(answer[0].payload)
        if not self._is_lost:
            self._settle([answer], error)
            self.flush()
            self._throttle_reading()

    def _rescue(self, delivery: Delivery, error: StoreError) -> bool:
        node = self._nodes.get(delivery.link)
        return node is not None and node.rescue(delivery, error)

    def _settle(self, answers: list[tuple[Delivery, object]], error: Exception | None = None) -> None:
        """Settle messages with these states, or reject them with the error that they could not be stored with."""
        refusal = None if error is None else refusal_of(error)
        failure = None if refusal is None else Rejected(refusal.error)
        if refusal is not None:
            self.counters.refuse(refusal.condition, refusal.limit, len(answers))
        peer = self._engine.peer
        is_small = peer is not None and peer.max_frame_size < _SMALL_FRAME_BYTES
        for delivery, outcome in answers:
            state = outcome if failure is None else failure
            if is_small and peer is not None and isinstance(state, Rejected):
                state = Rejected(shortened(state.error, peer.max_frame_size))
            delivery.link.settle(delivery, state)

    def _throttle_reading(self) -> None:
        """Stop reading from a peer that sends faster than the disk, or that does not read."""
        reached = self._reached_limit()
        if reached and reached != self._reached:
            self.counters.limits[reached] += 1
        self._reached = reached
        is_overloaded = bool(reached) or bool(self._events) or bool(self._unread)
        if is_overloaded is self._is_reading and not self._is_lost:
            self._is_reading = not is_overloaded
            if is_overloaded:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _reached_limit(self) -> str:
        if self._unconfirmed_bytes > _MOST_UNCONFIRMED_BYTES:
            return "unconfirmed_bytes"
        return "unread_bytes" if self._transport.get_write_buffer_size() > _MOST_UNSENT_BYTES else ""

    def _keep_alive(self) -> None:
        """Send heartbeats, and abort the connection if the peer sends none."""
        try:
            next_ms = self._engine.tick(self._monotonic_ms())
        except ProtocolError as error:
            self.log_context().info("connection closed reason=%s", LogValue(error))
            self.flush()
            self._transport.abort()
            return
        self.flush()
        if next_ms is not None and not self._is_lost:
            # The engine notices received bytes only in a tick, so there have to be enough ticks.
            longest_ms = (self._services.configuration.idle_time_out_ms or 60_000) // 2
            pause_s = min(max(0, next_ms - self._monotonic_ms()), longest_ms) / 1_000
            self._heartbeat = self.host.loop.call_later(pause_s, self.guard, self._keep_alive)

    def _monotonic_ms(self) -> int:
        return int(self.host.loop.time() * 1_000)

    def _time_out(self) -> None:
        self.log_context().info('connection closed reason="not opened in time"')
        self.counters.limits["token_timeout_s"] += 1
        self._transport.abort()

    def _expect_token(self) -> None:
        if not self.claims:
            self.counters.refuse(Condition.UNAUTHORIZED_ACCESS, "token_timeout_s")
            within_s = self._services.limits.token_timeout_s
            self._end(
                Error(Condition.UNAUTHORIZED_ACCESS, f"no token was put within {within_s:g} seconds (token_timeout_s)")
            )

    def _expire(self) -> None:
        """Drop expired tokens, and detach the links that depend on them."""
        self.claims.drop_expired(self.host.wall_ms())
        self._end_unclaimed(UnauthorizedError("ExpiredToken: the token has expired, and no new one was put"))
        self.tokens_changed()

    def _end_unclaimed(self, error: UnauthorizedError) -> None:
        """Detach the links that no token allows any more."""
        for node in [*self._nodes.values()]:
            if not all(self.allows(path, rights) for path, rights in node.needs):
                self._forget(node.link)
                node.link.detach(error=refusal_of(error).error)
        self.flush()

    def _end(self, error: Error) -> None:
        self._engine.close(error=error)
        self.flush()
        self._disconnect()

    def _disconnect(self) -> None:
        """Close the transport once the output is sent; abort it if the peer does not read it in time."""
        for node in [*self._nodes.values()]:
            self._forget(node.link)
        self._transport.close()
        if self._abort_timer is None and not self._is_lost:
            self._abort_timer = self.host.loop.call_later(_READ_WITHIN_S, self._transport.abort)


def _listed(names: Iterable[str | None]) -> str:
    """Return different names as one fact, a few at most."""
    return ",".join(islice(dict.fromkeys(name for name in names if name), _NAMED))


def _address_of(link: Link) -> str | None:
    """Return the address that the peer attached a link to, if it named one."""
    attach = link.peer
    terminus = None if attach is None else attach.target if link.role == RECEIVER else attach.source
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else None
