"""The routes of the console, and the handlers of their requests."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from pairbus.broker import EntityNotFoundError
from pairbus.console import entities_page, entity_page, message_page, pair_page, server_page
from pairbus.console.actions import ACTION_RECORDS, ACTIONS, Action
from pairbus.console.auth import (
    AUTOMATIC,
    INVALID_FORM,
    PATH,
    ConsoleAuth,
    ConsoleLogin,
    check_origin,
    is_unencrypted,
    parse_login_form,
)
from pairbus.console.formatting import sentence
from pairbus.console.http import (
    HEADERS,
    BrowserRoute,
    ConsolePage,
    ConsoleRoute,
    ConsoleTemplates,
    Handler,
    RequestContext,
    entity_of,
    read_form,
)
from pairbus.console.live import LiveValues, stream
from pairbus.console.reports import ReportApi
from pairbus.console.sampler import Sampler
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.audit import Actor, AuditAction
from pairbus.server.components import console
from pairbus.server.counters import Counters
from pairbus.server.errors import REFUSABLE, BadRequestError, ServerBusyError, UnauthorizedError, refusal_of
from pairbus.server.http.call import BodyTooLargeError
from pairbus.server.log_context import ContextLog, LogValue, peer_of
from pairbus.server.settings import Settings
from pairbus.server.supervision.supervisor import SupervisedTask

_log = logging.getLogger(__name__)

LOGIN: Final = f"{PATH}/login"
WRONG_KEY_DELAY_S: Final = 1.0
MAX_STREAMS: Final = 100
_PROTOCOL: Final = "console"
_NEXT_PAGE: Final = re.compile(r"/console(/[a-z]+)?(\?[!-~]*)?")

_PAGES: Final[Mapping[str, Callable[[RequestContext], ConsolePage]]] = {
    PATH: entities_page.entities_page,
    f"{PATH}/entity": entity_page.entity_page,
    f"{PATH}/message": message_page.message_page,
    f"{PATH}/pair": pair_page.pair_page,
    f"{PATH}/server": server_page.server_page,
}
_LIVE_VALUES: Final[Mapping[str, LiveValues]] = {
    "entities": entities_page.live_values,
    "entity": entity_page.live_values,
    "pair": pair_page.live_values,
    "server": server_page.live_values,
}
_STATIC: Final = {
    "base.css": ("pairbus.html", "text/css"),
    "console.css": ("pairbus.console", "text/css"),
    "console.js": ("pairbus.console", "text/javascript"),
    "icon.svg": ("pairbus.console", "image/svg+xml"),
}
"""The package and the media type of each static file."""


@asynccontextmanager
async def open_console(settings: Settings, services: AmqpServices) -> AsyncIterator[Sequence[BaseRoute]]:
    """Yield the routes of the console, and sample the namespace until the context is closed."""
    sampler = Sampler(services)
    await sampler.sample()
    sampling = SupervisedTask("pairbus-console", sampler.run, sampler.heartbeat)
    sampling.start()
    services.supervisor.add(console(sampling, services.host))
    try:
        yield ConsoleRoutes(sampler, settings, ConsoleAuth(services, settings.name)).routes()
    finally:
        services.supervisor.remove("console")
        await sampling.close()


class ConsoleRoutes:
    """Handles the requests to the console."""

    def __init__(self, sampler: Sampler, settings: Settings, auth: ConsoleAuth) -> None:
        self._sampler = sampler
        self._settings = settings
        self._auth = auth
        self._templates = ConsoleTemplates()

    def routes(self) -> list[BaseRoute]:
        reports = ReportApi(self._sampler.services, self._sampler.add_report)
        pages = [self._route(path, partial(self._page, create)) for path, create in _PAGES.items()]
        actions = [self._route(path, partial(self._action, action), "POST") for path, action in ACTIONS.items()]
        statics = [self._route(f"{PATH}/static/{name}", partial(_static, name)) for name in _STATIC]
        return [
            *pages,
            *actions,
            *statics,
            self._route(f"{PATH}/", _redirect_to_console),
            self._route(f"{PATH}/api/pair", reports.handle, "POST"),
            self._route(f"{PATH}/events", self._events),
            self._route(f"{PATH}/bundle", self._bundle),
            self._route(LOGIN, self._show_login),
            self._route(LOGIN, self._log_in, "POST"),
            self._route(f"{PATH}/logout", self._log_out, "POST"),
            *self._browser_routes(),
        ]

    def _route(self, path: str, handler: Handler, method: str = "GET") -> BaseRoute:
        return ConsoleRoute(path, self._with_headers(handler), methods=[method])

    def _with_headers(self, handler: Handler) -> Handler:
        return _with_headers(handler, self._sampler.services.counters)

    def _browser_routes(self) -> list[BaseRoute]:
        """Return routes for addresses that are not pages: redirects, the icon, and "not found". They match last."""
        return [
            BrowserRoute("/", self._with_headers(_redirect_to_console), "text/html"),
            BrowserRoute("/favicon.ico", self._with_headers(partial(_static, "icon.svg")), "image/", "text/html"),
            BrowserRoute("/{path:path}", self._with_headers(self._not_found), "text/html", "*/*", below=PATH),
        ]

    # Pages

    async def _page(self, create: Callable[[RequestContext], ConsolePage], request: Request) -> Response:
        login = self._auth.login_of(request, is_automatic=AUTOMATIC in request.headers)
        if login is None:
            return _redirect_to_login(request)
        context = self._context(request, login)
        try:
            await self._sampler.refresh()
            return await self._render(request, create(context), context)
        except REFUSABLE as error:
            return await self._render_error(request, context, error)

    async def _not_found(self, request: Request) -> Response:
        address = request.url.path.lower()
        if address != request.url.path and address in {*_PAGES, LOGIN}:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{address}{query}", HTTPStatus.SEE_OTHER)
        login = self._auth.login_of(request)
        if login is None:
            return _redirect_to_login(request)
        page = _error_page("Page not found", "The console has no page at this address.")
        return await self._render(request, page, self._context(request, login), HTTPStatus.NOT_FOUND)

    async def _events(self, request: Request) -> Response:
        login = self._auth.login_of(request, is_automatic=True)
        live_values = _LIVE_VALUES.get(request.query_params.get("page", ""))
        if login is None or live_values is None:
            return Response(status_code=HTTPStatus.FORBIDDEN if login is None else HTTPStatus.NOT_FOUND)
        if self._sampler.viewers >= MAX_STREAMS:
            text = f"too many pages are open: the limit is {MAX_STREAMS}"
            return Response(text, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"})
        values = partial(_with_health, live_values)
        events = stream(self._context(request, login), values, partial(self._auth.is_open, login))
        return StreamingResponse(events, media_type="text/event-stream")

    async def _bundle(self, request: Request) -> Response:
        """Return a diagnostic bundle to an admin, as a file to save."""
        login = self._auth.login_of(request)
        if login is None:
            return _redirect_to_login(request)
        context, diagnostics = self._context(request, login), self._sampler.services.diagnostics
        name = request.query_params.get("name", "")
        try:
            _check_admin(context)
            content = None if diagnostics is None else await diagnostics.read(name)
            if content is None:
                raise EntityNotFoundError(f"there is no diagnostic bundle '{name}'", name)
        except REFUSABLE as error:
            return await self._render_error(request, context, error)
        headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
        return Response(content, media_type="application/json", headers=headers)

    # Actions

    async def _action(self, action: Action, request: Request) -> Response:
        form = await read_form(request)
        login = self._auth.login_of(request)
        if login is None:
            return _redirect_to_login(request)
        context = self._context(request, login, form)
        try:
            self._check(request, context)
            result = await action(context)
        except REFUSABLE as error:
            self._audit_action(request, context, error)
            return await self._render_error(request, context, error)
        self._audit_action(request, context, None, result.message_count)
        log = ContextLog(_log, peer=peer_of(request.client), entity=form.get("entity", ""), key=login.key_name)
        name = request.url.path.rpartition("/")[2]
        log.info("console action completed action=%s result=%s", name, LogValue(result.text))
        login.notice = result.text
        return RedirectResponse(result.location, HTTPStatus.SEE_OTHER)

    def _audit_action(
        self, request: Request, context: RequestContext, error: Exception | None, message_count: int = 0
    ) -> None:
        form, rights = context.form, self._auth.rights_of(context.login)
        self._record(
            ACTION_RECORDS[request.url.path],
            request,
            context.login.key_name,
            rights,
            entity=_entity_name(form),
            error=error,
            messages=message_count,
        )

    def _record(
        self, action: AuditAction, request: Request, key_name: str, rights: tuple[str, ...] = (), **facts: Any
    ) -> None:
        actor = Actor(key_name=key_name, rights=rights, peer=peer_of(request.client), protocol=_PROTOCOL)
        self._sampler.services.host.audit.record(action, actor, **facts)

    def _check(self, request: Request, context: RequestContext) -> None:
        """Raise ``UnauthorizedError`` unless a page of this session sent the form, and the user is an admin."""
        check_origin(request)
        if not context.login.has_csrf_token(context.form.get("csrf_token", "")):
            raise UnauthorizedError(INVALID_FORM)
        _check_admin(context)

    async def _log_out(self, request: Request) -> Response:
        form = await read_form(request)
        login = self._auth.login_of(request)
        response = RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        if login is not None and login.has_csrf_token(form.get("csrf_token", "")):
            self._auth.log_out(login, response)
            self._record(AuditAction.CONSOLE_LOGOUT, request, login.key_name)
        return response

    # Login

    async def _show_login(self, request: Request) -> Response:
        return await self._render_login(request, request.query_params.get("next", ""))

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request)
        next_page = _next_page(form.get("next", ""))
        limiter, peer, key_name = self._auth.limiter, _peer(request), ""
        try:
            check_origin(request)
            credential = parse_login_form(form)
            key_name = credential.name
            limiter.check(peer, key_name, _PROTOCOL)
            login = self._auth.log_in(credential, request.headers.get("host", ""))
        except ServerBusyError as error:
            return await self._render_login(request, next_page, str(error))
        except UnauthorizedError as error:
            refusal = limiter.failed(peer, key_name, _PROTOCOL, error, peer_of(request.client))
            if refusal.error is error:
                await asyncio.sleep(max(WRONG_KEY_DELAY_S, refusal.delay_s))
            return await self._render_login(request, next_page, str(refusal.error))
        limiter.succeeded(peer, key_name)
        ContextLog(_log, peer=peer_of(request.client), key=login.key_name).info("console login")
        self._record(AuditAction.CONSOLE_LOGIN, request, login.key_name, self._auth.rights_of(login))
        response = RedirectResponse(next_page, HTTPStatus.SEE_OTHER)
        self._auth.set_cookie(login, request, response)
        return response

    async def _render_login(self, request: Request, next_page: str, error: str = "") -> Response:
        values = {
            "namespace": self._settings.name,
            "next_page": _next_page(next_page),
            "error": error and sentence(error),
            "end_reason": "" if error else self._auth.end_reason(request),
            "is_unencrypted": is_unencrypted(request),
        }
        status = HTTPStatus.UNAUTHORIZED if error else HTTPStatus.OK
        return await self._templates.render(request, "login.html", values, status)

    # Rendering

    async def _render(
        self, request: Request, page: ConsolePage, context: RequestContext, status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        values = {
            **page.values,
            "title": page.title,
            "section": page.section,
            "events": page.events,
            "live": {**page.live, **_health_values(context)},
            "namespace": context.settings.name,
            "key_name": context.login.key_name,
            "is_admin": context.is_admin,
            "csrf_token": context.login.csrf_token,
            "notice": "" if context.is_automatic else context.login.take_notice(),
        }
        return await self._templates.render(request, page.template, values, status)

    async def _render_error(self, request: Request, context: RequestContext, error: Exception) -> Response:
        refusal = refusal_of(error)
        status = HTTPStatus.FORBIDDEN if refusal.status == HTTPStatus.UNAUTHORIZED else HTTPStatus(refusal.status)
        return await self._render(
            request, _error_page("Request failed", sentence(refusal.description)), context, status
        )

    def _context(self, request: Request, login: ConsoleLogin, form: Mapping[str, str] | None = None) -> RequestContext:
        return RequestContext(
            sampler=self._sampler,
            settings=self._settings,
            login=login,
            is_admin=self._auth.is_admin(login),
            query=request.query_params,
            is_automatic=AUTOMATIC in request.headers,
            form=form or {},
        )


def _with_headers(handler: Handler, counters: Counters) -> Handler:
    """Return a handler that adds the headers of the console, and turns errors in requests into responses."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await handler(request)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # not sent: the client has disconnected
        except BadRequestError as error:
            refusal = refusal_of(error)
            counters.refuse(refusal.condition, refusal.limit)
            is_too_large = isinstance(error, BodyTooLargeError)
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_large else HTTPStatus.BAD_REQUEST
            response = Response(str(error), status, media_type="text/plain")
        response.headers.update(HEADERS)
        return response

    return endpoint


