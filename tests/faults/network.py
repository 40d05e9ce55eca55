"""A network in memory, on one event loop: who listens, who connects, and the streams between them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any, Final, cast

KERNEL_BYTES: Final = 64 * 1024
"""The maximum number of bytes in flight or unread before a writer has to wait."""

MakeProtocol = Callable[[], asyncio.BaseProtocol]
Address = tuple[str, int]

_ALIASES: Final = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}


class _End(Enum):
    EOF = "end"
    RESET = "reset"


class Stream(asyncio.Transport):
    """One end of a connection. What it writes arrives after the latency, in order, unless the other end is gone."""

    def __init__(self, network: Network, here: Address, there: Address) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.is_lost = False
        self._network = network
        self._loop = network.loop
        self._protocol: asyncio.Protocol | None = None
        self._peer: Stream | None = None
        self._flying: deque[bytes | _End] = deque()
        self._arrived: deque[bytes | _End] = deque()
        self._unread_bytes = 0
        """On the way to us, or here."""
        self._is_closing = False
        self._has_ended = False
        """True if the end was sent."""
        self._is_paused = False
        self._is_writable = True
        self._high, self._low = KERNEL_BYTES, KERNEL_BYTES // 4

    def __repr__(self) -> str:
        return f"<Stream {self.get_extra_info('sockname')} to {self.get_extra_info('peername')}>"

    def join(self, peer: Stream) -> None:
        self._peer = peer

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self.set_protocol(protocol)
        protocol.connection_made(self)

    # What a transport does.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._attached

    @property
    def _attached(self) -> asyncio.Protocol:
        if self._protocol is None:
            raise RuntimeError("nobody is at this end yet")
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._has_ended and not self._is_closing:
            raise RuntimeError("nothing can be written after the end")
        if data and not self._is_closing:
            for start in range(0, len(data), KERNEL_BYTES):
                self._send(bytes(data[start : start + KERNEL_BYTES]))
            self._balance()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._has_ended and not self._is_closing:
            self._has_ended = True
            self._send(_End.EOF)

    def close(self) -> None:
        """Close when everything has been sent."""
        if not self._is_closing:
            if not self._has_ended:
                self._has_ended = True
                self._send(_End.EOF)
            self._is_closing = True
            self._close_if_sent()

    def abort(self) -> None:
        """Reset the connection."""
        if not self.is_lost:
            self._send(_End.RESET)
            self._lose_soon(None)

    def _force_close(self, _error: BaseException | None) -> None:
        """Called by TLS after a fatal error."""
        self.abort()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else KERNEL_BYTES if low is None else 4 * low
        self._low = low if low is not None else self._high // 4
        self._balance()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return 0 if self._peer is None else max(0, self._peer._unread_bytes - KERNEL_BYTES)

    # How the bytes travel.

    def _send(self, item: bytes | _End) -> None:
        if self._peer is not None:
            self._peer._expect(item)

    def _expect(self, item: bytes | _End) -> None:
        """Something is on its way. The queue keeps the order, which timers of the same time do not."""
        self._flying.append(item)
        if isinstance(item, bytes):
            self._unread_bytes += len(item)
        self._loop.call_later(self._network.latency_s, self._arrive)

    def _arrive(self) -> None:
        item = self._flying.popleft()
        if not self.is_lost:
            self._arrived.append(item)
            self._deliver()
        elif isinstance(item, bytes):  # to a port that nobody has any more
            self._read(len(item))
            self._send(_End.RESET)

    def _deliver(self) -> None:
        while self._arrived and not self._is_paused and not self.is_lost:
            self._hand_over(self._arrived.popleft())

    def _hand_over(self, item: bytes | _End) -> None:
        if isinstance(item, bytes):
            self._read(len(item))
        try:
            if item is _End.RESET:
                self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            elif self._is_closing:
                pass
            elif isinstance(item, bytes):
                _give(self._attached, item)
            elif not self._attached.eof_received():
                self.close()
        except Exception as error:  # noqa: BLE001 (as asyncio's own transports do)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {
                "message": "a protocol failed",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._send(_End.RESET)
        self._lose_soon(error)

    def _read(self, size: int) -> None:
        self._unread_bytes -= size
        if self._peer is not None:
            self._peer._balance()

    def _balance(self) -> None:
        """Pause or resume the writer."""
        size = self.get_write_buffer_size()
        if self._is_closing:
            self._close_if_sent()
        elif self._is_writable and size > self._high:
            self._is_writable = False
            self._attached.pause_writing()
        elif not self._is_writable and size <= self._low:
            self._is_writable = True
            self._attached.resume_writing()

    def _close_if_sent(self) -> None:
        if self.get_write_buffer_size() == 0:
            self._lose_soon(None)

    def _lose_soon(self, error: Exception | None) -> None:
        self._is_closing = True
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        self._network.streams.pop(self, None)
        unread = sum(len(item) for item in self._arrived if isinstance(item, bytes))
        self._arrived.clear()
        self._read(unread)
        if self._protocol is not None:
            self._protocol.connection_lost(error)


class Listening(asyncio.AbstractServer):
    """A listening port."""

    def __init__(self, network: Network, address: Address, make_protocol: MakeProtocol) -> None:
        self.address = address
        self.make_protocol = make_protocol
        self._network = network

    @property
    def port(self) -> int:
        return self.address[1]

    def close(self) -> None:
        if self._network.listening.get(self.address) is self:
            del self._network.listening[self.address]

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._network.listening.get(self.address) is self

    async def start_serving(self) -> None:
        """It has begun already."""

    async def serve_forever(self) -> None:
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """It is closed at once."""


class Network:
    """Hosts by name, ports by number. A host without a listener so far is unknown."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency_s: float = 0.001) -> None:
        self.loop = loop
        self.latency_s = latency_s
        self.listening: dict[Address, Listening] = {}
        self.hanging: set[Address] = set()
        """Addresses at which connection attempts are never answered."""
        self.streams: dict[Stream, None] = {}
        """The ends of connections that are open, in the order in which they came."""
        self.attempts: list[tuple[float, Address]] = []
        """The connection attempts: times and addresses."""
        self._hosts: set[str] = set()
        self._ports = count(49_152)

    def listen(self, host: str, port: int, make_protocol: MakeProtocol) -> Listening:
        host = _name(host)
        address = host, port or next(self._ports)
        if address in self.listening:
            raise OSError(errno.EADDRINUSE, f"Address already in use: {address}")
        self._hosts.add(host)
        self.listening[address] = Listening(self, address, make_protocol)
        return self.listening[address]

    async def connect(self, make_protocol: MakeProtocol, host: str, port: int) -> tuple[Stream, asyncio.BaseProtocol]:
        """As the client of a connection; raises ``OSError``."""
        there = _name(host), port
        self.attempts.append((self.loop.time(), there))
        await asyncio.sleep(2 * self.latency_s)
        if there in self.hanging:
            await self.loop.create_future()
        if there[0] not in self._hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        listening = self.listening.get(there)
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {there}")
        here = "127.0.0.1", next(self._ports)
        client, server = Stream(self, here, there), Stream(self, there, here)
        client.join(server)
        server.join(client)
        self.streams |= {client: None, server: None}
        protocol = make_protocol()
        self.loop.call_soon(server.begin, listening.make_protocol())
        client.begin(protocol)
        return client, protocol


def _give(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    if isinstance(protocol, asyncio.BufferedProtocol):  # as that of TLS is
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]
    else:
        cast("asyncio.Protocol", protocol).data_received(data)


def _name(host: Any) -> str:
    return _ALIASES.get(str(host), str(host))
