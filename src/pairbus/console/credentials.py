"""What somebody has typed to be let in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pairbus.console.session import Admit
from pairbus.dialect.connection_string import ConnectionStringError, parse_connection_string
from pairbus.dialect.sas import SasTokenError, parse_sas_token
from pairbus.server.access import Gatekeeper, Grant
from pairbus.server.errors import UnauthorizedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedKey:
    """The name and the value of a key of the namespace."""

    name: str
    key: str = field(repr=False)

    def admitted_by(self, gatekeeper: Gatekeeper) -> Admit:
        def admit() -> Grant:
            return gatekeeper.admit_key(self.name, self.key)

        return admit


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedToken:
    """A shared access signature for the whole namespace."""

    name: str
    token: str = field(repr=False)

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
    try:
        connection = parse_connection_string(text)
    except ConnectionStringError as error:
        raise UnauthorizedError(str(error)) from error
    if connection.entity_path is not None:
        raise UnauthorizedError("this connection string is of one entity; the console needs a key of the namespace")
    if connection.key_name is not None and connection.key is not None:
        return TypedKey(name=connection.key_name, key=connection.key)
    if connection.token is None:
        raise UnauthorizedError("the connection string has no key")
    try:
        return TypedToken(name=parse_sas_token(connection.token).key_name, token=connection.token)
    except SasTokenError as error:
        raise UnauthorizedError(str(error)) from error
