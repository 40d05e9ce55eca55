"""Where transactions are declared and discharged."""

from __future__ import annotations

from pairbus.server.amqp.node import Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.producer import CREDIT
from pairbus.server.errors import REFUSABLE, BadRequestError, refusal_of
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
    Rejected,
    decode_message,
)
from pairbus.wire.composites import from_described


class CoordinatorNode(Node):
    """Begins and ends the transactions of a connection (part 4 of the standard)."""

    kind = "coordinator"

    def __init__(self, peer: Peer, link: Link) -> None:
        super().__init__(link, "")
        self._peer = peer

    def on_delivery(self, delivery: Delivery) -> None:
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)
        try:
            self._obey(delivery)
        except REFUSABLE as error:
            self._peer.refuse(delivery, error)

    def _obey(self, delivery: Delivery) -> None:
        message = decode_message(delivery.payload)
        command = from_described(message.body[0]) if message.body_kind == AMQP_VALUE else None
        match command:
            case Declare():
                self.link.settle(delivery, Declared(self._peer.transactions.declare()))
            case Discharge():
                self._discharge(delivery, command)
            case _:
                raise BadRequestError("a coordinator takes declare and discharge")

    def _discharge(self, delivery: Delivery, command: Discharge) -> None:
        try:
            self._peer.transactions.discharge(command.txn_id, fail=bool(command.fail))
        except REFUSABLE as error:
            refusal = refusal_of(error)
            if refusal.condition in {Condition.UNKNOWN_TRANSACTION, Condition.TRANSACTION_TIMEOUT}:
                raise
            self._peer.counters.refused[refusal.condition] += 1
            reason = Error(Condition.TRANSACTION_ROLLBACK, f"{refusal.condition}: {refusal.description}")
            self.link.settle(delivery, Rejected(reason))
        else:
            self._peer.confirm(delivery, ACCEPTED)
