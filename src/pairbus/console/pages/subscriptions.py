"""The subscriptions of a topic with their counts and rates."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from pairbus.console.census import EntityCount
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.pages.counts import count_cells, count_headings, count_values
from pairbus.console.place import Place, place_at
from pairbus.console.visit import Visit
from pairbus.console.wording import number

_MOST: Final = 100


def live_values(visit: Visit, topic: Place) -> dict[str, str]:
    """The numbers of the table."""
    found = _found(visit, topic)
    values: dict[str, str] = {}
    for each in found[:_MOST]:
        values |= count_values(each, visit.watch.rates)
    # Which rows there are, as for all entities.
    values["shape"] = str(hash((len(found), tuple((each.path, each.status) for each in found[:_MOST]))))
    return values


def table(visit: Visit, topic: Place, live: dict[str, str]) -> Markup:
    """Reads the ``live_values`` of the same visit."""
    found = _found(visit, topic)
    rows = join(_row(each, live) for each in found[:_MOST])
    return render(
        "subscriptions", topic=topic.path, headings=count_headings(), rows=join([rows, _rest(topic, len(found))])
    )


def _found(visit: Visit, topic: Place) -> list[EntityCount]:
    return [
        entity
        for entity in visit.watch.reading.census.entities.values()
        if entity.kind == "subscription" and entity.address.entity == topic.address.entity
    ]


def _row(entity: EntityCount, live: dict[str, str]) -> Markup:
    place = place_at(entity.path, entity.address)
    return fill(
        '<tr><th scope="row"><a href="$link">$name</a></th><td data-label="Status">$status</td>$cells</tr>',
        link=place.link(),
        name=place.subscription,
        status=entity.status,
        cells=count_cells(entity, live),
    )


def _rest(topic: Place, count: int) -> Markup:
    """What is said where there are none, or more than are shown."""
    if not count:
        return Markup('<tr><td colspan="8">There are none: what is sent to this topic is dropped.</td></tr>')
    if count <= _MOST:
        return Markup()
    query = urlencode({"q": f"{topic.path}/Subscriptions/"}, errors="replace")
    return fill(
        '<tr><td colspan="8"><a href="/console?$query">All $count subscriptions</a></td></tr>',
        query=query,
        count=number(count),
    )
