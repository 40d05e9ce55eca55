"""The counts of an entity in a row of a table."""

from __future__ import annotations

from typing import Final

from pairbus.console.census import EntityCount
from pairbus.console.markup import Markup, fill, join
from pairbus.console.pages.frame import cell
from pairbus.console.watch import Rates
from pairbus.console.wording import number, rate, size

_COLUMNS: Final = {
    "active": "Active",
    "scheduled": "Scheduled",
    "dead": "Dead letters",
    "in": "In, a second",
    "out": "Out, a second",
    "size": "Size",
}


def count_values(entity: EntityCount, rates: Rates) -> dict[str, str]:
    """The texts by their keys, which name a column and the entity."""
    path = entity.path
    return {
        f"active:{path}": number(entity.active),
        f"scheduled:{path}": number(entity.scheduled),
        f"dead:{path}": number(entity.dead_letters + entity.failed_transfers),
        f"in:{path}": rate(rates.arriving(path)),
        f"out:{path}": rate(rates.leaving(path)),
        f"size:{path}": size(entity.size_bytes),
    }


def count_headings() -> Markup:
    return join(fill('<th scope="col" class="number">$label</th>', label=label) for label in _COLUMNS.values())


def count_cells(entity: EntityCount, live: dict[str, str]) -> Markup:
    return join(cell(live, f"{column}:{entity.path}", label=label) for column, label in _COLUMNS.items())
