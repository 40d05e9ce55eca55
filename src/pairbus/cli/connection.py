"""Namespaces that the user names by an option, a variable, or a file."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.client.endpoint import TRUST_ADVICE, Endpoint, open_connection_string
from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.faults import FaultApi
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import MessagingFactorySettings, RetryPolicy
from pairbus.client.validation import check_path
from pairbus.pairing.primary_names import is_same_namespace

T = TypeVar("T")

CONNECTION_VARIABLE: Final = "PAIRBUS_CONNECTION"
PRIMARY_VARIABLE: Final = "PAIRBUS_PRIMARY"
SECONDARY_VARIABLE: Final = "PAIRBUS_SECONDARY"

_SETTINGS: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=30),
    attempt_timeout=timedelta(seconds=5),
    retry_policy=RetryPolicy(maximum_retries=3),
)
"""Short timeouts: a user waits for the command, so errors are reported soon."""

TRUST_VARIABLE: Final = "SSL_CERT_FILE"
"""Names the certificate authority to trust. OpenSSL reads it, and ignores a file that does not exist."""

_TRUST: Final = (
    f"set {TRUST_VARIABLE} to the certificate file of the authority that signed it; for a pairbus namespace that is"
    " tls/ca.pem in its data directory (pairbus trust --data DIR prints the path)"
)
_ENDPOINT: Final = "endpoint="
_HOST: Final = re.compile(r"[\w.:%-]+")
_QUOTED: Final = re.compile(r"(['\"]).{2,}\1", re.DOTALL)

ConnectionOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--connection",
        envvar=CONNECTION_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the connection string of the namespace, or @FILE to read it from a file, which hides the key from others",
    ),
]
PrimaryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--primary",
        envvar=PRIMARY_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the connection string of the primary namespace, or @FILE to read it from a file",
    ),
]
SecondaryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--secondary",
        envvar=SECONDARY_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the connection string of the secondary namespace, or @FILE; its key needs Manage, Send and Listen",
    ),
]
BacklogQueuesOption: TypeAlias = Annotated[
    int, typer.Option("--backlog-queues", min=1, max=10_000, help="the number of backlog queues of the pair")
]
NameOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="the name of the primary in the paths of the backlog queues; by default the name the primary announces",
        metavar="NAME",
    ),
]
EntityOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--entity", help="a queue or topic of the primary, to check that the key may send to it", metavar="PATH"
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="print one JSON object")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNamespace:
    """A namespace that the user named, with its connection string."""

    text: str = field(repr=False)
    """The connection string, which is never printed."""

    endpoint: Endpoint
    entity_path: str | None

    @asynccontextmanager
    async def factory(self) -> AsyncIterator[MessagingFactory]:
        async with MessagingFactory.from_connection_string(self.text, _SETTINGS) as factory:
            yield factory

    @asynccontextmanager
    async def manager(self) -> AsyncIterator[NamespaceManager]:
        async with NamespaceManager.from_connection_string(self.text, _SETTINGS) as manager:
            yield manager

    def faults(self) -> FaultApi:
        return FaultApi(self.text, _SETTINGS)


def read_connections(primary: str, secondary: str, name: str | None) -> tuple[NamedNamespace, NamedNamespace]:
    """Return the namespaces that both options name; end the command if they are invalid or the same."""
    first, second = read_connection(primary, "--primary"), read_connection(secondary, "--secondary")
    if is_same_namespace(first.endpoint, second.endpoint):
        fail(f"--primary and --secondary are both {first.endpoint}; name two different namespaces", USAGE)
    if name is not None:
        _check_name(name)
    return first, second


def _check_name(name: str) -> None:
    try:
        check_path("--name", name)
    except ValueError as error:
        fail(str(error), USAGE)


def read_connection(given: str, option: str = "--connection") -> NamedNamespace:
    """Return the namespace that an option names; end the command if it is invalid."""
    text = read_connection_file(option, Path(given[1:])) if given.startswith("@") else given
    try:
        endpoint, key, entity_path = open_connection_string(text)
    except ValueError as error:
        if os.path.isfile(given):  # Path.is_file would raise for a text that is too long for a path
            fail(f"{option} is the name of a file; to read the connection string from it, write @{given}", USAGE)
        # If the text has a typo, the part that the error quotes may be a piece of the key.
        fail(f"{option} is not a connection string: {_QUOTED.sub('…', one_line(error))}", USAGE)
    if not _HOST.fullmatch(endpoint.host):
        fail(f"{option} is not a connection string: its Endpoint is not a host; separate the parts by ';'", USAGE)
    if key is None:
        fail(f"{option} has neither a key nor a token; add SharedAccessKeyName=…;SharedAccessKey=…", USAGE)
    if endpoint.tls:
        _check_trust()
    return NamedNamespace(text=text, endpoint=endpoint, entity_path=entity_path)


def read_connection_file(option: str, file: Path) -> str:
    """Return the connection string in a file: its only line, or, as in the output of serve, the Endpoint= line."""
    try:
        text = file.read_text("utf-8-sig").strip()
    except UnicodeDecodeError:
        fail(f"{option}: {file} is not a text file in UTF-8", USAGE)
    except OSError as error:
        fail(f"{option}: {file} cannot be read: {error.strerror}", USAGE)
    lines = text.splitlines()
    if len(lines) <= 1:
        return text
    found = [line.strip() for line in lines if line.strip().lower().startswith(_ENDPOINT)]
    if len(found) != 1:
        fail(
            f"{option}: exactly one line of {file} must begin with Endpoint=, got {len(found)} of {len(lines):,} lines",
            USAGE,
        )
    return found[0]


def _check_trust() -> None:
    """End the command if the file of SSL_CERT_FILE is unusable: OpenSSL ignores it, and hides the cause."""
    named = os.environ.get(TRUST_VARIABLE)
    if not named:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(named)
    except ssl.SSLError:
        fail(f"{TRUST_VARIABLE} must name a certificate file in PEM, got {named}", USAGE)
    except OSError as error:
        fail(f"{TRUST_VARIABLE} names {named}, which cannot be read: {error.strerror}", USAGE)


def one_line(error: Exception | str) -> str:
    """Return the text of an error in one line, with advice that applies to the command line."""
    return " ".join(str(error).replace(TRUST_ADVICE, _TRUST).split())


def run(work: Coroutine[Any, Any, T], explain: Callable[[MessagingError], str] = one_line) -> T:
    """Run a coroutine and return its result; end the command with a one-line message on a messaging error."""
    logging.getLogger("pairbus").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except MessagingError as error:
        fail(explain(error), FAILED)
