"""Namespaces, as a person names them: by option, by variable, or in a file."""

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

from pairbus.cli.failure import fail
from pairbus.client.connection_string import open_connection_string
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.retry import RetryPolicy
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.unreachable import TRUST_ADVICE
from pairbus.client.validation import check_path
from pairbus.pairing.addresses import is_same_namespace

T = TypeVar("T")

FAILED: Final = 1
USAGE: Final = 2
STOPPED: Final = 130
"""By Ctrl-C, as shells have it."""

CONNECTION_VARIABLE: Final = "PAIRBUS_CONNECTION"
PRIMARY_VARIABLE: Final = "PAIRBUS_PRIMARY"
SECONDARY_VARIABLE: Final = "PAIRBUS_SECONDARY"

_SETTINGS: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=30),
    attempt_timeout=timedelta(seconds=5),
    retry_policy=RetryPolicy(maximum_retries=3),
)
"""Somebody waits for the command: what does not work is told soon."""

TRUST_VARIABLE: Final = "SSL_CERT_FILE"
"""Names the certificate authority to trust. OpenSSL reads it, and says nothing of a file that is not there."""

_TRUST: Final = (
    f"set {TRUST_VARIABLE} to the file of the authority that has signed it; of a namespace of pairbus that is"
    " tls/ca.pem in its data directory, and pairbus trust --data DIR shows where that is"
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
        help="the connection string of the namespace; @FILE for one in a file, where others do not see the key",
    ),
]
PrimaryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--primary",
        envvar=PRIMARY_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the connection string of the namespace that the application uses; @FILE for one in a file",
    ),
]
SecondaryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--secondary",
        envvar=SECONDARY_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the same of the namespace that has the backlog queues; its key needs Manage, Send and Listen",
    ),
]
BacklogQueuesOption: TypeAlias = Annotated[
    int, typer.Option("--backlog-queues", min=1, max=10_000, help="how many backlog queues the pair has")
]
NameOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--name", help="what the backlog queues are named after; else the name the primary announces", metavar="NAME"
    ),
]
EntityOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--entity", help="a queue or topic of the primary, to see whether the key may send there", metavar="PATH"
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="print one JSON object")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A namespace that somebody has named."""

    text: str = field(repr=False)
    """The connection string, which is not shown to anyone."""

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


def read_connections(primary: str, secondary: str, name: str | None) -> tuple[Connection, Connection]:
    """What the options of both say; ends the command if they are no good."""
    first, second = read_connection(primary, "--primary"), read_connection(secondary, "--secondary")
    if is_same_namespace(first.endpoint, second.endpoint):
        fail(f"--primary and --secondary are both {first.endpoint}; a pair has two namespaces", USAGE)
    if name is not None:
        _check_name(name)
    return first, second


def _check_name(name: str) -> None:
    try:
        check_path("--name", name)
    except ValueError as error:
        fail(str(error), USAGE)


def read_connection(given: str, option: str = "--connection") -> Connection:
    """What an option says; ends the command if it is no good."""
    text = read_connection_file(option, Path(given[1:])) if given.startswith("@") else given
    try:
        endpoint, key, entity_path = open_connection_string(text)
    except ValueError as error:
        if os.path.isfile(given):  # of a Path, what is too long for one would be an error
            fail(f"{option} is the name of a file: to have it read, write @{given}", USAGE)
        # What the error quotes may be a piece of the key, in a text that has a slip of the pen somewhere.
        fail(f"{option} is no connection string: {_QUOTED.sub('…', one_line(error))}", USAGE)
    if not _HOST.fullmatch(endpoint.host):
        fail(f"{option} is no connection string: its Endpoint is no host; are the parts divided by ';'?", USAGE)
    if key is None:
        fail(f"{option} has neither a key nor a token: SharedAccessKeyName=…;SharedAccessKey=…", USAGE)
    if endpoint.tls:
        _check_trust()
    return Connection(text=text, endpoint=endpoint, entity_path=entity_path)


def read_connection_file(option: str, file: Path) -> str:
    """The connection string in a file: all of it, or, as in what serve prints, the line that begins like one."""
    try:
        text = file.read_text("utf-8-sig").strip()
    except UnicodeDecodeError:
        fail(f"{option}: {file} is no text", USAGE)
    except OSError as error:
        fail(f"{option}: {file} cannot be read: {error.strerror}", USAGE)
    lines = text.splitlines()
    if len(lines) <= 1:
        return text
    found = [line.strip() for line in lines if line.strip().lower().startswith(_ENDPOINT)]
    if len(found) != 1:
        many = f"{len(found)} lines begin" if found else "no line begins"
        fail(f"{option}: {file} has {len(lines):,} lines, of which one should begin with Endpoint=; {many} so", USAGE)
    return found[0]


def _check_trust() -> None:
    """OpenSSL would go on without what the variable names, and the namespace would be the one to blame."""
    named = os.environ.get(TRUST_VARIABLE)
    if not named:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(named)
    except ssl.SSLError:
        fail(f"{TRUST_VARIABLE} is {named}, and that is no certificate in PEM", USAGE)
    except OSError as error:
        fail(f"{TRUST_VARIABLE} is {named}, and that cannot be read: {error.strerror}", USAGE)


def one_line(error: Exception | str) -> str:
    """What went wrong, with advice that fits whoever types commands."""
    return " ".join(str(error).replace(TRUST_ADVICE, _TRUST).split())


def run(work: Coroutine[Any, Any, T], explain: Callable[[MessagingError], str] = one_line) -> T:
    """Do it to its end; what goes wrong is told in one line, and not as it happens."""
    logging.getLogger("pairbus").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except MessagingError as error:
        fail(explain(error), FAILED)
