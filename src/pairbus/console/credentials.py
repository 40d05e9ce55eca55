"""What somebody has typed to be let in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pairbus.console.session import Admit
from pairbus.dialect.connection_string import ConnectionStringError, parse_connection_string
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import Gatekeeper, Grant
from pairbus.server.errors import UnauthorizedError

_LOOPBACK: Final = {"127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedKey:
    """The name and the value of a key of the namespace."""

    name: str
    key: str = field(repr=False)
    endpoint: str = ""
    """Of the connection string that it comes from, if it comes from one."""

    def admitted_by(self, gatekeeper: Gatekeeper) -> Admit:
        def admit() -> Grant:
            return gatekeeper.admit_key(self.name, self.key)

        return admit


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedToken:
    """A shared access signature for the whole namespace."""

    name: str
    token: str = field(repr=False)
    endpoint: str = ""

    def admitted_by(self, gatekeeper: Gatekeeper) -> Admit:
        def admit() -> Grant:
            return gatekeeper.admit(self.token, "")

        return admit


Typed = TypedKey | TypedToken


def read_credentials(form: Mapping[str, str]) -> Typed:
    """What the login form says; raises ``UnauthorizedError`` with a text that repeats no key."""
    text = form.get("connection_string", "").strip()
    if text:
        return _of_connection_string(text)
    name, key = form.get("key_name", "").strip(), form.get("key", "").strip()
    if not name or not key:
        raise UnauthorizedError("type a connection string, or the name of a key and its value")
    return TypedKey(name=name, key=key)


def _of_connection_string(text: str) -> Typed:
    if text.startswith("@"):  # not repeated: it may be something else, with a key in it
        raise UnauthorizedError(
            "what begins with '@' names a file, which only the commands of pairbus read; paste the connection string"
            " that is in it"
        )
    try:
        connection = parse_connection_string(text)
    except ConnectionStringError as error:
        raise UnauthorizedError(str(error)) from error
    if connection.entity_path is not None:
        raise UnauthorizedError("this connection string is of one entity; the console needs a key of the namespace")
    endpoint = connection.host if connection.port is None else f"{connection.host}:{connection.port}"
    if connection.key_name is not None and connection.key is not None:
        return TypedKey(name=connection.key_name, key=connection.key, endpoint=endpoint)
    if connection.token is None:
        raise UnauthorizedError("the connection string has no key")
    try:
        name = parse_sas_token(connection.token).key_name
    except SasTokenError as error:
        raise UnauthorizedError(str(error)) from error
    return TypedToken(name=name, token=connection.token, endpoint=endpoint)


def told_endpoint(endpoint: str, host: str) -> str:
    """That a connection string is of another server, as the end of a sentence; nothing if it may be of this one."""
    if not endpoint or not _are_different(endpoint, host):
        return ""
    return f"; the Endpoint of the connection string is another one: it is {endpoint}, and this is {host}"


def _are_different(endpoint: str, host: str) -> bool:
    try:
        one, other = urlsplit(f"//{endpoint}"), urlsplit(f"//{host}")
        ports = {one.port, other.port} - {None}
    except ValueError:
        return False
    names = {"localhost" if each.hostname in _LOOPBACK else each.hostname for each in (one, other)}
    return len(names) > 1 or len(ports) > 1
