"""Logins to the console: the credentials of the login form, sessions with their cookies, and the origin of forms."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pairbus.broker import Right
from pairbus.dialect.connection_string import ConnectionStringError, parse_connection_string
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import Authorizer, Grant
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.errors import UnauthorizedError
from pairbus.server.http.credentials import KNOWN
from pairbus.server.peer_limits import LoginLimiter

PATH: Final = "/console"
AUTOMATIC: Final = "x-console"
"""The header of requests that a page sends without an action of the user; they do not extend the session."""

INVALID_FORM: Final = "this form does not belong to your session; reload the page and try again"
RESTARTED: Final = "The server was restarted; log in again."
EXPIRED: Final = "Your session has expired; log in again."

IDLE_MS: Final = 30 * 60_000
MAX_SESSION_MS: Final = 8 * 3_600_000
_MAX_SESSIONS: Final = 200
"""Beyond this number, the session that was unused for the longest time is closed."""

_SECRET_BYTES: Final = 32
_SERVER_ID_BYTES: Final = 6
_LOOPBACK: Final = {"127.0.0.1", "::1"}
_LOOPBACK_PREFIXES: Final = ("127.", "::1")

Authorize = Callable[[], Grant]
"""Presents the credential again; raises ``UnauthorizedError`` once it is no longer valid."""


# Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCredential:
    """The name and the value of a key of the namespace."""

    name: str
    key: str = field(repr=False)
    endpoint: str = ""
    """The endpoint of the connection string, if the key was part of one."""

    def authorize(self, authorizer: Authorizer) -> Grant:
        return authorizer.admit_key(self.name, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredential:
    """A shared access signature for the whole namespace."""

    name: str
    token: str = field(repr=False)
    endpoint: str = ""

    def authorize(self, authorizer: Authorizer) -> Grant:
        return authorizer.admit(self.token, "")


Credential = KeyCredential | TokenCredential


def parse_login_form(form: Mapping[str, str]) -> Credential:
    """Return the credential of a login form; raise ``UnauthorizedError`` with a text that does not repeat the key."""
    text = form.get("connection_string", "").strip()
    if text:
        return _parse_connection_string(text)
    name, key = form.get("key_name", "").strip(), form.get("key", "").strip()
    if not name or not key:
        raise UnauthorizedError("enter a connection string, or the name and the value of a key")
    return KeyCredential(name=name, key=key)


def _parse_connection_string(text: str) -> Credential:
    if text.startswith("@"):  # not repeated in the error: it may be something else that contains a key
        raise UnauthorizedError(
            "a value that starts with '@' names a file, which only the commands of pairbus read; paste the connection"
            " string that is in the file"
        )
    try:
        connection = parse_connection_string(text)
    except ConnectionStringError as error:
        raise UnauthorizedError(str(error)) from error
    if connection.entity_path is not None:
        raise UnauthorizedError(
            "the connection string is for a single entity; the console requires a key of the namespace"
        )
    endpoint = connection.host if connection.port is None else f"{connection.host}:{connection.port}"
    if connection.key_name is not None and connection.key is not None:
        return KeyCredential(name=connection.key_name, key=connection.key, endpoint=endpoint)
    if connection.token is None:
        raise UnauthorizedError("the connection string has no key")
    try:
        name = parse_sas_token(connection.token).key_name
    except SasTokenError as error:
        raise UnauthorizedError(str(error)) from error
    return TokenCredential(name=name, token=connection.token, endpoint=endpoint)


def endpoint_hint(endpoint: str, host: str) -> str:
    """Return the end of an error that names the endpoint, if the connection string is for another server."""
    if not endpoint or not _differ(endpoint, host):
        return ""
    return f"; the Endpoint of the connection string is {endpoint}, but this server is {host}"


def _differ(endpoint: str, host: str) -> bool:
    try:
        one, other = urlsplit(f"//{endpoint}"), urlsplit(f"//{host}")
        ports = {one.port, other.port} - {None}
    except ValueError:
        return False
    names = {"localhost" if each.hostname in _LOOPBACK else each.hostname for each in (one, other)}
    return len(names) > 1 or len(ports) > 1


def check_rights(grant: Grant, now_ms: int) -> None:
    """Raise ``UnauthorizedError`` unless the grant includes Manage or Listen for the namespace."""
    if not any(grant.allows("", right, now_ms) for right in (Right.MANAGE, Right.LISTEN)):
        raise UnauthorizedError(
            "the key has only the claim 'Send'; the console requires 'Manage', or 'Listen' for read-only access"
        )


# Sessions


@dataclass(slots=True, kw_only=True)
class ConsoleLogin:
    """A session. Its credential is checked with every request, so it ends when the key is changed or removed."""

    key_name: str
    authorize: Authorize = field(repr=False)
    id: str = field(repr=False)
    csrf_token: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)
    """A secret in every form; a form without it was not created by a page of this session."""

    started_ms: int
    used_ms: int
    notice: str = ""
    """A text for the next page."""

    def is_expired(self, now_ms: int) -> bool:
        return now_ms - self.used_ms >= IDLE_MS or now_ms - self.started_ms >= MAX_SESSION_MS

    def has_csrf_token(self, token: str) -> bool:
        return hmac.compare_digest(self.csrf_token.encode(), token.encode("utf-8", "surrogatepass"))

    def take_notice(self) -> str:
        notice, self.notice = self.notice, ""
        return notice


class ConsoleLogins:
    """All sessions of a server, in memory."""

    def __init__(self, limits: Counter[str] | None = None) -> None:
        """``limits`` counts the logins that are closed to make room for others."""
        self._limits: Counter[str] = Counter() if limits is None else limits
        self._logins: dict[str, ConsoleLogin] = {}
        """In the order of their last use."""
        self._server_id = secrets.token_urlsafe(_SERVER_ID_BYTES)

    def __len__(self) -> int:
        return len(self._logins)

    def open(self, key_name: str, authorize: Authorize, now_ms: int) -> ConsoleLogin:
        self._make_room(now_ms)
        login_id = f"{self._server_id}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        login = ConsoleLogin(id=login_id, key_name=key_name, authorize=authorize, started_ms=now_ms, used_ms=now_ms)
        self._logins[login.id] = login
        return login

    def find(self, login_id: str, now_ms: int, *, is_automatic: bool = False) -> ConsoleLogin | None:
        """Return the session unless it has expired; an automatic request does not extend it."""
        login = self._logins.get(login_id)
        if login is None or login.is_expired(now_ms):
            self.close(login_id)
            return None
        if not is_automatic:
            login.used_ms = now_ms
            self._logins[login_id] = self._logins.pop(login_id)
        return login

    def is_from_this_server(self, login_id: str) -> bool:
        """Return whether this server created the id, and not one that ran before a restart."""
        return login_id.startswith(f"{self._server_id}.")

    def close(self, login_id: str) -> None:
        self._logins.pop(login_id, None)

    def _make_room(self, now_ms: int) -> None:
        for login in [*self._logins.values()]:
            is_expired = login.is_expired(now_ms)
            if is_expired or len(self._logins) >= _MAX_SESSIONS:
                self._limits["console_logins"] += not is_expired
                del self._logins[login.id]


class ConsoleAuth:
    """Authenticates the requests of a server's console."""

    def __init__(self, services: AmqpServices, namespace: str) -> None:
        self._services = services
        self._logins = ConsoleLogins(services.counters.limits)
        # Browsers share cookies among the ports of a host, so each namespace of a machine needs its own cookie.
        self._cookie = f"pairbus-{namespace}"

    @property
    def limiter(self) -> LoginLimiter:
        return self._services.guesses

    def log_in(self, credential: Credential, host: str) -> ConsoleLogin:
        """Open a session; raise ``UnauthorizedError``. ``host`` is the name of this server in the browser's request."""

        def authorize() -> Grant:
            return credential.authorize(self._services.authorizer)

        try:
            grant = authorize()
        except UnauthorizedError as error:
            raise UnauthorizedError(f"{error}{endpoint_hint(credential.endpoint, host)}") from error
        check_rights(grant, self._services.host.wall_ms())
        return self._logins.open(credential.name, authorize, self._services.host.now_ms())

    def login_of(self, request: Request, *, is_automatic: bool = False) -> ConsoleLogin | None:
        """Return the session of a request, if it has one and its credential is still valid."""
        login_id = request.cookies.get(self._cookie, "")
        login = self._logins.find(login_id, self._services.host.now_ms(), is_automatic=is_automatic)
        if login is None or self.grant_of(login) is None:
            return None
        setattr(request.state, KNOWN, True)
        return login

    def end_reason(self, request: Request) -> str:
        """Return why the session of a request has ended; an empty text if it has none or an open one."""
        login_id = request.cookies.get(self._cookie, "")
        if not login_id or self.login_of(request, is_automatic=True) is not None:
            return ""
        return EXPIRED if self._logins.is_from_this_server(login_id) else RESTARTED

    def grant_of(self, login: ConsoleLogin) -> Grant | None:
        """Return what the credential allows now; close the session and return ``None`` if it is no longer valid."""
        try:
            grant = login.authorize()
            check_rights(grant, self._services.host.wall_ms())
        except UnauthorizedError:
            self._logins.close(login.id)
            return None
        return grant

    def rights_of(self, login: ConsoleLogin) -> tuple[str, ...]:
        grant = self.grant_of(login)
        return () if grant is None else tuple(sorted(grant.rights))

    def is_admin(self, login: ConsoleLogin) -> bool:
        grant = self.grant_of(login)
        return grant is not None and grant.allows("", Right.MANAGE, self._services.host.wall_ms())

    def is_open(self, login: ConsoleLogin) -> bool:
        found = self._logins.find(login.id, self._services.host.now_ms(), is_automatic=True)
        return found is login and self.grant_of(login) is not None

    def log_out(self, login: ConsoleLogin, response: Response) -> None:
        self._logins.close(login.id)
        response.delete_cookie(self._cookie, path=PATH, httponly=True, samesite="strict")

    def set_cookie(self, login: ConsoleLogin, request: Request, response: Response) -> None:
        response.set_cookie(
            self._cookie,
            login.id,
            max_age=MAX_SESSION_MS // 1_000,
            path=PATH,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )


def check_origin(request: Request) -> None:
    """Raise ``UnauthorizedError`` if the browser reports that a page of another server sent the form."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise UnauthorizedError(INVALID_FORM)


def is_unencrypted(request: Request) -> bool:
    """Return whether the request came over a network without TLS."""
    client = "" if request.client is None else request.client.host
    return request.url.scheme != "https" and not client.startswith(_LOOPBACK_PREFIXES)
