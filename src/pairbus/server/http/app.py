"""The management API as an application: lets requests in, has them answered, and turns errors into refusals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from h11 import LocalProtocolError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from pairbus.broker import Address
from pairbus.ledger.operation import SUCCEEDED, Kind, Sort, Stage, units_of
from pairbus.server.access import Gatekeeper
from pairbus.server.errors import BadRequestError, InvalidCredentialsError, UnauthorizedError, refusal_of
from pairbus.server.guesses import Guesses
from pairbus.server.host import NamespaceHost
from pairbus.server.http.answers import error_answer, fresh_tracking_id
from pairbus.server.http.call import Call, authority_of
from pairbus.server.http.credentials import Credentials, check_guesses, hold_back, key_name_of
from pairbus.server.http.metrics import Metrics
from pairbus.server.http.monitoring import Monitoring
from pairbus.server.http.routes import Found, Route, find, segments_of
from pairbus.server.metering import Meter

_log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1 << 20
_REFUSED: Final = 400
_METHODS: Final = frozenset({"GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS", "PATCH"})


class BodyTooLargeError(BadRequestError):
    """More than any description needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the application is told besides what it serves."""

    base_url: str | None = None
    """``https://host:port`` as clients know it; where it is not given, each request's own Host header says it."""

    open_metrics: bool = False
    """Whether everyone may see the names of entities among the metrics."""

    is_draining: Callable[[], bool] = bool
    created_ms: int | None = None
    """Since when there is this namespace; since now, where it is not given."""

    meter: Meter | None = None
    """Who counts what is billed, if anybody does."""

    guesses: Guesses = field(default_factory=Guesses)


def make_app(
    host: NamespaceHost,
    gatekeeper: Gatekeeper,
    metrics: Metrics,
    extra_routes: Sequence[BaseRoute] = (),
    *,
    base_url: str | None = None,
    open_metrics: bool = False,
    is_draining: Callable[[], bool] = bool,
    created_ms: int | None = None,
    meter: Meter | None = None,
    guesses: Guesses | None = None,
) -> Starlette:
    """Everything that is served over HTTP. ``extra_routes`` are asked first."""
    options = Options(
        base_url=base_url,
        open_metrics=open_metrics,
        is_draining=is_draining,
        created_ms=created_ms,
        meter=meter,
        guesses=guesses or Guesses(),
    )
    app = Starlette(routes=list(extra_routes))
    # Names of entities have slashes in them, encoded or not, which is why the paths are not matched by Starlette.
    app.router.default = Management(host, gatekeeper, metrics, options)
    app.router.redirect_slashes = False
    return app


