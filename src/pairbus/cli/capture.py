"""``pairbus capture``: copies the messages of queues and subscriptions to Parquet files, on Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.connection import FAILED, USAGE, read_connection
from pairbus.cli.extra import extra_needed
from pairbus.cli.failure import fail
from pairbus.cli.spark_place import HERE, MasterOption, check_master, exported, read_reference
from pairbus.dialect.entity_path import split_entity_path
from pairbus.jobs.capture.limits import WindowLimits
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.ending import Ending
from pairbus.jobs.lines import Line, LineTeller, Teller
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.options import SourceOptions

SOURCE_VARIABLE: Final = "PAIRBUS_SOURCE"


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
    master: MasterOption = HERE,
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
    reference, text = read_reference("--source", SOURCE_VARIABLE, source)
    read_connection(text, "--source")
    check_master(master, {SOURCE_VARIABLE: reference}, takes_connect=False)
    reference = exported(SOURCE_VARIABLE, reference)
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
    with extra_needed("spark", code=FAILED):
        from pairbus.jobs.capture.command import run_capture  # noqa: PLC0415 (Spark is not everywhere)
    return run_capture(order, teller)


# What the options say.


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
