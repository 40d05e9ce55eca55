"""``pairbus diagnostics``: print a diagnostic bundle of a running server, or of a data directory."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

import typer

from pairbus.cli.connection import CONNECTION_VARIABLE, NamedNamespace, read_connection, run
from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.client.endpoint import connect_by
from pairbus.client.errors import EntityNotFoundError, InvalidRequestError
from pairbus.client.management.http import HttpRequest, exchange, refusal_of
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import JWT, token_of
from pairbus.server.supervision.diagnostics import versions
from pairbus.store.bundles import BundleDirectory
from pairbus.store.directory import FORMAT_FILE

_TARGET: Final = "/$diagnostics"
_TIMEOUT_S: Final = 30.0


def diagnostics(
    context: typer.Context,
    connection: Annotated[
        str | None,
        typer.Option(
            envvar=CONNECTION_VARIABLE,
            metavar="CONNECTION",
            show_default=False,
            help="the connection string of a running server, or @FILE to read it from a file; its key needs Manage",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="the data directory of a server that runs, does not answer, or is stopped; instead of a connection",
        ),
    ] = None,
) -> None:
    """Print a diagnostic bundle as JSON: stacks, last operations, components, facets, store, versions and settings.

    With a connection string, the server collects a bundle now, and keeps it. With a data directory, the command prints
    the bundles that the server has kept there, with the sizes of its files; it changes nothing. A bundle holds no keys,
    no tokens and nothing of messages.

    Example: pairbus diagnostics --connection @contoso.txt > bundle.json

    Example: pairbus diagnostics --data ./contoso > bundle.json
    """
    source = context.get_parameter_source("connection")
    if data is not None and source is not None and source.name == "COMMANDLINE":
        fail("--connection and --data exclude each other: name a running server, or a data directory", USAGE)
    if data is not None:
        content = _of_directory(data)
    elif connection is not None:
        content = run(_of_server(read_connection(connection)))
    else:
        fail("name a running server with --connection, or a data directory with --data", USAGE)
    sys.stdout.write(content)


async def _of_server(namespace: NamedNamespace) -> str:
    endpoint, provider, settings = connect_by(namespace.text, MessagingFactorySettings())
    headers = {"User-Agent": "pairbus"}
    if provider is not None:
        token = await token_of(provider, endpoint.uri(""))
        headers["Authorization"] = f"Bearer {token.text}" if token.type == JWT else token.text
    request = HttpRequest(method="POST", target=_TARGET, headers=headers)
    tls = settings.tls_context() if endpoint.tls else None
    response = await exchange(endpoint, request, tls=tls, timeout_s=_TIMEOUT_S)
    if response.status == HTTPStatus.CREATED:
        return response.body.decode() + "\n"
    error = refusal_of(response, entity=None, creates=False)
    if isinstance(error, EntityNotFoundError) or response.status == HTTPStatus.METHOD_NOT_ALLOWED:
        raise InvalidRequestError(f"{endpoint} is not a pairbus server that collects diagnostics")
    raise error


def _of_directory(data: Path) -> str:
    """Return what a data directory shows. Nothing is locked: its server may be running, or hang."""
    try:
        files = {str(path.relative_to(data)): path.stat().st_size for path in sorted(data.rglob("*")) if path.is_file()}
        layout = (data / FORMAT_FILE).read_text("utf-8")
    except OSError as error:
        advice = "name the directory that the server was started with (pairbus serve --data)"
        fail(f"{data} is not a readable data directory of pairbus: {error.strerror}; {advice}", FAILED)
    directory = BundleDirectory(data)
    bundles = {info.name: json.loads(directory.read(info.name) or b"null") for info in directory.list()}
    bundle = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "versions": versions(),
        "data": str(data.resolve()),
        "format": layout.strip(),
        "files": files,
        "bundles": bundles,
    }
    return json.dumps(bundle, indent=1, ensure_ascii=False) + "\n"
