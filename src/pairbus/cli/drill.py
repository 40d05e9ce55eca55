"""``pairbus drill``: prove with a marked message that a pair works."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.connection import (
    BacklogQueuesOption,
    JsonOption,
    NamedNamespace,
    NameOption,
    PrimaryOption,
    SecondaryOption,
    one_line,
    read_connections,
    run,
)
from pairbus.cli.failure import FAILED, USAGE, fail
from pairbus.client.errors import EntityNotFoundError, MessagingError, MessagingTimeoutError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.faults import FaultApi
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import shown
from pairbus.dialect.paths import backlog_path
from pairbus.fault_kinds import FaultKind, FaultRequest
from pairbus.pairing import DrillReport, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import in_groups
from pairbus.pairing.primary_names import find_primary_names

_LONGEST_S: Final = 3_600
_DEFAULT_INTERVAL: Final = timedelta(minutes=1)
_LONGEST_OUTAGE: Final = timedelta(minutes=1)
_PING_INTERVAL: Final = timedelta(seconds=5)
"""The ping interval of a drill: the default of a minute is as long as a drill waits."""

OUTAGES: Final = (FaultKind.CANNOT_SEND, FaultKind.CANNOT_CONNECT)
"""The faults that a pair fails over for."""

_BUSY: Final = "sends get server busy or go to the side buffer, and a pair does not fail over for that"
NO_OUTAGES: Final[Mapping[FaultKind, str]] = {
    FaultKind.CANNOT_RECEIVE: "sends still work",
    FaultKind.CANNOT_MANAGE: "sends still work",
    FaultKind.SERVER_BUSY: "clients wait and try again, and a pair does not fail over for that",
    FaultKind.SLOW: "sends are confirmed late, but they are",
    FaultKind.STORAGE_ERROR: _BUSY,
    FaultKind.STORAGE_STALL: _BUSY,
    FaultKind.STORAGE_FULL: _BUSY,
    FaultKind.COMPONENT_CRASH: "the server restarts the component within seconds, and sends are retried",
    FaultKind.QUARANTINE: "sends still work, and a message is lost",
}
"""The other faults, and why a pair does not fail over for them."""

_SyphonOption = Annotated[
    bool, typer.Option("--syphon", help="run a syphon in this process; without it, one must be running elsewhere")
]
_TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=1, max=_LONGEST_S, help="the maximum time until the message is delivered, in seconds"
    ),
]


_FaultOption = Annotated[
    str | None,
    typer.Option(
        "--fault",
        metavar="KIND",
        show_default=False,
        help=f"practise a real outage: inject this fault into the primary, one of {', '.join(OUTAGES)}",
    ),
]
_YesOption = Annotated[bool, typer.Option("--yes", help="inject cannot-connect without asking for confirmation")]


def drill(
    primary: PrimaryOption,
    secondary: SecondaryOption,
    backlog_queues: BacklogQueuesOption = 10,
    name: NameOption = None,
    syphon: _SyphonOption = False,
    timeout: _TimeoutOption = 60,
    fault: _FaultOption = None,
    yes: _YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Prove that a pair works: divert a marked message, wait until the syphon delivers it, and print the times.

    The drill creates a queue for the message on the primary, so the key of the primary needs Manage.

    With --fault, the primary really fails: the pair has to notice that and fail over. cannot-send affects the queue of
    the drill alone. cannot-connect is an outage of the whole namespace, for all applications, until the message is
    diverted. The primary must have been started with --allow-faults.

    The number of backlog queues and the name must be those of the pair.

    To trust a certificate authority that the system does not know, name its file in the variable SSL_CERT_FILE.

    Example: pairbus drill --primary @contoso.txt --secondary @fabrikam.txt --syphon

    Example: pairbus drill --primary @contoso.txt --secondary @fabrikam.txt --fault cannot-send
    """
    connections = read_connections(primary, secondary, name)
    kind = None if fault is None else _kind(fault)
    if kind is FaultKind.CANNOT_CONNECT and not yes:
        _ask(connections[0])
    report = run(_drill(*connections, backlog_queues, name, syphon=syphon, limit=timedelta(seconds=timeout), kind=kind))
    times = {
        "diverted in": report.diverted_in,
        "delivered in": report.delivered_in,
        "total": report.total,
    }
    if as_json:
        outage = {} if kind is None else {"fault": kind.value}
        print(json.dumps(_document(report) | outage, indent=2))
    elif sys.stdout.isatty():
        _show(times)
    else:
        print(*(f"{what}: {_seconds(took)}" for what, took in times.items()), sep="\n")


def _kind(fault: str) -> FaultKind:
    if fault not in {*FaultKind}:
        fail(f"--fault must be one of {', '.join(OUTAGES)}, got {shown(fault)}", USAGE)
    kind = FaultKind(fault)
    if kind not in OUTAGES:
        fail(f"--fault {kind} is no outage for a pair: {NO_OUTAGES[kind]}; use one of {', '.join(OUTAGES)}", USAGE)
    return kind


