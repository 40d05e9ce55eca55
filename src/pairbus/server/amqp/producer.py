"""The server's end of a link on which a peer sends messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from pairbus.broker import Address, BrokerError, NewMessage, SendOperation
from pairbus.dialect.paths import DRILL, is_backlog_path, is_drill_path
from pairbus.dialect.sent import BATCH_FORMAT, split_batch
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.ledger.events import UNIT_BYTES
from pairbus.server.amqp.node import Keep, Need, Node, OnStored
from pairbus.server.errors import REFUSABLE, BadRequestError, ServerBusyError, refusal_of
from pairbus.server.host import IN_DOUBT
from pairbus.server.messages import received_message
from pairbus.server.metering import SendMeter
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.side_buffer.writer import TRANSIENT_ERRORS
from pairbus.server.throttle.shares import EntityBudgets
from pairbus.server.unanswered import SendKey, UnansweredSend, key_of
from pairbus.store import CommitId, StoreError
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    Condition,
    Declare,
    Declared,
    Delivery,
    Discharge,
    Error,
    Link,
    ProtocolError,
    Rejected,
    TransactionalState,
    decode_message,
)
from pairbus.wire.composites import from_described

if TYPE_CHECKING:
    from pairbus.server.amqp.connection import ServerConnection

CREDIT: Final = 2_000
"""Maximum number of messages that a sender may have under way. The SDK for Python ignores it, and is slowed down only
by a pause in reading."""

_PART: Final = 64
"""Number of messages of a batch that are decoded before other connections get their turns."""


class _Batch:
    """A batch that is decoded in parts."""

    def __init__(self, delivery: Delivery, max_messages: int) -> None:
        self.delivery = delivery
        self.messages: list[NewMessage] = []
        self.error: ProtocolError | None = None
        self._max_messages = max_messages
        self._rest: Iterator[bytes] | None = None

    def decode_part(self) -> bool:
        """Decode some more messages; return ``True`` when done: all are decoded, one is invalid, or they are too many.

        The broker rejects a batch of too many messages; the rest of it is not decoded.
        """
        try:
            if self._rest is None:
                self._rest = iter(split_batch(self.delivery.payload))
            part = [received_message(payload) for payload in islice(self._rest, _PART)]
        except ProtocolError as error:
            self.error = error
            return True
        self.messages += part
        return len(part) < _PART or len(self.messages) > self._max_messages

    def decoded(self) -> list[NewMessage]:
        """Return the messages of a batch that was decoded; raise the ``ProtocolError`` if one of them cannot be."""
        if self.error is not None:
            raise self.error
        return self.messages


class Producer(Node):
    """Passes the messages of one link to the broker."""

    kind = "sender"

    def __init__(
        self,
        connection: ServerConnection,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        via: Address | None = None,
        *,
        from_syphon: bool = False,
    ) -> None:
        super().__init__(link, path, needs)
        self._connection = connection
        self._address = address
        self._via = via
        self._from_syphon = from_syphon
        self._is_backlog = is_backlog_path(path)
        meter, who = connection.meter, connection.claims.who(path)
        self._meter = None if meter is None else SendMeter(meter, address, who, from_syphon=from_syphon)
        self._batch: _Batch | None = None
        self._budgets: EntityBudgets | None = None
        connection.dispatcher.count(address)

    def prepare(self, delivery: Delivery) -> bool:
        if delivery.message_format != BATCH_FORMAT:
            return True
        if self._batch is None or self._batch.delivery is not delivery:
            self._batch = _Batch(delivery, self._connection.host.limits.messages_per_batch)
        return self._batch.decode_part()

    def on_delivery(self, delivery: Delivery) -> None:
        try:
            self._accept(delivery)
        except REFUSABLE as error:
            self._connection.refuse(delivery, error)
            if self._meter is not None:
                self._meter.refused(refusal_of(error).condition, len(delivery.payload))
        self._batch = None
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)

    def _accept(self, delivery: Delivery) -> None:
        host = self._connection.host
        host.check_busy("send", self._address)
        messages = self._messages(delivery)
        if host.throttle.counts_sends:
            if self._budgets is None:
                self._budgets = host.budgets(self._address)
            host.check_share(self._budgets, self._address, messages)
        counters = self._connection.counters
        counters.messages_sent += len(messages)
        counters.bytes_sent += len(delivery.payload)
        if messages and messages[0].ping:
            counters.pings[self._address] += len(messages)
        state = delivery.state
        if isinstance(state, TransactionalState):
            self._connection.transactions.enlist(state.txn_id, SendOperation(self._address, messages, self._via))
            self.link.settle(delivery, TransactionalState(txn_id=state.txn_id, outcome=ACCEPTED))
        elif self._via is not None:
            host.check_stalled(self._address)
            host.use_namespace().transact([SendOperation(self._address, messages, self._via)], host.now_ms())
            self._connection.confirm(delivery, ACCEPTED)
        elif not self._send(delivery, messages):
            return  # it is counted when it is stored, or was counted before
        if self._is_backlog and (drills := sum(map(_is_of_drill, messages))):
            counters.drills[self._address] += drills
        if self._meter is not None:
            _count(self._meter, messages, len(delivery.payload))

    def _messages(self, delivery: Delivery) -> list[NewMessage]:
        if self._batch is not None and self._batch.delivery is delivery:
            messages = self._batch.decoded()
        else:
            messages = _decoded(delivery)
        return [message._replace(returned=True) for message in messages] if self._from_syphon else messages

    def _send(self, delivery: Delivery, messages: list[NewMessage]) -> bool:
        """Send a message, or recognise it as a retry; return whether it went to the store."""
        host = self._connection.host
        if host.unanswered:
            key = key_of(self._address, messages)
            earlier = host.unanswered.find(key)
            if earlier is not None:
                self._send_again(key, earlier, delivery, messages)
                return False
        if host.side_buffer is not None:
            return self._send_or_buffer(host.side_buffer, delivery, messages)
        if host.is_stalled:
            host.check_stalled(self._address)
        host.use_namespace().send(self._address, messages, host.now_ms())
        self._confirm(delivery)
        return True

    def _confirm(self, delivery: Delivery) -> None:
        delivery.context = self  # so that it is found if it is overdue, even if its link is detached by then
        self._connection.confirm(delivery, ACCEPTED)

    # While the storage stalls

    def on_overdue(self, delivery: Delivery, commit: CommitId) -> bool:
        host = self._connection.host
        messages = self._messages(delivery)
        key = key_of(self._address, messages)
        send = UnansweredSend(commit, partial(self._connection.is_awaited, delivery))
        host.unanswered.add(key, send)
        if not self._connection.is_awaited(delivery):  # its client may come back, and send it again
            return False
        if host.side_buffer is None or host.may_vanish(self._address):
            self._connection.refuse(delivery, ServerBusyError(IN_DOUBT, str(self._address)))
        else:
            self._copy(host.side_buffer, key, send, commit, delivery, messages)
        return True

    def _send_again(
        self, key: SendKey | None, earlier: UnansweredSend, delivery: Delivery, messages: list[NewMessage]
    ) -> None:
        """Answer a retry with the outcome of the first send, as soon as that is known."""
        host = self._connection.host
        earlier.is_awaited = partial(self._connection.is_awaited, delivery)
        if host.unanswered.outcome(earlier):
            self._connection.keep(delivery, partial(self._tell_stored, key, earlier, error=None))
        elif host.side_buffer is None or host.side_buffer.is_stalled:
            raise ServerBusyError(IN_DOUBT, str(self._address))
        elif earlier.followers is not None:
            self._connection.keep(
                delivery, lambda on_stored: earlier.follow(partial(self._tell_stored, key, earlier, on_stored))
            )
        elif earlier.commit is not None and not host.may_vanish(self._address):
            self._copy(host.side_buffer, key, earlier, earlier.commit, delivery, messages)
        else:
            raise ServerBusyError(IN_DOUBT, str(self._address))

    def _copy(
        self,
        buffer: SideBuffer,
        key: SendKey | None,
        send: UnansweredSend,
        commit: CommitId,
        delivery: Delivery,
        messages: list[NewMessage],
    ) -> None:
        """Store a send that its commit has, too, in the side buffer: it counts if the commit fails."""
        send.begin_write()

        def copied(on_stored: OnStored, error: Exception | None) -> None:
            failure = None if error is None else ServerBusyError(IN_DOUBT, str(self._address))
            send.end_write(failure)
            self._tell_stored(key, send, on_stored, failure)

        self._connection.keep(
            delivery,
            lambda on_stored: buffer.writer.copy(
                self._address, messages, partial(copied, on_stored), commit, partial(self._refuse_in_doubt, delivery)
            ),
        )

    def _refuse_in_doubt(self, delivery: Delivery) -> None:
        """Answer a send that the side buffer has not stored in time; a retry gets the outcome."""
        if self._connection.is_awaited(delivery):
            self._connection.refuse(delivery, ServerBusyError(IN_DOUBT, str(self._address)))
            self._connection.wrote(0)

    def _tell_stored(
        self, key: SendKey | None, send: UnansweredSend, on_stored: OnStored, error: Exception | None
    ) -> None:
        """Answer a send, and forget it once the answer is sent."""
        is_awaited = send.is_awaited()
        on_stored(error)
        if error is None and is_awaited:
            send.is_awaited = self._connection.is_connected
            self._connection.host.loop.call_soon(self._forget_answered, key, send)

    def _forget_answered(self, key: SendKey | None, send: UnansweredSend) -> None:
        if self._connection.is_connected():
            self._connection.host.unanswered.forget(key, send)

    # With a side buffer

    def _send_or_buffer(self, buffer: SideBuffer, delivery: Delivery, messages: list[NewMessage]) -> bool:
        """Send to the store, or to the side buffer if the store fails or the buffer has messages of the entity.

        Return whether the message went to the store.
        """
        host, cause = self._connection.host, None
        if not buffer.holds(self._address) and not host.is_stalled:
            namespace = host.use_namespace()  # raises if it is unavailable: then nothing can be checked
            try:
                namespace.send(self._address, messages, host.now_ms())
            except TRANSIENT_ERRORS as error:
                cause = error
            else:
                self._confirm(delivery)
                return True
        host.use_namespace().check_send(self._address, messages, host.now_ms())
        if host.may_vanish(self._address):  # the buffer could not merge it then
            host.check_stalled(self._address)
        store = partial(self._divert, buffer, delivery, messages, cause)
        self._connection.divert(delivery, self._remembered(store, delivery, messages))
        return False

    def _divert(
        self,
        buffer: SideBuffer,
        delivery: Delivery,
        messages: list[NewMessage],
        cause: StoreError | None,
        on_stored: OnStored,
    ) -> None:
        done = partial(self._stored, delivery, messages, on_stored)
        buffer.writer.divert(self._address, messages, done, cause, partial(self._refuse_in_doubt, delivery))

    def _remembered(self, store: Keep, delivery: Delivery, messages: list[NewMessage]) -> Keep:
        """Return ``store`` for a send whose retry is to be recognised, should its client not get the answer."""
        unanswered = self._connection.host.unanswered
        key = key_of(self._address, messages)
        send = UnansweredSend(None, partial(self._connection.is_awaited, delivery))
        send.begin_write()
        unanswered.add(key, send)

        def stored(on_stored: OnStored, error: Exception | None) -> None:
            send.end_write(error)
            self._tell_stored(key, send, on_stored, error)
            if error is not None:
                unanswered.forget(key, send)

        return lambda on_stored: store(partial(stored, on_stored))

    def rescue(self, delivery: Delivery, error: StoreError) -> bool:
        host = self._connection.host
        buffer = host.side_buffer
        if buffer is None or self._via is not None or not isinstance(error, TRANSIENT_ERRORS):
            return False
        messages = self._messages(delivery)
        try:
            host.use_namespace().check_send(self._address, messages, host.now_ms())
        except (BrokerError, StoreError):  # its entity was created in the commit that failed, and does not exist
            return False

        def store(on_stored: OnStored) -> None:
            done = partial(self._stored, delivery, messages, on_stored)
            overdue = partial(self._refuse_in_doubt, delivery)
            buffer.writer.rescue(self._address, messages, done, error, overdue)

        self._connection.keep(delivery, self._remembered(store, delivery, messages))
        return True

    def _stored(
        self, delivery: Delivery, messages: list[NewMessage], on_stored: OnStored, error: Exception | None
    ) -> None:
        if error is None and self._meter is not None:
            self._meter.kept(messages, len(delivery.payload))
        on_stored(error)

    def delay_s(self) -> float:
        return self._connection.host.delay_s(self._address)

    def on_detached(self) -> None:
        self._connection.dispatcher.discount(self._address)


def _is_of_drill(message: NewMessage) -> bool:
    """Return whether the destination of a diverted message is the queue of a drill."""
    if DRILL.encode() not in message.body:
        return False
    try:
        return is_drill_path(read_transfer(message.body).path)
    except TransferError:
        return False


def _count(meter: SendMeter, messages: list[NewMessage], size_bytes: int) -> None:
    if len(messages) == 1 and size_bytes <= UNIT_BYTES and not messages[0].ping:
        meter.sent_small(size_bytes)
    else:
        meter.sent(messages, size_bytes)


def _decoded(delivery: Delivery) -> list[NewMessage]:
    if delivery.message_format == 0:
        return [received_message(delivery.payload)]
    if delivery.message_format == BATCH_FORMAT:
        return [received_message(payload) for payload in split_batch(delivery.payload)]
    raise BadRequestError(f"the message format 0x{delivery.message_format:08x} is not supported")


class CoordinatorNode(Node):
    """Begins and ends the transactions of a connection (part 4 of the standard)."""

    kind = "coordinator"

    def __init__(self, connection: ServerConnection, link: Link) -> None:
        super().__init__(link, "")
        self._connection = connection

    def on_delivery(self, delivery: Delivery) -> None:
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)
        try:
            self._execute(delivery)
        except REFUSABLE as error:
            self._connection.refuse(delivery, error)

    def _execute(self, delivery: Delivery) -> None:
        message = decode_message(delivery.payload)
        command = from_described(message.body[0]) if message.body_kind == AMQP_VALUE else None
        match command:
            case Declare():
                self.link.settle(delivery, Declared(self._connection.transactions.declare()))
            case Discharge():
                if not command.fail:
                    self._connection.host.check_stalled()
                self._discharge(delivery, command)
            case _:
                raise BadRequestError("a coordinator takes declare and discharge")

    def _discharge(self, delivery: Delivery, command: Discharge) -> None:
        try:
            self._connection.transactions.discharge(command.txn_id, fail=bool(command.fail))
        except REFUSABLE as error:
            refusal = refusal_of(error)
            if refusal.condition in {Condition.UNKNOWN_TRANSACTION, Condition.TRANSACTION_TIMEOUT}:
                raise
            self._connection.counters.refuse(refusal.condition, refusal.limit)
            reason = Error(Condition.TRANSACTION_ROLLBACK, f"{refusal.condition}: {refusal.description}")
            self.link.settle(delivery, Rejected(reason))
        else:
            self._connection.confirm(delivery, ACCEPTED)
