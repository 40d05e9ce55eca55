"""The address of a namespace, connection strings, and errors about reachability."""

from __future__ import annotations

import os
import re
import socket
import ssl
from dataclasses import dataclass
from datetime import timedelta
from logging import Logger
from types import NoneType
from typing import Final, Self
from urllib.parse import urlsplit

from pairbus.client.errors import MessagingCommunicationError, MessagingError
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.client.token_provider import TokenProvider
from pairbus.client.validation import check_type
from pairbus.dialect.connection_string import ConnectionString, ConnectionStringError, parse_connection_string

_AMQP_PORT: Final = 5672
_AMQPS_PORT: Final = 5671
_HTTP_PORT: Final = 80
_HTTPS_PORT: Final = 443
_TLS_SCHEMES: Final = {"sb": True, "amqps": True, "https": True, "amqp": False, "http": False}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The host and port of a namespace, with or without TLS."""

    host: str
    port: int | None = None
    """The port for all protocols; ``None`` for the default port of each protocol."""

    tls: bool = True

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse ``sb://contoso.servicebus.windows.net``, or ``amqp://localhost:5672`` for a connection without TLS.

        Raises ``ValueError``.
        """
        if not isinstance(address, str):
            raise TypeError(f"an endpoint must be a str such as sb://host:port, got {type(address).__name__}")
        if ";" in address or "=" in address:  # the value is not repeated: it may contain a key
            raise ValueError(
                "not an endpoint such as sb://host:port; to use a connection string, call from_connection_string"
            )
        if "@" in address:  # not repeated either
            raise ValueError(
                "an endpoint must not contain a user or a password: use sb://host:port and pass a TokenProvider"
            )
        parts = urlsplit(address if "://" in address else f"sb://{address}")
        tls = _TLS_SCHEMES.get(parts.scheme)
        if tls is None:
            raise ValueError(f"{address!r}: the scheme must be sb:// or amqps://, or amqp:// without TLS")
        if parts.port == 0:
            raise ValueError(f"{address!r}: the port must not be 0")
        if not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f"{address!r}: an endpoint is a scheme, a host and an optional port: sb://host:port")
        return cls(parts.hostname, parts.port, tls)

    @property
    def amqp_port(self) -> int:
        return self.port or (_AMQPS_PORT if self.tls else _AMQP_PORT)

    @property
    def http_port(self) -> int:
        """The port of the management API and of AMQP over WebSocket."""
        return self.port or (_HTTPS_PORT if self.tls else _HTTP_PORT)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def namespace(self) -> str:
        """The name of the namespace: the first label of its host name."""
        return self.host.partition(".")[0]

    def uri(self, path: str = "") -> str:
        """Return the address of the namespace, or of ``path`` in it, as tokens name it."""
        return f"sb://{self.authority}/{path}"

    def __str__(self) -> str:
        return f"{'sb' if self.tls else 'amqp'}://{self.authority}"


def open_connection_string(text: str) -> tuple[Endpoint, TokenProvider | None, str | None]:
    """Return the endpoint, the key or token if there is one, and the entity path if there is one.

    Raises ``ConnectionStringError``, a ``ValueError``.
    """
    parts = _parse(text)
    return _endpoint(parts), _token_provider(parts), parts.entity_path or None


def connect_by(
    text: str, settings: MessagingFactorySettings | None
) -> tuple[Endpoint, TokenProvider | None, MessagingFactorySettings]:
    """Return the endpoint, the key or token if there is one, and the settings to connect with.

    ``settings`` override the connection string. Raises ``ConnectionStringError``, a ``ValueError``.
    """
    check_type("settings", settings, (MessagingFactorySettings, NoneType))
    parts = _parse(text)
    given = MessagingFactorySettings() if settings is None else settings
    timeout = None if parts.operation_timeout_ms is None else timedelta(milliseconds=parts.operation_timeout_ms)
    transport = Transport.WEB_SOCKET if parts.web_sockets else None
    return _endpoint(parts), _token_provider(parts), given.completed(timeout, transport)


def _parse(text: str) -> ConnectionString:
    if not isinstance(text, str):
        raise TypeError(f"a connection string must be a str, got {type(text).__name__}")
    if text.lstrip().startswith("@"):  # the value is not repeated: it may be something else that contains a key
        raise ConnectionStringError(
            "a value that begins with '@' names a file, which only the pairbus commands read; in a program, read the"
            " file and pass the connection string that is in it"
        )
    return parse_connection_string(text)


def _endpoint(parts: ConnectionString) -> Endpoint:
    return Endpoint(parts.host, parts.port, tls=not parts.development)


def _token_provider(parts: ConnectionString) -> TokenProvider | None:
    try:
        if parts.key_name is not None and parts.key is not None:
            return TokenProvider.from_key(parts.key_name, parts.key)
        if parts.token is not None:
            return TokenProvider.from_token(parts.token)
    except ValueError as error:
        raise ConnectionStringError(f"invalid key or token in the connection string: {error}") from error
    return None


TRUST_ADVICE: Final = (
    "pass the file of the certificate authority in the settings, MessagingFactorySettings(ca_file=…),"
    " or pass an ssl_context"
)
"""The advice for programs. Commands have no settings and give other advice."""

_ADVICE: Final = "check that the namespace is running and that the Endpoint of the connection string is correct"
_NUMBERED: Final = re.compile(r"\[Errno (\d+)\]")


def unreachable(endpoint: Endpoint, error: Exception) -> MessagingCommunicationError:
    """Return the error with advice that covers both causes: a namespace that is down and a wrong address."""
    return MessagingCommunicationError(f"{endpoint} cannot be reached: {_reason(error)}", hint=_ADVICE)


def untrusted(endpoint: Endpoint, error: ssl.SSLCertVerificationError) -> MessagingCommunicationError:
    return MessagingCommunicationError(
        f"{endpoint}: its certificate is not trusted ({error.verify_message})", is_transient=False, hint=TRUST_ADVICE
    )


def _reason(error: Exception) -> str:
    """Return the system's own words, without error numbers and without the address, which the error names already."""
    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, socket.gaierror):  # its numbers are not errno values
        return error.strerror or str(error)
    # If a name has several addresses, asyncio joins their errors in one text, and the error itself has no number.
    numbers = [error.errno] if error.errno is not None else [*map(int, _NUMBERED.findall(str(error)))]
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error)


class OutageLog:
    """Logs an outage once when it begins and once when it ends, however many attempts fail meanwhile."""

    def __init__(self, endpoint: Endpoint, log: Logger) -> None:
        self._endpoint = endpoint
        self._log = log
        self._is_away = False

    def failed(self, error: MessagingError) -> None:
        """Record a failed attempt."""
        if error.is_transient and not self._is_away:
            self.began(error, "retrying")

    def began(self, error: MessagingError | None, then: str) -> None:
        """Record that the namespace is unavailable; ``then`` says what the client does about it."""
        self._log.warning('namespace unavailable endpoint=%s error="%s" action="%s"', self._endpoint, error, then)
        self._is_away = True

    def reached(self) -> None:
        if self._is_away:
            self._log.info("namespace available again endpoint=%s", self._endpoint)
        self._is_away = False
