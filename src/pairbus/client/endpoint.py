"""Where a namespace is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

_AMQP_PORT: Final = 5672
_AMQPS_PORT: Final = 5671
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443
_TLS_SCHEMES: Final = {"sb": True, "amqps": True, "https": True, "amqp": False, "http": False}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The host and port of a namespace, and whether it is reached through TLS."""

    host: str
    port: int | None = None
    """For everything; ``None`` for the ports that the protocols have by convention."""

    tls: bool = True

    @classmethod
    def parse(cls, address: str) -> Self:
        """Read ``sb://contoso.servicebus.windows.net``, or ``amqp://localhost:5672`` for a connection without TLS.

        Raises ``ValueError``.
        """
        if not isinstance(address, str):
            raise TypeError(f"an endpoint is a text such as sb://host:port, not a {type(address).__name__}")
        if ";" in address or "=" in address:  # not repeated: it may hold a key
            raise ValueError(
                "this is no endpoint such as sb://host:port; for a connection string: from_connection_string"
            )
        if "@" in address:  # not repeated either
            raise ValueError(
                "an endpoint has no user and no password: sb://host:port; who we are is said by a TokenProvider"
            )
        parts = urlsplit(address if "://" in address else f"sb://{address}")
        tls = _TLS_SCHEMES.get(parts.scheme)
        if tls is None:
            raise ValueError(f"{address!r}: a namespace is at sb://… or amqps://…, or without TLS at amqp://…")
        if parts.port == 0:
            raise ValueError(f"{address!r}: nothing listens on port 0")
        if not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"{address!r}: an endpoint is a scheme, a host and perhaps a port: sb://host:port")
        return cls(parts.hostname, parts.port, tls)

    @property
    def amqp_port(self) -> int:
        return self.port or (_AMQPS_PORT if self.tls else _AMQP_PORT)

    @property
    def http_port(self) -> int:
        """For the management API, and for AMQP over WebSocket."""
        return self.port or (_HTTPS_PORT if self.tls else _HTTP_PORT)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def namespace(self) -> str:
        """What the namespace is called: the first part of its host name."""
        return self.host.partition(".")[0]

    def uri(self, path: str = "") -> str:
        """The address of the namespace, or of something in it, as tokens name it."""
        return f"sb://{self.authority}/{path}"

    def __str__(self) -> str:
        return f"{'sb' if self.tls else 'amqp'}://{self.authority}"