def _with_health(live_values: LiveValues, context: RequestContext) -> dict[str, str]:
    return live_values(context) | _health_values(context)


def _health_values(context: RequestContext) -> dict[str, str]:
    """Return the text of the banner, which every page has; it is empty, and not shown, while all is well."""
    health = context.health()
    if health.status == "ok":
        return {"banner": ""}
    count = len(health.problems)
    problems = {0: "", 1: " (1 problem)"}.get(count, f" ({count} problems)")
    return {"banner": f"The server is {health.status}{problems}: see the page Server"}


def _check_admin(context: RequestContext) -> None:
    if not context.is_admin:
        raise UnauthorizedError(
            f"your session is read-only: the key '{context.login.key_name}' does not have the claim 'Manage'"
        )


def _error_page(title: str, text: str) -> ConsolePage:
    return ConsolePage(template="error.html", title=title, values={"text": text})


def _entity_name(form: Mapping[str, str]) -> str:
    try:
        return str(entity_of(form).address)
    except BadRequestError:
        return ""


def _peer(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _redirect_to_login(request: Request) -> Response:
    if AUTOMATIC in request.headers:
        return Response(status_code=HTTPStatus.FORBIDDEN)
    address = request.url.path if request.method == "GET" else PATH
    if request.method == "GET" and request.url.query:
        address += f"?{request.url.query}"
    return RedirectResponse(f"{LOGIN}?next={quote(_next_page(address), safe='/')}", HTTPStatus.SEE_OTHER)


def _next_page(address: str) -> str:
    """Return the page to show after the login: the address if it is a page of the console, or else the first page."""
    return address if _NEXT_PAGE.fullmatch(address) and not address.startswith(LOGIN) else PATH


async def _redirect_to_console(_request: Request) -> Response:
    return RedirectResponse(PATH, HTTPStatus.SEE_OTHER)


async def _static(name: str, _request: Request) -> Response:
    package, media_type = _STATIC[name]
    return Response(_static_file(package, name), media_type=media_type)


@cache
def _static_file(package: str, name: str) -> bytes:
    return (files(package) / "static" / name).read_bytes()
