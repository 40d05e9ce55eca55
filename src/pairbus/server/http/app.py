"""The management API as an application: authorizes requests, dispatches them, and turns errors into responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from h11 import LocalProtocolError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from pairbus.broker import Address
from pairbus.ledger.events import SUCCEEDED, OperationKey, OperationKind, Stage, units_of
from pairbus.server.access import Authorizer
from pairbus.server.audit import NOBODY, AuditAction
from pairbus.server.counters import Counters
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError, refusal_of
from pairbus.server.faults import FAULT_OPERATIONS
from pairbus.server.host import NamespaceHost
from pairbus.server.http.answers import error_answer, fresh_tracking_id
from pairbus.server.http.call import MAX_BODY_BYTES, BodyTooLargeError, HttpCall, authority_of, check_length, read_body
from pairbus.server.http.credentials import Credentials, check_guesses, key_name_of, note_known, refuse_login
from pairbus.server.http.metrics import Metrics, Monitoring
from pairbus.server.http.routes import ManagementRoute, MatchedRoute, find, segments_of
from pairbus.server.log_context import ContextLog, LogValue, peer_of
from pairbus.server.metering import OperationMeter
from pairbus.server.peer_limits import LoginLimiter
from pairbus.server.supervision.diagnostics import Diagnostics
from pairbus.server.supervision.supervisor import Supervisor

_CLOSE: Final = {"Connection": "close"}
_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_UNSUPPORTED: Final = 415
_AMBIGUOUS: Final = "the request has both Content-Length and Transfer-Encoding, so its end is ambiguous"


_ENCODED: Final = "Content-Encoding is not supported: send the body unencoded"


class RequestGuard:
    """Refuses requests, and closes their connections: those whose end a proxy in between could see elsewhere than we
    do, those with a body larger than any route accepts, and those with an encoded body.
    """

    def __init__(self, app: ASGIApp, counters: Counters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = _refusal(dict(scope["headers"])) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            status, reason, limit = refused
            self._counters.refuse(f"http:{status}", limit)
            await PlainTextResponse(f"{reason}\n", status, _CLOSE)(scope, receive, send)


def _refusal(headers: Mapping[bytes, bytes]) -> tuple[int, str, str] | None:
    """Return the status, the reason and the limit with which a request is refused, or ``None``."""
    if b"content-length" in headers and b"transfer-encoding" in headers:
        return _BAD_REQUEST, _AMBIGUOUS, ""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return _UNSUPPORTED, _ENCODED, ""
    try:
        check_length(headers.get(b"content-length", b"0").decode("latin-1"), MAX_BODY_BYTES)
    except BodyTooLargeError as error:
        return _TOO_LARGE, str(error), error.limit
    return None


_log = logging.getLogger(__name__)

_REFUSED: Final = 400
_CHANGES: Final[Mapping[str, tuple[AuditAction, AuditAction]]] = {
    "put-entity": (AuditAction.ENTITY_CREATED, AuditAction.ENTITY_UPDATED),
    "delete-entity": (AuditAction.ENTITY_DELETED, AuditAction.ENTITY_DELETED),
    "put-subscription": (AuditAction.ENTITY_CREATED, AuditAction.ENTITY_UPDATED),
    "delete-subscription": (AuditAction.ENTITY_DELETED, AuditAction.ENTITY_DELETED),
    "put-rule": (AuditAction.RULE_CREATED, AuditAction.RULE_UPDATED),
    "delete-rule": (AuditAction.RULE_DELETED, AuditAction.RULE_DELETED),
    "put-key": (AuditAction.KEY_CREATED, AuditAction.KEY_UPDATED),
    "delete-key": (AuditAction.KEY_REVOKED, AuditAction.KEY_REVOKED),
    "add-fault": (AuditAction.FAULT_ENGAGED, AuditAction.FAULT_ENGAGED),
    "clear-fault": (AuditAction.FAULT_CLEARED, AuditAction.FAULT_CLEARED),
    "clear-faults": (AuditAction.FAULT_CLEARED, AuditAction.FAULT_CLEARED),
}
"""The actions of routes that change something: without and with the header If-Match."""
_METHODS: Final = frozenset({"GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS", "PATCH"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the application."""

    base_url: str | None = None
    """``https://host:port`` as clients know it; if unset, the Host header of each request."""

    open_metrics: bool = False
    """True if the metrics show the names of entities to every client."""

    is_draining: Callable[[], bool] = bool
    created_ms: int | None = None
    """Creation time of this namespace; if unset, now."""

    meter: OperationMeter | None = None
    """Counts billed operations, if configured."""

    guesses: LoginLimiter = field(default_factory=LoginLimiter)
    supervisor: Supervisor | None = None
    diagnostics: Diagnostics | None = None


