"""The console as routes of a server: how each request is answered."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute

from pairbus.console.actions import ACTIONS, Act
from pairbus.console.credentials import read_credentials
from pairbus.console.door import BY_ITSELF, NOT_OURS, PATH, Door, check_origin, is_readable_by_others
from pairbus.console.events import Live, stream
from pairbus.console.form import read_form
from pairbus.console.headers import HEADERS
from pairbus.console.pages import entities, entity, message, pair, server
from pairbus.console.pages.frame import Page, framed, refusal_page
from pairbus.console.pages.login import login_page
from pairbus.console.report_api import ReportApi
from pairbus.console.route import Answer, BrowserRoute, ConsoleRoute
from pairbus.console.session import Session
from pairbus.console.visit import Visit
from pairbus.console.watch import Watch
from pairbus.console.wording import sentence
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.errors import REFUSABLE, BadRequestError, ServerBusyError, UnauthorizedError, refusal_of
from pairbus.server.http.app import BodyTooLargeError
from pairbus.server.settings import Settings

_log = logging.getLogger(__name__)

LOGIN: Final = f"{PATH}/login"
WRONG_KEY_DELAY_S: Final = 1.0
MOST_STREAMS: Final = 100
_FOLLOWING: Final = re.compile(r"/console(/[a-z]+)?(\?[!-~]*)?")

_PAGES: Final[Mapping[str, Callable[[Visit], Page]]] = {
    PATH: entities.entities_page,
    f"{PATH}/entity": entity.entity_page,
    f"{PATH}/message": message.message_page,
    f"{PATH}/pair": pair.pair_page,
    f"{PATH}/server": server.server_page,
}
_LIVE: Final[Mapping[str, Live]] = {
    "entities": entities.live_values,
    "entity": entity.live_values,
    "pair": pair.live_values,
    "server": server.live_values,
}
_STATIC: Final = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


@asynccontextmanager
async def open_console(settings: Settings, services: AmqpServices) -> AsyncIterator[Sequence[BaseRoute]]:
    """The routes of the console, which looks at the namespace from now on until it is closed."""
    watch = Watch(services)
    await watch.read()
    task = asyncio.create_task(watch.run(), name="console")
    try:
        yield Desk(watch, settings, Door(services, settings.name)).routes()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Desk:
    """Answers what comes to the console."""

    def __init__(self, watch: Watch, settings: Settings, door: Door) -> None:
        self._watch = watch
        self._settings = settings
        self._door = door

    def routes(self) -> list[BaseRoute]:
        pages = [_route(path, partial(self._page, make)) for path, make in _PAGES.items()]
        actions = [_route(path, partial(self._action, act), "POST") for path, act in ACTIONS.items()]
        statics = [_route(f"{PATH}/static/{name}", partial(_static, name)) for name in _STATIC]
        return [
            *pages,
            *actions,
            *statics,
            _route(f"{PATH}/", _home),
            _route(f"{PATH}/api/pair", ReportApi(self._watch).take, "POST"),
            _route(f"{PATH}/events", self._events),
            _route(LOGIN, self._show_login),
            _route(LOGIN, self._log_in, "POST"),
            _route(f"{PATH}/logout", self._log_out, "POST"),
            *self._strays(),
        ]

    def _strays(self) -> list[BaseRoute]:
        """What a browser asks for that is no page: it is led to one, or told so. They come last."""
        return [
            BrowserRoute("/", _answering(_home), "text/html"),
            BrowserRoute("/favicon.ico", _answering(partial(_static, "icon.svg")), "image/", "text/html"),
            BrowserRoute("/{path:path}", _answering(self._no_page), "text/html", below=PATH),
        ]

    # Pages

    async def _page(self, make: Callable[[Visit], Page], request: Request) -> Response:
        session = self._door.session_of(request, by_itself=BY_ITSELF in request.headers)
        if session is None:
            return _to_login(request)
        visit = self._visit(request, session)
        try:
            await self._watch.refresh()
            return HTMLResponse(framed(make(visit), visit))
        except REFUSABLE as error:
            return _refused(visit, error)

    async def _no_page(self, request: Request) -> Response:
        address = request.url.path.lower()
        if address != request.url.path and address in {*_PAGES, LOGIN}:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{address}{query}", HTTPStatus.SEE_OTHER)
        session = self._door.session_of(request)
        if session is None:
            return _to_login(request)
        page = refusal_page("There is no such page", "The console has nothing at this address.")
        return HTMLResponse(framed(page, self._visit(request, session)), HTTPStatus.NOT_FOUND)

    async def _events(self, request: Request) -> Response:
        session = self._door.session_of(request, by_itself=True)
        live = _LIVE.get(request.query_params.get("page", ""))
        if session is None or live is None:
            return Response(status_code=HTTPStatus.FORBIDDEN if session is None else HTTPStatus.NOT_FOUND)
        if self._watch.watchers >= MOST_STREAMS:
            return Response("too many pages are open", HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "10"})
        events = stream(self._visit(request, session), live, partial(self._door.goes_on, session))
        return StreamingResponse(events, media_type="text/event-stream")

    # What changes something

    async def _action(self, act: Act, request: Request) -> Response:
        form = await read_form(request)
        session = self._door.session_of(request)
        if session is None:
            return _to_login(request)
        visit = self._visit(request, session, form)
        try:
            self._check(request, visit)
            done = await act(visit)
        except REFUSABLE as error:
            return _refused(visit, error)
        _log.info("console, by '%s': %s", session.who, done.told)
        session.notice = done.told
        return RedirectResponse(done.following, HTTPStatus.SEE_OTHER)

    def _check(self, request: Request, visit: Visit) -> None:
        """Raise ``UnauthorizedError`` unless the form is one of ours, and the key allows changes."""
        check_origin(request)
        if not visit.session.is_sealed(visit.form.get("seal", "")):
            raise UnauthorizedError(NOT_OURS)
        if not visit.can_manage:
            raise UnauthorizedError("your key has not the claim 'Manage': you may look only")

    async def _log_out(self, request: Request) -> Response:
        form = await read_form(request)
        session = self._door.session_of(request)
        response = RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER)
        if session is not None and session.is_sealed(form.get("seal", "")):
            self._door.leave(session, response)
        return response

    # Logging in

    async def _show_login(self, request: Request) -> Response:
        return self._login(request, request.query_params.get("next", ""))

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request)
        following = _following(form.get("next", ""))
        address = "" if request.client is None else request.client.host
        guesses, key = self._door.guesses, ""
        try:
            check_origin(request)
            typed = read_credentials(form)
            key = typed.name
            guesses.check(address, key, "console")
            session = self._door.enter(typed, request.headers.get("host", ""))
        except ServerBusyError as error:
            return self._login(request, following, str(error))
        except UnauthorizedError as error:
            await asyncio.sleep(max(WRONG_KEY_DELAY_S, guesses.failed(address, key, "console", error)))
            return self._login(request, following, str(error))
        _log.info("console: '%s' has logged in", session.who)
        response = RedirectResponse(following, HTTPStatus.SEE_OTHER)
        self._door.give_cookie(session, request, response)
        return response

    def _login(self, request: Request, following: str, complaint: str = "") -> Response:
        page = login_page(
            self._settings.name,
            _following(following),
            complaint=complaint and sentence(complaint),
            reason="" if complaint else self._door.farewell(request),
            is_open=is_readable_by_others(request),
        )
        return HTMLResponse(page, HTTPStatus.UNAUTHORIZED if complaint else HTTPStatus.OK)

    def _visit(self, request: Request, session: Session, form: Mapping[str, str] | None = None) -> Visit:
        return Visit(
            watch=self._watch,
            settings=self._settings,
            session=session,
            can_manage=self._door.may_manage(session),
            query=request.query_params,
            by_itself=BY_ITSELF in request.headers,
            form=form or {},
        )


def _route(path: str, answer: Answer, method: str = "GET") -> BaseRoute:
    return ConsoleRoute(path, _answering(answer), methods=[method])


def _answering(answer: Answer) -> Answer:
    """The same, with what every answer says about itself, and refusals as answers."""

    async def endpoint(request: Request) -> Response:
        try:
            response = await answer(request)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # nobody reads it
        except BadRequestError as error:
            is_too_large = isinstance(error, BodyTooLargeError)
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_too_large else HTTPStatus.BAD_REQUEST
            response = Response(str(error), status, media_type="text/plain")
        response.headers.update(HEADERS)
        return response

    return endpoint


def _refused(visit: Visit, error: Exception) -> Response:
    refusal = refusal_of(error)
    status = HTTPStatus.FORBIDDEN if refusal.status == HTTPStatus.UNAUTHORIZED else HTTPStatus(refusal.status)
    page = refusal_page("This cannot be done", sentence(refusal.description))
    return HTMLResponse(framed(page, visit), status)


def _to_login(request: Request) -> Response:
    if BY_ITSELF in request.headers:
        return Response(status_code=HTTPStatus.FORBIDDEN)
    address = request.url.path if request.method == "GET" else PATH
    if request.method == "GET" and request.url.query:
        address += f"?{request.url.query}"
    return RedirectResponse(f"{LOGIN}?next={quote(_following(address), safe='/')}", HTTPStatus.SEE_OTHER)


def _following(address: str) -> str:
    """Where to go after the login: to a page of the console, and nowhere else."""
    return address if _FOLLOWING.fullmatch(address) and not address.startswith(LOGIN) else PATH


async def _home(_request: Request) -> Response:
    return RedirectResponse(PATH, HTTPStatus.SEE_OTHER)


async def _static(name: str, _request: Request) -> Response:
    data = (files("pairbus.console") / "static" / name).read_bytes()
    return Response(data, media_type=_STATIC[name])
