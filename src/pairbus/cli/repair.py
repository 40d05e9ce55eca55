"""``pairbus repair``: copy everything that can be read from a damaged data directory into a new one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from pairbus.cli.failure import fail
from pairbus.server.log_context import Facts
from pairbus.store import StoreError
from pairbus.store.keys import describe
from pairbus.store.repair import EntityRepair, LostMessage, RepairReport
from pairbus.store.repair import repair as repair_directory

_FAILED: Final = 1
_INCOMPLETE: Final = 3
"""Something is damaged; what could be read was copied."""

_SHOWN: Final = 10
"""Most lines of one kind that are printed without --json."""


def repair(
    data: Annotated[Path, typer.Option(help="the damaged data directory; it is not changed", show_default=False)],
    to: Annotated[
        Path, typer.Option(help="the directory to create; it must not exist, or be empty", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print the report as one JSON object")] = False,
) -> None:
    """Copy everything that can be read from a damaged data directory into a new one, and list the rest.

    Stop the namespace first. Certificates, a side buffer, a ledger and other files in the directory are copied, too.
    Then serve the new directory: pairbus serve --data NEW.

    Exits with 0 if nothing is damaged, with 3 if something is (what can be read was copied), with 1 on an error, and
    with 2 on invalid arguments.

    Example: pairbus repair --data ./contoso --to ./contoso-repaired
    """
    try:
        report = repair_directory(data, to, time.time_ns() // 1_000_000)
    except StoreError as error:
        fail(str(error), _FAILED)
    if as_json:
        print(json.dumps(_as_json(report, data, to)))
    else:
        _print(report, to)
    if not report.is_complete:
        raise typer.Exit(_INCOMPLETE)


def _as_json(report: RepairReport, data: Path, to: Path) -> dict[str, Any]:
    return {
        "data": str(data),
        "to": str(to),
        "complete": report.is_complete,
        "records": report.records,
        "entities": [_entity_as_json(entity) for entity in report.entities.values()],
        "replaced_entities": report.renamed,
        "damaged_records": [*map(_described_key, report.damaged)],
        "damaged_pages": [
            {"page": page.page, "reason": page.reason, "first_key": page.low.hex(), "end_key": _hex(page.high)}
            for page in report.damaged_pages
        ],
        "unreferenced_bodies": report.unreferenced_bodies,
    }


def _entity_as_json(entity: EntityRepair) -> dict[str, Any]:
    return {
        "entity": entity.entity,
        "copied": entity.copied,
        "restored": entity.restored,
        "lost": [*map(_message_as_json, entity.lost)],
        "quarantined_before": [*map(_message_as_json, entity.quarantined)],
    }


def _described_key(key: bytes) -> str:
    return str(Facts(**describe(key))).strip()


def _message_as_json(lost: LostMessage) -> dict[str, Any]:
    return {"sequence_number": lost.sequence, "message_id": lost.message_id or None, "damaged": lost.damaged}


def _hex(key: bytes | None) -> str | None:
    return None if key is None else key.hex()


def _print(report: RepairReport, to: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table("entity", "copied", "restored", "lost", "lost sequence numbers")
    for entity in report.entities.values():
        numbers = _some([str(lost.sequence) for lost in entity.lost])
        table.add_row(entity.entity, str(entity.copied), str(entity.restored), str(len(entity.lost)), numbers)
    console.print(table)
    _print_some(console, "lost", [*map(_described, report.lost)])
    _print_some(console, "quarantined before", [*map(_described, report.quarantined)])
    _print_some(console, "damaged record", [*map(_described_key, report.damaged)])
    _print_some(console, "damaged page", [f'page={page.page} reason="{page.reason}"' for page in report.damaged_pages])
    _print_some(console, "replaced entity", [f"name='{name}'" for name in report.renamed])
    if report.unreferenced_bodies:
        console.print(f"bodies without a record, kept in quarantine: {report.unreferenced_bodies}")
    console.print(f"copied {report.records} records to {to}", markup=False)


def _described(lost: LostMessage) -> str:
    facts = Facts(entity=lost.entity, sequence=lost.sequence, message_id=lost.message_id, damaged=lost.damaged)
    return str(facts).strip()


def _print_some(console: Console, what: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        console.print(f"{what} {line}", markup=False)
    more = len(lines) - _SHOWN
    if more > 0:
        console.print(f"… and {more} more, see --json")


def _some(words: Iterable[str]) -> str:
    words = list(words)
    return ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
