"""Requests that no honest client sends: refused before anything looks at them (E5)."""

from __future__ import annotations

from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_CLOSE: Final = {"Connection": "close"}
_AMBIGUOUS: Final = "the request has both Content-Length and Transfer-Encoding, so where it ends is not certain"


class RequestGuard:
    """Refuses a request whose end a proxy in between could see elsewhere than we do, and closes the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_ambiguous(scope):
            await PlainTextResponse(f"{_AMBIGUOUS}\n", 400, _CLOSE)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_ambiguous(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names
