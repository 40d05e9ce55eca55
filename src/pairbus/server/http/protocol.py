"""uvicorn's ends of HTTP and WebSocket connections, with limits for those who are slow, silent or strange."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request

STREAM: Final = "pairbus.stream"
"""Where the application finds the ``StreamingWebSocket`` that it talks to, in the state of its scope."""

_HEAD_WITHIN_S: Final = 30.0
_READ_WITHIN_S: Final = 5.0
_FRAME_BYTES: Final = 1024 * 1024
_UNSUPPORTED_DATA: Final = 1003


class HttpProtocol(H11Protocol):
    """Hangs up on whoever has begun a request and does not get to the end of its head."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._deadline: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_upgraded = self.transport.get_protocol() is not self
        if is_answering or is_upgraded:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_HEAD_WITHIN_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # or its timer would keep the connection in memory

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class StreamingWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket as a stream of bytes: each frame is passed on as it comes, whatever message it is part of."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], **_: Any) -> None:
        super().__init__(config, server_state, app_state)
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
