"""AMQP over a WebSocket: the same bytes, in binary messages of any size."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.http.protocol import STREAM, StreamingWebSocket
from pairbus.server.log_context import peer_of

PATH: Final = "/$servicebus/websocket"
_PATHS: Final = re.compile(rf"{re.escape(PATH)}/?\Z", re.IGNORECASE)
"""The paths that clients send: older SDKs end the path with a slash, and the service ignores the case of paths."""
SUBPROTOCOL: Final = "AMQPWSB10"
_PROTOCOL_ERROR: Final = 1002
_ENVELOPE_BYTES: Final = 1024 * 1024
"""Allowance beyond the largest message: the SDK for JavaScript sends everything it has in one frame."""
_WRITE_HIGH_BYTES: Final = 256 * 1024


class ServerWebSocket:
    """A WebSocket as a connection's transport: writes are queued for a task that sends them."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._stream: StreamingWebSocket = websocket.scope["state"][STREAM]
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unsent_bytes = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closing = False
        self._is_paused = False
        self._high_bytes = _WRITE_HIGH_BYTES
        self._aborted = asyncio.Event()
        self.connection: ServerConnection | None = None

    def write(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._unsent_bytes += len(data)
        self._queue.put_nowait(data)
        if self._unsent_bytes > self._high_bytes and not self._is_paused and self.connection is not None:
            self._is_paused = True
            self.connection.pause_writing()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._queue.put_nowait(None)

    def abort(self) -> None:
        self._is_closing = True
        self._stream.abort()
        self._aborted.set()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        self._high_bytes = _WRITE_HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    async def run(self, connection: ServerConnection) -> None:
        """Pass bytes both ways until one side closes."""
        self.connection = connection
        self._stream.on_held = connection.note_carried
        largest = connection.host.limits.largest_bytes + _ENVELOPE_BYTES
        connection.on_proven = partial(self._stream.take_large, largest)
        tasks = [asyncio.create_task(work) for work in (self._read(connection), self._write(), self._aborted.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception) and not self._is_expected(error):
                    connection.log_context().error("connection failed", exc_info=error)
            connection.connection_lost()
            self.connection = None

    def _is_expected(self, error: Exception) -> bool:
        """Return whether an error just means that the WebSocket is closed, by the peer or by its stream."""
        return isinstance(error, WebSocketDisconnect) or (isinstance(error, RuntimeError) and self._stream.close_sent)

    async def _read(self, connection: ServerConnection) -> None:
        while True:
            await self._may_read.wait()
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            connection.data_received(message["bytes"])

    async def _write(self) -> None:
        while (data := await self._queue.get()) is not None:
            await self._websocket.send_bytes(data)
            self._unsent_bytes -= len(data)
            if self._is_paused and self._unsent_bytes <= self._high_bytes // 4 and self.connection is not None:
                self._is_paused = False
                self.connection.resume_writing()
        await self._websocket.close()


def websocket_route(services: AmqpServices) -> WebSocketRoute:
    async def serve(websocket: WebSocket) -> None:
        if SUBPROTOCOL not in websocket.scope.get("subprotocols", ()):
            await websocket.close(_PROTOCOL_ERROR, f"the subprotocol must be {SUBPROTOCOL}")
            return
        await websocket.accept(SUBPROTOCOL)
        transport = ServerWebSocket(websocket)
        protocol = "wss" if websocket.url.scheme == "wss" else "ws"
        address, peer = ("", "") if websocket.client is None else (websocket.client.host, peer_of(websocket.client))
        try:
            await transport.run(ServerConnection(services, transport, protocol, address, peer))
        except WebSocketDisconnect:
            return

    route = WebSocketRoute(PATH, serve)
    route.path_regex = _PATHS
    return route
