"""The pair: what one of its two namespaces sees of it, and what applications have told."""

from __future__ import annotations

from typing import Final

from pairbus.console.census import EntityCount
from pairbus.console.chart import Line, draw
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.pages import senders
from pairbus.console.pages.frame import Page, cell
from pairbus.console.place import Place
from pairbus.console.visit import Visit
from pairbus.console.wording import clock_time, moment, number, rate

_COLUMNS: Final = {
    "depth": "Waiting",
    "in": "Diverted, a second",
    "out": "Syphoned, a second",
    "dead": "Dead letters",
}
"""Of backlog queues."""


def pair_page(visit: Visit) -> Page:
    live = live_values(visit)
    return Page(
        title="Pair",
        section="pair",
        events="/console/events?page=pair",
        live=live,
        content=render(
            "pair",
            namespace=visit.settings.name,
            depth=cell(live, "depth", "b"),
            diverted=cell(live, "diverted", "b"),
            syphoned=cell(live, "syphoned", "b"),
            pings=cell(live, "pings", "b"),
            senders=senders.table(visit.watch.reports, live),
            queues=_queues(visit, live),
            destinations=_destinations(visit, live),
            pinged=_pinged(visit),
            charts=_charts(visit),
            diary=_diary(visit),
        ),
    )


def live_values(visit: Visit) -> dict[str, str]:
    watch = visit.watch
    reading, rates = watch.reading, watch.rates
    backlog = reading.census.backlog
    depth = sum(queue.message_count for queue in backlog)
    now_ms = reading.at_ms
    values = {
        "depth": number(depth),
        "diverted": rate(sum(rates.arriving(queue.path) for queue in backlog)),
        "syphoned": rate(sum(rates.leaving(queue.path) for queue in backlog)),
        "pings": number(reading.pings.total()),
        "summary": f"{number(depth)} diverted messages wait in the backlog{senders.told(watch.reports)}",
        "timeline": str(0 if watch.timeline.last is None else watch.timeline.last.at_ms),
        "diary": str(watch.diary.edition),
        **senders.live_values(watch.reports),
    }
    for queue in backlog:
        values |= {
            f"depth:{queue.path}": number(queue.message_count),
            f"in:{queue.path}": rate(rates.arriving(queue.path)),
            f"out:{queue.path}": rate(rates.leaving(queue.path)),
            f"dead:{queue.path}": number(queue.dead_letters),
        }
    for destination in watch.destinations:
        key = f"{destination.primary} {destination.path}"
        has_backlog = any(queue.primary == destination.primary and queue.message_count for queue in backlog)
        values[f"state:{key}"] = destination.state(now_ms, has_backlog=has_backlog).value
        values[f"last:{key}"] = moment(destination.last_ms)
    values["shape"] = str(hash((tuple(queue.path for queue in backlog), tuple(one.path for one in watch.destinations))))
    return values


def _queues(visit: Visit, live: dict[str, str]) -> Markup:
    backlog = visit.watch.reading.census.backlog
    if not backlog:
        return Markup("<p>There are no backlog queues here: no namespace uses this one as its secondary.</p>")
    headings = join(fill('<th scope="col" class="number">$label</th>', label=label) for label in _COLUMNS.values())
    return render("backlog", headings=headings, rows=join(_queue(live, queue) for queue in backlog))


def _queue(live: dict[str, str], queue: EntityCount) -> Markup:
    return fill(
        '<tr><th scope="row"><a href="$link">$path</a></th><td data-label="Primary">$primary</td>$cells</tr>',
        link=Place(entity=queue.path).link(),
        path=queue.path,
        primary=queue.primary,
        cells=join(cell(live, f"{column}:{queue.path}", label=label) for column, label in _COLUMNS.items()),
    )


def _destinations(visit: Visit, live: dict[str, str]) -> Markup:
    seen = [*visit.watch.destinations]
    if not seen:
        return Markup("<p>No diverted message has been seen since this server was started.</p>")
    rows = join(
        fill(
            '<tr><th scope="row">$path</th><td>$primary</td><td data-live="state:$key">$state</td><td>$first</td>'
            '<td data-live="last:$key">$last</td></tr>',
            path=one.path,
            primary=one.primary,
            key=f"{one.primary} {one.path}",
            state=live[f"state:{one.primary} {one.path}"],
            first=moment(one.first_ms),
            last=live[f"last:{one.primary} {one.path}"],
        )
        for one in seen
    )
    return render("destinations", rows=rows)


def _pinged(visit: Visit) -> Markup:
    pings = visit.watch.reading.pings
    if not pings:
        return Markup("<p>No entity of this namespace has been pinged since this server was started.</p>")
    times = visit.watch.diary.pinged
    rows = join(
        fill(
            '<tr><th scope="row">$path</th><td class="number">$count</td><td>$last</td></tr>',
            path=address,
            count=number(count),
            last=moment(times[str(address)]) if str(address) in times else "not yet",
        )
        for address, count in pings.items()
    )
    return render("pinged", rows=rows)


def _charts(visit: Visit) -> Markup:
    points = [*visit.watch.timeline]
    times_ms = [point.at_ms for point in points]
    return join(
        [
            draw(
                "Backlog: messages that wait to be brought home",
                "backlog",
                times_ms,
                [Line(name="waiting", values=[point.backlog for point in points])],
            ),
            draw(
                "Backlog: messages a second",
                "flow",
                times_ms,
                [
                    Line(name="diverted", values=[point.diverted for point in points]),
                    Line(name="syphoned", values=[point.syphoned for point in points]),
                ],
            ),
            draw(
                "This namespace: messages a second, and pings",
                "traffic",
                times_ms,
                [
                    Line(name="sent here", values=[point.sent for point in points]),
                    Line(name="received from here", values=[point.received for point in points]),
                    Line(name="pings", values=[point.pings for point in points]),
                ],
            ),
        ]
    )


def _diary(visit: Visit) -> Markup:
    return join(
        fill(
            '<li><time datetime="$full">$at</time> $text</li>',
            full=moment(entry.at_ms).replace(" UTC", "Z"),
            at=f"{clock_time(entry.at_ms)} UTC",
            text=entry.text,
        )
        for entry in visit.watch.diary
    )
