"""Faults of messages sent to one entity, while everything else works."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

from pairbus.broker import Address
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.producer import Producer
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.listener import AmqpProtocol, MakeHttp, ProtocolSniffer
from pairbus.wire import Delivery


class Trouble(Enum):
    """The outcome of the messages. Scheduled messages use another path: they can only be denied."""

    BUSY = "busy"
    """They are denied with *server busy*."""
    LOST = "lost"
    """They are not taken, and never answered."""
    UNCONFIRMED = "unconfirmed"
    """They are taken, and never answered."""


Troubles: TypeAlias = Mapping[Address, Trouble]


class TroubledReception(ProtocolSniffer):
    """Creates connections that do not respond to messages with a fault."""

    def __init__(self, services: AmqpServices, make_http: MakeHttp, troubles: Troubles) -> None:
        super().__init__(services, make_http, secure=False)
        self._troubles = troubles

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        chosen = _Protocol(self._services, self._troubles) if isinstance(protocol, AmqpProtocol) else protocol
        super()._hand_over(transport, chosen)


class _Protocol(AmqpProtocol):
    def __init__(self, services: AmqpServices, troubles: Troubles) -> None:
        super().__init__(services, secure=False)
        self._troubles = troubles

    def _connect(self, stream: asyncio.Transport) -> ServerConnection:
        return _Connection(self._services, stream, self._troubles)


class _Connection(ServerConnection):
    def __init__(self, services: AmqpServices, stream: asyncio.Transport, troubles: Troubles) -> None:
        super().__init__(services, stream)
        self._troubles = troubles

    def _delivered(self, delivery: Delivery) -> None:
        if self._trouble_of(delivery) is not Trouble.LOST:
            super()._delivered(delivery)

    def confirm(self, delivery: Delivery, state: object) -> None:
        if self._trouble_of(delivery) is not Trouble.UNCONFIRMED:
            super().confirm(delivery, state)

    def _trouble_of(self, delivery: Delivery) -> Trouble | None:
        node = self._nodes.get(delivery.link)
        return self._troubles.get(node._address) if isinstance(node, Producer) else None
