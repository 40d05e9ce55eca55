"""The server's end of a link that requests come in on."""

from __future__ import annotations

from abc import abstractmethod

from pairbus.dialect.management import Request, read_request
from pairbus.server.amqp.node import Need, Node
from pairbus.server.amqp.peer import Peer
from pairbus.server.amqp.producer import CREDIT
from pairbus.wire import ACCEPTED, Delivery, Link, ProtocolError


class RequestNode(Node):
    """Takes requests, and has them answered."""

    max_values = 65_536
    """How many values a request may hold: decoding more would keep the other connections waiting."""

    def __init__(self, peer: Peer, link: Link, path: str, needs: tuple[Need, ...] = ()) -> None:
        super().__init__(link, path, needs)
        self._peer = peer

    def on_delivery(self, delivery: Delivery) -> None:
        if self.link.credit < CREDIT // 2:
            self.link.flow(CREDIT)
        try:
            request = read_request(delivery.payload, self.max_values)
        except ProtocolError as error:
            self._peer.refuse(delivery, error)
            return
        # At once: the SDK for Python takes a settlement of ours for one of its own while a request is under way.
        self.link.settle(delivery, ACCEPTED)
        self.on_request(request)

    @abstractmethod
    def on_request(self, request: Request) -> None:
        """Answer, now or later."""
