"""One HTTP request per connection."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import h11

from pairbus.client.endpoint import Endpoint, unreachable, untrusted
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    PreconditionFailedError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.dialect.atom import AtomError, parse_error

MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Far more than a page of descriptions needs."""

_READ_BYTES: Final = 64 * 1024
_BEGINNING: Final = b"HTTP/"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    target: str
    """The encoded path and query."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers other than Host and Content-Length. They contain tokens."""

    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
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
    """Send a request and return the response, whose body may have up to ``max_bytes``.

    Nothing is sent before ``on_connected`` is called, so an earlier failure has had no effect.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(endpoint, request, tls, max_bytes, on_connected)
    except TimeoutError:
        raise MessagingTimeoutError(f"{endpoint} did not respond within {timeout_s:g} s") from None


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
        await _disconnect(writer)


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
        # The value is not repeated: it may be a token.
        raise InvalidRequestError("the request or its token contains characters that HTTP does not allow") from None
    parts = (head, protocol.send(h11.Data(request.body)), protocol.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)


async def _connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(endpoint.host, endpoint.http_port, ssl=tls)
    except ssl.SSLCertVerificationError as error:
        raise untrusted(endpoint, error) from error
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        raise unreachable(endpoint, error) from error


async def _disconnect(writer: asyncio.StreamWriter) -> None:
    """Close at once without waiting for the peer: the response is complete, or no longer needed."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


class _Answer:
    """Reads one response."""

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
                raise self._unusable(f"is not HTTP: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            data = await reader.read(_READ_BYTES)
            self._has_ended = not data
            if not self._has_begun and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
                # Other protocols send no lines, so waiting for the end of one would never end.
                raise self._unusable("is not HTTP")
            self._has_begun = True
            self._protocol.receive_data(data)

    def _lost(self) -> MessagingCommunicationError:
        return MessagingCommunicationError(f"{self._endpoint} closed the connection before the end of its response")

    def _unusable(self, reason: str) -> MessagingCommunicationError:
        """Return a permanent error: the server is not a namespace, and a retry would not change that."""
        return MessagingCommunicationError(f"the response of {self._endpoint} {reason}", is_transient=False)


# PROTOCOL: 8.6. Other statuses are errors of the client below 500, and of the service above.
_ERRORS: Final[dict[int, type[MessagingError]]] = {
    401: UnauthorizedError,
    403: QuotaExceededError,
    404: EntityNotFoundError,
    408: MessagingTimeoutError,
    409: EntityAlreadyExistsError,
    410: EntityNotFoundError,
    412: PreconditionFailedError,
    429: ServerBusyError,
    501: InvalidRequestError,
    503: ServerBusyError,
}
_NOT_ALLOWED: Final = "40301"
_OTHER_OPERATION: Final = "40901"
_SUB_CODE: Final = re.compile(r"\s*SubCode=(\d+)\.?\s*")
_TRACKING: Final = re.compile(r"[\s.]*(?:To know more visit|TrackingId:).*", re.DOTALL)


def refusal_of(response: HttpResponse, *, entity: str | None, creates: bool) -> MessagingError:
    """Return the error of a response. Only a request that ``creates`` an entity can find that it exists already."""
    detail, sub_code = _detail(response)
    condition = None if sub_code is None else f"SubCode={sub_code}"
    if response.status == HTTPStatus.CONFLICT and (not creates or sub_code == _OTHER_OPERATION):
        # Another client is changing it at the same time.
        return PreconditionFailedError(detail, entity=entity, condition=condition, is_transient=True)
    if sub_code == _NOT_ALLOWED:
        return InvalidRequestError(detail, entity=entity, condition=condition)
    return _kind(response.status)(detail, entity=entity, condition=condition)


def _kind(status: int) -> type[MessagingError]:
    return _ERRORS.get(
        status, InternalServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidRequestError
    )


def _detail(response: HttpResponse) -> tuple[str, str | None]:
    """Return the reason without details for operators of the service, and the sub-code."""
    try:
        detail = parse_error(response.body).detail
    except AtomError:  # the page of a proxy, or an empty body
        detail = ""
    found = _SUB_CODE.match(detail)
    text = detail if found is None else detail[found.end() :]
    text = _TRACKING.sub("", text.removeprefix(f"{_phrase(response.status)}. "))
    return text or f"the response is {response.status} {_phrase(response.status)}".strip(), found and found[1]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
