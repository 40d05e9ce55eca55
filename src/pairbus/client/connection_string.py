"""Connection strings, opened: where a namespace is, and who we are there."""

from __future__ import annotations

from datetime import timedelta
from types import NoneType

from pairbus.client.endpoint import Endpoint
from pairbus.client.settings import MessagingFactorySettings, Transport
from pairbus.client.token_provider import TokenProvider
from pairbus.client.validation import check_type
from pairbus.dialect.connection_string import ConnectionString, ConnectionStringError, parse_connection_string


def open_connection_string(text: str) -> tuple[Endpoint, TokenProvider | None, str | None]:
    """The endpoint, the key or token if there is one, and the entity path if there is one.

    Raises ``ConnectionStringError``, a ``ValueError``.
    """
    parts = _parse(text)
    return _endpoint(parts), _token_provider(parts), parts.entity_path or None


def connect_by(
    text: str, settings: MessagingFactorySettings | None
) -> tuple[Endpoint, TokenProvider | None, MessagingFactorySettings]:
    """Return the endpoint, the key or token if there is one, and the settings to connect with.

    ``settings`` win over what the connection string says. Raises ``ConnectionStringError``, a ``ValueError``.
    """
    check_type("settings", settings, (MessagingFactorySettings, NoneType))
    parts = _parse(text)
    given = MessagingFactorySettings() if settings is None else settings
    timeout = None if parts.operation_timeout_ms is None else timedelta(milliseconds=parts.operation_timeout_ms)
    transport = Transport.WEB_SOCKET if parts.web_sockets else None
    return _endpoint(parts), _token_provider(parts), given.completed(timeout, transport)


def _parse(text: str) -> ConnectionString:
    if not isinstance(text, str):
        raise TypeError(f"a connection string is a text, not a {type(text).__name__}")
    if text.lstrip().startswith("@"):  # not repeated: it may be something else, with a key in it
        raise ConnectionStringError(
            "what begins with '@' names a file, which only the commands of pairbus read; in a program, read the file"
            " and hand over the connection string that is in it"
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
        raise ConnectionStringError(f"the key or token of the connection string is no good: {error}") from error
    return None