def make_app(
    host: NamespaceHost,
    authorizer: Authorizer,
    metrics: Metrics,
    extra_routes: Sequence[BaseRoute] = (),
    *,
    base_url: str | None = None,
    open_metrics: bool = False,
    is_draining: Callable[[], bool] = bool,
    created_ms: int | None = None,
    meter: OperationMeter | None = None,
    guesses: LoginLimiter | None = None,
    supervisor: Supervisor | None = None,
    diagnostics: Diagnostics | None = None,
) -> Starlette:
    """Return the application with everything served over HTTP. ``extra_routes`` are matched first."""
    options = Options(
        base_url=base_url,
        open_metrics=open_metrics,
        is_draining=is_draining,
        created_ms=created_ms,
        meter=meter,
        guesses=guesses or LoginLimiter(),
        supervisor=supervisor,
        diagnostics=diagnostics,
    )
    app = Starlette(routes=list(extra_routes))
    # Names of entities contain slashes, encoded or not, which is why the paths are not matched by Starlette.
    app.router.default = Management(host, authorizer, metrics, options)
    app.router.redirect_slashes = False
    return app


class Management:
    """Answers every request that no other route matches."""

    def __init__(self, host: NamespaceHost, authorizer: Authorizer, metrics: Metrics, options: Options) -> None:
        self._host = host
        self._authorizer = authorizer
        self._metrics = metrics
        self._meter = options.meter
        self._guesses = options.guesses
        self._created_ms = host.now_ms() if options.created_ms is None else options.created_ms
        self._authority = None if options.base_url is None else options.base_url.rpartition("://")[2].strip("/")
        self._monitoring = Monitoring(
            host,
            metrics,
            open_metrics=options.open_metrics,
            is_draining=options.is_draining,
            supervisor=options.supervisor,
        )
        self._diagnostics = options.diagnostics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        try:
            await response(scope, receive, send)
        except (LocalProtocolError, OSError) as error:  # what was sent is no HTTP any more, or the client is gone
            _log_of(request, scope["path"]).info("response not sent error=%s", LogValue(error))

    async def _answer(self, request: Request) -> Response:
        started = time.perf_counter()
        segments = segments_of(_raw_path(request.scope), request.method)
        found = find(request.method, segments, is_plain="api-version" not in request.query_params)
        if isinstance(found, MatchedRoute):
            operation = found.route.operation
            response = await self._perform(request, found, "/".join(segments))
        else:
            operation = "none"
            response = self._without_route(found)
        status = str(response.status_code)
        method = request.method if request.method in _METHODS else "other"  # else any client could create metric series
        self._metrics.http.labels(operation, method, status).inc()
        self._metrics.http_seconds.labels(operation).observe(time.perf_counter() - started)
        if isinstance(found, MatchedRoute) and found.route.right is not None:
            self._metrics.counters.requests[operation, response.status_code] += 1
            if self._meter is not None:
                self._count(self._meter, request, "/".join(segments), response)
        return response

    async def _perform(self, request: Request, found: MatchedRoute, path: str) -> Response:
        """Handle a request: the one place where every error becomes a response."""
        try:
            return await self._handle(request, found, path)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except UnauthorizedError as error:
            return self._refuse(request, path, await refuse_login(self._guesses, request, error))
        except Exception as error:  # noqa: BLE001 (a request that we fail at must not harm the others)
            return self._refuse(request, path, error)

    async def _handle(self, request: Request, found: MatchedRoute, path: str) -> Response:
        route = found.route
        credentials = Credentials(self._authorizer, request.headers.get("authorization"))
        audited: list[AuditAction | str] = []
        try:
            return await self._handle_with(request, found, path, credentials, audited)
        except Exception as error:
            action = _attempted(route, request)
            if action is not None and not audited and not isinstance(error, InvalidCredentialsError | ClientDisconnect):
                self._host.audit.record(action, credentials.actor(request, path), **_target(found.names), error=error)
            raise

    async def _handle_with(
        self,
        request: Request,
        found: MatchedRoute,
        path: str,
        credentials: Credentials,
        audited: list[AuditAction | str],
    ) -> Response:
        route = found.route
        if route.right is not None:
            await self._host.ready()
        now_ms = self._host.now_ms()
        if route.right is not None or self._monitoring.reads_credentials(route.operation):
            check_guesses(self._guesses, request)
        if route.right is not None:
            # Before anything is looked up, so that an unauthorized client cannot find out what exists.
            _authorize(credentials, route, found.names, path, self._host.wall_ms())
            note_known(self._guesses, request)
            address = _address(found.names)
            self._host.check_busy(route.operation, address)
            if route.operation not in FAULT_OPERATIONS:  # otherwise a fault could not be cleared
                if request.method != "GET":
                    self._host.check_stalled(address)
                if delay_s := self._host.delay_s(address):
                    await asyncio.sleep(delay_s)
        body = b""
        if route.max_body_bytes:
            body = await read_body(request, route.max_body_bytes)
            if route.right is not None:  # the key may have been revoked while the body arrived
                _authorize(credentials, route, found.names, path, self._host.wall_ms())
        call = HttpCall(
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
            diagnostics=self._diagnostics,
            actor=credentials.actor(request, path) if route.is_change else NOBODY,
            audited=audited,
            body=body,
        )
        return await route.handler(call)

    @staticmethod
    def _count(meter: OperationMeter, request: Request, path: str, response: Response) -> None:
        is_refused = response.status_code >= _REFUSED
        sort = OperationKey(
            kind=OperationKind.MANAGEMENT,
            stage=Stage.MANAGEMENT,
            entity="" if is_refused else path.lower(),  # else any client could create entities in the ledger
            result=str(response.status_code) if is_refused else SUCCEEDED,
            key_name="" if is_refused else key_name_of(request.headers.get("authorization")),
        )
        size_bytes = len(response.body) if isinstance(response.body, bytes) else 0
        meter.account(sort).add(0, size_bytes, units_of(size_bytes), units_of(size_bytes))

    def _refuse(self, request: Request, path: str, error: Exception) -> Response:
        refusal = refusal_of(error)
        status = 413 if isinstance(error, BodyTooLargeError) else refusal.status
        tracking_id = fresh_tracking_id()
        if status == 500:
            _log_of(request, path).error("request failed tracking_id=%s", tracking_id, exc_info=error)
        elif _log.isEnabledFor(logging.DEBUG):
            _log_of(request, path).debug(
                "request refused status=%d condition=%s error=%s", status, refusal.condition, LogValue(error)
            )
        self._metrics.counters.refuse(refusal.condition, refusal.limit)
        return error_answer(status, refusal.description, now_ms=self._host.now_ms(), tracking_id=tracking_id)

    def _without_route(self, methods: frozenset[str]) -> Response:
        reason = (
            f"this address supports {', '.join(sorted(methods))}" if methods else "no service is hosted at this address"
        )
        return error_answer(
            405 if methods else 404,
            reason,
            now_ms=self._host.now_ms(),
            tracking_id=fresh_tracking_id(),
            headers={"Allow": ", ".join(sorted(methods))} if methods else {},
        )


