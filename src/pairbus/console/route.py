"""Which requests are meant for the console, and which for the management API at the same addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

_API_VERSION: Final = b"api-version="

Answer = Callable[[Request], Awaitable[Response]]


class ConsoleRoute(Route):
    """A path of the console. A request that says its ``api-version`` means an entity of that name, and is not ours."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if _API_VERSION in scope.get("query_string", b""):
            return Match.NONE, {}
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


class BrowserRoute(ConsoleRoute):
    """An address that somebody has typed, or that a browser makes up. For programs it is as if it were not there.

    A browser says what it can show, and shows no token; with one it is a program, of which some accept anything.
    """

    def __init__(self, path: str, endpoint: Answer, *kinds: str, below: str = "") -> None:
        """``kinds`` are those that a browser accepts there; of ``{path:path}`` only what is ``below`` counts."""
        super().__init__(path, endpoint, methods=["GET"])
        self._kinds = kinds
        self._below = below

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or not f"{scope['path'].lower()}/".startswith(f"{self._below}/"):
            return Match.NONE, {}
        headers = Headers(scope=scope)
        accepted = ",".join(headers.getlist("accept")).lower()
        if "authorization" in headers or not any(kind in accepted for kind in self._kinds):
            return Match.NONE, {}
        return super().matches(scope)
