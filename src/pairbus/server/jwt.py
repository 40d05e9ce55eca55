"""Bearer tokens: JSON Web Tokens of an issuer turned into grants."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import json
import logging
import math
import os
import re
import stat
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
)

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_decode, base64url_encode

from pairbus.broker import Right
from pairbus.callbacks import Callbacks
from pairbus.heartbeat import Heartbeat
from pairbus.server.access import NEVER_MS, Grant
from pairbus.server.errors import InvalidCredentialsError, UnauthorizedError
from pairbus.server.supervision.supervisor import Problem, SupervisedTask

_log = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
"""The interval at which a URL is read again; until then a key that the issuer has removed counts."""
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
_URL_PAUSE_S: Final = 60.0
"""Any peer can send tokens with unknown key ids; this limits the load on the issuer."""
_FILE_REFRESH_S: Final = 2.0
_FILE_PAUSE_S: Final = 1.0
_FILE_TIMEOUT_S: Final = 5.0
_URL_SLACK_S: Final = 2.0
"""Time for a URL beyond its timeout, which usually ends a read with a more precise error."""
_RETRY_S: Final = 60.0
"""The interval at which a URL is read again after a failure."""
_MAX_DOUBLINGS: Final = 12
"""While reads hang, the interval between new ones doubles, up to about an hour: each may leave a thread behind."""
_LEAST_RSA_BITS: Final = 2_048

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

_RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS_ALGORITHMS: Final = frozenset({"EdDSA"})

ALGORITHMS: Final = _RSA_ALGORITHMS | frozenset(_CURVE_ALGORITHMS.values()) | _EDWARDS_ALGORITHMS
"""Algorithms that need a private key to sign: with the others, a verifier could also forge tokens."""

_READERS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


class SigningKeysError(ValueError):
    """The keys of an issuer cannot be read, or are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key to verify signatures, and the algorithms that it may be used for."""

    key_id: str | None
    key: PublicKey
    algorithms: frozenset[str]
    fingerprint: str
    """Identifies the key, whatever its id."""


class _Source(Protocol):
    refresh_s: float
    """The longest interval between two reads."""
    pause_s: float
    """The shortest one."""
    deadline_s: float
    """The time after which a read is abandoned."""

    def read(self) -> bytes:
        """Return the current content."""


@dataclass(frozen=True, slots=True)
class _Document:
    """A key document that was parsed."""

    content: bytes
    keys: tuple[SigningKey, ...]


class _Reader:
    """Reads a source on daemon threads, and abandons reads that hang.

    A thread that waits for a dead mount cannot be cancelled. Nothing waits for it: the process can end, the next read
    may succeed, and the result of an abandoned one is dropped.
    """

    def __init__(self, source: _Source) -> None:
        self.source = source
        self._open: list[Future[_Document]] = []
        self._next_s = 0.0

    @property
    def hangs(self) -> bool:
        """Return whether a read has not ended yet."""
        self._open = [each for each in self._open if not each.done()]
        return bool(self._open)

    async def read(self, known: _Document | None = None) -> _Document:
        """Return the current document, which is ``known`` if it is unchanged; raises ``SigningKeysError``."""
        if self.hangs and time.monotonic() < self._next_s:
            raise self._timeout()
        outcome: Future[_Document] = Future()
        outcome.set_running_or_notify_cancel()
        args = (self.source, known, outcome)
        Thread(target=_run, args=args, name="pairbus-signing-keys", daemon=True).start()
        self._open.append(outcome)
        self._next_s = time.monotonic() + 2.0 ** min(len(self._open), _MAX_DOUBLINGS)
        waiting = asyncio.wrap_future(outcome)
        try:
            await asyncio.wait([waiting], timeout=self.source.deadline_s)
            if not waiting.done():
                raise self._timeout()
            return waiting.result()
        finally:
            waiting.cancel()  # without effect if it is done

    def _timeout(self) -> SigningKeysError:
        return SigningKeysError(
            f"no signing keys from {self.source}: the read has not ended within {self.source.deadline_s:g} s"
        )


def _run(source: _Source, known: _Document | None, outcome: Future[_Document]) -> None:
    try:
        document = _read_document(source, known)
    except BaseException as error:  # noqa: BLE001 (it is raised by outcome.result())
        outcome.set_exception(error)
    else:
        outcome.set_result(document)


class SigningKeys:
    """The keys in an issuer's key document. It is read again at intervals, and when a token names an unknown key.

    It is read on another thread, so that the loop does not block. If that fails, or the document is malformed, the keys
    stay unchanged. A valid document without keys revokes all.
    """

    def __init__(self, reader: _Reader, document: _Document, refresh_s: float, pause_s: float) -> None:
        self._reader = reader
        self._document = document
        self._failure = ""
        """The error of the last read; empty if it succeeded."""
        self.on_changed: Callbacks[[]] = Callbacks()
        self._refresh_s = refresh_s
        self._pause_s = pause_s
        self._is_wanted = asyncio.Event()
        self.heartbeat = Heartbeat()
        self._task = SupervisedTask("pairbus-signing-keys", self._run, self.heartbeat)
        self.start()

    @classmethod
    async def load(
        cls, source: str, *, refresh_s: float = REFRESH_S, pause_s: float | None = None, timeout_s: float = TIMEOUT_S
    ) -> Self:
        """Read the keys from a file, or from an ``https`` URL; raises ``SigningKeysError``.

        ``refresh_s`` is the interval between reads of a URL; a file is read within seconds after it has changed.
        ``pause_s`` is the minimum interval between reads: a minute for a URL.
        """
        opened = _open(source, timeout_s)
        reader = _Reader(opened)
        document = await reader.read()
        _warn_of_no_keys(opened, document)
        return cls(reader, document, min(refresh_s, opened.refresh_s), opened.pause_s if pause_s is None else pause_s)

    def find(self, key_id: str | None) -> SigningKey | None:
        """Return the key of that id. A token may omit the id if there is only one key."""
        if key_id is None:
            return self._document.keys[0] if len(self._document.keys) == 1 else None
        return next((key for key in self._document.keys if key.key_id == key_id), None)

    def trusts(self, fingerprint: str) -> bool:
        """Return whether the key with this fingerprint is still one of the issuer's."""
        return any(key.fingerprint == fingerprint for key in self._document.keys)

    def wanted(self) -> None:
        """Request another read because a token names an unknown key: the issuer may have a new one."""
        self._is_wanted.set()

    def start(self) -> None:
        """Read the keys again from time to time; if that has ended, start it again."""
        self._task.start()

    def problem(self) -> Problem | None:
        """Return why the keys are not read any more; ``None`` while they are.

        The reason names neither the source, which may contain a secret, nor the error, which may name the source.
        """
        if (problem := self._task.problem()) is not None or not self._failure:
            return problem
        cause = "reading the issuer's keys hangs" if self._reader.hangs else "the issuer's keys cannot be read"
        return Problem(reason=f"{cause}; keys that were removed since still count (see the log)", is_stuck=True)

    def stop(self) -> None:
        self._task.stop()

    async def _run(self) -> None:
        while True:
            refresh_s = min(self._refresh_s, _RETRY_S) if self._failure else self._refresh_s
            self.heartbeat.beat(refresh_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, refresh_s - self._pause_s)):
                    await self._is_wanted.wait()
            self._is_wanted.clear()
            self.heartbeat.beat()
            await self._refresh()
            await self.heartbeat.sleep(self._pause_s)

    async def _refresh(self) -> None:
        try:
            with self.heartbeat.waiting_for_thread():
                document = await self._reader.read(self._document)
        except Exception as error:  # noqa: BLE001 (any error: without this task no new key would ever be found)
            failure = str(error) or type(error).__name__
            if failure != self._failure:  # a file is looked at often
                _log.warning('signing keys not refreshed source=%s error="%s"', self._reader.source, failure)
            self._failure = failure
            return
        self._failure = ""
        before, self._document = self._document, document
        if document.keys != before.keys:
            _warn_of_no_keys(self._reader.source, document)
            self.on_changed()


