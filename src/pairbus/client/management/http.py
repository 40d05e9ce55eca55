"""HTTP requests, on connections that are kept for the next one."""

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

MAX_KEPT: Final = 4
"""Idle connections to an endpoint that are kept."""

IDLE_S: Final = 60.0
"""Time for which an idle connection is kept, unless the server says that it keeps it for less."""

_REPEATABLE: Final = frozenset({"GET", "HEAD"})
"""Methods whose requests may be sent again when it is not known whether the server has received them."""

_KEEP_ALIVE: Final = re.compile(rb"timeout=(\d{1,9})")
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
    """Send a request on a connection of its own, and return the response; see ``HttpConnections.exchange``."""
    connections = HttpConnections(endpoint, tls, max_kept=0)
    return await connections.exchange(request, timeout_s=timeout_s, max_bytes=max_bytes, on_connected=on_connected)


class HttpConnections:
    """Connections to an endpoint. Each serves one request at a time, and is kept for the next one."""

    def __init__(
        self, endpoint: Endpoint, tls: ssl.SSLContext | None, *, max_kept: int = MAX_KEPT, idle_s: float = IDLE_S
    ) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._max_kept = max_kept
        self._idle_s = idle_s
        self._kept: dict[_Connection, asyncio.Task[None]] = {}
        """Idle connections with the tasks that close them, the one that was used last at the end."""

    async def exchange(
        self,
        request: HttpRequest,
        *,
        timeout_s: float,
        max_bytes: int = MAX_RESPONSE_BYTES,
        on_connected: Callable[[], None] = lambda: None,
    ) -> HttpResponse:
        """Send a request and return the response, whose body may have up to ``max_bytes``.

        Nothing is sent before ``on_connected`` is called, so an earlier failure has had no effect.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(request, max_bytes, on_connected)
        except TimeoutError:
            raise MessagingTimeoutError(f"{self._endpoint} did not respond within {timeout_s:g} s") from None

    async def close(self) -> None:
        """Close the idle connections, and keep none from now on."""
        self._max_kept = 0
        loop = asyncio.get_running_loop()
        kept = {each: end for each, end in self._kept.items() if end.get_loop() is loop}
        for connection, end in kept.items():
            end.cancel()
            await connection.close()

    async def _exchange(self, request: HttpRequest, max_bytes: int, on_connected: Callable[[], None]) -> HttpResponse:
        kept = await self._take()
        if kept is not None:
            try:
                return await self._use(kept, request, max_bytes, on_connected)
            except _StaleConnectionError as error:
                # The server closed it just then, for it was idle. It may have received the request all the same.
                if request.method not in _REPEATABLE:
                    raise error.cause from error
        try:
            connection = _Connection(self._endpoint, is_kept=self._max_kept > 0)
            return await self._use(connection, request, max_bytes, on_connected)
        except _StaleConnectionError as error:
            raise error.cause from error

    async def _use(
        self, connection: _Connection, request: HttpRequest, max_bytes: int, on_connected: Callable[[], None]
    ) -> HttpResponse:
        """Send a request on a connection; keep that, unless something went wrong on it."""
        try:
            response = await connection.exchange(request, self._tls, max_bytes, on_connected)
        except BaseException:  # if the caller was cancelled, the response may still arrive: no other caller may get it
            await connection.close()
            raise
        loop = asyncio.get_running_loop()
        if len(self._kept_by(loop)) < self._max_kept and connection.is_reusable():
            self._kept[connection] = end = loop.create_task(self._end(connection))
            end.add_done_callback(lambda _end: self._ended(connection))
        else:
            await connection.close()
        return response

    async def _take(self) -> _Connection | None:
        """Return the open connection that was used last; ``None`` if there is none."""
        loop = asyncio.get_running_loop()
        while mine := self._kept_by(loop):
            connection = mine[-1]
            end = self._kept.pop(connection)
            end.cancel()
            try:
                await asyncio.wait([end])
            except asyncio.CancelledError:
                connection.abort()
                raise
            if end.cancelled() and connection.is_silent():
                return connection
            await connection.close()
        return None

    def _kept_by(self, loop: asyncio.AbstractEventLoop) -> list[_Connection]:
        """Return the idle connections of a loop, and forget those of loops that were closed without ending tasks."""
        kept = [*self._kept.items()]
        for connection, end in kept:
            if end.get_loop().is_closed():
                self._kept.pop(connection, None)
        return [connection for connection, end in kept if end.get_loop() is loop]

    async def _end(self, connection: _Connection) -> None:
        """Wait until an idle connection is to be closed: the server closes it, or it was unused for a while.

        It is closed when this is cancelled as well, as ``asyncio.run`` does at its end: a manager that is never closed
        leaves nothing open.
        """
        with suppress(OSError):  # a TimeoutError is one
            async with asyncio.timeout(min(self._idle_s, connection.keep_alive_s)):
                await connection.read_unasked()

    def _ended(self, connection: _Connection) -> None:
        if self._kept.pop(connection, None) is not None:
            connection.abort()


class _StaleConnectionError(Exception):
    """The connection was lost before a response to its request began."""

    def __init__(self, cause: MessagingCommunicationError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Connection:
    """A connection for one request after the other."""

    def __init__(self, endpoint: Endpoint, *, is_kept: bool) -> None:
        """With ``is_kept``, the server is not asked to close it after the response."""
        self._endpoint = endpoint
        self._is_kept = is_kept
        self._protocol = h11.Connection(h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.keep_alive_s = IDLE_S
        """For how long the server keeps it, as far as it says so."""

    def is_silent(self) -> bool:
        """Return whether an idle connection is open and the server has sent nothing unasked. If not, it is of no use.

        A ``StreamReader`` does not say what it has buffered, but reading returns without suspending if there is
        anything. So this runs the first step of a read, and nothing can arrive between the answer and the next request.
        """
        if self._reader is None:
            return False
        reading = self._reader.read(1)
        try:
            reading.send(None)
        except Exception:  # noqa: BLE001 (StopIteration with data or the end; or the error that has ended it)
            return False
        finally:
            reading.close()
        return True

    async def read_unasked(self) -> None:
        """Wait until the server closes an idle connection, or sends an unsolicited response."""
        if self._reader is not None:
            await self._reader.read(1)

    def is_reusable(self) -> bool:
        """Return whether another request may follow; make it possible."""
        if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
            return False
        if self._protocol.trailing_data[0]:
            return False
        self._protocol.start_next_cycle()
        return True

    async def exchange(
        self, request: HttpRequest, tls: ssl.SSLContext | None, max_bytes: int, on_connected: Callable[[], None]
    ) -> HttpResponse:
        data = self._encoded(request)
        is_reused = self._writer is not None
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await _connect(self._endpoint, tls)
        answer = _Answer(self._endpoint, self._protocol, max_bytes)
        on_connected()
        try:
            self._writer.write(data)
            await self._writer.drain()
            response = await answer.read(self._reader)
        except OSError as error:
            lost = MessagingCommunicationError(f"the connection to {self._endpoint} was lost: {error}")
            if answer.has_begun:
                raise lost from error
            raise _StaleConnectionError(lost) from error
        if is_reused and response.status == HTTPStatus.REQUEST_TIMEOUT:
            # It may have been on its way before the request: the server gave up waiting for one.
            raise _StaleConnectionError(
                MessagingCommunicationError(f"{self._endpoint} responded with 408 Request Timeout on a kept connection")
            )
        if answer.keep_alive_s is not None:
            self.keep_alive_s = answer.keep_alive_s
        return response

    def _encoded(self, request: HttpRequest) -> bytes:
        headers = {
            "Host": self._endpoint.authority,
            **({} if self._is_kept else {"Connection": "close"}),
            **({"Content-Length": str(len(request.body))} if request.body else {}),
            **request.headers,
        }
        send = self._protocol.send
        try:
            head = send(h11.Request(method=request.method, target=request.target, headers=list(headers.items())))
        except (h11.LocalProtocolError, UnicodeEncodeError):
            # The value is not repeated: it may be a token.
            raise InvalidRequestError("the request or its token contains characters that HTTP does not allow") from None
        parts = (head, send(h11.Data(request.body)), send(h11.EndOfMessage()))
        return b"".join(part for part in parts if part)

    def abort(self) -> None:
        """Close at once without waiting for the peer: the response is complete, or no longer needed."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def close(self) -> None:
        """Abort, and wait until the connection is closed."""
        self.abort()
        if self._writer is not None:
            with suppress(OSError):
                await self._writer.wait_closed()


