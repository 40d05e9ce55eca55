"""The public keys of an issuer of tokens, kept up to date."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWTError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

_log = logging.getLogger(__name__)

REFRESH_S: Final = 3_600.0
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
_URL_PAUSE_S: Final = 60.0
"""Anyone can send tokens with unknown key ids; the issuer must not suffer from it."""
_FILE_PAUSE_S: Final = 1.0
_LEAST_RSA_BITS: Final = 2_048

PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

_RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS_ALGORITHMS: Final = frozenset({"EdDSA"})

ALGORITHMS: Final = _RSA_ALGORITHMS | frozenset(_CURVE_ALGORITHMS.values()) | _EDWARDS_ALGORITHMS
"""Those that take a private key to sign: with the others, whoever can check a token could also make one."""

_READERS: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


class SigningKeysError(ValueError):
    """The keys of an issuer cannot be had, or are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that signatures can be checked with, and the algorithms that it may be used for."""

    key_id: str | None
    key: PublicKey
    algorithms: frozenset[str]


class _Source(Protocol):
    pause_s: float

    def read(self) -> bytes | None:
        """What is there now, or ``None`` if that is the same as before."""


class SigningKeys:
    """What an issuer's key document lists. It is read again every hour, and when a token needs a key that is not there.

    It is read on another thread, so that nothing waits; one that cannot be read leaves the keys as they are.
    """

    def __init__(self, source: _Source, keys: tuple[SigningKey, ...], refresh_s: float, pause_s: float) -> None:
        self._source = source
        self._keys = keys
        self._refresh_s = refresh_s
        self._pause_s = pause_s
        self._is_wanted = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pairbus-signing-keys")

    @classmethod
    async def load(
        cls, source: str, *, refresh_s: float = REFRESH_S, pause_s: float | None = None, timeout_s: float = TIMEOUT_S
    ) -> Self:
        """Read the keys from a file, or from an ``https`` URL; raises ``SigningKeysError``.

        ``pause_s`` is how long to leave the source alone after it was read again: a minute for a URL.
        """
        opened = _open(source, timeout_s)
        keys = await asyncio.to_thread(_read_keys, opened)
        return cls(opened, keys or (), refresh_s, opened.pause_s if pause_s is None else pause_s)

    def find(self, key_id: str | None) -> SigningKey | None:
        """The key of that id. A token may leave the id out if there is only one key."""
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == key_id), None)

    def wanted(self) -> None:
        """Say that a token names a key that is not here: the issuer may have a new one."""
        self._is_wanted.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await self._is_wanted.wait()
            self._is_wanted.clear()
            await self._refresh()
            await asyncio.sleep(self._pause_s)

    async def _refresh(self) -> None:
        try:
            keys = await asyncio.to_thread(_read_keys, self._source)
        except Exception as error:  # noqa: BLE001 (whatever it is: without this task no new key would ever be found)
            _log.warning("the keys that tokens are checked with stay as they are: %s", error)
            return
        if keys is not None:
            self._keys = keys


# Where keys come from.


class _File:
    pause_s = _FILE_PAUSE_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes | None:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return None
            content = file.read(MAX_BYTES + 1)
        self._stamp = stamp
        return content


class _Url:
    pause_s = _URL_PAUSE_S

    def __init__(self, url: str, timeout_s: float, *, is_loopback: bool) -> None:
        self._url = url
        self._timeout_s = timeout_s
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
                    if time.monotonic() > deadline:  # the timeout alone starts anew with every byte
                        raise TimeoutError("the answer takes too long")
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
        raise SigningKeysError(f"'{source}' is no good URL: {error}") from error
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback):
        raise SigningKeysError(f"signing keys come from a file or from an https URL, and not from '{source}'")
    return _Url(source, timeout_s, is_loopback=is_loopback)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# What a key document says (RFC 7517).


def _read_keys(source: _Source) -> tuple[SigningKey, ...] | None:
    try:
        content = source.read()
        return None if content is None else parse_keys(content)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SigningKeysError(f"no signing keys from {source}: {error}") from error


def parse_keys(content: bytes) -> tuple[SigningKey, ...]:
    """The keys of a JWKS document that signatures can be checked with; raises ``SigningKeysError`` if there is none."""
    if len(content) > MAX_BYTES:
        raise SigningKeysError(f"the document is larger than {MAX_BYTES:,} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SigningKeysError("the document is no JSON") from error
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise SigningKeysError("the document has no list 'keys'")
    keys = tuple(key for member in members if (key := _parse_key(member)) is not None)
    if not keys:
        raise SigningKeysError("the document lists no public key that tokens can be checked with")
    return keys


def _parse_key(member: object) -> SigningKey | None:
    """One key, or ``None`` if it is for something else: documents may list those too (RFC 7517, section 5)."""
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
    return SigningKey(key_id=key_id if isinstance(key_id, str) else None, key=key, algorithms=algorithms)


def _algorithms_of(key: object) -> frozenset[str]:
    match key:
        case RSAPublicKey() if key.key_size >= _LEAST_RSA_BITS:
            return _RSA_ALGORITHMS
        case EllipticCurvePublicKey():
            return frozenset({_CURVE_ALGORITHMS[key.curve.name]} if key.curve.name in _CURVE_ALGORITHMS else ())
        case Ed25519PublicKey() | Ed448PublicKey():
            return _EDWARDS_ALGORITHMS
    return frozenset()
