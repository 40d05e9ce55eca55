"""Bearer tokens: JSON Web Tokens of an issuer turned into grants."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import jwt
from jwt.utils import base64url_decode, base64url_encode

from pairbus.broker import Right
from pairbus.server.access import NEVER_MS, Grant
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.signing_keys import ALGORITHMS, SigningKey, SigningKeys

DEFAULT_AUDIENCE: Final = "https://servicebus.azure.net"
"""What the SDKs of Azure ask their issuer for."""

MAX_CHARACTERS: Final = 32 * 1024
LEEWAY_MS: Final = 5 * 60 * 1_000
"""How far an issuer's clock may be ahead of ours."""

_FURTHEST_S: Final = 10**15
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.([A-Za-z0-9_-]*)")
_ALL: Final = frozenset(Right)
_RIGHTS: Final = {
    "azure service bus data owner": _ALL,
    "azure service bus data sender": frozenset({Right.SEND}),
    "azure service bus data receiver": frozenset({Right.LISTEN}),
    "manage": _ALL,  # as with a key: who may manage may also send and listen
    "send": frozenset({Right.SEND}),
    "listen": frozenset({Right.LISTEN}),
}
_JWS: Final = jwt.PyJWS(algorithms=sorted(ALGORITHMS))


@dataclass(frozen=True, slots=True)
class JwtVerifier:
    """Checks the tokens of one issuer. What it refuses a token with never repeats any of it."""

    keys: SigningKeys
    issuer: str
    audience: str = DEFAULT_AUDIENCE

    def __call__(self, token: str, now_ms: int) -> Grant:
        """The grant of a token, for the whole namespace; raises ``UnauthorizedError``."""
        claims = self._signed_claims(token)
        if claims.get("iss") != self.issuer:
            raise UnauthorizedError("the token is from another issuer")
        if self.audience.removesuffix("/") not in _audiences(claims):
            raise UnauthorizedError("the token was made for another audience")
        if "exp" not in claims:
            raise UnauthorizedError("the token does not say when it expires")
        expires_ms = _time_ms(claims["exp"])
        if expires_ms <= now_ms:
            raise UnauthorizedError("the token has expired")
        if "nbf" in claims and _time_ms(claims["nbf"]) > now_ms + LEEWAY_MS:
            raise UnauthorizedError("the token is not valid yet")
        return Grant("", _rights(claims), expires_ms)

    def _signed_claims(self, token: str) -> dict[str, Any]:
        header = _header(token)
        key = self._key(header)
        try:
            payload = _JWS.decode(token, key.key, algorithms=[header["alg"]])
        except jwt.PyJWTError:
            self.keys.wanted()  # there may be a new key that has the id of an old one
            raise InvalidCredentialsError("invalid token signature") from None
        return _claims(payload)

    def _key(self, header: dict[str, Any]) -> SigningKey:
        """The key that the header names, if it is one for the algorithm that the header names."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise UnauthorizedError(
                f"the token is signed in a way that is not allowed; use {', '.join(sorted(ALGORITHMS))}"
            )
        key = self.keys.find(key_id)
        if key is None and key_id is None:
            raise UnauthorizedError("the token does not say which of the issuer's keys has signed it")
        if key is None:
            self.keys.wanted()
            raise UnauthorizedError(
                "the token is signed with a key that is not known here; if it is new, try again soon"
            )
        if algorithm not in key.algorithms:
            raise UnauthorizedError("the token is signed in another way than its key is for")
        return key


def allow_any(token: str, now_ms: int) -> Grant:
    """Grant everything to whoever shows any token at all: for development only.

    If the token says when it expires that is believed, so that clients can be seen renewing theirs.
    """
    if not token.strip():
        raise UnauthorizedError("the token is empty")
    expires_ms = _claimed_expiry_ms(token)
    if expires_ms <= now_ms:
        raise UnauthorizedError("the token has expired")
    return Grant("", _ALL, expires_ms)


def _claimed_expiry_ms(token: str) -> int:
    try:
        _header(token)
        return _time_ms(_claims(base64url_decode(token.split(".")[1]))["exp"])
    except (UnauthorizedError, KeyError):
        return NEVER_MS


def _header(token: str) -> dict[str, Any]:
    if len(token) > MAX_CHARACTERS:
        raise UnauthorizedError(f"the token is longer than {MAX_CHARACTERS:,} characters")
    shape = _SHAPE.fullmatch(token)
    if shape is None or not _is_canonical(shape[1]):
        raise UnauthorizedError("the token is neither a shared access signature nor a JSON Web Token")
    try:
        return jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError):  # whose texts may quote the token
        raise UnauthorizedError("the header of the token cannot be read") from None


def _is_canonical(text: str) -> bool:
    """Whether it is the one spelling of its bytes: in Base64 the last character can have bits that mean nothing.

    Not every version of the library looks.
    """
    try:
        return base64url_encode(base64url_decode(text)).decode() == text
    except ValueError:
        return False


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise UnauthorizedError("the claims of the token cannot be read")
    return claims


def _audiences(claims: dict[str, Any]) -> set[str]:
    return {name.removesuffix("/") for name in _texts(claims.get("aud"))}


def _rights(claims: dict[str, Any]) -> frozenset[Right]:
    """What the token's roles and scopes add up to: perhaps nothing, and then every request is refused by itself."""
    scope = claims.get("scp")
    scopes = [scope, *scope.split()] if isinstance(scope, str) else _texts(scope)
    names = [*_texts(claims.get("roles")), *scopes]
    return frozenset().union(*(_RIGHTS.get(name.lower(), frozenset()) for name in names))


def _texts(claim: object) -> list[str]:
    """A claim that may be one text or a list of them."""
    values = claim if isinstance(claim, list) else [claim]
    return [value for value in values if isinstance(value, str)]


def _time_ms(claim: object) -> int:
    """A time in seconds since the Unix epoch, perhaps with a fraction (RFC 7519, *NumericDate*)."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not abs(claim) < _FURTHEST_S:  # or is NaN
        raise UnauthorizedError("a time of the token is no number of seconds")
    return int(claim * 1_000)