def _authorize(
    credentials: Credentials, route: ManagementRoute, names: Mapping[str, str], path: str, now_ms: int
) -> None:
    assert route.right is not None  # noqa: S101 (an open route needs none)
    try:
        credentials.require(path, route.right, now_ms)
    except UnauthorizedError:
        enclosing = None if route.enclosing is None else route.enclosing.format_map(names)
        if enclosing is None or not credentials.allows(enclosing, route.right, now_ms):
            raise


def _address(names: Mapping[str, str]) -> Address | None:
    entity = names.get("entity", names.get("topic"))
    return None if entity is None else Address.of(entity, names.get("subscription"))


def _attempted(route: ManagementRoute, request: Request) -> AuditAction | None:
    """Return the action that a request was for, if it is one for the audit log."""
    create, update = _CHANGES.get(route.operation, (None, None))
    return create if "if-match" not in request.headers else update


def _target(names: Mapping[str, str]) -> dict[str, str]:
    address = _address(names)
    return {
        "entity": "" if address is None else str(address),
        "rule": names.get("rule", ""),
        "key": names.get("key", ""),
    }


def _log_of(request: Request, path: str) -> ContextLog:
    """Return a logger whose lines name the peer of a request, its operation, entity and key."""
    key = key_name_of(request.headers.get("authorization"))
    return ContextLog(_log, peer=peer_of(request.client), method=request.method, entity=path.strip("/"), key=key)


def _raw_path(scope: Scope) -> str:
    """Return the path as it was sent: only there does a slash in a name differ from one between names."""
    raw_path: bytes | None = scope.get("raw_path")
    if raw_path is None:
        return quote(scope["path"])
    return raw_path.partition(b"?")[0].decode("latin-1")
