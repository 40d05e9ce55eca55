"""Connection strings, opened: where a namespace is, and who we are there."""

from __future__ import annotations

from pairbus.client.endpoint import Endpoint
from pairbus.client.token_provider import TokenProvider
from pairbus.dialect.connection_string import ConnectionString, ConnectionStringError, parse_connection_string


def open_connection_string(text: str) -> tuple[Endpoint, TokenProvider | None, str | None]:
    """The endpoint, the key or token if there is one, and the entity path if there is one.

    Raises ``ConnectionStringError``, a ``ValueError``.
    """
    if not isinstance(text, str):
        raise TypeError(f"a connection string is a text, not a {type(text).__name__}")
    if text.lstrip().startswith("@"):  # not repeated: it may be something else, with a key in it
        raise ConnectionStringError(
            "what begins with '@' names a file, which only the commands of pairbus read; in a program, read the file"
            " and hand over the connection string that is in it"
        )
    parts = parse_connection_string(text)
    endpoint = Endpoint(parts.host, parts.port, tls=not parts.development)
    return endpoint, _token_provider(parts), parts.entity_path or None


def _token_provider(parts: ConnectionString) -> TokenProvider | None:
    try:
        if parts.key_name is not None and parts.key is not None:
            return TokenProvider.from_key(parts.key_name, parts.key)
        if parts.token is not None:
            return TokenProvider.from_token(parts.token)
    except ValueError as error:
        raise ConnectionStringError(f"the key or token of the connection string is no good: {error}") from error
    return None
