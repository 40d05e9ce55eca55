"""AMQP over a WebSocket, as an asyncio transport."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import OK_CLOSE_CODES, CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from pairbus.client.endpoint import Endpoint
from pairbus.client.settings import MessagingFactorySettings

_PATH: Final = "/$servicebus/websocket"
_SUBPROTOCOL: Final = Subprotocol("AMQPWSB10")
_CLOSE_WITHIN: Final = timedelta(seconds=5)
_SENT_FRAME_BYTES: Final = 256 * 1024
"""Longer data is split into several frames, because a namespace may limit their size."""
_RECEIVED_FRAME_BYTES: Final = 128 * 1024 * 1024
"""More than the largest message, which a namespace may send in one frame, including all overhead."""

_CLOSED_ABRUPTLY: Final = "the namespace closed the connection without closing the WebSocket"

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # frames carry messages and tokens: DEBUG has to be enabled explicitly


async def connect_web_socket(
    loop: asyncio.AbstractEventLoop,
    protocol: asyncio.Protocol,
    endpoint: Endpoint,
    settings: MessagingFactorySettings,
) -> asyncio.Transport:
    """Connect a protocol to a namespace through a WebSocket, as ``loop.create_connection`` does.

    Has no timeout. Raises ``OSError``; on an error or a cancellation the connection is closed.
    """
    web_socket = _WebSocket(loop, protocol, endpoint, min(_CLOSE_WITHIN, settings.attempt_timeout))
    try:
        await loop.create_connection(
            lambda: web_socket,
            endpoint.host,
            endpoint.http_port,
            ssl=settings.tls_context() if endpoint.tls else None,
            server_hostname=endpoint.host if endpoint.tls else None,
        )
        return await web_socket.opened
    except BaseException:  # includes cancellation
        web_socket.give_up()
        raise


class WebSocketRefusedError(ConnectionError):
    """The server is not a namespace, or does not accept WebSockets."""


class WebSocketBusyError(ConnectionError):
    """The namespace accepts no more connections at the moment."""


class WebSocketClientTransport(asyncio.Transport):
    """The transport of a protocol: sends its bytes in binary frames, whose boundaries have no meaning."""

    def __init__(self, web_socket: _WebSocket, tcp: asyncio.Transport) -> None:
        super().__init__()
        self._web_socket = web_socket
        self._tcp = tcp

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._web_socket.send(data)

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Close the WebSocket: flush what has been written, and wait a few seconds for the peer's close frame."""
        self._web_socket.close()

    def abort(self) -> None:
        self._web_socket.abort()

    def is_closing(self) -> bool:
        return self._web_socket.is_closing or self._tcp.is_closing()

    def pause_reading(self) -> None:
        self._web_socket.pause_reading()

    def resume_reading(self) -> None:
        self._web_socket.resume_reading()

    def is_reading(self) -> bool:
        return self._web_socket.is_reading and not self.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._tcp.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tcp.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._web_socket.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._web_socket.protocol = cast("asyncio.Protocol", protocol)


