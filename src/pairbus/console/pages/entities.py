"""All entities with their counts and rates."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from pairbus.console.census import EntityCount
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.pages.counts import count_cells, count_headings, count_values
from pairbus.console.pages.frame import Page, cell
from pairbus.console.place import place_at
from pairbus.console.visit import Visit
from pairbus.console.wording import number, rate

_ON_A_PAGE: Final = 100


def entities_page(visit: Visit) -> Page:
    live = live_values(visit)
    wanted, skip = visit.query.get("q", ""), visit.number("skip")
    found, shown = _found(visit), _shown(visit)
    return Page(
        title="Entities",
        section="entities",
        events=f"/console/events?{urlencode({'page': 'entities', 'q': wanted, 'skip': skip}, errors='replace')}",
        live=live,
        content=render(
            "entities",
            wanted=wanted,
            active=cell(live, "total:active", "b"),
            dead=cell(live, "total:dead", "b"),
            sent=cell(live, "total:sent", "b"),
            received=cell(live, "total:received", "b"),
            headings=count_headings(),
            rows=join(_row(live, entity) for entity in shown) if shown else _none(wanted),
            paging=_paging(wanted, skip, len(found)),
        ),
    )


def live_values(visit: Visit) -> dict[str, str]:
    """The numbers of the page. A key names an entity and a column."""
    watch = visit.watch
    census, rates = watch.reading.census, watch.rates
    values = {
        "total:active": number(census.active),
        "total:dead": number(census.dead_letters),
        "total:sent": rate(rates.sent),
        "total:received": rate(rates.received),
        "summary": f"{number(census.active)} messages wait, {number(census.dead_letters)} are dead letters",
    }
    shown = _shown(visit)
    for entity in shown:
        values |= count_values(entity, rates)
    # Which rows there are: the browser asks for them anew when this has changed.
    values["shape"] = str(hash(tuple((entity.path, entity.kind, entity.status) for entity in shown)))
    return values


def _found(visit: Visit) -> list[EntityCount]:
    wanted = visit.query.get("q", "").strip().lower()
    return [entity for entity in visit.watch.reading.census.entities.values() if wanted in entity.path.lower()]


def _shown(visit: Visit) -> list[EntityCount]:
    skip = visit.number("skip")
    return _found(visit)[skip : skip + _ON_A_PAGE]


def _row(live: dict[str, str], entity: EntityCount) -> Markup:
    path = entity.path
    return fill(
        '<tr><th scope="row"><a href="$link">$path</a></th><td data-label="Kind">$kind</td>'
        '<td data-label="Status">$status</td>$cells</tr>',
        link=place_at(path, entity.address).link(),
        path=path,
        kind="backlog queue" if entity.primary is not None else entity.kind,
        status=entity.status,
        cells=count_cells(entity, live),
    )


def _none(wanted: str) -> Markup:
    text = f"No entity has “{wanted}” in its name." if wanted else "This namespace has no entities yet."
    return fill('<tr><td colspan="9">$text</td></tr>', text=text)


def _paging(wanted: str, skip: int, count: int) -> Markup:
    links = []
    if skip > 0:
        links.append(_page_link(wanted, max(0, skip - _ON_A_PAGE), "Previous"))
    if skip + _ON_A_PAGE < count:
        links.append(_page_link(wanted, skip + _ON_A_PAGE, "Next"))
    if not links:
        return Markup()
    told = f"{number(skip + 1)} to {number(min(skip + _ON_A_PAGE, count))} of {number(count)}"
    return fill('<nav class="paging" aria-label="Pages">$told $links</nav>', told=told, links=join(links))


def _page_link(wanted: str, skip: int, label: str) -> Markup:
    address = f"/console?{urlencode({'q': wanted, 'skip': skip}, errors='replace')}"
    return fill('<a href="$address">$label</a> ', address=address, label=label)