def _warn_of_no_keys(source: _Source, document: _Document) -> None:
    if not document.keys:
        _log.warning("no usable signing keys, all tokens of the issuer are rejected source=%s", source)


# Sources of keys.


class _File:
    refresh_s = _FILE_REFRESH_S
    pause_s = _FILE_PAUSE_S
    deadline_s = _FILE_TIMEOUT_S

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes:
        # The whole file, even if its times and size are the same: copies may keep those.
        with open(self._path, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"'{self._path}' is not a regular file")
            return file.read(MAX_BYTES + 1)


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file; opening a FIFO does not wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class _Url:
    refresh_s = math.inf
    pause_s = _URL_PAUSE_S

    def __init__(self, url: str, timeout_s: float, *, is_loopback: bool) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self.deadline_s = timeout_s + _URL_SLACK_S
        self._opener = OpenerDirector()
        for handler in (
            ProxyHandler({} if is_loopback else None),
            HTTPHandler(),
            HTTPSHandler(),
            HTTPErrorProcessor(),
            HTTPDefaultErrorHandler(),
        ):  # and none that follows redirects: they could lead away from https
            self._opener.add_handler(handler)

    def __str__(self) -> str:
        return self._url

    def read(self) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._opener.open(self._url, timeout=self._timeout_s) as response:
                content = b""
                while len(content) <= MAX_BYTES and (part := response.read1(1 << 16)):
                    content += part
                    if time.monotonic() > deadline:  # the timeout alone restarts with every byte
                        raise TimeoutError("the response takes too long")
                return content
        except HTTPError as error:
            with error:  # it is the response too
                raise


