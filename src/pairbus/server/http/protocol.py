"""uvicorn's ends of HTTP and WebSocket connections, with limits for those who are slow, silent or strange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

from pairbus.server.amqp.services import AmqpServices

STREAM: Final = "pairbus.stream"
"""Where the application finds the ``StreamingWebSocket`` that it talks to, in the state of its scope."""

_REQUEST_WITHIN_S: Final = 30.0
"""How long a request may take to arrive, from its first byte to its last; none is larger than a megabyte."""
_ANSWER_READ_WITHIN_S: Final = 60.0
"""How long a peer may leave an answer unread."""
_READ_WITHIN_S: Final = 5.0
_FRAME_BYTES: Final = 1024 * 1024
_UNSUPPORTED_DATA: Final = 1003


class _Deadline:
    """Calls a function unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, missed: Callable[[], object]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._missed = missed
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, unless it runs already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._missed)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HttpProtocol(H11Protocol):
    """Closes connections whose peer does not send a request to its end, or does not read the answer, in time.

    Except while a request is being answered, the connection is among those that may be closed to make room for others.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        services: AmqpServices | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._services = services
        self._request = _Deadline(self.loop, _REQUEST_WITHIN_S, self.abort)
        self._answer = _Deadline(self.loop, _ANSWER_READ_WITHIN_S, self.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._services is not None:
            self._services.unproven.add(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        upgraded = self.transport.get_protocol()
        is_complete = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if upgraded is not self or is_complete:
            self._request.stop()
            if self._services is not None:
                self._services.unproven.discard(self)
                if isinstance(upgraded, StreamingWebSocket):
                    upgraded.services = self._services
        else:
            self._request.start()

    def on_response_complete(self) -> None:
        self._request.stop()
        if self._services is not None and not self.transport.is_closing():
            self._services.unproven.add(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer.start()

    def resume_writing(self) -> None:
        self._answer.stop()
        super().resume_writing()

    def abort(self) -> None:
        """Close the connection now."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.stop()
        self._answer.stop()
        if self._services is not None:
            self._services.unproven.discard(self)
            self._services.addresses.discard(self.transport)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # or its timer would keep the connection in memory


class StreamingWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket as a stream of bytes: each frame is passed on as it comes, whatever message it is part of."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], **_: Any) -> None:
        super().__init__(config, server_state, app_state)
        self.services: AmqpServices | None = None
        self.conn.max_message_size = None
        self.conn.max_fragment_size = _FRAME_BYTES
        self.close_timeout = _READ_WITHIN_S

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["state"][STREAM] = self

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except InvalidState:  # it goes on after one of us has said the last word
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.services is not None:
            self.services.addresses.discard(self.transport)
        super().connection_lost(exc)

    def handle_bytes(self, event: Frame) -> None:
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        self.frames = [bytes(event.data)]
        self.send_receive_event_to_app()

    def handle_text(self, _event: Frame) -> None:
        if not self.close_sent:
            self.close_sent = True
            self.conn.send_close(_UNSUPPORTED_DATA, "AMQP is binary")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            self.loop.call_later(_READ_WITHIN_S, self.transport.abort)

    def take_large(self, size_bytes: int) -> None:
        """Let the peer send frames of this size."""
        self.conn.max_fragment_size = max(_FRAME_BYTES, size_bytes)

    def abort(self) -> None:
        """Hang up without a word."""
        self.transport.abort()
