"""The response to a connection beyond the server's limits: "server busy", in the protocol that the peer speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import h11

from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.amqp.services import BOUNDS
from pairbus.server.http.answers import error_answer, fresh_tracking_id
from pairbus.server.listener import LONGEST_PREFACE_BYTES, Preface, preface_of
from pairbus.wire import (
    ANONYMOUS,
    MSSBCBS,
    PLAIN,
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    Error,
    ProtocolError,
    SaslCode,
    SaslServer,
)


class _Answer(Protocol):
    """The server's side of one exchange."""

    is_finished: bool
    """True if nothing more is to be sent or received."""

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, and return the bytes to send."""


class BusyProtocol(asyncio.Protocol):
    """Detects the peer's protocol, responds that the server is busy, and closes. ``finished`` is done when it is
    closed.

    Without a response the peer would consider the server dead, and a paired sender would fail over. The
    creator sets a deadline, and aborts the transport then.
    """

    def __init__(self, reason: str, now_ms: Callable[[], int], finished: asyncio.Future[None]) -> None:
        self._reason = reason
        self._now_ms = now_ms
        self._finished = finished
        self._data = b""
        self._answer: _Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._answer is None:
            data = self._data = self._data + data
            self._answer = self._choose(transport)
            if self._answer is None:
                return
        response = self._answer.receive(data)
        if response:
            transport.write(response)
        if self._answer.is_finished:
            transport.close()

    def _choose(self, transport: asyncio.Transport) -> _Answer | None:
        match preface_of(self._data):
            case Preface.AMQP:
                return _AmqpAnswer(self._reason)
            case Preface.HTTP:
                return _HttpAnswer(self._reason, self._now_ms)
            case Preface.TOO_SHORT if len(self._data) < LONGEST_PREFACE_BYTES:
                return None
        transport.abort()
        return None

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self._finished.done():
            self._finished.set_result(None)


class _AmqpAnswer:
    """Responds with open and close with ``com.microsoft:server-busy``. Credentials are ignored: they would grant
    nothing.
    """

    def __init__(self, reason: str) -> None:
        self.is_finished = False
        self._error = Error(ServiceBusCondition.SERVER_BUSY, reason)
        self._engine = Connection(
            Configuration(container_id="pairbus", strict=False),
            SaslServer(mechanisms=(MSSBCBS, PLAIN, ANONYMOUS), authenticate=_accept, required=False),
        )
        self._engine.bounds = BOUNDS

    def receive(self, data: bytes) -> bytes:
        try:
            events = self._engine.receive_data(data)
        except ProtocolError as error:
            events, self.is_finished = error.events, True
        for event in events:
            if isinstance(event, ConnectionOpened):
                self._engine.open()
                self._engine.close(error=self._error)
            elif isinstance(event, ConnectionClosed):  # the peer has read it
                self.is_finished = True
        return self._engine.data_to_send()


def _accept(_mechanism: str, _response: bytes) -> SaslCode:
    return SaslCode.OK


class _HttpAnswer:
    """Responds to any request with 503 once it has been read: a peer that still sends could lose the response."""

    def __init__(self, reason: str, now_ms: Callable[[], int]) -> None:
        self.is_finished = False
        self._reason = reason
        self._now_ms = now_ms
        self._engine = h11.Connection(h11.SERVER)
        self._has_body = True

    def receive(self, data: bytes) -> bytes:
        try:
            self._engine.receive_data(data)
            while not self.is_finished:
                event = self._engine.next_event()
                if isinstance(event, h11.Request):
                    self._has_body = event.method != b"HEAD"
                if isinstance(event, h11.EndOfMessage) or self._engine.they_are_waiting_for_100_continue:
                    self.is_finished = True
                    return self._written()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return b""
        except h11.RemoteProtocolError:
            self.is_finished = True
        return b""

    def _written(self) -> bytes:
        answer = error_answer(503, self._reason, now_ms=self._now_ms(), tracking_id=fresh_tracking_id())
        headers = [*answer.raw_headers, (b"connection", b"close")]
        parts = [self._engine.send(h11.Response(status_code=answer.status_code, headers=headers))]
        if self._has_body:
            parts.append(self._engine.send(h11.Data(bytes(answer.body))))
        return b"".join(part for part in parts if part is not None)