def _ask(primary: NamedNamespace) -> None:
    if not sys.stdin.isatty():
        fail(f"add --yes to cut {primary.endpoint} off from all its applications for the drill", USAGE)
    if not typer.confirm(f"Cut {primary.endpoint} off from all its applications until the message is diverted?"):
        fail("nothing was done", FAILED)


async def _drill(
    primary: NamedNamespace,
    secondary: NamedNamespace,
    backlog_queue_count: int,
    primary_name: str | None,
    *,
    syphon: bool,
    limit: timedelta,
    kind: FaultKind | None,
) -> DrillReport:
    async with (
        secondary.factory() as backup,
        primary.factory() as factory,
        secondary.manager() as backup_manager,
        primary.manager() as manager,
    ):
        await _check_primary(manager)
        await _check_backlog(factory, backup_manager, primary_name, backlog_queue_count)
        faults = None if kind is None else await _faults(primary)
        options = SendAvailabilityPairedNamespaceOptions(
            backup_manager,
            backup,
            backlog_queue_count,
            _DEFAULT_INTERVAL if kind is None else timedelta(),
            enable_syphon=syphon,
            ping_interval=_PING_INTERVAL,
            primary_name=primary_name,
        )
        try:
            pair = await factory.pair_namespace(options)
        except MessagingError as error:
            fail(f"{primary.endpoint} cannot be paired with {secondary.endpoint}: {one_line(error)}", FAILED)
        if kind is None or faults is None:
            work = pair.drill(manager, limit)
        else:
            work = pair.drill_outage(manager, partial(_outage, faults, kind), limit)
        return await _run(work, has_syphon=syphon)


async def _faults(primary: NamedNamespace) -> FaultApi:
    """Return the faults of the primary; end the command if it does not allow any."""
    faults = primary.faults()
    try:
        await faults.get_all()
    except MessagingError as error:
        fail(f"--fault: {primary.endpoint}: {one_line(error.message)}", FAILED)
    return faults


@asynccontextmanager
async def _outage(faults: FaultApi, kind: FaultKind, path: str) -> AsyncIterator[None]:
    """Inject a fault into the primary while the message is sent; it ends by itself if this process is killed."""
    is_of_entity = kind is FaultKind.CANNOT_SEND
    request = FaultRequest(
        kind=kind,
        entity=path if is_of_entity else None,
        duration_ms=_LONGEST_OUTAGE // timedelta(milliseconds=1),
        drop_connections=not is_of_entity,
    )
    found = await faults.add(request)
    try:
        yield
    finally:
        with suppress(EntityNotFoundError):  # it has ended by itself
            await faults.clear(found["id"])


async def _check_primary(manager: NamespaceManager) -> None:
    """End the command unless the primary is up and the key has Manage: the message would stay in the backlog."""
    try:
        await manager.get_namespace_info()
    except UnauthorizedError as error:
        fail(
            f"a drill requires the Manage claim on the primary namespace {manager.endpoint}: {one_line(error.message)}",
            FAILED,
        )
    except MessagingError as error:
        fail(f"a drill requires the primary namespace to be up: {one_line(error)}", FAILED)


async def _check_backlog(factory: MessagingFactory, manager: NamespaceManager, given: str | None, count: int) -> None:
    """End the command if a backlog queue is missing: a drill creates none, because no syphon would read it."""
    try:
        name = await (await find_primary_names(factory, manager, given)).choose(manager.queue_exists)
        paths = [backlog_path(name, index) for index in range(count)]
        exist = await in_groups(manager.queue_exists, paths)
    except MessagingError as error:
        fail(f"the queues of the secondary namespace cannot be listed: {one_line(error)}", FAILED)
    missing = [path for path, does_exist in zip(paths, exist, strict=True) if not does_exist]
    if missing:
        fail(
            f"the secondary {manager.endpoint} has no '{missing[0]}' ({len(missing)} of {count} are missing); "
            "check that --name and --backlog-queues are those of the pair and that --primary and --secondary are not "
            "swapped, or create the queues with pairbus pair",
            FAILED,
        )


async def _run(work: Awaitable[DrillReport], *, has_syphon: bool) -> DrillReport:
    try:
        return await work
    except MessagingTimeoutError as error:
        advice = "" if has_syphon else " start one, or add --syphon"
        fail(f"{one_line(error)}{advice}", FAILED)
    except MessagingError as error:
        fail(f"the drill failed: {one_line(error)}", FAILED)


# Output.


def _seconds(took: timedelta) -> str:
    return f"{took.total_seconds():.3f} s"


def _show(times: dict[str, timedelta]) -> None:
    console = Console(highlight=False)
    for what, took in times.items():
        console.print(f"{what:>12}  ", style="dim", end="")
        console.print(_seconds(took), style="bold green")


def _document(report: DrillReport) -> dict[str, str | float]:
    return {
        "path": report.path,
        "diverted_in_s": report.diverted_in.total_seconds(),
        "delivered_in_s": report.delivered_in.total_seconds(),
        "total_s": report.total.total_seconds(),
    }
