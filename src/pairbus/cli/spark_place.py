"""The Spark master, and references to connection strings that keep keys out of query plans and off disks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pairbus.cli.arguments import HERE
from pairbus.cli.connection import read_connection_file
from pairbus.cli.failure import USAGE, fail
from pairbus.client.validation import shown
from pairbus.spark.connections import ConnectionReference, ReferenceKind
from pairbus.spark.errors import ConnectionReferenceError

_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
_CONNECT: Final = "sc://"


def read_reference(option: str, variable: str, given: str) -> tuple[ConnectionReference, str]:
    """Return a reference to the connection string, and its text; one that is in its variable stays there."""
    if given.startswith("@"):
        return _read_named(option, Path(given[1:])), given
    if given.lower().startswith((ReferenceKind.VARIABLE.value, ReferenceKind.FILE.value)):
        try:
            found = ConnectionReference.parse(given)
            return found, found.resolve()
        except ConnectionReferenceError as error:
            fail(str(error).replace("the option 'connection'", option), USAGE)
    if os.environ.get(variable) == given:
        return ConnectionReference(place=ReferenceKind.VARIABLE, text=variable), given
    return ConnectionReference(place=ReferenceKind.OPTION, text=given), given


def _read_named(option: str, file: Path) -> ConnectionReference:
    """Return a reference to the file if Spark can read it, because it holds nothing else; else to the text."""
    text = read_connection_file(option, file)
    if file.read_text("utf-8-sig").strip() != text:
        return ConnectionReference(place=ReferenceKind.OPTION, text=text)
    return ConnectionReference(place=ReferenceKind.FILE, text=str(file.absolute()))


def exported(variable: str, reference: ConnectionReference) -> ConnectionReference:
    """Move a connection string into its variable: processes that Spark starts on this machine inherit it."""
    if reference.place is not ReferenceKind.OPTION:
        return reference
    os.environ[variable] = reference.text
    return ConnectionReference(place=ReferenceKind.VARIABLE, text=variable)


def check_master(master: str, references: Mapping[str, ConnectionReference], *, takes_connect: bool) -> None:
    """End the command if the job cannot run on this master; ``references`` are keyed by their variables."""
    if master.startswith(_CONNECT) and not takes_connect:
        fail(
            "--master is a Spark Connect server, which cannot report batches to this process; run it on that machine",
            USAGE,
        )
    if not master.startswith((*_MASTERS, _CONNECT)):
        known = f"local[N], {HERE}, spark://…, yarn or k8s://…" + (f", or {_CONNECT}…" if takes_connect else "")
        fail(f"--master must be {known}, got {shown(master)}", USAGE)
    if not master.startswith("local") and any(one.place is ReferenceKind.OPTION for one in references.values()):
        fail(
            f"the executors of {master} must read the connection strings themselves: use env:NAME or file:/path,"
            f" or set {' and '.join(references)} here and on the executors",
            USAGE,
        )
