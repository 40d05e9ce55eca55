"""One request over HTTP, on a connection of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import h11

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import InvalidRequestError, MessagingCommunicationError, MessagingTimeoutError
from pairbus.client.unreachable import unreachable, untrusted

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Far more than a page of descriptions has."""

_READ_BYTES: Final = 64 * 1024
_BEGINNING: Final = b"HTTP/"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is asked for."""

    method: str
    target: str
    """Path and query, encoded."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Besides those that say where it goes and how long it is. There are tokens among them."""

    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """What is answered."""

    status: int
    body: bytes


async def exchange(
    endpoint: Endpoint,
    request: HttpRequest,
    *,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    max_bytes: int = MAX_RESPONSE_BYTES,
    on_connected: Callable[[], None] = lambda: None,
) -> HttpResponse:
    """Send a request and read the whole answer, which may have ``max_bytes``.

    Before ``on_connected`` is called nothing has been sent, so that nothing can have come of it.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, request, tls, max_bytes, on_connected)
    except TimeoutError:
        raise MessagingTimeoutError(f"{endpoint} has not answered within {timeout_s:g} s") from None


async def _exchange(
    endpoint: Endpoint,
    request: HttpRequest,
    tls: ssl.SSLContext | None,
    max_bytes: int,
    on_connected: Callable[[], None],
) -> HttpResponse:
    protocol = h11.Connection(h11.CLIENT)
    data = _written(protocol, endpoint, request)
    reader, writer = await _connect(endpoint, tls)
    try:
        on_connected()
        writer.write(data)
        await writer.drain()
        return await _Answer(endpoint, protocol, max_bytes).read(reader)
    except OSError as error:
        raise MessagingCommunicationError(f"the connection to {endpoint} was lost: {error}") from error
    finally:
        await _hang_up(writer)


def _written(protocol: h11.Connection, endpoint: Endpoint, request: HttpRequest) -> bytes:
    headers = {
        "Host": endpoint.authority,
        "Connection": "close",
        **({"Content-Length": str(len(request.body))} if request.body else {}),
        **request.headers,
    }
    try:
        head = protocol.send(h11.Request(method=request.method, target=request.target, headers=list(headers.items())))
    except (h11.LocalProtocolError, UnicodeEncodeError):
        # What is wrong is not repeated: it may be a token.
        raise InvalidRequestError(
            "the request, or the token that goes with it, has characters that HTTP has not"
        ) from None
    parts = (head, protocol.send(h11.Data(request.body)), protocol.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)


async def _connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(endpoint.host, endpoint.http_port, ssl=tls)
    except ssl.SSLCertVerificationError as error:
        raise untrusted(endpoint, error) from error
    except (OSError, UnicodeError) as error:  # a name that no host can have is a UnicodeError
        raise unreachable(endpoint, error) from error


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close at once, without waiting for the peer: the answer is there, or nobody wants it any more."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


class _Answer:
    """Reads one answer."""

    def __init__(self, endpoint: Endpoint, protocol: h11.Connection, max_bytes: int) -> None:
        self._endpoint = endpoint
        self._protocol = protocol
        self._max_bytes = max_bytes
        self._has_begun = False
        self._has_ended = False

    async def read(self, reader: asyncio.StreamReader) -> HttpResponse:
        status = 0
        body = bytearray()
        while True:
            event = await self._next_event(reader)
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._max_bytes:
                    raise self._unusable(f"has more than {self._max_bytes} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return HttpResponse(status=status, body=bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                raise self._lost()

    async def _next_event(self, reader: asyncio.StreamReader) -> object:
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError as error:
                if self._has_ended:
                    raise self._lost() from error
                raise self._unusable(f"is no HTTP: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            data = await reader.read(_READ_BYTES)
            self._has_ended = not data
            if not self._has_begun and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
                # Other protocols have no lines, for whose end one would wait in vain.
                raise self._unusable("is no HTTP")
            self._has_begun = True
            self._protocol.receive_data(data)

    def _lost(self) -> MessagingCommunicationError:
        return MessagingCommunicationError(f"{self._endpoint} hung up before the end of its answer")

    def _unusable(self, reason: str) -> MessagingCommunicationError:
        """Something else than a namespace is there, and will be when we try again."""
        return MessagingCommunicationError(f"the answer of {self._endpoint} {reason}", is_transient=False)
