"""The server's end of a link that messages are sent to us on."""

from __future__ import annotations

from typing import Final

from pairbus.broker import Address, Message, Send
from pairbus.dialect.batch import BATCH_FORMAT, split_batch
from pairbus.ledger.operation import UNIT_BYTES
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.errors import REFUSABLE, BadRequestError, refusal_of
from pairbus.server.messages import received_message
from pairbus.server.metering import SendToll
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
        counters.messages_received += len(messages)
        counters.bytes_received += len(delivery.payload)
        if messages and messages[0].ping:
            counters.pings[self._address] += len(messages)
        state = delivery.state
        if isinstance(state, TransactionalState):
            self._peer.transactions.enlist(state.txn_id, Send(self._address, messages, self._via))
            self.link.settle(delivery, TransactionalState(txn_id=state.txn_id, outcome=ACCEPTED))
        elif self._via is not None:
            host.namespace.transact([Send(self._address, messages, self._via)], host.now_ms())
            self._peer.confirm(delivery, ACCEPTED)
        else:
            host.namespace.send(self._address, messages, host.now_ms())
            self._peer.confirm(delivery, ACCEPTED)
        toll = self._toll
        if toll is not None:
            size_bytes = len(delivery.payload)
            if len(messages) == 1 and size_bytes <= UNIT_BYTES and not messages[0].ping:
                toll.sent_small(size_bytes)
            else:
                toll.sent(messages, size_bytes)

    def on_detached(self) -> None:
        self._peer.dispatcher.discount(self._address)


def _messages(delivery: Delivery, *, from_syphon: bool) -> list[Message]:
    if delivery.message_format == 0:
        messages = [received_message(delivery.payload)]
    elif delivery.message_format == BATCH_FORMAT:
        messages = [received_message(payload) for payload in split_batch(delivery.payload)]
    else:
        raise BadRequestError(f"0x{delivery.message_format:08x} is no message format that this server knows")
    return [message._replace(returned=True) for message in messages] if from_syphon else messages
