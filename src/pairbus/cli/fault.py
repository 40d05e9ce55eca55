"""``pairbus fault``: inject faults into a namespace, list them, and clear them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from pairbus.cli.arguments import complete_any, duration_text, entity_path, not_found_text, read_duration
from pairbus.cli.command_group import MARKUP
from pairbus.cli.connection import ConnectionOption, JsonOption, one_line, read_connection, run
from pairbus.cli.failure import USAGE, fail
from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.dialect.paths import split_entity_path
from pairbus.fault_kinds import FAULT_RULES, CrashComponent, FaultKind, FaultRequest, FaultScope, check_scope

_MILLISECOND: Final = timedelta(milliseconds=1)
_OPTIONS: Final = {
    "duration_ms": "--for",
    "latency_ms": "--latency",
    "component": "--component",
    "sequence_number": "--sequence-number",
    "drop_connections": "--drop-connections",
}
"""The option of each argument of a fault."""

_ARGUMENT: Final = re.compile(rf"(?<![\w-])({'|'.join(_OPTIONS)})(?![\w-])")
_HEAD: Final = ("id", "kind", "scope", "arguments", "until", "key", "peer")


_KINDS: Final = "\n".join(f"- {kind}: {rule.summary}." for kind, rule in FAULT_RULES.items())
_ADD_HELP: Final = f"""Inject a fault at an entity, or at the whole namespace.

{_KINDS}

Example: pairbus fault add cannot-send orders --for 5m --connection @contoso.txt

Example: pairbus fault add slow --latency 200ms --connection @contoso.txt
"""

fault = typer.Typer(
    name="fault",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    help="""Inject faults into a namespace to practise outages, list them, and clear them.

    The server must have been started with --allow-faults, and the key needs Manage on the namespace. Faults end when
    the server stops. Each command exits with 0 on success, with 1 on an error, and with 2 on invalid arguments.

    Example: pairbus fault list --connection @contoso.txt
    """,
)

_KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND", show_default=False, autocompletion=lambda: [*FaultKind], help=f"one of {', '.join(FaultKind)}"
    ),
]
_ScopeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ENTITY",
        show_default=False,
        autocompletion=complete_any,
        help="a queue, a topic, or TOPIC/Subscriptions/NAME; by default the whole namespace",
    ),
]
_ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        show_default=False,
        help="the duration, such as 30s or 5m; by default until cleared",
    ),
]
_LatencyOption = Annotated[
    str | None,
    typer.Option("--latency", metavar="DURATION", show_default=False, help="the delay of slow, such as 200ms"),
]
_ComponentOption = Annotated[
    str | None,
    typer.Option(
        "--component",
        metavar="NAME",
        show_default=False,
        help=f"the component of component-crash: one of {', '.join(CrashComponent)}",
    ),
]
_SequenceOption = Annotated[
    int | None,
    typer.Option("--sequence-number", show_default=False, help="the message of quarantine", metavar="NUMBER"),
]
_DropOption = Annotated[
    bool, typer.Option("--drop-connections", help="drop the open AMQP connections as well (cannot-connect)")
]
_IdArgument = Annotated[
    int | None, typer.Argument(metavar="ID", show_default=False, min=1, help="the id of the fault, as list shows it")
]
_AllOption = Annotated[bool, typer.Option("--all", help="clear all faults")]


@fault.command("add", help=_ADD_HELP)
def add_fault(
    connection: ConnectionOption,
    kind: _KindArgument,
    entity: _ScopeArgument = None,
    duration: _ForOption = None,
    latency: _LatencyOption = None,
    component: _ComponentOption = None,
    sequence_number: _SequenceOption = None,
    drop_connections: _DropOption = False,
    as_json: JsonOption = False,
) -> None:
    namespace = read_connection(connection)
    document = {
        "kind": kind,
        "entity": None if entity is None else entity_path(entity, namespace),
        "duration_ms": _milliseconds("--for", duration),
        "latency_ms": _milliseconds("--latency", latency),
        "component": component,
        "sequence_number": sequence_number,
        "drop_connections": drop_connections,
    }
    try:
        request = FaultRequest.of_document(document)
        check_scope(request.kind, _scope_of(request.entity))
    except ValueError as error:
        fail(_in_options(one_line(error)), USAGE)

    def explained(error: MessagingError) -> str:
        if isinstance(error, EntityNotFoundError) and request.entity is not None and request.sequence_number is None:
            return not_found_text(request.entity)
        return _explained(error)

    found = run(namespace.faults().add(request), explained)
    print(json.dumps(found, indent=2) if as_json else f"fault {found['id']} engaged: {_text(found)}")


@fault.command("list")
def list_faults(connection: ConnectionOption, as_json: JsonOption = False) -> None:
    """List the faults that are engaged.

    Example: pairbus fault list --connection @contoso.txt --json
    """
    found = run(read_connection(connection).faults().get_all(), _explained)
    if as_json:
        print(json.dumps({"faults": found}, indent=2))
    else:
        _show(found)


@fault.command("clear")
def clear_fault(
    connection: ConnectionOption,
    fault_id: _IdArgument = None,
    clears_all: _AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Clear one fault by its id, or all of them with --all.

    Example: pairbus fault clear 3 --connection @contoso.txt

    Example: pairbus fault clear --all --connection @contoso.txt
    """
    if (fault_id is None) != clears_all:
        fail("name the ID of a fault, or add --all; pairbus fault list shows the ids", USAGE)
    cleared = run(read_connection(connection).faults().clear(fault_id), _explained)
    if as_json:
        print(json.dumps({"faults": cleared}, indent=2))
    elif not cleared:
        print("no faults are engaged")
    for one in [] if as_json else cleared:
        print(f"fault {one['id']} cleared: {_text(one)}")


