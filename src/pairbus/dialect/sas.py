"""Shared access signatures: tokens that are signed and verified with a key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus, unquote, unquote_plus

PREFIX: Final = "SharedAccessSignature "


_ADDRESS: Final = re.compile(r"/|[.]|:\d+$|^localhost$", re.IGNORECASE)
"""Matches an address with a path, or one that can only be a host: the SDK for JavaScript signs a host and its port."""


class SasTokenError(ValueError):
    """An invalid shared access signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SasToken:
    """A parsed token. ``is_signed_with`` verifies it."""

    resource: str
    """The address that it grants access to, as the token spells it: still encoded, because that is what was signed."""

    key_name: str
    expires_s: int
    """Seconds since the Unix epoch."""

    signature: str = field(repr=False)

    @property
    def path(self) -> str:
        """The scope within the namespace: ``""`` for all of it, otherwise an entity's path, in lower case."""
        address = unquote_plus(self.resource).partition("?")[0]
        _, separator, rest = address.partition("://")
        return (rest if separator else address).partition("/")[2].strip("/").lower()

    def signer(self, keys: Iterable[str]) -> str | None:
        """Return the key among these that created the signature; ``None`` if there is none."""
        spellings = _spellings(self.resource)
        for key in keys:
            for spelling in spellings:
                if hmac.compare_digest(_sign(key, spelling, self.expires_s).encode(), self.signature.encode()):
                    return key
        return None

    def is_signed_with(self, keys: Iterable[str]) -> bool:
        """Return True if one of the keys created the signature."""
        return self.signer(keys) is not None

    def covers(self, path: str) -> bool:
        """Return True if it grants access to an entity: the one that it names, or one below it."""
        wanted = path.strip("/").lower()
        # An address that was encoded before it was signed is still encoded here.
        return any(
            not mine or wanted == mine or wanted.startswith(mine + "/") for mine in (self.path, unquote(self.path))
        )


def parse_sas_token(text: str) -> SasToken:
    """Parse a token; raises ``SasTokenError``. Its parts may be in any order."""
    if not text.isascii():
        raise SasTokenError("the token contains characters that have to be encoded")
    if not text.startswith(PREFIX):
        raise SasTokenError(f"the token does not begin with '{PREFIX.strip()}'")
    parts = dict(part.partition("=")[::2] for part in text[len(PREFIX) :].split("&"))
    missing = {"sr", "sig", "se", "skn"} - parts.keys()
    if missing:
        raise SasTokenError(f"the token has no '{min(missing)}'")
    if not (parts["se"].isascii() and parts["se"].isdigit() and len(parts["se"]) <= 18):
        raise SasTokenError("the token's 'se' is not a time in seconds")
    if not _ADDRESS.search(unquote_plus(parts["sr"])):
        raise SasTokenError("the token's 'sr' is ambiguous: it could be a host or an entity")
    return SasToken(
        resource=parts["sr"],
        # Some clients encode the name twice; a name without special characters is the same either way.
        key_name=unquote_plus(unquote_plus(parts["skn"])),
        expires_s=int(parts["se"]),
        signature=unquote_plus(parts["sig"]),
    )


def make_sas_token(uri: str, key_name: str, key: str, expires_s: int) -> str:
    """Return a token that grants access to an address, and everything below it, until a time."""
    resource = quote_plus(uri)
    signature = quote_plus(_sign(key, resource, expires_s))
    return f"{PREFIX}sr={resource}&sig={signature}&se={expires_s}&skn={quote_plus(key_name)}"


def _sign(key: str, resource: str, expires_s: int) -> str:
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _spellings(resource: str) -> list[str]:
    """Return the texts that may have been signed: the address as written, or decoded and encoded again.

    All of them mean the same address. The decoded form only counts if decoding ends there: otherwise a token that is
    encoded once more would still be valid, and mean something else.
    """
    plain = unquote_plus(resource)
    encoded = quote_plus(plain)
    spellings = [resource, encoded, encoded.lower()]
    return list(dict.fromkeys(spellings if "%" in plain else [*spellings, plain]))