def _open(source: str, timeout_s: float) -> _File | _Url:
    if "://" not in source:
        return _File(Path(source))
    try:
        url = urlsplit(source)
        is_loopback = _is_loopback(url.hostname or "")
    except ValueError as error:
        raise SigningKeysError(f"'{source}' is not a valid URL: {error}") from error
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback):
        raise SigningKeysError(f"signing keys must come from a file or an https URL, got '{source}'")
    return _Url(source, timeout_s, is_loopback=is_loopback)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Parsing of key documents (RFC 7517).


def _read_document(source: _Source, known: _Document | None) -> _Document:
    try:
        content = source.read()
        if known is not None and content == known.content:
            return known
        return _Document(content, parse_keys(content))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SigningKeysError(f"no signing keys from {source}: {error}") from error


def parse_keys(content: bytes) -> tuple[SigningKey, ...]:
    """Return the keys of a JWKS document that can verify signatures, possibly none.

    Raises ``SigningKeysError`` if it is malformed.
    """
    if len(content) > MAX_BYTES:
        raise SigningKeysError(f"the document is larger than {MAX_BYTES:,} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SigningKeysError("the document is not JSON") from error
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise SigningKeysError("the document has no list 'keys'")
    return tuple(key for member in members if (key := _parse_key(member)) is not None)


def _parse_key(member: object) -> SigningKey | None:
    """Return one key, or ``None`` if it has another use: documents may list those too (RFC 7517, section 5)."""
    if not isinstance(member, dict) or member.get("use", "sig") != "sig":
        return None
    reader = _READERS.get(str(member.get("kty")))
    if reader is None:
        return None
    try:
        key = reader(member)
    except (PyJWTError, UnsupportedAlgorithm, TypeError, ValueError):
        return None
    algorithms = _algorithms_of(key)
    if "alg" in member:
        algorithms &= {str(member["alg"])}
    if not isinstance(key, PublicKey) or not algorithms:
        return None
    key_id = member.get("kid")
    return SigningKey(
        key_id=key_id if isinstance(key_id, str) else None,
        key=key,
        algorithms=algorithms,
        fingerprint=sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest(),
    )


def _algorithms_of(key: object) -> frozenset[str]:
    match key:
        case RSAPublicKey() if key.key_size >= _LEAST_RSA_BITS:
            return _RSA_ALGORITHMS
        case EllipticCurvePublicKey():
            return frozenset({_CURVE_ALGORITHMS[key.curve.name]} if key.curve.name in _CURVE_ALGORITHMS else ())
        case Ed25519PublicKey() | Ed448PublicKey():
            return _EDWARDS_ALGORITHMS
    return frozenset()


DEFAULT_AUDIENCE: Final = "https://servicebus.azure.net"
"""The audience that Azure's SDKs request from their issuer."""

MAX_CHARACTERS: Final = 32 * 1024
LEEWAY_MS: Final = 5 * 60 * 1_000
"""Tolerance for an issuer's clock that is ahead of ours."""

_FURTHEST_S: Final = 10**15
_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.([A-Za-z0-9_-]*)")
_ALL: Final = frozenset(Right)
_SUBJECT_CHARACTERS: Final = 100
_RIGHTS: Final = {
    "azure service bus data owner": _ALL,
    "azure service bus data sender": frozenset({Right.SEND}),
    "azure service bus data receiver": frozenset({Right.LISTEN}),
    "manage": _ALL,  # as with a key: Manage includes Send and Listen
    "send": frozenset({Right.SEND}),
    "listen": frozenset({Right.LISTEN}),
}
_JWS: Final = jwt.PyJWS(algorithms=sorted(ALGORITHMS))


@dataclass(frozen=True, slots=True)
class JwtVerifier:
    """Verifies the tokens of one issuer. Its errors never quote the token."""

    keys: SigningKeys
    issuer: str
    audience: str = DEFAULT_AUDIENCE

    def __call__(self, token: str, now_ms: int) -> Grant:
        """Return the grant of a token, for the whole namespace; raises ``UnauthorizedError``."""
        claims, signer = self._signed_claims(token)
        if claims.get("iss") != self.issuer:
            raise UnauthorizedError("the token is from another issuer")
        if self.audience.removesuffix("/") not in _audiences(claims):
            raise UnauthorizedError("the token was issued for another audience")
        if "exp" not in claims:
            raise UnauthorizedError("the token has no expiry time")
        expires_ms = _time_ms(claims["exp"])
        if expires_ms <= now_ms:
            raise UnauthorizedError("the token has expired")
        if "nbf" in claims and _time_ms(claims["nbf"]) > now_ms + LEEWAY_MS:
            raise UnauthorizedError("the token is not valid yet")
        return Grant("", _rights(claims), expires_ms, who=_subject(claims), signer=signer)

    def _signed_claims(self, token: str) -> tuple[dict[str, Any], str]:
        """Return the claims of a token and the fingerprint of the key that signed it."""
        header = _header(token)
        key = self._key(header)
        try:
            payload = _JWS.decode(token, key.key, algorithms=[header["alg"]])
        except jwt.PyJWTError:
            self.keys.wanted()  # there may be a new key with the id of an old one
            raise InvalidCredentialsError("invalid token signature") from None
        return _claims(payload), key.fingerprint

    def _key(self, header: dict[str, Any]) -> SigningKey:
        """Return the key that the header names, if it is for the algorithm that the header names."""
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise UnauthorizedError(f"the token's algorithm is not allowed; use {', '.join(sorted(ALGORITHMS))}")
        key = self.keys.find(key_id)
        if key is None and key_id is None:
            raise UnauthorizedError("the token does not name the key that signed it")
        if key is None:
            self.keys.wanted()
            raise UnauthorizedError("the token is signed with an unknown key; if it is new, try again soon")
        if algorithm not in key.algorithms:
            raise UnauthorizedError("the token's algorithm does not match its key")
        return key


def allow_any(token: str, now_ms: int) -> Grant:
    """Grant all rights for any token: for development only.

    If the token has an expiry time it is respected, so that clients can be seen renewing theirs.
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
    except (jwt.PyJWTError, RecursionError):  # the errors may quote the token
        raise UnauthorizedError("the header of the token cannot be parsed") from None


def _is_canonical(text: str) -> bool:
    """Return whether it is the canonical encoding of its bytes: the last Base64 character can have unused bits.

    Not every version of the library checks this.
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
        raise UnauthorizedError("the claims of the token cannot be parsed")
    return claims


def _audiences(claims: dict[str, Any]) -> set[str]:
    return {name.removesuffix("/") for name in _texts(claims.get("aud"))}


def _rights(claims: dict[str, Any]) -> frozenset[Right]:
    """Return the rights from the token's roles and scopes: possibly none, and then every request is refused."""
    scope = claims.get("scp")
    scopes = [scope, *scope.split()] if isinstance(scope, str) else _texts(scope)
    names = [*_texts(claims.get("roles")), *scopes]
    return frozenset().union(*(_RIGHTS.get(name.lower(), frozenset()) for name in names))


def _subject(claims: dict[str, Any]) -> str:
    """Return the application or person that the token was issued to."""
    names = (claims.get(name) for name in ("appid", "azp", "sub"))
    return next((name[:_SUBJECT_CHARACTERS] for name in names if isinstance(name, str) and name), "")


def _texts(claim: object) -> list[str]:
    """Return a claim that may be one text or a list of them."""
    values = claim if isinstance(claim, list) else [claim]
    return [value for value in values if isinstance(value, str)]


def _time_ms(claim: object) -> int:
    """Return a time in seconds since the Unix epoch, possibly with a fraction (RFC 7519, *NumericDate*)."""
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not abs(claim) < _FURTHEST_S:  # or is NaN
        raise UnauthorizedError("a time of the token is not a number of seconds")
    return int(claim * 1_000)
