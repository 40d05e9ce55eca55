"""Shared access signatures: tokens that whoever knows a key can make, and check."""

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
"""What has a path, or can only be a host: the SDK for JavaScript makes tokens for a host and its port."""


class SasTokenError(ValueError):
    """A text that is no shared access signature, or one that does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SasToken:
    """What a token says. Whether it is true is for ``is_signed_with`` to tell."""

    resource: str
    """The address that it opens, as the token spells it: still encoded, because that is what was signed."""

    key_name: str
    expires_s: int
    """Seconds since the Unix epoch."""

    signature: str = field(repr=False)

    @property
    def path(self) -> str:
        """What it opens within the namespace: ``""`` for all of it, otherwise an entity's path, in lower case."""
        address = unquote_plus(self.resource).partition("?")[0]
        _, separator, rest = address.partition("://")
        return (rest if separator else address).partition("/")[2].strip("/").lower()

    def signer(self, keys: Iterable[str]) -> str | None:
        """Return the key that has made the signature, if it is one of these."""
        spellings = _spellings(self.resource)
        for key in keys:
            for spelling in spellings:
                if hmac.compare_digest(_sign(key, spelling, self.expires_s).encode(), self.signature.encode()):
                    return key
        return None

    def is_signed_with(self, keys: Iterable[str]) -> bool:
        """Return whether one of the keys has made the signature."""
        return self.signer(keys) is not None

    def covers(self, path: str) -> bool:
        """Whether it opens an entity: the one that it names, or anything below."""
        wanted = path.strip("/").lower()
        # An address that was encoded in its own right, before it was signed, is still encoded here.
        return any(
            not mine or wanted == mine or wanted.startswith(mine + "/") for mine in (self.path, unquote(self.path))
        )


def parse_sas_token(text: str) -> SasToken:
    """Read a token; raises ``SasTokenError``. Its parts may come in any order."""
    if not text.isascii():
        raise SasTokenError("the token has characters that belong encoded")
    if not text.startswith(PREFIX):
        raise SasTokenError(f"the token does not begin with '{PREFIX.strip()}'")
    parts = dict(part.partition("=")[::2] for part in text[len(PREFIX) :].split("&"))
    missing = {"sr", "sig", "se", "skn"} - parts.keys()
    if missing:
        raise SasTokenError(f"the token has no '{min(missing)}'")
    if not (parts["se"].isascii() and parts["se"].isdigit() and len(parts["se"]) <= 18):
        raise SasTokenError("the token's 'se' is no time in seconds")
    if not _ADDRESS.search(unquote_plus(parts["sr"])):
        raise SasTokenError("the token's 'sr' is no address: it could mean a host, or an entity")
    return SasToken(
        resource=parts["sr"],
        # Some clients encode the name twice; a name that has nothing to encode reads the same.
        key_name=unquote_plus(unquote_plus(parts["skn"])),
        expires_s=int(parts["se"]),
        signature=unquote_plus(parts["sig"]),
    )


def make_sas_token(uri: str, key_name: str, key: str, expires_s: int) -> str:
    """A token that opens an address, and everything below it, until a time."""
    resource = quote_plus(uri)
    signature = quote_plus(_sign(key, resource, expires_s))
    return f"{PREFIX}sr={resource}&sig={signature}&se={expires_s}&skn={quote_plus(key_name)}"


def _sign(key: str, resource: str, expires_s: int) -> str:
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _spellings(resource: str) -> list[str]:
    """What may have been signed: the address as it stands, or decoded and encoded again.

    All of them mean the same address. Decoded as it is it may only count if that is where decoding ends: otherwise a
    token that is encoded once more would still be signed, and mean something else.
    """
    plain = unquote_plus(resource)
    encoded = quote_plus(plain)
    spellings = [resource, encoded, encoded.lower()]
    return list(dict.fromkeys(spellings if "%" in plain else [*spellings, plain]))
