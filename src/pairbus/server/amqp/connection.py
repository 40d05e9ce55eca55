"""One AMQP connection: bytes in, what they ask for done, bytes out."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from pairbus.broker import Address, Right, SessionLockLostError
from pairbus.server.amqp.attachment import attach_link
from pairbus.server.amqp.claims import Claims
from pairbus.server.amqp.consumer import Consumer
from pairbus.server.amqp.node import Node
from pairbus.server.amqp.peer import Keep, Peer
from pairbus.server.amqp.replies import Replies
from pairbus.server.amqp.requests import RequestNode
from pairbus.server.amqp.services import AmqpServices, Transport
from pairbus.server.amqp.transactions import Transactions
from pairbus.server.amqp.unproven import BOUNDS
from pairbus.server.errors import (
    REFUSABLE,
    BadRequestError,
    InvalidCredentialsError,
    ServerBusyError,
    UnauthorizedError,
    refusal_of,
)
from pairbus.store import StoreError
from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    MSSBCBS,
    PLAIN,
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

_MOST_UNCONFIRMED_BYTES: Final = 8 * 1024 * 1024
"""What a connection may have sent that is not on disk yet; then we read no more of it for a while."""
_MOST_UNSENT_BYTES: Final = 4 * 1024 * 1024
"""What may lie ready for a peer that does not read; then we do nothing more for it."""
_NOTHING: Final = memoryview(b"")
_TURN_S: Final = 0.004
"""How long a connection is served before the others have their turn."""
_SLICE_BYTES: Final = 16 * 1024
"""How much of what came is looked at before the time is."""
_OPEN_WITHIN_S: Final = 60.0
_TOKEN_WITHIN_S: Final = 60.0
_MOST_ANSWERS: Final = 16
_MOST_WRITTEN_BYTES: Final = 128 * 1024
_LONGEST_PAUSE_S: Final = 86_400.0
"""A token may end in a year that no timer can be set to."""
_READ_WITHIN_S: Final = 5.0
_SMALL_FRAME_BYTES: Final = 4_096


class AmqpConnection(Peer):
    """Everything happens in the call that brings the bytes: nothing waits, and so nothing can come in between."""

    def __init__(self, services: AmqpServices, transport: Transport, protocol: str = "amqp", address: str = "") -> None:
        self.host = services.host
        self.gatekeeper = services.gatekeeper
        self.dispatcher = services.dispatcher
        self.counters = services.counters
        self.meter = services.meter
        self.claims = Claims()
        self.replies = Replies()
        self.transactions = Transactions(services.host)
        self._services = services
        self._stopwatch = services.stopwatch
        self._transport = transport
        self._protocol = protocol
        self._address = address
        """Where the peer is, without its port."""
        self._penalty_s = 0.0
        """For how long the answer to a failed log-in is held back."""
        self._engine = Connection(
            services.configuration,
            # The SDK for JavaScript goes without when its connection string has a token and no key: that opens nothing.
            SaslServer(mechanisms=(MSSBCBS, PLAIN, ANONYMOUS), authenticate=self._authenticate, required=False),
        )
        self._engine.bounds = BOUNDS
        self._nodes: dict[Link, Node] = {}
        self._unread: memoryview = _NOTHING
        """What came with what filled the last turn."""
        self._events: deque[Event] = deque()
        """What the peer has asked, and nobody has looked at."""
        self._answers = 0
        """How many answers, which may be large, are on their way to the disk or to the peer."""
        self._written_bytes = 0
        self._flushes_soon = False
        self._held: set[Node] = set()
        """Those whose messages wait for the session's window."""
        self._confirmations: list[tuple[Delivery, object]] = []
        self._unconfirmed_bytes = 0
        self._confirming_bytes = 0
        self._is_writable = True
        self._is_reading = True
        self._has_turn_left = False
        """Whether the next turn is planned."""
        self._is_lost = False
        self._heartbeat: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._farewell: asyncio.TimerHandle | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            ConnectionOpened: self._opened,
            ConnectionClosed: self._closed,
            SessionBegun: self._begun,
            SessionEnded: self._ended,
            LinkAttached: self._attached,
            LinkDetached: self._detached,
            CreditGranted: self._credited,
            Delivery: self._delivered,
            DeliveryAborted: self._aborted,
            DispositionReceived: self._disposed,
        }
        services.connections.add(self)
        services.unproven.add(self)
        self.counters.connected(protocol)
        self._opening = self.host.loop.call_later(_OPEN_WITHIN_S, self._give_up)

    # What the transport says.

    def data_received(self, data: bytes) -> None:
        """Take in what arrived."""
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)
        if not self._has_turn_left:
            self.guard(self._take_turn)

    def _take_turn(self) -> None:
        """Do what the peer asks, for a few milliseconds at a time; then it is the turn of the other connections.

        What the peer does not take the answers of waits as well, and no more is read.
        """
        self._has_turn_left = False
        ends = self._stopwatch() + _TURN_S
        is_early = True
        while self._handle_events(ends) and self._unread and is_early:
            data, self._unread = self._unread[:_SLICE_BYTES], self._unread[_SLICE_BYTES:]
            self._take_in(data)
            is_early = self._stopwatch() < ends
        self._send_confirmations()
        self._release_held()
        self.flush()
        if self._can_go_on and (self._unread or self._events):
            self._has_turn_left = True
            self.host.loop.call_soon(self.guard, self._take_turn)
        self._balance()

    def _take_in(self, data: memoryview) -> None:
        events: Sequence[Event]
        violation: ProtocolError | None = None
        try:
            events = self._engine.receive_data(data)
        except ProtocolError as error:
            events, violation = error.events, error
        self._events.extend(events)
        if violation is not None and self._penalty_s:
            self.host.loop.call_later(self._penalty_s, self.guard, partial(self._end_violator, violation))
        elif violation is not None:
            self._end_violator(violation)
        elif not self._services.unproven.hold(self, self._engine.held_bytes):
            self._end(Error(Condition.RESOURCE_LIMIT_EXCEEDED, "too much has come from connections without a token"))

    def _end_violator(self, violation: ProtocolError) -> None:
        self._penalty_s = 0.0
        self._handle_events(math.inf)
        self._send_confirmations()
        self.flush()
        _log.info("protocol violation, connection closed peer=%s error=%s", self._address, violation)
        self.counters.refused[violation.condition] += 1
        self._hang_up()

    @property
    def _can_go_on(self) -> bool:
        """Whether the peer takes the answers to what it asks."""
        return self._engine.is_closed or (self._is_writable and self._answers < _MOST_ANSWERS)

    def _handle_events(self, ends: float) -> bool:
        """Handle what has come, until a time; return whether nothing is left."""
        events = self._events
        while events and self._can_go_on:
            event = events.popleft()
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
            if self._stopwatch() > ends:
                break
        return not events

    def _release_held(self) -> None:
        """The window may have been opened again, which no event tells."""
        for node in [node for node in self._held if not node.link.queued]:
            self._held.discard(node)
            node.on_credit()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.guard(self._go_on)

    def _go_on(self) -> None:
        self._take_turn()
        for node in [*self._nodes.values()]:
            node.on_writable()
        self.flush()

    def connection_lost(self) -> None:
        """The transport is gone, and all links with it."""
        if self._is_lost:
            return
        # What was sent counts, though nobody waits for the answer: the SDK for Python hangs up right after it has
        # released what it does not want.
        self.guard(self._handle_the_rest)
        self._is_lost = True
        self._services.connections.discard(self)
        self._services.forget_unproven(self)
        self.counters.connections[self._protocol] -= 1
        for timer in (self._heartbeat, self._expiry, self._opening, self._farewell):
            if timer is not None:
                timer.cancel()
        for node in [*self._nodes.values()]:
            self._forget(node.link)
        # What refers back to the connection would keep it in memory until the garbage collector comes.
        self._engine.abandon()
        self._handlers.clear()
        self._unread = _NOTHING

    def _handle_the_rest(self) -> None:
        """Take what was sent or settled; the answer to a request would reach nobody."""
        if self._unread and self.has_claims:
            with suppress(ProtocolError):
                self._events.extend(self._engine.receive_data(self._unread))
        for event in self._events:
            if isinstance(event, DispositionReceived) or (isinstance(event, Delivery) and self._is_message(event)):
                self._handlers[type(event)](event)
        self._events.clear()

    def _is_message(self, delivery: Delivery) -> bool:
        return not isinstance(self._nodes.get(delivery.link), RequestNode)

    def shut_down(self) -> None:
        """The server stops: say so, and hang up."""
        self._end(Error(Condition.CONNECTION_FORCED, "the server is shutting down; connect again in a moment"))

    def abort(self) -> None:
        self._transport.abort()

    # What nodes ask for.

    def guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 (a defect of ours must not take the other connections along)
            _log.exception("a connection failed")
            self._end(Error(Condition.INTERNAL_ERROR, "the server failed; its log says why"))

    def attempt(self, link: Link, work: Callable[[], object]) -> None:
        try:
            work()
        except (*REFUSABLE, LocalProtocolError) as error:
            self._forget(link)
            refusal = refusal_of(error)
            self.counters.refused[refusal.condition] += 1
            link.refuse(refusal.error)
        self.flush()

    @property
    def has_claims(self) -> bool:
        """Whether the peer has shown a token or a key that holds."""
        return bool(self.claims)

    @property
    def is_draining(self) -> bool:
        return self._services.is_draining

    @property
    def is_writable(self) -> bool:
        return self._is_writable and not self._is_lost

    def allows(self, path: str, rights: Sequence[Right]) -> bool:
        return self.claims.allows(path, rights, self.host.wall_ms())

    def confirm(self, delivery: Delivery, state: object) -> None:
        self._confirmations.append((delivery, state))
        self._unconfirmed_bytes += len(delivery.payload)
        self._confirming_bytes += len(delivery.payload)

    def divert(self, delivery: Delivery, keep: Keep) -> None:
        self._send_confirmations()  # should what came before it fail, that comes first
        self.keep(delivery, keep)

    def keep(self, delivery: Delivery, keep: Keep) -> None:
        self._unconfirmed_bytes += len(delivery.payload)
        keep(partial(self._kept, delivery))

    def _kept(self, delivery: Delivery, error: Exception | None) -> None:
        self._unconfirmed_bytes -= len(delivery.payload)
        if not self._is_lost:
            self.guard(partial(self._tell, [(delivery, ACCEPTED)], error))
            self.wrote(0)
            self._balance()

    def refuse(self, delivery: Delivery, error: Exception) -> None:
        refusal = refusal_of(error)
        self.counters.refused[refusal.condition] += 1
        self._tell([(delivery, Rejected(refusal.error))])

    def when_durable(self, done: Callable[[StoreError | None], object]) -> None:
        def finish(error: StoreError | None) -> None:
            if not self._is_lost:
                self.guard(partial(done, error))
                self.flush()

        self.host.when_durable(finish)

    def answer_when_durable(self, done: Callable[[StoreError | None], object]) -> None:
        self._answers += 1

        def finish(error: StoreError | None) -> None:
            self._answers -= 1
            done(error)
            if (self._events or self._unread) and not self._has_turn_left:
                self._has_turn_left = True
                self.host.loop.call_soon(self.guard, self._take_turn)

        self.when_durable(finish)

    def wrote(self, size_bytes: int) -> None:
        self._written_bytes += size_bytes
        if self._written_bytes > _MOST_WRITTEN_BYTES:
            self.flush()
        elif not self._flushes_soon:
            self._flushes_soon = True
            self.host.loop.call_soon(self.guard, self._flush_now)

    def _flush_now(self) -> None:
        self._flushes_soon = False
        self.flush()

    def hold(self, node: Node) -> None:
        self._held.add(node)

    def flush(self) -> None:
        self._written_bytes = 0
        if not self._is_lost and not self._penalty_s:
            data = self._engine.data_to_send()
            if data:
                self._transport.write(data)

    def tokens_changed(self) -> None:
        self._prove()
        if self._expiry is not None:
            self._expiry.cancel()
        due_ms = self.claims.next_expiry_ms()
        if due_ms is not None:
            pause_s = min(max(0, due_ms - self.host.wall_ms()) / 1_000, _LONGEST_PAUSE_S)
            self._expiry = self.host.loop.call_later(pause_s, self.guard, self._expire)

    def _prove(self) -> None:
        """The peer has shown a key or a token that holds: it may have what a connection has."""
        if self.claims:
            self._engine.bounds = self._services.configuration.bounds
            self._services.forget_unproven(self)

    def recheck_claims(self) -> None:
        if self.claims.drop_revoked(self.gatekeeper.holds):
            self.guard(self._revoke)

    def _revoke(self) -> None:
        reason = "the key that it was opened with was changed or removed"
        _log.info("claims revoked, %d left", len(self.claims))
        self._end_unclaimed(UnauthorizedError(reason))
        if not self.claims:
            self._end(Error(Condition.UNAUTHORIZED_ACCESS, reason))

    def check_guesses(self, key: str) -> None:
        self._services.guesses.check(self._address, key, self._protocol)

    def penalty_s(self, key: str, reason: Exception) -> float:
        return self._services.guesses.failed(self._address, key, self._protocol, reason)

    def session_token(self, link_name: object, address: Address, session_id: object) -> bytes | None:
        if not isinstance(session_id, str | None):
            raise BadRequestError(f"a session id is text, and not {session_id!r:.100}")
        for node in self._nodes.values():
            if isinstance(node, Consumer) and node.link.name == link_name and node.address == address:
                if node.session is None:
                    return None
                if session_id in {None, node.session.session_id}:
                    return node.session.session_token
        if session_id is None:
            return None
        raise SessionLockLostError(f"the request comes from no link that holds session '{session_id}'", str(address))

    # What the peer says.

    def _authenticate(self, mechanism: str, response: bytes) -> SaslCode:
        if mechanism != PLAIN:
            return accept_anonymous(mechanism, response)
        name, key = parse_plain(response)
        try:
            self.check_guesses(name)
            self.claims.put("", self.gatekeeper.admit_key(name, key))
        except REFUSABLE as error:
            self.counters.refused[refusal_of(error).condition] += 1
            if isinstance(error, InvalidCredentialsError):
                self._penalty_s = self.penalty_s(name, error)
            return SaslCode.SYS_TEMP if isinstance(error, ServerBusyError) else SaslCode.AUTH
        self._prove()
        return SaslCode.OK

    def _opened(self, _event: ConnectionOpened) -> None:
        self._opening.cancel()
        self._opening = self.host.loop.call_later(_TOKEN_WITHIN_S, self.guard, self._expect_token)
        self._engine.open()
        self._beat()

    def _closed(self, _event: ConnectionClosed) -> None:
        self.flush()
        self._hang_up()

    def _begun(self, event: SessionBegun) -> None:
        event.session.begin()

    def _ended(self, event: SessionEnded) -> None:
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

    def _detached(self, event: LinkDetached) -> None:
        self._forget(event.link)

    def _forget(self, link: Link) -> None:
        node = self._nodes.pop(link, None)
        if node is not None:
            self._held.discard(node)
            self.counters.links[node.kind] -= 1
            node.on_detached()

    def _credited(self, event: CreditGranted) -> None:
        node = self._nodes.get(event.link)
        if node is not None:
            node.on_credit()

    def _delivered(self, delivery: Delivery) -> None:
        node = self._nodes.get(delivery.link)
        if node is not None:
            node.on_delivery(delivery)

    def _aborted(self, event: DeliveryAborted) -> None:
        if event.error is not None:
            self.counters.refused[event.error.condition] += 1

    def _disposed(self, event: DispositionReceived) -> None:
        answers: list[tuple[Delivery, object]] = []
        for delivery in event.deliveries:
            node = self._nodes.get(delivery.link)
            answer = None if node is None else node.settle(delivery, event.state)
            if answer is not None and not event.settled:
                answers.append((delivery, answer))
        if answers:
            self.when_durable(partial(self._tell, answers))

    # What happens by itself.

    def _send_confirmations(self) -> None:
        """Tell the outcomes of all messages that came together, when they are on disk together."""
        if self._confirmations:
            batch, self._confirmations = self._confirmations, []
            size, self._confirming_bytes = self._confirming_bytes, 0
            self.when_durable(partial(self._confirm, batch, size))

    def _confirm(self, batch: list[tuple[Delivery, object]], size: int, error: StoreError | None) -> None:
        self._unconfirmed_bytes -= size
        if error is not None:
            batch = [each for each in batch if not self._rescue(each[0], error)]
        self._tell(batch, error)
        self._balance()

    def _rescue(self, delivery: Delivery, error: StoreError) -> bool:
        node = self._nodes.get(delivery.link)
        return node is not None and node.rescue(delivery, error)

    def _tell(self, answers: list[tuple[Delivery, object]], error: Exception | None = None) -> None:
        """Settle messages, with these states or with the reason why they could not be kept."""
        failure = None if error is None else Rejected(refusal_of(error).error)
        peer = self._engine.peer
        is_small = peer is not None and peer.max_frame_size < _SMALL_FRAME_BYTES
        for delivery, told in answers:
            state = told if failure is None else failure
            if is_small and peer is not None and isinstance(state, Rejected):
                state = Rejected(shortened(state.error, peer.max_frame_size))
            delivery.link.settle(delivery, state)

    def _balance(self) -> None:
        """Stop reading from a peer that is ahead of the disk, or that does not read itself."""
        too_much = (
            self._unconfirmed_bytes > _MOST_UNCONFIRMED_BYTES
            or self._transport.get_write_buffer_size() > _MOST_UNSENT_BYTES
            or bool(self._events)
            or bool(self._unread)
        )
        if too_much is self._is_reading and not self._is_lost:
            self._is_reading = not too_much
            if too_much:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _beat(self) -> None:
        """Keep the connection alive, and give it up when the peer has."""
        try:
            next_ms = self._engine.tick(self._monotonic_ms())
        except ProtocolError as error:
            _log.info("a connection is given up: %s", error)
            self.flush()
            self._transport.abort()
            return
        self.flush()
        if next_ms is not None and not self._is_lost:
            # The engine notices that something has come when it is asked, so it is asked often enough.
            longest_ms = (self._services.configuration.idle_time_out_ms or 60_000) // 2
            pause_s = min(max(0, next_ms - self._monotonic_ms()), longest_ms) / 1_000
            self._heartbeat = self.host.loop.call_later(pause_s, self.guard, self._beat)

    def _monotonic_ms(self) -> int:
        return int(self.host.loop.time() * 1_000)

    def _give_up(self) -> None:
        _log.info("a connection was not opened within %d seconds", _OPEN_WITHIN_S)
        self._transport.abort()

    def _expect_token(self) -> None:
        if not self.claims:
            self._end(Error(Condition.UNAUTHORIZED_ACCESS, f"no token was put within {_TOKEN_WITHIN_S:.0f} seconds"))

    def _expire(self) -> None:
        """A token has ended: the links that lived by it end too."""
        self.claims.drop_expired(self.host.wall_ms())
        self._end_unclaimed(UnauthorizedError("ExpiredToken: the token has expired, and no new one was put"))
        self.tokens_changed()

    def _end_unclaimed(self, error: UnauthorizedError) -> None:
        """Detach the links that nothing allows any more."""
        for node in [*self._nodes.values()]:
            if not all(self.allows(path, rights) for path, rights in node.needs):
                self._forget(node.link)
                node.link.detach(error=refusal_of(error).error)
        self.flush()

    def _end(self, error: Error) -> None:
        self._engine.close(error=error)
        self.flush()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close when the peer has read what was said; and when it does not read, all the same."""
        for node in [*self._nodes.values()]:
            self._forget(node.link)
        self._transport.close()
        if self._farewell is None and not self._is_lost:
            self._farewell = self.host.loop.call_later(_READ_WITHIN_S, self._transport.abort)