class _WebSocket(asyncio.Protocol):
    """Connects the TCP or TLS transport to the protocol through the ``websockets`` engine."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        endpoint: Endpoint,
        close_within: timedelta,
    ) -> None:
        self.protocol = protocol
        self.opened: asyncio.Future[asyncio.Transport] = loop.create_future()
        self.is_closing = False
        self.is_reading = True
        self._loop = loop
        self._close_within_s = close_within.total_seconds()
        self._engine = ClientProtocol(
            WebSocketURI(endpoint.tls, endpoint.host, endpoint.http_port, _PATH, ""),
            subprotocols=[_SUBPROTOCOL],
            max_size=(None, _RECEIVED_FRAME_BYTES),
            logger=_log,
        )
        self._tcp: asyncio.Transport | None = None
        self._is_made = False
        """True once ``connection_made`` of the protocol has been called."""
        self._held: deque[Frame] = deque()
        """Frames that arrived while the protocol had paused reading."""
        self._is_our_close = False
        self._error: Exception | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    # Calls of the TCP or TLS transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast("asyncio.Transport", transport)  # uvloop's transports only behave like one
        if self.opened.done():
            self._tcp.abort()
            return
        self._engine.send_request(self._engine.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._engine.receive_data(data)
        self._flush()
        if not self._is_made:
            self._answered()
        self._take_events()
        self._pass_on_held()
        violation = self._engine.parser_exc
        if violation is not None:
            self._fail(ConnectionError(f"the namespace violated the WebSocket protocol: {violation}"))

    def eof_received(self) -> None:
        self._engine.receive_eof()
        if not self._is_made:
            self._answered()
            return
        while self._held:
            self._pass_on(self._held.popleft())
        if not self.is_closing:
            self._error = ConnectionResetError(_CLOSED_ABRUPTLY)
            self._end()
            self.protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closing:  # uvloop's TLS does not report every end of a stream
            self._error = exc or ConnectionResetError(_CLOSED_ABRUPTLY)
        self._stop()
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._is_made:
            self._is_made = False
            self.protocol.connection_lost(None if self._is_our_close else self._error or exc)
        if not self.opened.done():
            error = ConnectionResetError("the connection was lost before the WebSocket was open")
            error.__cause__ = exc
            self.opened.set_exception(error)

    def pause_writing(self) -> None:
        if self._is_made:
            self.protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._is_made:
            self.protocol.resume_writing()

    # Calls of the protocol.

    def send(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing or self._engine.state is not State.OPEN:
            return
        octets = memoryview(data).cast("B")
        for start in range(0, len(octets), _SENT_FRAME_BYTES):
            self._engine.send_binary(octets[start : start + _SENT_FRAME_BYTES])
        self._flush()

    def close(self) -> None:
        if self.is_closing:
            return
        self._is_our_close = True
        if self._engine.state is not State.OPEN:  # the peer has already sent its close frame
            self._end()
            return
        self._stop()
        self._engine.send_close(CloseCode.NORMAL_CLOSURE)
        self._flush()
        self._transport.resume_reading()  # or the peer's close frame would never be read
        self._limit()

    def abort(self) -> None:
        self._is_our_close = self._is_our_close or not self.is_closing
        self._stop()
        self._transport.abort()

    def pause_reading(self) -> None:
        if self.is_reading and not self.is_closing:
            self.is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading and not self.is_closing:
            self.is_reading = True
            self._loop.call_soon(self._catch_up)
            self._transport.resume_reading()

    def give_up(self) -> None:
        """Abandon the WebSocket: the caller no longer waits for it to open."""
        if not self.opened.cancel() and not self.opened.cancelled():
            self.opened.exception()  # mark as retrieved
        if self._tcp is not None:
            self.abort()

    # Opening.

    def _answered(self) -> None:
        """Process the response to the handshake, or the part of it that has arrived."""
        if self.opened.done():
            return
        failure = self._engine.handshake_exc
        if failure is not None:
            self._refuse(_refusal(failure), failure)
        elif self._engine.state is State.CONNECTING:
            return
        elif self._engine.subprotocol is None:
            self._refuse(f"the server is not a namespace: its WebSocket does not support {_SUBPROTOCOL}")
        else:
            transport = WebSocketClientTransport(self, self._transport)
            self._is_made = True
            self.protocol.connection_made(transport)
            if not self.opened.done():  # the protocol may have abandoned it
                self.opened.set_result(transport)

    def _refuse(self, text: str, cause: Exception | None = None) -> None:
        kind = WebSocketBusyError if _is_busy(cause) else ConnectionError if _may_pass(cause) else WebSocketRefusedError
        error = kind(text)
        error.__cause__ = cause
        self.opened.set_exception(error)
        self._stop()
        self._transport.abort()

    # Incoming frames.

    def _take_events(self) -> None:
        for event in self._engine.events_received():
            if isinstance(event, Frame) and self._is_made:
                self._held.append(event)

    def _catch_up(self) -> None:
        try:
            self._pass_on_held()
        except Exception as error:  # a protocol that raises loses its connection, as with any other transport
            self._error = error
            self._stop()
            self._transport.abort()
            raise

    def _pass_on_held(self) -> None:
        while self._held and self.is_reading:
            self._pass_on(self._held.popleft())

    def _pass_on(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.CLOSE:
                self._closed_by_peer()
            case Opcode.TEXT:
                self._fail(ConnectionError("the namespace sent a text frame through the WebSocket; AMQP is binary"))
            case Opcode.BINARY | Opcode.CONT if frame.data and not self.is_closing:
                self.protocol.data_received(bytes(frame.data))
            case _:  # the engine has answered pings
                pass

    # Closing.

    def _closed_by_peer(self) -> None:
        if self.is_closing:
            self._end()
            return
        close = self._engine.close_rcvd
        if close is not None and close.code not in OK_CLOSE_CODES:
            self._error = ConnectionResetError(f"the namespace closed the WebSocket: {close}")
        self._end()
        self.protocol.eof_received()  # its result does not matter: a WebSocket cannot stay half open

    def _fail(self, error: Exception) -> None:
        if self.is_closing:
            return
        self._error = error
        if self._engine.state is State.OPEN:
            self._engine.fail(CloseCode.UNSUPPORTED_DATA, "AMQP is binary")
            self._flush()
        self._end()

    def _end(self) -> None:
        """Flush what has been written, then close the connection."""
        self._stop()
        self._transport.close()
        self._limit()

    def _stop(self) -> None:
        """Deliver no more frames to the protocol."""
        self.is_closing = True
        self.is_reading = True
        self._held.clear()

    def _limit(self) -> None:
        if self._close_timer is None:
            self._close_timer = self._loop.call_later(self._close_within_s, self._transport.abort)

    # Bytes.

    @property
    def _transport(self) -> asyncio.Transport:
        if self._tcp is None:
            raise RuntimeError("not connected yet")
        return self._tcp

    def _flush(self) -> None:
        # In one piece, so that pause_writing is called after all of it. Not by writelines, which in some versions of
        # Python never calls pause_writing.
        data = b"".join(self._engine.data_to_send())
        if data:
            self._transport.write(data)


def _is_busy(cause: Exception | None) -> bool:
    """Tell a busy namespace from a gateway that cannot reach it: a gateway sends 503 without ``Retry-After``."""
    return (
        isinstance(cause, InvalidStatus)
        and cause.response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        and "Retry-After" in cause.response.headers
    )


def _may_pass(cause: Exception | None) -> bool:
    """Return True if another attempt may succeed: the connection broke off, or the server is overloaded."""
    if isinstance(cause, InvalidStatus):
        return cause.response.status_code >= 500
    return cause is not None and isinstance(cause.__cause__, EOFError)


def _refusal(failure: Exception) -> str:
    if isinstance(failure, InvalidStatus):
        return f"the namespace refused the WebSocket with HTTP {failure.response.status_code}"
    cause = failure.__cause__
    if isinstance(cause, EOFError):
        return f"the WebSocket did not open: {cause}"
    reason = f"{failure}: {cause}" if cause is not None else str(failure)
    return f"the server is not a namespace with a WebSocket: {reason}"
