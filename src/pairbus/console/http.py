"""Requests and responses: routes, the context of a request, the fields of forms, and pages from templates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.templating import Jinja2Templates
from starlette.types import Scope

from pairbus.broker import Address, QueuePart
from pairbus.console.auth import ConsoleLogin
from pairbus.console.sampler import Sampler
from pairbus.html import compile_templates, environment
from pairbus.server.errors import BadRequestError
from pairbus.server.health import Health, health_of
from pairbus.server.host import NamespaceHost
from pairbus.server.http.call import read_body
from pairbus.server.settings import Settings

_PARTS: Final = {"": QueuePart.MAIN, "dead": QueuePart.DEAD_LETTER, "transfer": QueuePart.TRANSFER_DEAD_LETTER}
_PART_NAMES: Final = {part: name for name, part in _PARTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolePage:
    """A template and its values."""

    template: str
    title: str
    values: Mapping[str, object] = field(default_factory=dict)
    section: str = ""
    """The link of the navigation that is marked as current."""

    events: str = ""
    """The address of the stream that updates the live values."""

    live: Mapping[str, str] = field(default_factory=dict)
    """Texts that are updated while the page is open, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """A request of a user who is logged in."""

    sampler: Sampler
    settings: Settings
    login: ConsoleLogin
    is_admin: bool
    query: Mapping[str, str]
    is_automatic: bool = False
    """True if the page sent the request without an action of the user."""

    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> NamespaceHost:
        return self.sampler.services.host

    def health(self) -> Health:
        """Return what ``/health`` returns."""
        services = self.sampler.services
        return health_of(services.host, services.supervisor, is_draining=services.is_draining)

    def number(self, name: str, default: int = 0) -> int:
        """Return a number of the query, or the default if it is missing or not a number."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleEntity:
    """A queue, topic or subscription, or its dead letters, as an address of the console names it."""

    entity: str
    subscription: str | None = None
    part: QueuePart = QueuePart.MAIN

    @property
    def address(self) -> Address:
        return Address.of(self.entity, self.subscription, self.part)

    @property
    def main_address(self) -> Address:
        """The address without the part."""
        return Address.of(self.entity, self.subscription)

    @property
    def path(self) -> str:
        """The path of the entity, which a user types to confirm an action."""
        return self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a query or form that name the entity."""
        fields = {"entity": self.entity, "subscription": self.subscription or "", "part": _PART_NAMES[self.part]}
        return {name: value for name, value in fields.items() if value}

    def link(self, page: str = "entity", /, **fields: object) -> str:
        return f"/console/{page}?{urlencode({**self.fields, **fields}, errors='replace')}"

    def with_part(self, part: QueuePart) -> ConsoleEntity:
        return ConsoleEntity(entity=self.entity, subscription=self.subscription, part=part)


def entity_of(fields: Mapping[str, str]) -> ConsoleEntity:
    """Return the entity that a query or form names; raise ``BadRequestError`` if it names none."""
    entity, part = fields.get("entity", ""), fields.get("part", "")
    if not entity:
        raise BadRequestError("the address does not name an entity: 'entity' is missing")
    if part not in _PARTS:
        raise BadRequestError(f"'part' must be empty, 'dead' or 'transfer', got '{part}'")
    return ConsoleEntity(entity=entity, subscription=fields.get("subscription") or None, part=_PARTS[part])


def entity_at(path: str, address: Address) -> ConsoleEntity:
    """Return the entity with a path, in the spelling with which it was created."""
    if address.subscription is None:
        return ConsoleEntity(entity=path)
    topic, _, subscription = path.rpartition("/Subscriptions/")
    return ConsoleEntity(entity=topic, subscription=subscription)


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No content from other servers, no inline content, and no embedding in frames."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response."""

FORM_BYTES: Final = 64 * 1024
"""Maximum size of a form: the login form accepts long tokens of identity providers."""
_MAX_FIELDS: Final = 32
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_API_VERSION: Final = b"api-version="

Handler = Callable[[Request], Awaitable[Response]]


class ConsoleRoute(Route):
    """A path of the console. A request with an ``api-version`` refers to an entity of that name, and does not match."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if _API_VERSION in scope.get("query_string", b""):
            return Match.NONE, {}
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


class BrowserRoute(ConsoleRoute):
    """A path that matches only requests of browsers; for other clients it does not exist.

    A browser lists the media types that it displays and sends no token. A client with a token is a program, even if
    it accepts any type, as one does that lists none.
    """

    def __init__(self, path: str, endpoint: Handler, *media_types: str, below: str = "") -> None:
        """Match if one of ``media_types`` is accepted; ``{path:path}`` matches only paths ``below`` a prefix."""
        super().__init__(path, endpoint, methods=["GET"])
        self._media_types = media_types
        self._below = below

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or not f"{scope['path'].lower()}/".startswith(f"{self._below}/"):
            return Match.NONE, {}
        headers = Headers(scope=scope)
        accepted = ",".join(headers.getlist("accept")).lower() or "*/*"
        if "authorization" in headers or not any(media_type in accepted for media_type in self._media_types):
            return Match.NONE, {}
        return super().matches(scope)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raise ``BadRequestError`` if the body is not a form within the limits."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != _FORM_TYPE:
        raise BadRequestError(f"the content type of a form must be {_FORM_TYPE}, got '{content_type}'")
    body = await read_body(request, FORM_BYTES)
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise BadRequestError(f"the form cannot be parsed: {error}") from error
    return dict(pairs)


class ConsoleTemplates:
    """Renders pages. The first request compiles all templates in a thread, and others wait for that one thread."""

    def __init__(self) -> None:
        self._environment = environment("pairbus.console")
        self._templates = Jinja2Templates(env=self._environment)
        self._compiling: asyncio.Task[None] | None = None

    async def render(
        self, request: Request, template: str, values: Mapping[str, object], status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        if self._compiling is None or _has_failed(self._compiling):
            self._compiling = asyncio.create_task(asyncio.to_thread(compile_templates, self._environment))
        await asyncio.shield(self._compiling)  # shared: the request that started it may be cancelled
        return self._templates.TemplateResponse(request, template, dict(values), status)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
