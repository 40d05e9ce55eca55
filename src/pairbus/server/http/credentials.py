"""What a request shows to be let in."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from pairbus.broker import Right
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import Gatekeeper, Grant
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.guesses import Guesses

_BASIC: Final = "basic"
_BEARER: Final = "bearer"
_PROTOCOL: Final = "http"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The value of an authorization header, checked anew for each address that a request touches."""

    gatekeeper: Gatekeeper
    text: str | None = field(repr=False)

    def require(self, path: str, right: Right, now_ms: int) -> None:
        """Raise ``UnauthorizedError`` unless they allow it. Whether the entity is there plays no part."""
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

    def _grant(self, text: str, path: str) -> Grant:
        scheme, _, rest = text.partition(" ")
        if scheme.lower() == _BASIC:
            return self.gatekeeper.admit_key(*_key(rest))
        if scheme.lower() == _BEARER:
            return self.gatekeeper.admit(rest.strip(), path)
        return self.gatekeeper.admit(text, path)


def key_name_of(text: str | None) -> str:
    """The name of the key in an authorization that holds, for the books; empty where it has none."""
    scheme, _, rest = (text or "").partition(" ")
    try:
        if scheme.lower() == _BASIC:
            return _key(rest)[0]
        return parse_sas_token(rest.strip() if scheme.lower() == _BEARER else text or "").key_name
    except (UnauthorizedError, SasTokenError):
        return ""


def _key(encoded: str) -> tuple[str, str]:
    """The name and the value of a key, as a browser or a monitoring system sends them."""
    try:
        name, _, key = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise UnauthorizedError("the basic authorization cannot be read") from None
    return name, key


def check_guesses(guesses: Guesses, request: Request) -> None:
    """Raise ``ServerBusyError`` if too many log-ins of the peer have failed, and the request is another one."""
    text = request.headers.get("authorization")
    if text is not None:
        guesses.check(_address(request), key_name_of(text), _PROTOCOL)


async def hold_back(guesses: Guesses, request: Request, error: InvalidCredentialsError) -> None:
    """Note a failed log-in, and wait as long as its answer is to be held back."""
    await asyncio.sleep(
        guesses.failed(_address(request), key_name_of(request.headers.get("authorization")), _PROTOCOL, error)
    )


def _address(request: Request) -> str:
    return "" if request.client is None else request.client.host
