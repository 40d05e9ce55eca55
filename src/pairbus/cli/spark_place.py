"""Where Spark runs, and how its processes find a connection string: no key gets into a plan, or onto a disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from pairbus.cli.connection import USAGE, read_connection_file
from pairbus.cli.failure import fail
from pairbus.client.validation import shown
from pairbus.spark.connection_reference import ConnectionReference, Place
from pairbus.spark.errors import ConnectionReferenceError

HERE: Final = "local[*]"
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
_CONNECT: Final = "sc://"

MasterOption: TypeAlias = Annotated[str, typer.Option("--master", help="where Spark runs", metavar="MASTER")]


def read_reference(option: str, variable: str, given: str) -> tuple[ConnectionReference, str]:
    """Where the connection string is, with what is there; one that is in its variable already is left there."""
    if given.startswith("@"):
        return _read_named(option, Path(given[1:])), given
    if given.lower().startswith((Place.VARIABLE.value, Place.FILE.value)):
        try:
            found = ConnectionReference.parse(given)
            return found, found.resolve()
        except ConnectionReferenceError as error:
            fail(str(error).replace("the option 'connection'", option), USAGE)
    if os.environ.get(variable) == given:
        return ConnectionReference(place=Place.VARIABLE, text=variable), given
    return ConnectionReference(place=Place.OPTION, text=given), given


def _read_named(option: str, file: Path) -> ConnectionReference:
    """A file, which Spark reads for itself if the connection string is all that is in it."""
    text = read_connection_file(option, file)
    if file.read_text("utf-8-sig").strip() != text:
        return ConnectionReference(place=Place.OPTION, text=text)
    return ConnectionReference(place=Place.FILE, text=str(file.absolute()))


def exported(variable: str, reference: ConnectionReference) -> ConnectionReference:
    """Processes that Spark starts on this machine have our environment."""
    if reference.place is not Place.OPTION:
        return reference
    os.environ[variable] = reference.text
    return ConnectionReference(place=Place.VARIABLE, text=variable)


def check_master(master: str, references: Mapping[str, ConnectionReference], *, takes_connect: bool) -> None:
    """End the command if nothing can be done there; ``references`` are by the variables that they may come from."""
    if master.startswith(_CONNECT) and not takes_connect:
        fail("--master is a Spark Connect server, which cannot tell of batches here; run it on that machine", USAGE)
    if not master.startswith((*_MASTERS, _CONNECT)):
        known = f"local[N], {HERE}, spark://…, yarn or k8s://…" + (f", or {_CONNECT}…" if takes_connect else "")
        fail(f"--master is {shown(master)}; it is {known}", USAGE)
    if not master.startswith("local") and any(one.place is Place.OPTION for one in references.values()):
        fail(
            f"the executors of {master} have to find connection strings for themselves: say env:NAME or file:/path,"
            f" or set {' and '.join(references)} here and there",
            USAGE,
        )
