"""A new connection, until it is known what it speaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from pairbus.server.address_limit import address_of
from pairbus.server.amqp.connection import AmqpConnection
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.preface import LONGEST_PREFACE_BYTES, Preface, preface_of

_log = logging.getLogger(__name__)

SPEAK_WITHIN_S: Final = 30.0
REFUSE_WITHIN_S: Final = 5.0
"""How long the answer may take that there is no room for a connection."""
_WRITE_HIGH_BYTES: Final = 256 * 1024

MakeHttp = Callable[[], asyncio.Protocol]

MakeRefusal = Callable[[asyncio.Future[None]], asyncio.Protocol]
"""Creates the protocol that tells a peer that the server is busy; it completes the future when it is closed."""


class Reception(asyncio.Protocol):
    """Looks at the first bytes, and hands the connection over."""

    def __init__(
        self, services: AmqpServices, make_http: MakeHttp, make_refusal: MakeRefusal | None = None, *, secure: bool
    ) -> None:
        self._services = services
        self._make_http = make_http
        self._make_refusal = make_refusal
        self._secure = secure
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        if not self._services.addresses.add(stream):
            self._refuse(stream)
            return
        self._transport = stream
        self._services.receptions.add(stream)
        self._services.unproven.add(stream)
        self._timer = self._services.host.loop.call_later(SPEAK_WITHIN_S, stream.abort)

    def _refuse(self, transport: asyncio.Transport) -> None:
        """The address of the peer has too many connections: say so, or close if that takes long."""
        _log.warning('connection refused peer=%s reason="too many connections of one address"', address_of(transport))
        if self._make_refusal is None:
            transport.abort()
            return
        protocol = self._make_refusal(self._services.host.loop.create_future())
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._services.host.loop.call_later(REFUSE_WITHIN_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._data += data
        preface = preface_of(self._data)
        transport = self._transport
        if transport is None or (preface is Preface.TOO_SHORT and len(self._data) < LONGEST_PREFACE_BYTES):
            return
        if preface is Preface.AMQP:
            self._hand_over(transport, AmqpProtocol(self._services, secure=self._secure))
        elif preface is Preface.HTTP:
            self._hand_over(transport, self._make_http())
        else:
            _log.info("a connection began with %r, which is neither AMQP nor HTTP", self._data[:8])
            transport.abort()

    def _hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._leave(transport)
        data, self._data, self._transport = self._data, b"", None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._transport is not None:
            self._leave(self._transport)
            self._services.addresses.discard(self._transport)
            self._transport = None

    def _leave(self, transport: asyncio.Transport) -> None:
        self._services.receptions.discard(transport)
        self._services.unproven.discard(transport)
        if self._timer is not None:
            self._timer.cancel()


class AmqpProtocol(asyncio.Protocol):
    """An AMQP connection on a stream."""

    def __init__(self, services: AmqpServices, *, secure: bool) -> None:
        self._services = services
        self._name = "amqps" if secure else "amqp"
        self._transport: asyncio.Transport | None = None
        self._connection: AmqpConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        self._transport = stream
        self._connection = self._connect(stream)

    def _connect(self, stream: asyncio.Transport) -> AmqpConnection:
        return AmqpConnection(self._services, stream, self._name, address_of(stream))

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.data_received(data)

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._connection is not None and self._transport is not None:
            self._services.addresses.discard(self._transport)
            self._connection.connection_lost()
            self._connection = self._transport = None
