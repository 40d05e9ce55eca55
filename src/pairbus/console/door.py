"""Lets people in and out: cookies, keys that still hold, and requests that come from a page of ours."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pairbus.broker import Right
from pairbus.console.credentials import Typed, told_endpoint
from pairbus.console.session import LONGEST_MS, Session, Sessions, check_rights
from pairbus.server.access import Grant
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.errors import UnauthorizedError
from pairbus.server.guesses import Guesses

PATH: Final = "/console"
BY_ITSELF: Final = "x-console"
"""The header of what a page asks without anybody's doing."""

NOT_OURS: Final = "this form was not made by a page of this console; load it again"
STARTED_ANEW: Final = "The server was started anew; log in again."
ENDED: Final = "Your login has ended; log in again."
_LOOPBACK: Final = ("127.", "::1")


class Door:
    """One for a server."""

    def __init__(self, services: AmqpServices, namespace: str) -> None:
        self._services = services
        self._sessions = Sessions()
        # Browsers do not tell the ports of a host apart: each namespace of a machine has its own cookie.
        self._cookie = f"pairbus-{namespace}"

    @property
    def guesses(self) -> Guesses:
        return self._services.guesses

    def enter(self, typed: Typed, host: str) -> Session:
        """Begin a session; raises ``UnauthorizedError``. ``host`` is what the browser calls this server."""
        admit = typed.admitted_by(self._services.gatekeeper)
        try:
            grant = admit()
        except UnauthorizedError as error:
            raise UnauthorizedError(f"{error}{told_endpoint(typed.endpoint, host)}") from error
        check_rights(grant, self._services.host.wall_ms())
        return self._sessions.open(typed.name, admit, self._services.host.now_ms())

    def session_of(self, request: Request, *, by_itself: bool = False) -> Session | None:
        """The session of a request, if there is one and its key still holds."""
        session_id = request.cookies.get(self._cookie, "")
        session = self._sessions.find(session_id, self._services.host.now_ms(), by_itself=by_itself)
        return None if session is None or self.grant_of(session) is None else session

    def farewell(self, request: Request) -> str:
        """Why somebody who was known is known no more; nothing of those who never were."""
        session_id = request.cookies.get(self._cookie, "")
        if not session_id or self.session_of(request, by_itself=True) is not None:
            return ""
        return ENDED if self._sessions.is_of_ours(session_id) else STARTED_ANEW

    def grant_of(self, session: Session) -> Grant | None:
        """What its key allows now; ``None`` once it allows nothing."""
        try:
            grant = session.admit()
            check_rights(grant, self._services.host.wall_ms())
        except UnauthorizedError:
            self._sessions.close(session.id)
            return None
        return grant

    def may_manage(self, session: Session) -> bool:
        grant = self.grant_of(session)
        return grant is not None and grant.allows("", Right.MANAGE, self._services.host.wall_ms())

    def goes_on(self, session: Session) -> bool:
        found = self._sessions.find(session.id, self._services.host.now_ms(), by_itself=True)
        return found is session and self.grant_of(session) is not None

    def leave(self, session: Session, response: Response) -> None:
        self._sessions.close(session.id)
        response.delete_cookie(self._cookie, path=PATH, httponly=True, samesite="strict")

    def give_cookie(self, session: Session, request: Request, response: Response) -> None:
        response.set_cookie(
            self._cookie,
            session.id,
            max_age=LONGEST_MS // 1_000,
            path=PATH,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def check_origin(request: Request) -> None:
    """Raise ``UnauthorizedError`` if the browser says that a form was made by a page of another server."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise UnauthorizedError(NOT_OURS)


def is_readable_by_others(request: Request) -> bool:
    """Whether the request came over a network without TLS."""
    client = "" if request.client is None else request.client.host
    return request.url.scheme != "https" and not client.startswith(_LOOPBACK)
