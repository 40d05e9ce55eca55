"""Credentials of a request."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from pairbus.broker import Right
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import Authorizer, Grant
from pairbus.server.audit import Actor
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.log_context import peer_of
from pairbus.server.peer_limits import LoginLimiter
from pairbus.store import StoreError

KNOWN: Final = "is_known"
"""Key of a request's state: whether it had a valid key or token."""

_BASIC: Final = "basic"
_BEARER: Final = "bearer"
_PROTOCOL: Final = "http"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The value of an authorization header, checked again for each address that a request touches."""

    authorizer: Authorizer
    text: str | None = field(repr=False)

    def require(self, path: str, right: Right, now_ms: int) -> None:
        """Raise ``UnauthorizedError`` unless they grant the right, whether or not the entity exists."""
        if self.text is None:
            raise UnauthorizedError("the request has no authorization")
        path = path.strip("/").lower()
        if not self._grant(self.text, path).allows(path, right, now_ms):
            raise UnauthorizedError(f"the authorization does not include the claim '{right.value.capitalize()}'")

    def allows(self, path: str, right: Right, now_ms: int) -> bool:
        try:
            self.require(path, right, now_ms)
        except UnauthorizedError:
            return False
        return True

    def grant(self, path: str) -> Grant | None:
        """Return what they grant at a path; ``None`` if they are missing or invalid, or the store cannot be read."""
        try:
            return None if self.text is None else self._grant(self.text, path.strip("/").lower())
        except (UnauthorizedError, StoreError):
            return None

    def actor(self, request: Request, path: str) -> Actor:
        """Return the sender of a request, for the audit log. A key name is only named if the key was valid."""
        grant = self.grant(path)
        key_name, rights = ("", ()) if grant is None else (grant.who, tuple(sorted(grant.rights)))
        return Actor(key_name=key_name, rights=rights, peer=peer_of(request.client), protocol=_PROTOCOL)

    def _grant(self, text: str, path: str) -> Grant:
        scheme, _, rest = text.partition(" ")
        if scheme.lower() == _BASIC:
            return self.authorizer.admit_key(*_key(rest))
        if scheme.lower() == _BEARER:
            return self.authorizer.admit(rest.strip(), path)
        return self.authorizer.admit(text, path)


def key_name_of(text: str | None) -> str:
    """Return the key name in a valid authorization, for the ledger; empty if it has none."""
    scheme, _, rest = (text or "").partition(" ")
    try:
        if scheme.lower() == _BASIC:
            return _key(rest)[0]
        return parse_sas_token(rest.strip() if scheme.lower() == _BEARER else text or "").key_name
    except (UnauthorizedError, SasTokenError):
        return ""


def _key(encoded: str) -> tuple[str, str]:
    """Return the name and the value of a key, as a browser or a monitoring system sends them."""
    try:
        name, _, key = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise UnauthorizedError("the basic authorization cannot be parsed") from None
    return name, key


def check_guesses(guesses: LoginLimiter, request: Request) -> None:
    """Raise ``ServerBusyError`` if too many logins of the peer have failed, and the request is another one."""
    text = request.headers.get("authorization")
    if text is not None:
        guesses.check(_address(request), key_name_of(text), _PROTOCOL)


def note_known(guesses: LoginLimiter, request: Request) -> None:
    """Record that a request had a valid key or token."""
    guesses.succeeded(_address(request), key_name_of(request.headers.get("authorization")))
    setattr(request.state, KNOWN, True)


async def refuse_login(guesses: LoginLimiter, request: Request, error: UnauthorizedError) -> Exception:
    """Return the error to answer a request with that has shown no valid key. Records a failed login, and waits."""
    text = request.headers.get("authorization")
    if text is None or getattr(request.state, KNOWN, False):
        return error
    if not isinstance(error, InvalidCredentialsError):
        return guesses.answer(_address(request), error)
    refusal = guesses.failed(_address(request), key_name_of(text), _PROTOCOL, error, peer_of(request.client))
    await asyncio.sleep(refusal.delay_s)
    return refusal.error


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host
