"""uvicorn's protocols of HTTP and WebSocket connections, with limits for slow, silent or malformed peers."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable
from math import inf
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState, PayloadTooBig
from websockets.frames import Frame
from websockets.http11 import Request

from pairbus.server.amqp.services import AmqpServices, tls_buffer_bytes
from pairbus.server.connection_limits import ConnectionLimits
from pairbus.server.http.credentials import KNOWN
from pairbus.server.log_context import LogValue, peer_of
from pairbus.server.turns import Share
from pairbus.wire import Condition

_log = logging.getLogger(__name__)

STREAM: Final = "pairbus.stream"
"""Key of the ``StreamingWebSocket`` in the state of the application's scope."""

HEAD_BYTES: Final = 16 * 1024
HEADERS: Final = 100
"""Limits of a request's head: its size, and the number of its lines."""

_HEAD_END: Final = re.compile(rb"\n\r?\n")
_READ_WITHIN_S: Final = 5.0
_DISCARDED_BYTES: Final = 256 * 1024
"""Time and bytes for which the server reads from a peer whose request it refused: a socket that is closed before
everything was read is reset, and the reset may overtake the response."""
_FRAME_BYTES: Final = 1024 * 1024
_AMQP_FRAME_BYTES: Final = 64 * 1024
_UNSUPPORTED_DATA: Final = 1003
_TURN_S: Final = 0.004
_UNPROVEN_TURN_S: Final = 0.001
_SLICE_BYTES: Final = 16 * 1024
_UNPROVEN_SLICE_BYTES: Final = 1024
"""Bytes of a WebSocket that are processed before the time is checked; frames may be of one byte."""


class _Deadline:
    """Calls a function unless it is stopped in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, missed: Callable[[], object]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._missed = missed
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, unless it is running."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._missed)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop, and drop the reference to the function."""
        self.stop()
        self._missed = lambda: None


class HeadTooLargeError(h11.RemoteProtocolError):
    """The head of a request has more bytes or lines than allowed."""