class Management:
    """Answers every request that no other route takes."""

    def __init__(self, host: NamespaceHost, gatekeeper: Gatekeeper, metrics: Metrics, options: Options) -> None:
        self._host = host
        self._gatekeeper = gatekeeper
        self._metrics = metrics
        self._meter = options.meter
        self._guesses = options.guesses
        self._created_ms = host.now_ms() if options.created_ms is None else options.created_ms
        self._authority = None if options.base_url is None else options.base_url.rpartition("://")[2].strip("/")
        self._monitoring = Monitoring(host, metrics, open_metrics=options.open_metrics, is_draining=options.is_draining)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        response = await self._answer(Request(scope, receive))
        try:
            await response(scope, receive, send)
        except (LocalProtocolError, OSError) as error:  # what was sent is no HTTP any more, or nobody is there
            _log.info("an answer could not be sent: %s", error)

    async def _answer(self, request: Request) -> Response:
        started = time.perf_counter()
        segments = segments_of(_raw_path(request.scope), request.method)
        found = find(request.method, segments, is_plain="api-version" not in request.query_params)
        if isinstance(found, Found):
            operation = found.route.operation
            response = await self._perform(request, found, "/".join(segments))
        else:
            operation = "none"
            response = self._without_route(found)
        status = str(response.status_code)
        method = request.method if request.method in _METHODS else "other"  # or a stranger could make up series
        self._metrics.http.labels(operation, method, status).inc()
        self._metrics.http_seconds.labels(operation).observe(time.perf_counter() - started)
        if isinstance(found, Found) and found.route.right is not None:
            self._metrics.counters.requests[operation, response.status_code] += 1
            if self._meter is not None:
                self._count(self._meter, request, "/".join(segments), response)
        return response

    async def _perform(self, request: Request, found: Found, path: str) -> Response:
        """The one place where everything that can go wrong becomes an answer."""
        try:
            return await self._handle(request, found, path)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except InvalidCredentialsError as error:
            await hold_back(self._guesses, request, error)
            return self._refuse(error)
        except Exception as error:  # noqa: BLE001 (a request that we fail at must not harm the others)
            return self._refuse(error)

    async def _handle(self, request: Request, found: Found, path: str) -> Response:
        route = found.route
        now_ms = self._host.now_ms()
        credentials = Credentials(self._gatekeeper, request.headers.get("authorization"))
        check_guesses(self._guesses, request)
        if route.right is not None:
            # Before anything is looked up, so that a stranger cannot tell what is there.
            _authorize(credentials, route, found.names, path, self._host.wall_ms())
            self._host.check_busy(route.operation, _address(found.names))
        call = Call(
            host=self._host,
            operation=route.operation,
            names=found.names,
            query=request.query_params,
            headers=request.headers,
            credentials=credentials,
            now_ms=now_ms,
            authority=self._authority or authority_of(request.headers.get("host"), self._host.name),
            created_ms=self._created_ms,
            monitoring=self._monitoring,
            body=await _body(request) if route.method == "PUT" else b"",
        )
        return await route.handler(call)

    @staticmethod
    def _count(meter: Meter, request: Request, path: str, response: Response) -> None:
        is_refused = response.status_code >= _REFUSED
        sort = Sort(
            kind=Kind.MANAGEMENT,
            stage=Stage.MANAGEMENT,
            entity="" if is_refused else path.lower(),  # or a stranger could make up entities
            result=str(response.status_code) if is_refused else SUCCEEDED,
            who="" if is_refused else key_name_of(request.headers.get("authorization")),
        )
        size_bytes = len(response.body) if isinstance(response.body, bytes) else 0
        meter.account(sort).add(0, size_bytes, units_of(size_bytes), units_of(size_bytes))

    def _refuse(self, error: Exception) -> Response:
        refusal = refusal_of(error)
        status = 413 if isinstance(error, BodyTooLargeError) else refusal.status
        tracking_id = fresh_tracking_id()
        if status == 500:
            _log.error("a request failed, %s", tracking_id, exc_info=error)
        self._metrics.counters.refused[refusal.condition] += 1
        return error_answer(status, refusal.description, now_ms=self._host.now_ms(), tracking_id=tracking_id)

    def _without_route(self, methods: frozenset[str]) -> Response:
        reason = f"this address has {', '.join(sorted(methods))}" if methods else "no service is hosted at this address"
        return error_answer(
            405 if methods else 404,
            reason,
            now_ms=self._host.now_ms(),
            tracking_id=fresh_tracking_id(),
            headers={"Allow": ", ".join(sorted(methods))} if methods else {},
        )


def _authorize(credentials: Credentials, route: Route, names: Mapping[str, str], path: str, now_ms: int) -> None:
    assert route.right is not None  # noqa: S101 (an open route needs nothing)
    try:
        credentials.require(path, route.right, now_ms)
    except UnauthorizedError:
        enclosing = None if route.enclosing is None else route.enclosing.format_map(names)
        if enclosing is None or not credentials.allows(enclosing, route.right, now_ms):
            raise


def _address(names: Mapping[str, str]) -> Address | None:
    entity = names.get("entity", names.get("topic"))
    return None if entity is None else Address.of(entity, names.get("subscription"))


def _raw_path(scope: Scope) -> str:
    """The path as it was sent: only there can a slash in a name be told from one between names."""
    raw_path: bytes | None = scope.get("raw_path")
    if raw_path is None:
        return quote(scope["path"])
    return raw_path.partition(b"?")[0].decode("latin-1")


async def _body(request: Request) -> bytes:
    """The body, which is bounded while it is read and not only afterwards."""
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and len(length) < 12 and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large() -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has more than {MAX_BODY_BYTES} bytes")
