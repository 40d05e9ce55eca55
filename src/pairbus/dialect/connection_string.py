"""The line that tells a client where a namespace is and how to get in."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import ascii_letters, digits
from typing import Final
from urllib.parse import urlsplit

_LONGEST_NAME: Final = len("UseDevelopmentEmulator")
_HOST: Final = frozenset(ascii_letters + digits + "-._:%")


class ConnectionStringError(ValueError):
    """A text that is no connection string. The text itself is not repeated: it may hold a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """What a connection string says. There is a key with its name, or a token, or neither."""

    host: str
    port: int | None = None
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    development: bool = False
    """Without TLS, on the port that is given: what the emulator's connection strings ask for."""

    def __str__(self) -> str:
        """The text with the secrets in it, for a client to use."""
        port = "" if self.port is None else f":{self.port}"
        parts = {
            "Endpoint": f"sb://{self.host}{port}",
            "SharedAccessKeyName": self.key_name,
            "SharedAccessKey": self.key,
            "SharedAccessSignature": self.token,
            "EntityPath": self.entity_path,
            "UseDevelopmentEmulator": "true" if self.development else None,
        }
        return "".join(f"{name}={value};" for name, value in parts.items() if value is not None)


def parse_connection_string(text: str) -> ConnectionString:
    """Read a connection string; raises ``ConnectionStringError``. Names are not case-sensitive."""
    parts = _split(text)
    endpoint = parts.pop("endpoint", None) or parts.pop("hostname", None)
    if not endpoint:
        raise ConnectionStringError("the connection string has no Endpoint")
    host, port = _host(endpoint)
    key_name, key = parts.pop("sharedaccesskeyname", None), parts.pop("sharedaccesskey", None)
    token = parts.pop("sharedaccesssignature", None)
    entity_path = parts.pop("entitypath", None)
    development = parts.pop("usedevelopmentemulator", "false").lower() == "true"
    if parts:
        raise ConnectionStringError(f"the connection string has an unknown part{_told(min(parts))}")
    if (key_name is None) != (key is None):
        raise ConnectionStringError("SharedAccessKeyName and SharedAccessKey belong together")
    if key is not None and token is not None:
        raise ConnectionStringError("the connection string has a key and a token; one of them is enough")
    return ConnectionString(
        host=host,
        port=port,
        key_name=key_name,
        key=key,
        token=token,
        entity_path=entity_path,
        development=development,
    )


def _told(name: str) -> str:
    """The name of a part, unless it may be something else: a piece of a key."""
    return f": '{name}'" if name.isalpha() and len(name) <= _LONGEST_NAME else ""


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.strip().split(";"))):
        name, separator, value = part.partition("=")
        name = name.strip().lower()
        if not separator or not name:
            raise ConnectionStringError("the connection string has a part without '='")
        if name in parts:
            raise ConnectionStringError(f"the connection string has a part twice{_told(name)}")
        parts[name] = value.strip()
    return parts


def _host(endpoint: str) -> tuple[str, int | None]:
    try:
        address = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        host, port = address.hostname, address.port
    except ValueError:
        raise ConnectionStringError("the Endpoint has no good host or port") from None  # its text may hold a key
    if not host:
        raise ConnectionStringError("the Endpoint has no host name")
    if not _HOST.issuperset(host):
        raise ConnectionStringError("the Endpoint has a host name with characters that none has")
    return host, port