class _Requests(h11.Connection):
    """Parses requests with bounded heads, and in turns: the time grows with the number of lines and chunks."""

    def __init__(self, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self._stopwatch = stopwatch
        self._ends_s = inf
        self._has_begun = False
        self.is_cut = False
        """True if the turn has ended before everything was parsed."""

    def begin_turn(self, seconds: float) -> None:
        """Start a turn of so many seconds, which has at least one event."""
        self._ends_s = self._stopwatch() + seconds
        self._has_begun = self.is_cut = False

    def next_event(self) -> Any:
        if self._has_begun and self._stopwatch() >= self._ends_s:
            self.is_cut = True
            return h11.NEED_DATA
        self._has_begun = True
        if self.their_state is h11.IDLE:
            _check_head(self.trailing_data[0])
        return super().next_event()


def _check_head(data: bytes) -> None:
    found = _HEAD_END.search(data)
    size = len(data) if found is None else found.start()
    if size > HEAD_BYTES:
        raise HeadTooLargeError(f"the head of the request has more than {HEAD_BYTES} bytes", 431)
    if data.count(b"\n", 0, size) > HEADERS:
        raise HeadTooLargeError(f"the head of the request has more than {HEADERS} lines", 431)


class _Flow(FlowControl):
    """Does not resume reading while the connection waits for its turn."""

    is_waiting = False

    def wait(self) -> None:
        self.is_waiting = True
        self.pause_reading()

    def go_on(self) -> None:
        self.is_waiting = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_waiting:
            super().resume_reading()


class HttpProtocol(H11Protocol):
    """Closes connections whose peer does not complete a request, or does not read the response, in time.

    Except while a request with a valid key or token is being answered, the connection may be closed to make room for
    others. Until there was one, its requests wait for their turns.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        services: AmqpServices | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.conn: _Requests = _Requests() if services is None else _Requests(services.stopwatch)
        self._services = services
        self._limits = ConnectionLimits() if services is None else services.limits
        self._request = _Deadline(self.loop, self._limits.http_request_timeout_s, self._miss_request)
        self._answer = _Deadline(self.loop, self._limits.http_send_timeout_s, self._miss_answer)
        self._farewell = _Deadline(self.loop, _READ_WITHIN_S, self.abort)
        self._share = Share()
        self._is_known = services is None
        """True if the last request had a valid key or token."""
        self._waits = False
        """True if the peer waits for its turn."""
        self._held_bytes = 0
        """Received bytes that are not part of a complete request."""
        self._received_bytes = 0
        self._is_refused = False
        """True if a request was refused, so that nothing more is handled."""
        self._discarded_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        if self._services is not None:
            self._services.unproven.add(self, self._is_answering_known)

    # Requests

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._discard(len(data))
            return
        self._received_bytes += len(data)
        self._held_bytes += len(data)
        self._note_held()
        if self._services is not None:
            self._share.add(len(data), self._services.turns.now_s())
        super().data_received(data)
        if self._waits:
            self._request.start()

    def handle_events(self) -> None:
        """Handle what was received: at once for a proven peer, otherwise at its turn."""
        if self._is_known or self._services is None:
            self._handle_now()
        elif not self._waits:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._waits = True
        if self._is_known or self._services is None:
            # Not in the next pass of the loop: that one serves what other connections have received.
            self.loop.call_soon(self.loop.call_soon, self._handle_now)
        else:
            self._services.turns.take(self._share, self._handle_now)
        if self._waits:
            self.flow.wait()

    def _handle_now(self) -> None:
        was_waiting, self._waits = self._waits, False
        if self.transport.is_closing() or self._is_refused:
            return
        try:
            if was_waiting:
                self.flow.go_on()
            self.conn.begin_turn(_TURN_S if self._is_known else _UNPROVEN_TURN_S)
            super().handle_events()
            self._note_request()
            if self.conn.is_cut and self.transport.get_protocol() is self:
                self._wait_for_turn()
        except Exception:  # noqa: BLE001 (a defect of ours must not take the turns of other peers)
            _log.exception("request failed peer=%s", peer_of(self.transport.get_extra_info("peername")))
            self.abort()

    def _note_request(self) -> None:
        """Watch for the rest of a request, or leave it to the application."""
        upgraded = self.transport.get_protocol()
        is_complete = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if upgraded is not self or is_complete:
            self._request.stop()
            self._held_bytes = 0
            if self._services is not None and upgraded is not self:
                self._services.unproven.discard(self)
                if isinstance(upgraded, StreamingWebSocket):
                    upgraded.serve_with(self._services)
            elif self._services is not None:
                self._note_held()
        elif self._held_bytes and not self._is_refused and not self.transport.is_closing():
            self._request.start()
            self._note_held()

    def _note_held(self) -> None:
        """Record how many bytes are buffered for a peer without a key: of requests, of responses, and by TLS."""
        if self._services is not None and not self.transport.is_closing():
            held = self._held_bytes + self.transport.get_write_buffer_size()
            if self.scheme == "https":
                held += tls_buffer_bytes(self._received_bytes)
            self._services.unproven.hold(self, 0 if self._is_answering_known() else held)

    def _is_answering_known(self) -> bool:
        """Return whether a request with a valid key or token is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return is_answering and bool(self.scope["state"].get(KNOWN))

    def on_response_complete(self) -> None:
        self._request.stop()
        self._held_bytes = len(self.conn.trailing_data[0])
        if self._services is not None:
            self._is_known = bool(self.scope["state"].get(KNOWN))
            if not self.transport.is_closing():
                self._services.unproven.add(self, self._is_answering_known)
                self._note_held()
        super().on_response_complete()

    # Error responses

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, or a request whose head is too large."""
        error = sys.exception()
        if isinstance(error, HeadTooLargeError):
            self._refuse(431, str(error), "http_head_bytes")
        else:
            self._refuse(400, msg)

    def _miss_request(self) -> None:
        seconds = self._limits.http_request_timeout_s
        self._refuse(408, f"the request did not arrive within {seconds:g} seconds", "http_request_timeout_s")

    def _miss_answer(self) -> None:
        if self._services is not None:
            self._services.counters.limits["http_send_timeout_s"] += 1
        self.abort()

    def _refuse(self, status: int, reason: str, limit: str = "") -> None:
        """Answer a request that the application does not answer, and close the connection."""
        text = f"{reason} ({limit})" if limit else reason
        peer = peer_of(self.transport.get_extra_info("peername"))
        _log.info("request refused peer=%s status=%d reason=%s", peer, status, LogValue(text))
        if self._services is not None:
            self._services.counters.refuse(f"http:{status}", limit)
        body = f"{text}\n".encode()
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close")]
        events = [h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()]
        try:
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        except h11.LocalProtocolError:  # the application has begun to answer
            self.abort()
            return
        self._end_cycle()
        self._is_refused = True
        self._request.stop()
        self._farewell.start()
        self.flow.go_on()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _end_cycle(self) -> None:
        """Let the application, which has not answered, find that its peer is gone."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _discard(self, size_bytes: int) -> None:
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > _DISCARDED_BYTES:
            self.abort()

    def shed(self) -> None:
        """Close the connection, because too much is buffered for unproven peers."""
        if self._services is not None:
            self._services.counters.refuse("http:503", "unproven_total_bytes")
        self.abort()

    # The transport

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer.start()
        self._note_held()

    def resume_writing(self) -> None:
        self._answer.stop()
        super().resume_writing()

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._request, self._answer, self._farewell):
            deadline.close()  # a cycle would keep the connection in memory until garbage collection
        if self._services is not None:
            self._services.unproven.discard(self)
            self._services.turns.drop(self._share)
            self._services.addresses.discard(self.transport)
            self._services.note_released(self._received_bytes)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # its timer would keep the connection in memory


class StreamingWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket as a stream of bytes: each frame is passed on as it arrives, whatever message it is part of.

    Received bytes are processed a little at a time, as frames may be of one byte; and no more than the application
    takes.
    """

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], **_: Any) -> None:
        super().__init__(config, server_state, app_state)
        self.conn.max_message_size = None
        self.conn.max_fragment_size = _FRAME_BYTES
        self.close_timeout = _READ_WITHIN_S
        self.on_held: Callable[[int], object] = lambda _size_bytes: None
        """Called with the number of buffered bytes that have not been passed on."""
        self._services: AmqpServices | None = None
        self._stopwatch: Callable[[], float] = time.perf_counter
        self._pending = bytearray()
        self._is_planned = False
        self._share = Share()
        self._is_proven = True
        self._is_too_large = False
        """True if a frame was larger than allowed, which ends the connection."""
        self._unproven_bytes = 0

    def serve_with(self, services: AmqpServices) -> None:
        """Limit what the peer may send before it has sent a valid key or token."""
        self._services = services
        self._stopwatch = services.stopwatch
        self._is_proven = False
        self.conn.max_fragment_size = _AMQP_FRAME_BYTES + services.limits.unproven_connection_bytes

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["state"][STREAM] = self

    # Bytes

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if self._services is not None and not self._is_proven:
            self._share.add(len(data), self._services.turns.now_s())
            self._unproven_bytes += len(data)
            if self._unproven_bytes > 2 * self._services.limits.unproven_received_bytes:  # frames have heads
                self._services.counters.refuse(Condition.RESOURCE_LIMIT_EXCEEDED, "unproven_received_bytes")
                self.abort()
                return
        self._plan()
        self._balance()

    def _plan(self) -> None:
        """Process what was received: now, or at the turn of this peer."""
        if self._pending and not self._is_planned and self.queue.empty():
            self._is_planned = True
            if self._services is None or self._is_proven:
                self._look()
            else:
                self._services.turns.take(self._share, self._look)

    def _look(self) -> None:
        self._is_planned = False
        if self.transport.is_closing():
            self._pending.clear()
            return
        ends = self._stopwatch() + _TURN_S
        size = _SLICE_BYTES if self._is_proven else _UNPROVEN_SLICE_BYTES
        while self._pending and self.queue.empty() and not self.transport.is_closing():
            data = bytes(self._pending[:size])
            del self._pending[:size]
            self._take_in(data)
            if self._stopwatch() > ends or not self._is_proven:
                break
        if self._pending and self.queue.empty():
            self._is_planned = True
            if self._services is None or self._is_proven:
                self.loop.call_soon(self._look)
            else:
                self._services.turns.take(self._share, self._look)
        self._balance()

    def _take_in(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except InvalidState:  # it continues after one side has sent its close
            self.transport.abort()
        if isinstance(self.conn.parser_exc, PayloadTooBig) and not self._is_too_large:
            self._is_too_large = True
            if self._services is not None:
                self._services.counters.refuse(Condition.RESOURCE_LIMIT_EXCEEDED, "web_socket_frame_bytes")

    async def receive(self) -> Any:
        message = await self.queue.get()
        self._plan()
        self._balance()
        return message

    def _balance(self) -> None:
        """Resume reading when everything received is passed on."""
        if self.transport.is_closing():
            return
        is_full = bool(self._pending) or not self.queue.empty()
        if is_full is not self.read_paused:
            self.read_paused = is_full
            if is_full:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        self.on_held(len(self._pending) + len(self.conn.reader.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.clear()
        self.conn.reader.buffer.clear()  # its parser would keep it until garbage collection
        self.on_held = lambda _size_bytes: None
        if self._services is not None:
            self._services.turns.drop(self._share)
            self._services.addresses.discard(self.transport)
        super().connection_lost(exc)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.scope["state"].pop(STREAM, None)  # else it would refer to itself

    # Frames

    def handle_bytes(self, event: Frame) -> None:
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        self.frames = [bytes(event.data)]
        self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        super().handle_ping()
        unproven = 0 if self._services is None else self._services.limits.unproven_connection_bytes
        if self.transport.get_write_buffer_size() > (_FRAME_BYTES if self._is_proven else unproven):
            self.abort()  # it does not read the responses

    def handle_text(self, _event: Frame) -> None:
        if not self.close_sent:
            self.close_sent = True
            self.conn.send_close(_UNSUPPORTED_DATA, "AMQP needs binary messages")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            self.loop.call_later(_READ_WITHIN_S, self.transport.abort)

    def take_large(self, size_bytes: int) -> None:
        """Allow a proven peer to send frames of this size."""
        self._is_proven = True
        self.conn.max_fragment_size = max(_FRAME_BYTES, size_bytes)

    def abort(self) -> None:
        self.transport.abort()
