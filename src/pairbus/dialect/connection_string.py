"""Connection strings: the address of a namespace and the credentials for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from string import ascii_letters, digits
from typing import Final
from urllib.parse import urlsplit

_NAMES: Final = {
    name.lower(): name
    for name in (
        "Endpoint",
        "HostName",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "EntityPath",
        "UseDevelopmentEmulator",
        "OperationTimeout",
        "TransportType",
        "StsEndpoint",
        "RuntimePort",
        "ManagementPort",
    )
}
"""All keys that are accepted. The last three come from Service Bus for Windows Server: they name a token service and
ports of protocols that this client does not use, so their values are ignored, as the current Azure SDKs do."""

_WEB_SOCKETS: Final = {"amqp": False, "netmessaging": False, "amqpwebsockets": True}
"""The values of ``TransportType``. ``NetMessaging`` is the default of the .NET library for a protocol that only it
speaks; the same namespace is reached with AMQP."""

_TIME_SPAN: Final = re.compile(r"(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,7}))?)?")
_SECONDS: Final = re.compile(r"\d{1,9}")
_HOUR_MS: Final = 3_600_000
_LONGEST_NAME: Final = max(map(len, _NAMES))
_NEAR: Final = 0.8
"""The minimum similarity at which an unknown name counts as a misspelling; below it may be a piece of a key."""

_HOST: Final = frozenset(ascii_letters + digits + "-._:%")


class ConnectionStringError(ValueError):
    """An invalid connection string. The error does not repeat the text, because it may contain a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionString:
    """A parsed connection string. It has a key with its name, or a token, or neither."""

    host: str
    port: int | None = None
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    development: bool = False
    """True for a connection without TLS on the given port, as in the connection strings of the emulator."""

    operation_timeout_ms: int | None = None
    web_sockets: bool | None = None
    """True if ``TransportType`` selects WebSockets; ``None`` without that key."""

    def __str__(self) -> str:
        """Return the connection string, including its secrets."""
        port = "" if self.port is None else f":{self.port}"
        parts = {
            "Endpoint": f"sb://{self.host}{port}",
            "SharedAccessKeyName": self.key_name,
            "SharedAccessKey": self.key,
            "SharedAccessSignature": self.token,
            "EntityPath": self.entity_path,
            "UseDevelopmentEmulator": "true" if self.development else None,
            "OperationTimeout": None if self.operation_timeout_ms is None else _time_span(self.operation_timeout_ms),
            "TransportType": {None: None, False: "Amqp", True: "AmqpWebSockets"}[self.web_sockets],
        }
        return "".join(f"{name}={value};" for name, value in parts.items() if value is not None)


def parse_connection_string(text: str) -> ConnectionString:
    """Parse a connection string; raises ``ConnectionStringError``. Names are case-insensitive."""
    parts = _split(text)
    endpoint = parts.pop("endpoint", None) or parts.pop("hostname", None)
    if not endpoint:
        raise ConnectionStringError("the connection string has no Endpoint")
    host, port = _host(endpoint)
    key_name, key = parts.pop("sharedaccesskeyname", None), parts.pop("sharedaccesskey", None)
    token = parts.pop("sharedaccesssignature", None)
    entity_path = parts.pop("entitypath", None)
    development = parts.pop("usedevelopmentemulator", "false").lower() == "true"
    timeout, transport = parts.pop("operationtimeout", None), parts.pop("transporttype", None)
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
        operation_timeout_ms=None if timeout is None else _operation_timeout_ms(timeout),
        web_sockets=None if transport is None else _web_sockets(transport),
    )


def _operation_timeout_ms(text: str) -> int:
    """Read a .NET ``TimeSpan`` such as ``00:00:30``, or whole seconds; the .NET library accepts both."""
    if _SECONDS.fullmatch(text):
        timeout_ms = int(text) * 1_000
    else:
        match = _TIME_SPAN.fullmatch(text)
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4]) if match else (0, 0, 0, 60)
        if match is None or hours > 23 or minutes > 59 or seconds > 59:
            # The value is not repeated: with a misplaced ';' it may contain a piece of a key.
            raise ConnectionStringError("OperationTimeout must be hours:minutes:seconds, such as 00:00:30, or seconds")
        minutes += 60 * (hours + 24 * days)
        timeout_ms = (60 * minutes + seconds) * 1_000 + int((match[5] or "").ljust(3, "0")[:3])
    if not 0 < timeout_ms < _HOUR_MS:
        raise ConnectionStringError(
            f"OperationTimeout must be above zero and below one hour, got {timeout_ms / 1_000:,g} s"
        )
    return timeout_ms


def _time_span(time_ms: int) -> str:
    """Format a time below one hour as .NET does."""
    seconds, ms = divmod(time_ms, 1_000)
    return f"00:{seconds // 60:02}:{seconds % 60:02}" + (f".{ms:03}" if ms else "")


def _web_sockets(text: str) -> bool:
    try:
        return _WEB_SOCKETS[text.lower()]
    except KeyError:
        raise ConnectionStringError("TransportType must be Amqp, AmqpWebSockets or NetMessaging") from None


def _split(text: str) -> dict[str, str]:
    """Return the values of all parts, by their names in lower case."""
    parts: dict[str, str] = {}
    given = filter(None, (part.strip() for part in text.strip().split(";")))
    for place, part in enumerate(given, start=1):
        written, separator, value = part.partition("=")
        name = written.strip().lower()
        if not separator or not name:
            raise ConnectionStringError(f"part {place} of the connection string has no '=' after its name")
        if name not in _NAMES:
            raise _unknown(place, written.strip())
        if name in parts:
            raise ConnectionStringError(f"the connection string has the part {_NAMES[name]} twice")
        parts[name] = value.strip()
    return parts


def _unknown(place: int, name: str) -> ConnectionStringError:
    near = get_close_matches(name.lower(), _NAMES, n=1, cutoff=_NEAR)
    if near:
        meant = _NAMES[near[0]]
        # With a misplaced '=', a piece of the key is in the name.
        called = f"called {name}, which is unknown" if name.isalpha() and len(name) <= len(meant) + 1 else "unknown"
        return ConnectionStringError(f"part {place} of the connection string is {called}; is {meant} meant?")
    # A name that resembles no known one is not repeated, unless it is a short word: it may be a piece of a key.
    mentioned = f": '{name}'" if name.isalpha() and len(name) <= _LONGEST_NAME else ""
    known = ", ".join(_NAMES.values())
    return ConnectionStringError(f"part {place} of the connection string is unknown{mentioned}; there are {known}")


def _host(endpoint: str) -> tuple[str, int | None]:
    try:
        address = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        host, port = address.hostname, address.port
    except ValueError:
        raise ConnectionStringError("the Endpoint has an invalid host or port") from None  # its text may hold a key
    if not host:
        raise ConnectionStringError("the Endpoint has no host name")
    if address.path.strip("/") or address.query or address.fragment:  # as when a ':' or ';' was left out
        raise ConnectionStringError(
            "the Endpoint must be written as sb://host or sb://host:port; check its '://', and the ';' after it"
        )
    if not _HOST.issuperset(host):
        raise ConnectionStringError("the Endpoint has a host name with invalid characters")
    return host, port