async def _connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_connection(endpoint.host, endpoint.http_port, ssl=tls)
    except ssl.SSLCertVerificationError as error:
        raise untrusted(endpoint, error) from error
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        raise unreachable(endpoint, error) from error


class _Answer:
    """Reads one response."""

    def __init__(self, endpoint: Endpoint, protocol: h11.Connection, max_bytes: int) -> None:
        self._endpoint = endpoint
        self._protocol = protocol
        self._max_bytes = max_bytes
        self.has_begun = False
        self._has_ended = False
        self.keep_alive_s: float | None = None
        """For how long the server keeps an idle connection, if it says so."""

    async def read(self, reader: asyncio.StreamReader) -> HttpResponse:
        status = 0
        body = bytearray()
        while True:
            event = await self._next_event(reader)
            if isinstance(event, h11.Response):
                status = event.status_code
                self.keep_alive_s = _keep_alive_s(event)
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
            if self._has_ended and not self.has_begun:
                raise _StaleConnectionError(self._lost())
            if not self.has_begun and not _BEGINNING.startswith(data[: len(_BEGINNING)]):
                # Other protocols send no lines, so waiting for the end of one would never end.
                raise self._unusable("is not HTTP")
            self.has_begun = True
            self._protocol.receive_data(data)

    def _lost(self) -> MessagingCommunicationError:
        return MessagingCommunicationError(f"{self._endpoint} closed the connection before the end of its response")

    def _unusable(self, reason: str) -> MessagingCommunicationError:
        """Return a permanent error: the server is not a namespace, and a retry would not change that."""
        return MessagingCommunicationError(f"the response of {self._endpoint} {reason}", is_transient=False)


def _keep_alive_s(response: h11.Response) -> float | None:
    """Return the time in the header ``Keep-Alive: timeout=120``."""
    for name, value in response.headers:
        if name == b"keep-alive" and (found := _KEEP_ALIVE.search(value)):
            return float(found[1])
    return None


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