# Arguments.


def _milliseconds(option: str, text: str | None) -> int | None:
    return None if text is None else read_duration(option, text, least=_MILLISECOND) // _MILLISECOND


def _scope_of(entity: str | None) -> FaultScope:
    path = None if entity is None else split_entity_path(entity)
    if path is None:
        return FaultScope.NAMESPACE
    return FaultScope.ENTITY if path.subscription is None else FaultScope.SUBSCRIPTION


def _in_options(text: str) -> str:
    """Replace the names of arguments by their options; the kind component-crash is none."""
    return _ARGUMENT.sub(lambda found: _OPTIONS[found[0]], text)


def _explained(error: MessagingError) -> str:
    return one_line(error if isinstance(error, UnauthorizedError) else error.message)


# Output.


def _text(document: dict[str, Any]) -> str:
    until = "" if document["until"] is None else f" until {document['until']}"
    arguments = f" ({_arguments(document)})" if _arguments(document) else ""
    return f"{document['kind']} at {_scope(document)}{arguments}{until}"


def _scope(document: dict[str, Any]) -> str:
    return "the namespace" if document["entity"] is None else f"'{document['entity']}'"


def _arguments(document: dict[str, Any]) -> str:
    given = {name: document[name] for name in ("latency_ms", "component", "sequence_number") if document[name]}
    texts = [f"{_OPTIONS[name].strip('-')} {_shown(name, value)}" for name, value in given.items()]
    return ", ".join([*texts, *(["connections dropped"] if document["drop_connections"] else [])])


def _shown(name: str, value: Any) -> str:
    return duration_text(value * _MILLISECOND) if name == "latency_ms" else str(value)


def _row(document: dict[str, Any]) -> tuple[str, ...]:
    until = document["until"] or ("it is cleared" if FAULT_RULES[document["kind"]].lasts else "it happens")
    scope = document["entity"] or "namespace"
    return str(document["id"]), document["kind"], scope, _arguments(document), until, document["key"], document["peer"]


def _show(faults: Sequence[dict[str, Any]]) -> None:
    """Print a table for a terminal, or one tab-separated line for each fault, which other programs can parse."""
    if not sys.stdout.isatty():
        print(*("\t".join(row) for row in (_HEAD, *map(_row, faults))), sep="\n")
        return
    table = Table()
    for title in _HEAD:
        table.add_column(title, overflow="fold")
    for one in faults:
        table.add_row(*_row(one))
    Console(highlight=False, markup=False).print(table)
