"""``pairbus drill``: proves that a pair works, with a message of its own."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.connection import (
    FAILED,
    BacklogQueuesOption,
    Connection,
    JsonOption,
    NameOption,
    PrimaryOption,
    SecondaryOption,
    one_line,
    read_connections,
    run,
)
from pairbus.cli.failure import fail
from pairbus.client.errors import MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.backlog_path import backlog_path
from pairbus.pairing import DrillReport, NamespacePair, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import in_groups
from pairbus.pairing.primary_names import find_primary_names

_LONGEST_S: Final = 3_600

_SyphonOption = Annotated[
    bool, typer.Option("--syphon", help="bring the message home from here; else a syphon has to be running somewhere")
]
_TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=1, max=_LONGEST_S, help="how many seconds it may take to come home")
]


def drill(
    primary: PrimaryOption,
    secondary: SecondaryOption,
    backlog_queues: BacklogQueuesOption = 10,
    name: NameOption = None,
    syphon: _SyphonOption = False,
    timeout: _TimeoutOption = 60,
    as_json: JsonOption = False,
) -> None:
    """Prove that a pair works: divert a marked message, have it brought home, and print the times.

    It goes to a queue that is made for it on the primary, so the primary's key needs Manage.

    The number of backlog queues and the name have to be those of the pair.

    A certificate authority that the system does not know is named in the variable SSL_CERT_FILE.

    Example: pairbus drill --primary @contoso.txt --secondary @fabrikam.txt --syphon
    """
    connections = read_connections(primary, secondary, name)
    report = run(_drill(*connections, backlog_queues, name, syphon=syphon, limit=timedelta(seconds=timeout)))
    times = {
        "diverted in": report.diverted_in,
        "brought home in": report.delivered_in,
        "total": report.total,
    }
    if as_json:
        print(json.dumps(_document(report), indent=2))
    elif sys.stdout.isatty():
        _show(times)
    else:
        print(*(f"{what}: {_seconds(took)}" for what, took in times.items()), sep="\n")


async def _drill(
    primary: Connection,
    secondary: Connection,
    backlog_queue_count: int,
    primary_name: str | None,
    *,
    syphon: bool,
    limit: timedelta,
) -> DrillReport:
    async with (
        secondary.factory() as backup,
        primary.factory() as factory,
        secondary.manager() as backup_manager,
        primary.manager() as manager,
    ):
        await _check_primary(manager)
        await _check_backlog(factory, backup_manager, primary_name, backlog_queue_count)
        options = SendAvailabilityPairedNamespaceOptions(
            backup_manager, backup, backlog_queue_count, enable_syphon=syphon, primary_name=primary_name
        )
        try:
            pair = await factory.pair_namespace(options)
        except MessagingError as error:
            fail(f"{primary.endpoint} cannot be paired with {secondary.endpoint}: {one_line(error)}", FAILED)
        return await _run(pair, manager, limit, has_syphon=syphon)


async def _check_primary(manager: NamespaceManager) -> None:
    """Before anything is diverted: a message that cannot come home would stay behind."""
    try:
        await manager.get_namespace_info()
    except UnauthorizedError as error:
        fail(
            f"a drill needs the claim Manage on the primary namespace {manager.endpoint}: {one_line(error.message)}",
            FAILED,
        )
    except MessagingError as error:
        fail(f"a drill needs the primary namespace to be up: {one_line(error)}", FAILED)


async def _check_backlog(factory: MessagingFactory, manager: NamespaceManager, given: str | None, count: int) -> None:
    """A drill makes no backlog queues: those that are missing are not read by anybody's syphon."""
    try:
        name = await (await find_primary_names(factory, manager, given)).choose(manager.queue_exists)
        paths = [backlog_path(name, index) for index in range(count)]
        exist = await in_groups(manager.queue_exists, paths)
    except MessagingError as error:
        fail(f"the secondary namespace does not tell its queues: {one_line(error)}", FAILED)
    missing = [path for path, does_exist in zip(paths, exist, strict=True) if not does_exist]
    if missing:
        fail(
            f"the secondary {manager.endpoint} has no '{missing[0]}' ({len(missing)} of {count} are missing); "
            "--name and --backlog-queues have to be those of the pair, and --primary and --secondary must not be "
            "swapped; pairbus pair makes what is missing",
            FAILED,
        )


async def _run(pair: NamespacePair, manager: NamespaceManager, limit: timedelta, *, has_syphon: bool) -> DrillReport:
    try:
        return await pair.drill(manager, limit)
    except MessagingTimeoutError as error:
        advice = "" if has_syphon else " start one, or say --syphon"
        fail(f"{one_line(error)}{advice}", FAILED)
    except MessagingError as error:
        fail(f"the drill has failed: {one_line(error)}", FAILED)


# What it says.


def _seconds(took: timedelta) -> str:
    return f"{took.total_seconds():.3f} s"


def _show(times: dict[str, timedelta]) -> None:
    console = Console(highlight=False)
    for what, took in times.items():
        console.print(f"{what:>15}  ", style="dim", end="")
        console.print(_seconds(took), style="bold green")


def _document(report: DrillReport) -> dict[str, str | float]:
    return {
        "path": report.path,
        "diverted_in_s": report.diverted_in.total_seconds(),
        "delivered_in_s": report.delivered_in.total_seconds(),
        "total_s": report.total.total_seconds(),
    }
