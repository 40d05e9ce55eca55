"""``pairbus capture``: copies the messages of queues and subscriptions to Parquet files, on Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.connection import FAILED, USAGE
from pairbus.cli.serve import fail
from pairbus.client.validation import shown
from pairbus.dialect.entity_path import split_entity_path
from pairbus.jobs.capture.limits import WindowLimits
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.syphon.command import Ending
from pairbus.jobs.syphon.lines import Line, LineTeller, Teller
from pairbus.spark.connection_reference import ConnectionReference, Place
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.options import SourceOptions

SOURCE_VARIABLE: Final = "PAIRBUS_SOURCE"

_HERE: Final = "local[*]"
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")

_SourceOption = Annotated[
    str,
    typer.Option(
        "--source",
        envvar=SOURCE_VARIABLE,
        metavar="CONNECTION",
        show_default=False,
        help="the connection string of the namespace; @FILE for one in a file. Its key needs Listen, and Manage for"
        " patterns",
    ),
]
_EntityOption = Annotated[
    list[str],
    typer.Option(
        "--entity",
        metavar="PATH",
        show_default=False,
        help="a queue, TOPIC/Subscriptions/NAME, or a pattern such as 'orders-*'; may be given several times",
    ),
]
_ToOption = Annotated[
    Path, typer.Option("--to", metavar="DIR", show_default=False, help="the directory that the files are written into")
]
_WindowOption = Annotated[
    list[str],
    typer.Option(
        "--window",
        metavar="TIME|SIZE",
        help="when a file is closed: after a time (5m), at a size (64MB), or both, whichever comes first",
    ),
]
_CheckpointOption = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="where Spark keeps its place; else in the directory of the files"),
]
_OnceOption = Annotated[
    bool, typer.Option("--once", help="capture what is there, and end: with 0, or with 3 if messages still wait")
]
_KeepOption = Annotated[bool, typer.Option("--keep", help="look at the messages, and remove none")]
_MasterOption = Annotated[str, typer.Option("--master", help="where Spark runs", metavar="MASTER")]
_MaxMessagesOption = Annotated[
    int, typer.Option("--max-messages", min=1, max=10_000_000, help="how many messages a batch takes", metavar="N")
]
_JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object a line")]


def capture(
    source: _SourceOption,
    entity: _EntityOption,
    to: _ToOption,
    window: _WindowOption = ["5m", "64MB"],  # noqa: B006 (Typer takes it as it is)
    checkpoint: _CheckpointOption = None,
    once: _OnceOption = False,
    keep: _KeepOption = False,
    master: _MasterOption = _HERE,
    max_messages: _MaxMessagesOption = 40_000,
    as_json: _JsonOption = False,
) -> None:
    """Copy the messages of queues and subscriptions to Parquet files, each message once, until it is stopped.

    Messages are removed from their queue when they are on disk, unless --keep is given. They are in a file when their
    window is closed: by time or by size, or when the command is stopped.

    SIGTERM and Ctrl-C stop it after what is under way; a second one stops it at once. Started again with the same
    directory it goes on where it was, however it has ended.

    Example: pairbus capture --source @contoso.txt --entity orders --to ./orders --window 5m --window 64MB
    """
    _check_master(master)
    reference = _reference(source, master)
    order = CaptureOrder(
        source=reference,
        entities=_entities(entity, reference),
        to=_directory(to),
        limits=_limits(window),
        checkpoint=checkpoint,
        master=master,
        max_messages=max_messages,
        once=once,
        keep=keep,
    )
    is_watched = sys.stdout.isatty() and not as_json
    ending = _run(order, _Screen() if is_watched else LineTeller(as_json=as_json))
    if ending.reason is not None:
        fail(ending.reason, ending.code)
    raise typer.Exit(ending.code)


class _Screen(LineTeller):
    """Writes sentences, for a person."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self._console = Console(highlight=False, markup=False)  # a path may have brackets

    def tell(self, line: Line) -> None:
        self._console.print(line.text, style="yellow" if line.is_warning else None, soft_wrap=True)


def _run(order: CaptureOrder, teller: Teller) -> Ending:
    try:
        from pairbus.jobs.capture.command import run_capture  # noqa: PLC0415 (Spark is not everywhere)
    except ImportError as error:
        if (error.name or "").startswith("pairbus"):
            raise  # that would be our own mistake
        fail(f"{error}; install pairbus with its extra, 'pairbus[spark]'", FAILED)
    return run_capture(order, teller)


# What the options say.


def _check_master(master: str) -> None:
    if master.startswith("sc://"):
        fail("--master is a Spark Connect server, which cannot tell of batches here; run it on that machine", USAGE)
    if not master.startswith(_MASTERS):
        fail(f"--master is {shown(master)}; it is local[N], local[*], spark://…, yarn or k8s://…", USAGE)


def _reference(given: str, master: str) -> ConnectionReference:
    """Where the connection string is, for processes that Spark starts: so no key gets into a plan, or onto a disk."""
    try:
        found = ConnectionReference.parse(f"file:{Path(given[1:]).absolute()}" if given.startswith("@") else given)
        found.resolve()
    except SparkOptionError as error:
        fail(str(error).replace("the option 'connection'", "--source"), USAGE)
    if found.place is not Place.OPTION:
        return found
    if os.environ.get(SOURCE_VARIABLE) != given:
        if not master.startswith("local"):
            fail(
                f"the executors of {master} have to find the connection string for themselves: say env:NAME or"
                f" file:/path, or set {SOURCE_VARIABLE} here and there",
                USAGE,
            )
        os.environ[SOURCE_VARIABLE] = given
    return ConnectionReference(place=Place.VARIABLE, text=SOURCE_VARIABLE)


def _entities(given: list[str], reference: ConnectionReference) -> tuple[str, ...]:
    try:
        found = SourceOptions.from_options({"connection": str(reference), "entities": ",".join(given)})
    except SparkOptionError as error:
        fail(str(error).replace("the option 'entities'", "--entity"), USAGE)
    paths = (split_entity_path(name) for name in found.entities)
    return tuple(dict.fromkeys(str(path) for path in paths))


def _directory(to: Path) -> Path:
    if to.exists() and not to.is_dir():
        fail(f"--to: {to} is no directory", USAGE)
    return to


def _limits(window: list[str]) -> WindowLimits:
    try:
        return WindowLimits.parse(window)
    except ValueError as error:
        fail(f"--window: {error}", USAGE)
