"""``pairbus pair``: set up and verify a pair of namespaces, and print the code for the application."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from pairbus.cli.connection import (
    PRIMARY_VARIABLE,
    SECONDARY_VARIABLE,
    BacklogQueuesOption,
    EntityOption,
    JsonOption,
    NameOption,
    PrimaryOption,
    SecondaryOption,
    one_line,
    read_connections,
    run,
)
from pairbus.cli.failure import FAILED, fail
from pairbus.cli.pair_verification import (
    BacklogDifference,
    BacklogQueueVerification,
    PairDestination,
    PairVerification,
    value_text,
    verify_pair,
)

_PROGRAM: Final = """\
import asyncio
import os

from pairbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

PRIMARY, SECONDARY = os.environ["{primary}"], os.environ["{secondary}"]


async def main() -> None:
    async with (
        NamespaceManager.from_connection_string(SECONDARY) as manager,
        MessagingFactory.from_connection_string(SECONDARY) as secondary,
        MessagingFactory.from_connection_string(PRIMARY) as primary,
    ):
        # In at least one process, usually a receiving one, add: enable_syphon=True
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, {arguments})
        await primary.pair_namespace(options)
        # From here on, messages sent through 'primary' go to the backlog queues while the primary is down.


asyncio.run(main())
"""


def pair(
    primary: PrimaryOption,
    secondary: SecondaryOption,
    backlog_queues: BacklogQueuesOption = 10,
    name: NameOption = None,
    entity: EntityOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set up a pair of namespaces: create the missing backlog queues and verify that the pair works.

    Messages of the application are not touched, and the primary may be down.

    To trust a certificate authority that the system does not know, name its file in the variable SSL_CERT_FILE.

    Example: pairbus pair --primary @contoso.txt --secondary @fabrikam.txt
    """
    first, second = read_connections(primary, secondary, name)
    if entity is not None:
        first = replace(first, entity_path=entity)
    found = run(verify_pair(first, second, backlog_queues, name))
    if as_json:
        print(json.dumps(_document(found), indent=2))
    elif sys.stdout.isatty():
        _show_table(found)
    else:
        _print_lines(found)
    for warning in found.warnings:
        print(f"pairbus: WARNING: {warning}", file=sys.stderr)
    _fail_if_defective(found)
    if not as_json:
        print(f"\nCode for the application:\n\n{_program(backlog_queues, name)}", end="")


def _fail_if_defective(found: PairVerification) -> None:
    defective = found.defective
    if defective:
        fail(
            f"{len(defective)} of {len(found.backlog_queues)} backlog queues cannot be used; "
            f"'{defective[0].path}': {defective[0].defects[0]}; fix it, or delete it and run this command again",
            FAILED,
        )


def _program(backlog_queues: int, name: str | None) -> str:
    given = "" if name is None else f", primary_name={json.dumps(name, ensure_ascii=False)}"
    arguments = f"backlog_queue_count={backlog_queues}{given}"
    return _PROGRAM.format(primary=PRIMARY_VARIABLE, secondary=SECONDARY_VARIABLE, arguments=arguments)


# Output.


def _reachability(found: PairVerification) -> str:
    return "reachable" if found.primary_failure is None else "unreachable"


def _use(queue: BacklogQueueVerification) -> str:
    return "; ".join(queue.defects) or "can be sent to and received from"


def _origin(queue: BacklogQueueVerification) -> str:
    differing = ", ".join(map(str, queue.differences))
    return f"{queue.origin.value}: {differing}" if differing else queue.origin.value


def _print_lines(found: PairVerification) -> None:
    print(f"primary: {found.primary}, '{found.primary_name}', {_reachability(found)}")
    print(f"secondary: {found.secondary}, the key has Manage, Send and Listen")
    for queue in found.backlog_queues:
        print(f"{queue.path}: {_origin(queue)}; {_use(queue)}")
    for one in found.destinations:
        print(f"{one.kind} {one.path}: {one.guarantee}")
    _print_unknown(found)


def _print_unknown(found: PairVerification) -> None:
    if found.unknown_destinations is not None:
        print(f"all queues and topics: {found.unknown_destinations}")


def _show_table(found: PairVerification) -> None:
    console = Console(highlight=False, markup=False)  # a path may have brackets
    for name, text in (
        ("primary", f"{found.primary}, '{found.primary_name}', {_reachability(found)}"),
        ("secondary", f"{found.secondary}, the key has Manage, Send and Listen"),
    ):
        console.print(f"{name:>9}  ", style="dim", end="")
        console.print(text, soft_wrap=True)
    table = Table("backlog queue", "origin", "use")
    for queue in found.backlog_queues:
        table.add_row(queue.path, _origin(queue), _use(queue), style="red" if queue.defects else None)
    console.print(table)
    if found.destinations:
        destinations = Table("destination", "kind", "delivery from the backlog")
        for one in found.destinations:
            destinations.add_row(one.path, one.kind, str(one.guarantee))
        console.print(destinations)
    _print_unknown(found)


def _document(found: PairVerification) -> dict[str, Any]:
    failure = found.primary_failure
    return {
        "primary": found.primary,
        "primary_name": found.primary_name,
        "primary_failure": None if failure is None else one_line(failure),
        "secondary": found.secondary,
        "backlog_queues": [_queue_document(queue) for queue in found.backlog_queues],
        "destinations": [_destination_document(one) for one in found.destinations],
        "unknown_destinations": None if found.unknown_destinations is None else found.unknown_destinations.facts,
        "warnings": found.warnings,
        "is_ready": not found.defective,
    }


def _queue_document(queue: BacklogQueueVerification) -> dict[str, Any]:
    return {
        "path": queue.path,
        "origin": queue.origin.name.lower(),
        "differences": [_difference_document(one) for one in queue.differences],
        "defects": queue.defects,
    }


def _destination_document(one: PairDestination) -> dict[str, Any]:
    return {"path": one.path, "kind": one.kind, **one.guarantee.facts}


def _difference_document(one: BacklogDifference) -> dict[str, str]:
    return {
        "field": one.field,
        "found": value_text(one.found),
        "ours": value_text(one.ours),
        "consequence": one.consequence,
    }
