"""``pairbus syphon``: deliver the backlog of a pair to the primary, on Spark or in this process."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import Enum
from types import TracebackType
from typing import Annotated, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pairbus.cli.arguments import HERE, ConfOption, MasterOption, PackagesOption
from pairbus.cli.connection import (
    PRIMARY_VARIABLE,
    SECONDARY_VARIABLE,
    NameOption,
    PrimaryOption,
    SecondaryOption,
    read_connections,
)
from pairbus.cli.failure import FAILED, USAGE, extra_needed, fail
from pairbus.cli.spark_place import check_master, exported, read_reference
from pairbus.client.validation import shown
from pairbus.jobs.lines import LineReporter, Progress, ProgressReporter, ReportLine
from pairbus.jobs.syphon.settings import LONG_POLL, SyphonConfig
from pairbus.jobs.syphon.standalone import DrainingSyphon, Engine, run_syphon
from pairbus.pairing.syphon import SyphonSettings, TimeToLive

_UNKNOWN: Final = "reading the backlog"
_EMPTY: Final = "backlog empty, waiting for messages"


class SyphonScreen:
    """A progress bar if the depth of the backlog is known, else a spinner."""

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console or Console(highlight=False, markup=False),  # a path may have brackets
            transient=True,
        )
        self._task: TaskID = self._bars.add_task(_UNKNOWN, total=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()

    def rest(self) -> None:
        """Stop drawing. Can be called more than once."""
        self._bars.stop()

    def report(self, line: ReportLine) -> None:
        self._bars.console.print(line.text, style="yellow" if line.is_warning else None, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        done, depth = progress.delivered, progress.depth
        waiting = "" if depth is None else f", {depth:,} in the backlog"
        self._bars.update(
            self._task,
            description=f"{done:,} delivered{waiting}" if done or depth != 0 else _EMPTY,
            completed=done,
            total=done + depth if depth is not None and done + depth else None,
        )


class EngineName(Enum):
    """The engine of a syphon."""

    SPARK = "spark"
    IN_PROCESS = "in-process"


_EngineOption = Annotated[EngineName, typer.Option("--engine", help="the engine; in-process does not need Spark")]
_CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="the checkpoint directory of Spark; without one, the syphon starts from the current backlog",
        metavar="DIR",
    ),
]
_OnceOption = Annotated[
    bool, typer.Option("--once", help="deliver the current backlog and exit: with 0, or with 3 if messages remain")
]
_BacklogQueuesOption = Annotated[
    int | None,
    typer.Option(
        "--backlog-queues",
        min=1,
        max=10_000,
        help="the number of backlog queues; by default all that exist, which requires a key with Manage",
    ),
]
_TimeToLiveOption = Annotated[
    TimeToLive,
    typer.Option(
        "--time-to-live", help="the time to live of delivered messages: in full, or what is left after the backlog"
    ),
]
_LongPollOption = Annotated[
    str, typer.Option("--long-poll", help="the time that a receive waits at an empty backlog queue", metavar="TIME")
]
_MaxMessagesOption = Annotated[
    int | None,
    typer.Option(
        "--max-messages",
        min=1,
        help="the maximum number of messages in a batch; in-process: in flight for each backlog queue",
        metavar="N",
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object per line")]


def syphon(
    primary: PrimaryOption,
    secondary: SecondaryOption,
    engine: _EngineOption = EngineName.SPARK,
    master: MasterOption = HERE,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    checkpoint: _CheckpointOption = None,
    once: _OnceOption = False,
    backlog_queues: _BacklogQueuesOption = None,
    name: NameOption = None,
    time_to_live: _TimeToLiveOption = TimeToLive.FULL,
    long_poll: _LongPollOption = "15m",
    max_messages: _MaxMessagesOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Deliver the backlog of a pair to the primary, until stopped, or once.

    A connection string can also be given as env:NAME or file:/path. On a remote Spark master it must be given so, or in
    its variable, and every executor reads it from there.

    SIGTERM and Ctrl-C stop it after the current batch; a second one stops it at once. No message is lost either way.

    Example: pairbus syphon --primary @contoso.txt --secondary @fabrikam.txt --name contoso
    """
    first, first_text = read_reference("--primary", PRIMARY_VARIABLE, primary)
    second, second_text = read_reference("--secondary", SECONDARY_VARIABLE, secondary)
    read_connections(first_text, second_text, name)
    settings = _settings(long_poll, time_to_live, max_messages if engine is EngineName.IN_PROCESS else None)
    if engine is EngineName.SPARK:
        check_master(master, {PRIMARY_VARIABLE: first, SECONDARY_VARIABLE: second}, takes_connect=True)
    elif checkpoint is not None or master != HERE:
        fail("--master and --checkpoint apply to Spark only: remove them or --engine in-process", USAGE)
    config = SyphonConfig(
        primary=exported(PRIMARY_VARIABLE, first),
        secondary=exported(SECONDARY_VARIABLE, second),
        name=name,
        backlog_queues=backlog_queues,
        settings=settings,
        once=once,
    )
    is_watched = sys.stdout.isatty() and not as_json
    with SyphonScreen() if is_watched else nullcontext(LineReporter(as_json=as_json)) as reporter:
        chosen = (
            DrainingSyphon
            if engine is EngineName.IN_PROCESS
            else _spark(config, reporter, master, checkpoint, max_messages)
        )
        result = run_syphon(config, chosen, reporter)
    if result.reason is not None:
        fail(result.reason, result.code)


# Options.


def _settings(long_poll: str, time_to_live: TimeToLive, max_messages: int | None) -> SyphonSettings:
    try:
        wait = LONG_POLL.read(long_poll.strip())
    except ValueError:
        fail(f"--long-poll must be {LONG_POLL.text}, got {shown(long_poll)}", USAGE)
    defaults = SyphonSettings()
    return SyphonSettings(long_poll=wait, time_to_live=time_to_live, max_messages=max_messages or defaults.max_messages)


def _spark(
    config: SyphonConfig, reporter: ProgressReporter, master: str, checkpoint: str | None, max_messages: int | None
) -> Engine:
    with extra_needed("spark", code=FAILED, otherwise="; or use --engine in-process"):
        from pairbus.jobs.syphon.settings import SparkSyphonSettings  # noqa: PLC0415 (Spark is optional)
        from pairbus.jobs.syphon.spark_syphon import spark_engine  # noqa: PLC0415
    settings = SparkSyphonSettings(
        master=master,
        checkpoint=checkpoint,
        primary=str(config.primary),
        secondary=str(config.secondary),
        max_messages=max_messages or SparkSyphonSettings().max_messages,
    )
    return spark_engine(settings, reporter)
