"""The page with all entities, their counts and rates."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from pairbus.console.counts import EntityCount
from pairbus.console.formatting import number, rate, size
from pairbus.console.http import ConsolePage, RequestContext, entity_at
from pairbus.console.sampler import Rates

_PAGE_SIZE: Final = 100


def entities_page(context: RequestContext) -> ConsolePage:
    search, skip = context.query.get("q", ""), context.number("skip")
    found = _found(context)
    return ConsolePage(
        template="entities.html",
        title="Entities",
        section="entities",
        events=f"/console/events?{urlencode({'page': 'entities', 'q': search, 'skip': skip}, errors='replace')}",
        live=live_values(context),
        values={
            "search": search,
            "rows": [_row(entity) for entity in _shown(context)],
            "previous": _link(search, max(0, skip - _PAGE_SIZE)) if skip > 0 else "",
            "next": _link(search, skip + _PAGE_SIZE) if skip + _PAGE_SIZE < len(found) else "",
            "range": f"{number(skip + 1)} to {number(min(skip + _PAGE_SIZE, len(found)))} of {number(len(found))}",
        },
    )


def live_values(context: RequestContext) -> dict[str, str]:
    """Return the live values; those of entities have a key of a column and a path."""
    counts, rates = context.sampler.reading.counts, context.sampler.rates
    values = {
        "total:active": number(counts.active),
        "total:dead": number(counts.dead_letters),
        "total:sent": rate(rates.sent),
        "total:received": rate(rates.received),
        "summary": f"{number(counts.active)} messages waiting, {number(counts.dead_letters)} dead letters",
    }
    shown = _shown(context)
    for entity in shown:
        values |= count_values(entity, rates)
    # The browser loads the rows again when this value changes.
    values["shape"] = str(hash(tuple((entity.path, entity.kind, entity.status) for entity in shown)))
    return values


def count_values(entity: EntityCount, rates: Rates) -> dict[str, str]:
    """Return the live values of an entity's row."""
    path = entity.path
    return {
        f"active:{path}": number(entity.active),
        f"scheduled:{path}": number(entity.scheduled),
        f"dead:{path}": number(entity.dead_letters + entity.failed_transfers),
        f"in:{path}": rate(rates.arriving(path)),
        f"out:{path}": rate(rates.leaving(path)),
        f"size:{path}": size(entity.size_bytes),
    }


def _found(context: RequestContext) -> list[EntityCount]:
    search = context.query.get("q", "").strip().lower()
    return [entity for entity in context.sampler.reading.counts.entities.values() if search in entity.path.lower()]


def _shown(context: RequestContext) -> list[EntityCount]:
    skip = context.number("skip")
    return _found(context)[skip : skip + _PAGE_SIZE]


def _row(entity: EntityCount) -> dict[str, str]:
    return {
        "path": entity.path,
        "link": entity_at(entity.path, entity.address).link(),
        "kind": "backlog queue" if entity.primary is not None else entity.kind,
        "status": entity.status,
    }


def _link(search: str, skip: int) -> str:
    return f"/console?{urlencode({'q': search, 'skip': skip}, errors='replace')}"
