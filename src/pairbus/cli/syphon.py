"""``pairbus syphon``: brings home what lies in the backlog of a pair, on Spark or in this process."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import Enum
from typing import Annotated

import typer

from pairbus.cli.connection import (
    FAILED,
    PRIMARY_VARIABLE,
    SECONDARY_VARIABLE,
    USAGE,
    NameOption,
    PrimaryOption,
    SecondaryOption,
    read_connections,
)
from pairbus.cli.extra import extra_needed
from pairbus.cli.failure import fail
from pairbus.cli.spark_place import HERE, MasterOption, check_master, exported, read_reference
from pairbus.cli.syphon_screen import SyphonScreen
from pairbus.client.validation import shown
from pairbus.jobs.lines import LineTeller, Teller
from pairbus.jobs.syphon.command import run_syphon
from pairbus.jobs.syphon.in_process_engine import DrainingSyphon
from pairbus.jobs.syphon.order import LONG_POLL, SyphonOrder
from pairbus.jobs.syphon.standalone import Engine
from pairbus.pairing.syphon import SyphonSettings, TimeToLive


class EngineName(Enum):
    """What the work is done on."""

    SPARK = "spark"
    IN_PROCESS = "in-process"


_EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="what the work is done on; in-process needs nothing else")
]
_CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        help="where Spark keeps its place; without one, the backlog itself says what is to be brought home",
        metavar="DIR",
    ),
]
_OnceOption = Annotated[
    bool, typer.Option("--once", help="bring home what is there, and end: with 0, or with 3 if messages still wait")
]
_BacklogQueuesOption = Annotated[
    int | None,
    typer.Option(
        "--backlog-queues",
        min=1,
        max=10_000,
        help="how many backlog queues there are; else all that are found, for which the key needs Manage",
    ),
]
_TimeToLiveOption = Annotated[
    TimeToLive, typer.Option("--time-to-live", help="whether it begins anew at home, or the time in the backlog counts")
]
_LongPollOption = Annotated[
    str, typer.Option("--long-poll", help="how long a receive waits at an empty backlog queue", metavar="TIME")
]
_MaxMessagesOption = Annotated[
    int | None,
    typer.Option(
        "--max-messages",
        min=1,
        help="how many messages a batch holds; in-process: how many of each backlog queue are under way",
        metavar="N",
    ),
]
_JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object a line")]


def syphon(
    primary: PrimaryOption,
    secondary: SecondaryOption,
    engine: _EngineOption = EngineName.SPARK,
    master: MasterOption = HERE,
    checkpoint: _CheckpointOption = None,
    once: _OnceOption = False,
    backlog_queues: _BacklogQueuesOption = None,
    name: NameOption = None,
    time_to_live: _TimeToLiveOption = TimeToLive.FULL,
    long_poll: _LongPollOption = "15m",
    max_messages: _MaxMessagesOption = None,
    as_json: _JsonOption = False,
) -> None:
    """Bring home what lies in the backlog of a pair, until it is stopped, or once.

    A connection string may also be named by env:NAME or file:/path; on a Spark master that is not on this machine it
    has to be, or to come from its variable, and every executor looks there.

    SIGTERM and Ctrl-C stop it after what is under way; a second one stops it at once. Nothing is lost either way.

    Example: pairbus syphon --primary @contoso.txt --secondary @fabrikam.txt --name contoso
    """
    first, first_text = read_reference("--primary", PRIMARY_VARIABLE, primary)
    second, second_text = read_reference("--secondary", SECONDARY_VARIABLE, secondary)
    read_connections(first_text, second_text, name)
    settings = _settings(long_poll, time_to_live, max_messages if engine is EngineName.IN_PROCESS else None)
    if engine is EngineName.SPARK:
        check_master(master, {PRIMARY_VARIABLE: first, SECONDARY_VARIABLE: second}, takes_connect=True)
    elif checkpoint is not None or master != HERE:
        fail("--master and --checkpoint are Spark's: leave them out with --engine in-process", USAGE)
    order = SyphonOrder(
        primary=exported(PRIMARY_VARIABLE, first),
        secondary=exported(SECONDARY_VARIABLE, second),
        name=name,
        backlog_queues=backlog_queues,
        settings=settings,
        once=once,
    )
    is_watched = sys.stdout.isatty() and not as_json
    with SyphonScreen() if is_watched else nullcontext(LineTeller(as_json=as_json)) as teller:
        made = (
            DrainingSyphon
            if engine is EngineName.IN_PROCESS
            else _spark(order, teller, master, checkpoint, max_messages)
        )
        ending = run_syphon(order, made, teller)
    if ending.reason is not None:
        fail(ending.reason, ending.code)


# What the options say.


def _settings(long_poll: str, time_to_live: TimeToLive, max_messages: int | None) -> SyphonSettings:
    try:
        wait = LONG_POLL.read(long_poll.strip())
    except ValueError:
        fail(f"--long-poll is {shown(long_poll)}; it is {LONG_POLL.text}", USAGE)
    usual = SyphonSettings()
    return SyphonSettings(long_poll=wait, time_to_live=time_to_live, max_messages=max_messages or usual.max_messages)


def _spark(order: SyphonOrder, teller: Teller, master: str, checkpoint: str | None, max_messages: int | None) -> Engine:
    with extra_needed("spark", code=FAILED, otherwise="; or say --engine in-process"):
        from pairbus.jobs.syphon.settings import SparkSyphonSettings  # noqa: PLC0415 (Spark is not everywhere)
        from pairbus.jobs.syphon.spark_engine import spark_engine  # noqa: PLC0415
    settings = SparkSyphonSettings(
        master=master,
        checkpoint=checkpoint,
        primary=str(order.primary),
        secondary=str(order.secondary),
        max_messages=max_messages or SparkSyphonSettings().max_messages,
    )
    return spark_engine(settings, teller)
