"""The server's end of a link on which we send messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pairbus.broker import COMPLETE, Address, SessionGrant, SettlementKind, SettlementRequest, SettleOperation
from pairbus.broker import DeliveredMessage as Message
from pairbus.broker.errors import DESCRIPTION_PROPERTY, REASON_PROPERTY
from pairbus.server.amqp.node import Need, Node
from pairbus.server.dispatcher import SHARE
from pairbus.server.errors import REFUSABLE, BadRequestError, OperationTimeoutError, refusal_of
from pairbus.server.log_context import ContextLog
from pairbus.server.messages import delivered_payload, values_from_wire
from pairbus.server.metering import ReceiveMeter
from pairbus.store import StoreError
from pairbus.wire import (
    RELEASED,
    Accepted,
    Delivery,
    Link,
    MessageTooLargeError,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

_RELEASE: Final = SettlementRequest(disposition=SettlementKind.RELEASE)


def verdict_of(state: object) -> SettlementRequest:
    """Return the settlement that a delivery state requests; raises ``BadRequestError`` for other states."""
    match state:
        case Accepted():
            return COMPLETE
        case Released():
            return _RELEASE
        case Modified():
            disposition = SettlementKind.DEFER if state.undeliverable_here else SettlementKind.ABANDON
            return SettlementRequest(
                disposition=disposition, properties=values_from_wire(state.message_annotations or {})
            )
        case Rejected():
            return _dead_letter(state)
    raise BadRequestError(f"{type(state).__name__} is not an outcome that settles a message")


def _dead_letter(state: Rejected) -> SettlementRequest:
    """Return a dead-letter settlement for a rejected message, with the receiver's reason; the condition is ignored."""
    info: dict[Any, Any] = dict((state.error.info or {}) if state.error is not None else {})
    reason = info.pop(REASON_PROPERTY, None)
    description = info.pop(DESCRIPTION_PROPERTY, None)
    if description is None and state.error is not None:
        description = state.error.description
    return SettlementRequest(
        disposition=SettlementKind.DEAD_LETTER,
        properties=values_from_wire(info),
        reason=_text(reason),
        description=_text(description),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def echo_of(state: object) -> object:
    """Return the state that confirms a settlement: the same outcome, without its fields."""
    match state:
        case Rejected():
            return Rejected()
        case Modified():
            return Modified(delivery_failed=state.delivery_failed, undeliverable_here=state.undeliverable_here)
    return state


class SessionWait(Node):
    """Delays the answer to an attach until a session is available, or the timeout expires."""

    kind = "session-wait"

    def __init__(
        self,
        connection: ServerConnection,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        timeout_ms: int,
        granted: Callable[[SessionGrant], None],
        *,
        session_expires: bool,
    ) -> None:
        super().__init__(link, path, needs)
        self.address = address
        self.session_expires = session_expires
        self._connection = connection
        self._granted = granted
        self._timer = connection.host.loop.call_later(timeout_ms / 1_000, connection.guard, self._time_out)
        connection.dispatcher.count(address)
        connection.dispatcher.add_waiter(self)

    def grant(self, grant: SessionGrant) -> None:
        self._finish()
        self._connection.attempt(self.link, partial(self._granted, grant))

    def refuse(self, error: Exception) -> None:
        self._finish()
        self._connection.guard(partial(self.link.refuse, refusal_of(error).error))
        self._connection.flush()

    def log_context(self) -> ContextLog:
        return self._connection.log_context(self.link)

    def on_detached(self) -> None:
        self._finish()

    def _time_out(self) -> None:
        self.refuse(OperationTimeoutError(f"no session of '{self.address}' became available within the timeout"))

    def _finish(self) -> None:
        if not self._timer.cancelled():
            self._timer.cancel()
            self._connection.dispatcher.remove_waiter(self)
            self._connection.dispatcher.discount(self.address)


_TAG_BYTES: Final = 16
"""Length of a lock token: SDKs read the tag as a GUID in every receive mode."""
_MOST_UNSETTLED: Final = 10_000
"""Most deliveries that a receiver may leave unsettled; beyond it the oldest, whose locks have long expired, are
dropped.
"""
_AT_ONCE_BYTES: Final = 1024 * 1024
"""Bytes taken from the broker before the peer's reading is checked again."""


class Consumer(Node):
    """Takes messages from the broker as the link has credit, and passes the receiver's settlements on."""

    kind = "receiver"

    def __init__(
        self,
        connection: ServerConnection,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        *,
        deletes: bool,
        session: SessionGrant | None = None,
    ) -> None:
        super().__init__(link, path, needs)
        self.address = address
        self.session = session
        self._connection = connection
        self._deletes = deletes
        self._taken = 0
        """Messages that were received and deleted, to be sent once their removal is on disk."""
        self._taken_bytes = 0
        self._usual_bytes = _AT_ONCE_BYTES // SHARE
        """Estimated message size: the largest of the last few."""
        self._unsettled: dict[Delivery, int] = {}
        """Unsettled deliveries, and the expiry of their locks."""
        self.is_lost = False
        self._is_forgotten = False
        self._meter = (
            None if connection.meter is None else ReceiveMeter(connection.meter, address, connection.claims.who(path))
        )
        self._was_served = False
        """True if a message was delivered under the current credit."""
        self._delay: asyncio.TimerHandle | None = None
        """The delay of an injected fault, after which it takes messages."""
        self._is_delayed = True
        """True if a fault that delays deliveries applies now: not at the end of the delay."""
        connection.dispatcher.count(address)
        connection.dispatcher.add(self)

    # Delivery.

    def wants(self) -> bool:
        """Return whether there is credit, nothing waits for the session's window, and the peer reads."""
        link = self.link
        if link.queued:
            self._connection.hold(self)
            return False
        return (
            link.can_send
            and link.credit > self._taken
            and self._taken_bytes < _AT_ONCE_BYTES
            and self._connection.is_writable
            and not self._connection.is_draining
            and not self._connection.host.is_paused
            and not (self._connection.host.faults and self._waits_for_delay())
        )

    def _waits_for_delay(self) -> bool:
        """Return whether a fault delays what could be received now, and begin the delay if it has not begun."""
        if self._delay is None and self._is_delayed and (delay_s := self._connection.host.delay_s(self.address)):
            self._delay = self._connection.host.loop.call_later(delay_s, self._connection.guard, self._end_delay)
        return self._delay is not None

    def _end_delay(self) -> None:
        self._delay, self._is_delayed = None, False
        try:
            if not self._is_forgotten:
                self.on_credit()
                self._connection.flush()
        finally:
            self._is_delayed = True

    def take(self, max_count: int) -> int:
        host = self._connection.host
        fitting = max(1, _AT_ONCE_BYTES // self._usual_bytes)
        try:
            messages = host.use_namespace().receive(
                self.address,
                min(max_count, self.link.credit - self._taken, fitting),
                host.now_ms(),
                delete=self._deletes,
                session_token=None if self.session is None else self.session.session_token,
            )
        except REFUSABLE as error:
            self.lose(error)
            return 0
        if not messages:
            return 0
        self._connection.dispatcher.note_taken(self.address, len(messages))
        self._usual_bytes = max([len(message.body) for message in messages], default=0) or 1
        if self._deletes:
            self._send_when_gone(messages)
        else:
            self._send_all(messages)
        return len(messages)

    def _send_all(self, messages: Sequence[Message]) -> None:
        sizes: list[int] = []
        try:
            for message in messages:
                sizes.append(self._send(message))  # noqa: PERF401 (what was sent is counted even if a later one fails)
        except MessageTooLargeError as error:  # for this receiver; others may accept it
            self._give_back(message.lock_token for message in messages[len(sizes) :])
            self.lose(error)
        self._count(messages, sizes)

    def _count(self, messages: Sequence[Message], sizes: Sequence[int]) -> None:
        """Count the messages that were sent, which may be fewer."""
        if not sizes:
            return
        counters = self._connection.counters
        counters.messages_delivered += len(sizes)
        counters.bytes_delivered += sum(sizes)
        if self._meter is not None:
            self._meter.given(messages, sizes)

    def _send(self, message: Message) -> int:
        """Send a message; return its size on the wire."""
        payload = delivered_payload(message, self.address)
        token = message.lock_token
        tag = message.record.sequence.to_bytes(_TAG_BYTES) if token is None else token
        delivery = self.link.send(payload, tag=tag, settled=token is None, beyond_credit=token is None)
        if token is not None:
            delivery.context = token
            self._unsettled[delivery] = message.locked_until_ms or 0
            if len(self._unsettled) > _MOST_UNSETTLED:
                self._drop_oldest()
        self._was_served = self.link.credit > 0
        self._connection.wrote(len(payload))
        return len(payload)

    def _drop_oldest(self) -> None:
        oldest, until_ms = next(iter(self._unsettled.items()))
        if self.session is None and until_ms < self._connection.host.now_ms():
            del self._unsettled[oldest]
            self.link.settle(oldest, RELEASED)

    def _send_when_gone(self, messages: Sequence[Message]) -> None:
        """Send messages once their removal is on disk: receive-and-delete means at most once."""
        size = sum([len(message.body) for message in messages])
        self._taken += len(messages)
        self._taken_bytes += size
        self._connection.dispatcher.note_removed(len(messages))  # first: more may be taken once these are sent

        def done(error: StoreError | None) -> None:
            self._taken -= len(messages)
            self._taken_bytes -= size
            if error is None and self.link.is_attached:
                self._count(messages, [*map(self._send, messages)])
            self.on_credit()

        self._connection.when_durable(done)

    def on_credit(self) -> None:
        """Deliver what the receiver has credit for when deliveries have their turn: now, or later."""
        self._connection.dispatcher.deliver(self, partial(self._connection.guard, self._deliver))

    def _deliver(self) -> None:
        if self.wants() and self.take(SHARE):
            self._connection.dispatcher.deliver_later(self, partial(self._connection.guard, self._deliver))
        elif self.link.drain and not self._taken and self._connection.is_writable and self.link.is_attached:
            if self._meter is not None and self.link.credit and not self._was_served:
                self._meter.went_empty()
            self.link.drained()
            self._was_served = False
            self._connection.flush()

    def on_writable(self) -> None:
        self.on_credit()

    def lose(self, error: Exception) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._forget()
            self.link.detach(error=refusal_of(error).error)
            self._connection.flush()

    def log_context(self) -> ContextLog:
        return self._connection.log_context(self.link)

    # Settlement.

    def delay_s(self) -> float:
        return self._connection.host.delay_s(self.address)

    def settle(self, delivery: Delivery, state: object) -> object:
        if delivery not in self._unsettled or state is None or isinstance(state, Received):
            return None
        del self._unsettled[delivery]
        try:
            if isinstance(state, TransactionalState):
                return self._enlist(delivery, state)
            verdict = verdict_of(state)
            host = self._connection.host
            if host.has_withdrawn:
                host.check_stalled(self.address)
            host.use_namespace().settle(self.address, delivery.context, host.now_ms(), verdict)
        except REFUSABLE as error:
            refusal = refusal_of(error)
            self._connection.counters.refuse(refusal.condition, refusal.limit)
            return Rejected(refusal.error)
        self._connection.counters.settled[verdict.disposition.name.lower()] += 1
        if self._meter is not None:
            self._meter.settled()
        return echo_of(state)

    def _enlist(self, delivery: Delivery, state: TransactionalState) -> object:
        operation = SettleOperation(self.address, delivery.context, verdict_of(state.outcome))
        self._connection.transactions.enlist(state.txn_id, operation)
        return TransactionalState(txn_id=state.txn_id, outcome=echo_of(state.outcome))

    def on_detached(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Release what the receiver cannot have seen, and its session."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        if self._delay is not None:
            self._delay.cancel()
        self._connection.dispatcher.remove(self)
        self._connection.dispatcher.discount(self.address)
        host = self._connection.host
        unsent = [delivery.context for delivery in self._unsettled if delivery.delivery_id < 0]
        self._unsettled.clear()
        if self.session is None:
            self._give_back(unsent)
        else:
            with suppress(*REFUSABLE):  # its lock, or the entity, is already gone
                host.use_namespace().release_session(self.address, self.session.session_token, host.now_ms())

    def _give_back(self, tokens: Iterable[bytes | None]) -> None:
        """Release messages that were not sent to the receiver."""
        host = self._connection.host
        for token in tokens:
            with suppress(*REFUSABLE):  # its lock, or the entity, is already gone
                host.use_namespace().settle(self.address, token or b"", host.now_ms(), _RELEASE)
