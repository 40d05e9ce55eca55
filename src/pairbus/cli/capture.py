"""``pairbus capture``: copy the messages of queues and subscriptions to Parquet files, on Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.arguments import HERE, ConfOption, MasterOption, PackagesOption
from pairbus.cli.connection import read_connection
from pairbus.cli.failure import FAILED, USAGE, extra_needed, fail
from pairbus.cli.spark_place import check_master, exported, read_reference
from pairbus.dialect.paths import split_entity_path
from pairbus.jobs.capture.config import CaptureConfig, WindowLimits
from pairbus.jobs.lines import CommandResult, LineReporter, ProgressReporter, ReportLine
from pairbus.spark.added_settings import scheme_of
from pairbus.spark.connections import ConnectionReference
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
        help="the connection string of the namespace, or @FILE to read it from a file; its key needs Listen, and Manage"
        " for patterns",
    ),
]
_EntityOption = Annotated[
    list[str],
    typer.Option(
        "--entity",
        metavar="PATH",
        show_default=False,
        help="a queue, TOPIC/Subscriptions/NAME, or a pattern such as 'orders-*'; may be repeated",
    ),
]
_ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TARGET",
        show_default=False,
        help="the directory to write the files to, or a URL such as s3a://bucket/orders, to write them with Spark",
    ),
]
_WindowOption = Annotated[
    list[str],
    typer.Option(
        "--window",
        metavar="TIME|SIZE",
        help="the limit at which a file is closed: a time (5m), a size (64MB), or both, whichever comes first",
    ),
]
_CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="the checkpoint directory of Spark; by default in the directory of the files",
    ),
]
_OnceOption = Annotated[
    bool,
    typer.Option("--once", help="capture the messages that are there and exit: with 0, or with 3 if messages remain"),
]
_KeepOption = Annotated[bool, typer.Option("--keep", help="peek at the messages and remove none")]

_MaxMessagesOption = Annotated[
    int,
    typer.Option(
        "--max-messages", min=1, max=10_000_000, help="the maximum number of messages in a batch", metavar="N"
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]


def capture(
    source: _SourceOption,
    entity: _EntityOption,
    to: _ToOption,
    window: _WindowOption = ["5m", "64MB"],  # noqa: B006 (Typer takes it as it is)
    checkpoint: _CheckpointOption = None,
    once: _OnceOption = False,
    keep: _KeepOption = False,
    master: MasterOption = HERE,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    max_messages: _MaxMessagesOption = 40_000,
    as_json: _JsonOption = False,
) -> None:
    """Copy the messages of queues and subscriptions to Parquet files, each message once, until stopped.

    Messages are removed from their queue once they are on disk, unless --keep is given. They appear in a file when
    their window is closed: by time, by size, or when the command is stopped.

    SIGTERM and Ctrl-C stop it after the current batch; a second one stops it at once. Started again with the same
    directory, it resumes where it stopped, even after a crash.

    Example: pairbus capture --source @contoso.txt --entity orders --to ./orders --window 5m --window 64MB
    """
    reference, text = read_reference("--source", SOURCE_VARIABLE, source)
    read_connection(text, "--source")
    check_master(master, {SOURCE_VARIABLE: reference}, takes_connect=False)
    reference = exported(SOURCE_VARIABLE, reference)
    is_url = scheme_of(to) is not None
    config = CaptureConfig(
        source=reference,
        entities=_entities(entity, reference),
        to=Path() if is_url else _directory(to),
        url=to if is_url else None,
        limits=_limits(window),
        checkpoint=checkpoint,
        master=master,
        max_messages=max_messages,
        once=once,
        keep=keep,
    )
    is_watched = sys.stdout.isatty() and not as_json
    result = _run(config, _Screen() if is_watched else LineReporter(as_json=as_json))
    if result.reason is not None:
        fail(result.reason, result.code)
    raise typer.Exit(result.code)


class _Screen(LineReporter):
    """A reporter that prints sentences to a terminal."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self._console = Console(highlight=False, markup=False)  # a path may have brackets

    def report(self, line: ReportLine) -> None:
        self._console.print(line.text, style="yellow" if line.is_warning else None, soft_wrap=True)


def _run(config: CaptureConfig, reporter: ProgressReporter) -> CommandResult:
    with extra_needed("spark", code=FAILED):
        from pairbus.jobs.capture.command import run_capture  # noqa: PLC0415 (Spark is optional)
    return run_capture(config, reporter)


# Options.


def _entities(given: list[str], reference: ConnectionReference) -> tuple[str, ...]:
    try:
        found = SourceOptions.from_options({"connection": str(reference), "entities": ",".join(given)})
    except SparkOptionError as error:
        fail(str(error).replace("the option 'entities'", "--entity"), USAGE)
    paths = (split_entity_path(name) for name in found.entities)
    return tuple(dict.fromkeys(str(path) for path in paths))


def _directory(given: str) -> Path:
    to = Path(given)
    if to.exists() and not to.is_dir():
        fail(f"--to: {to} is not a directory; name a directory", USAGE)
    return to


def _limits(window: list[str]) -> WindowLimits:
    try:
        return WindowLimits.parse(window)
    except ValueError as error:
        fail(f"--window: {error}", USAGE)
