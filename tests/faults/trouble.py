"""Faults of messages sent to one entity, while everything else works.

They are made of the frames between a peer and the server, which may be compiled: its methods cannot be replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias, cast

from pairbus.broker import Address
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.consumer import Consumer
from pairbus.server.amqp.node import Node
from pairbus.server.amqp.producer import Producer
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.listener import AmqpProtocol, MakeHttp, ProtocolSniffer
from pairbus.wire.composites import from_described
from pairbus.wire.decoder import decode_at
from pairbus.wire.frames import HEADER_SIZE
from pairbus.wire.link import Link
from pairbus.wire.performatives import Attach, Detach, Flow, Transfer
from tests.wire.pair import frame


class Trouble(Enum):
    """The outcome of the messages. Scheduled messages use another path: they can only be denied."""

    BUSY = "busy"
    """They are denied with *server busy*."""
    LOST = "lost"
    """They are not taken, and never answered."""
    UNCONFIRMED = "unconfirmed"
    """They are taken, and never answered."""
    UNATTACHED = "unattached"
    """They cannot be sent: the attach of a sender is never answered."""


Troubles: TypeAlias = Mapping[Address, Trouble]

_ATTACH, _FLOW, _TRANSFER, _DETACH = b"\x00\x53\x12", b"\x00\x53\x13", b"\x00\x53\x14", b"\x00\x53\x16"


class TroubledReception(ProtocolSniffer):
    """Creates connections on which messages meet their faults; ``on_poll`` is called when a receiver grants credit."""

    def __init__(
        self, services: AmqpServices, make_http: MakeHttp, troubles: Troubles, on_poll: Callable[[], object]
    ) -> None:
        super().__init__(services, make_http, secure=False)
        self._troubles = troubles
        self._on_poll = on_poll

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        if isinstance(protocol, AmqpProtocol):
            protocol = _Protocol(self._services, self._troubles, self._on_poll)
        super()._hand_over(transport, protocol)


class TroubledTransport:
    """Writes no response to the attach of a sender to an entity with that fault, nor anything else about the link."""

    def __init__(self, stream: asyncio.Transport, troubles: Troubles) -> None:
        self.stream = stream
        self.links: Mapping[Link, Node] = {}
        self._troubles = troubles
        self._muted: set[tuple[int, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, data: bytes) -> None:
        frames, rest = _split(data)
        self.stream.write(b"".join(whole for whole in frames if not self._is_muted(whole)) + rest)

    def _is_muted(self, whole: bytes) -> bool:
        if not whole.startswith((_ATTACH, _FLOW, _DETACH), HEADER_SIZE):
            return False
        channel, body, _ = _parsed(whole)
        assert isinstance(body, Attach | Flow | Detach)
        place = channel, cast("int", body.handle)
        if isinstance(body, Attach):
            self._muted.discard(place)
            for link, node in self.links.items():
                if (link.session.channel, link.handle) == place and _trouble_of(
                    node, self._troubles
                ) is Trouble.UNATTACHED:
                    self._muted.add(place)
        return place in self._muted


class _Protocol(AmqpProtocol):
    """Changes the transfers that a peer sends, so that the server does as the fault says."""

    def __init__(self, services: AmqpServices, troubles: Troubles, on_poll: Callable[[], object]) -> None:
        super().__init__(services, secure=False)
        self._troubles = troubles
        self._on_poll = on_poll
        self._unread = b""

    def _connect(self, stream: asyncio.Transport) -> ServerConnection:
        transport = TroubledTransport(stream, self._troubles)
        connection = super()._connect(cast("asyncio.Transport", transport))
        transport.links = connection._nodes
        return connection

    def data_received(self, data: bytes) -> None:
        frames, self._unread = _split(self._unread + data)
        super().data_received(b"".join(map(self._changed, frames)))

    def _changed(self, whole: bytes) -> bytes:
        """Return a frame as the server is to receive it."""
        if whole.startswith((_FLOW, _TRANSFER), HEADER_SIZE):
            channel, body, payload = _parsed(whole)
            node = self._node_at(channel, body.handle)
            if isinstance(body, Flow) and isinstance(node, Consumer) and body.link_credit and not body.drain:
                self._on_poll()
            elif isinstance(body, Transfer):
                match _trouble_of(node, self._troubles):
                    case Trouble.LOST if not body.more:
                        return frame(body._replace(aborted=True), channel=channel, payload=payload)
                    case Trouble.UNCONFIRMED:
                        return frame(body._replace(settled=True), channel=channel, payload=payload)
        return whole

    def _node_at(self, channel: int, handle: int | None) -> Node | None:
        assert self._connection is not None
        for link, node in self._connection._nodes.items():
            if (link.session.remote_channel, link.remote_handle) == (channel, handle):
                return node
        return None


def _trouble_of(node: Node | None, troubles: Troubles) -> Trouble | None:
    return troubles.get(node._address) if isinstance(node, Producer) else None


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the frames and protocol headers in a stream, and the rest: an incomplete one."""
    found: list[bytes] = []
    while len(data) >= HEADER_SIZE:
        size = HEADER_SIZE if data.startswith(b"AMQP") else int.from_bytes(data[:4], "big")
        if size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return found, data


def _parsed(whole: bytes) -> tuple[int, Any, bytes]:
    """Return the channel, the performative and the payload of a frame."""
    described, end = decode_at(whole, HEADER_SIZE)
    return int.from_bytes(whole[6:HEADER_SIZE], "big"), from_described(described), whole[end:]
