"""A peer that answers HTTP requests as scripted: correctly, incorrectly, partially or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from pairbus.client.endpoint import Endpoint

ERROR = "<Error><Code>{}</Code><Detail>{}</Detail></Error>"
FEED = b'<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Publicly Listed Services</title>%s</feed>'


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    data: bytes

    @property
    def line(self) -> str:
        return self.data.partition(b"\r\n")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        head = self.data.partition(b"\r\n\r\n")[0].decode()
        pairs = (line.partition(": ") for line in head.split("\r\n")[1:])
        return {name.lower(): value for name, _, value in pairs}

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]


Answer = Callable[[Asked, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def says(data: bytes) -> Answer:
    """Bytes, and then the end."""

    async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


def replies(status: int, body: bytes = b"") -> Answer:
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return says(head.encode() + body)


def refuses(status: int, detail: str) -> Answer:
    return replies(status, ERROR.format(status, detail).encode())


def relays(port: int) -> Answer:
    """The answer of another server."""

    async def answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await _ask(port, asked))

    return answer


def loses(port: int) -> Answer:
    """Has another server do it, and does not pass its answer on."""

    async def answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _ask(port, asked)
        writer.transport.abort()

    return answer


async def _ask(port: int, asked: Asked) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked.data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@dataclass(slots=True)
class Peer:
    """Gives each connection the next answer."""

    answers: list[Answer]
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request has arrived that gets no answer."""

    deserted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has disconnected."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, tls=False)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _read(reader)
            self.asked.append(asked)
            if self.answers:
                await self.answers.pop(0)(asked, reader, writer)
            else:
                await self._be_silent(reader)
        finally:
            writer.close()

    async def _be_silent(self, reader: asyncio.StreamReader) -> None:
        self.waiting.set()
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            self.deserted.set()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(Asked(head).headers.get("content-length", "0"))
    return Asked(head + await reader.readexactly(length))


@asynccontextmanager
async def peer(*answers: Answer) -> AsyncIterator[Peer]:
    """A peer with these answers; when they are used up it is silent."""
    opened = Peer(list(answers))
    server = await asyncio.start_server(opened.serve, "127.0.0.1", 0)
    async with server:
        opened.port = server.sockets[0].getsockname()[1]
        yield opened
