"""The server's end of a link that messages are sent to us on."""

from __future__ import annotations

from functools import partial
from typing import Final

from pairbus.broker import Address, BrokerError, Message, Send
from pairbus.dialect.backlog_path import DRILL, is_backlog_path, is_drill_path
from pairbus.dialect.batch import BATCH_FORMAT, split_batch
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.ledger.operation import UNIT_BYTES
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer, Tell
from pairbus.server.errors import REFUSABLE, BadRequestError, refusal_of
from pairbus.server.messages import received_message
from pairbus.server.metering import SendToll
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.side_buffer.store import PASSING
from pairbus.store import StoreError
from pairbus.wire import ACCEPTED, Delivery, Link, TransactionalState

CREDIT: Final = 2_000
"""What a sender may have under way. The SDK for Python looks at none of it: what holds it back is that we stop
reading."""


class Producer(Node):
    """Hands the messages of one link to the broker."""

    kind = "sender"

    def __init__(
        self,
        peer: Peer,
        link: Link,
        path: str,
        needs: tuple[Need, ...],
        address: Address,
        via: Address | None = None,
        *,
        from_syphon: bool = False,
    ) -> None:
        super().__init__(link, path, needs)
        self._peer = peer
        self._address = address
        self._via = via
        self._from_syphon = from_syphon
        self._is_backlog = is_backlog_path(path)
        meter, who = peer.meter, peer.claims.who(path)
        self._toll = None if meter is None else SendToll(meter, address, who, from_syphon=from_syphon)
        peer.dispatcher.count(address)

    def on_delivery(self, delivery: Delivery) -> None:
        try:
            self._accept(delivery)
        except REFUSABLE as error:
            self._peer.refuse(delivery, error)
            if self._toll is not None:
                self._toll.refused(refusal_of(error).condition, len(delivery.payload))
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)

    def _accept(self, delivery: Delivery) -> None:
        host = self._peer.host
        host.check_busy("send", self._address)
        messages = _messages(delivery, from_syphon=self._from_syphon)
        counters = self._peer.counters
        counters.messages_sent += len(messages)
        counters.bytes_sent += len(delivery.payload)
        if messages and messages[0].ping:
            counters.pings[self._address] += len(messages)
        state = delivery.state
        if isinstance(state, TransactionalState):
            self._peer.transactions.enlist(state.txn_id, Send(self._address, messages, self._via))
            self.link.settle(delivery, TransactionalState(txn_id=state.txn_id, outcome=ACCEPTED))
        elif self._via is not None:
            host.namespace.transact([Send(self._address, messages, self._via)], host.now_ms())
            self._peer.confirm(delivery, ACCEPTED)
        elif host.side_buffer is None:
            host.namespace.send(self._address, messages, host.now_ms())
            self._peer.confirm(delivery, ACCEPTED)
        elif not self._send_beside(host.side_buffer, delivery, messages):
            return  # it is counted when it is kept
        if self._is_backlog and (drills := sum(map(_is_of_drill, messages))):
            counters.drills[self._address] += drills
        if self._toll is not None:
            _count(self._toll, messages, len(delivery.payload))

    # With a side buffer (B3)

    def _send_beside(self, buffer: SideBuffer, delivery: Delivery, messages: list[Message]) -> bool:
        """Send to the store, or have it kept beside the store if that has to be; whether it was the store."""
        host, cause = self._peer.host, None
        if not buffer.holds(self._address):
            namespace = host.namespace  # without it nothing can be judged, and the sender is told so
            try:
                namespace.send(self._address, messages, host.now_ms())
            except PASSING as error:
                cause = error
            else:
                self._peer.confirm(delivery, ACCEPTED)
                return True
        host.namespace.check_send(self._address, messages, host.now_ms())
        done = partial(self._kept, delivery, messages)
        self._peer.divert(
            delivery, lambda tell: buffer.intake.divert(self._address, messages, partial(done, tell), cause)
        )
        return False

    def rescue(self, delivery: Delivery, error: StoreError) -> bool:
        host = self._peer.host
        buffer = host.side_buffer
        if buffer is None or self._via is not None or not isinstance(error, PASSING):
            return False
        messages = _messages(delivery, from_syphon=self._from_syphon)
        try:
            host.namespace.check_send(self._address, messages, host.now_ms())
        except (BrokerError, StoreError):  # its entity was made in the commit that failed, and is gone
            return False
        done = partial(self._kept, delivery, messages)
        self._peer.keep(
            delivery, lambda tell: buffer.intake.rescue(self._address, messages, partial(done, tell), error)
        )
        return True

    def _kept(self, delivery: Delivery, messages: list[Message], tell: Tell, error: Exception | None) -> None:
        if error is None and self._toll is not None:
            self._toll.kept(messages, len(delivery.payload))
        tell(error)

    def on_detached(self) -> None:
        self._peer.dispatcher.discount(self._address)


def _is_of_drill(message: Message) -> bool:
    """Tell whether a diverted message is on its way to the queue of a drill."""
    if DRILL.encode() not in message.body:
        return False
    try:
        return is_drill_path(read_transfer(message.body).path)
    except TransferError:
        return False


def _count(toll: SendToll, messages: list[Message], size_bytes: int) -> None:
    if len(messages) == 1 and size_bytes <= UNIT_BYTES and not messages[0].ping:
        toll.sent_small(size_bytes)
    else:
        toll.sent(messages, size_bytes)


def _messages(delivery: Delivery, *, from_syphon: bool) -> list[Message]:
    if delivery.message_format == 0:
        messages = [received_message(delivery.payload)]
    elif delivery.message_format == BATCH_FORMAT:
        messages = [received_message(payload) for payload in split_batch(delivery.payload)]
    else:
        raise BadRequestError(f"0x{delivery.message_format:08x} is no message format that this server knows")
    return [message._replace(returned=True) for message in messages] if from_syphon else messages
