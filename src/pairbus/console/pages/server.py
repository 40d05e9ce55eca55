"""The server itself: what it shares among entities, who is connected, and what has been done."""

from __future__ import annotations

from pairbus import __version__
from pairbus.console.facets import FacetLine, busy_reason, facet_lines
from pairbus.console.markup import Markup, fill, join, render
from pairbus.console.operations import Operations, operations, rate_card
from pairbus.console.pages.frame import Page, cell
from pairbus.console.visit import Visit
from pairbus.console.wording import moment, number, span


def server_page(visit: Visit) -> Page:
    live = live_values(visit)
    counters = visit.watch.services.counters
    return Page(
        title="Server",
        section="server",
        events="/console/events?page=server",
        live=live,
        content=render(
            "server",
            namespace=visit.settings.name,
            version=__version__,
            tier=visit.settings.tier.value,
            started=moment(visit.watch.started_ms),
            running=cell(live, "running", "dd"),
            entities=cell(live, "entities", "dd"),
            commit=cell(live, "commit", "dd"),
            busy=fill('<p class="state" data-live="busy">$busy</p>', busy=live["busy"]),
            facets=join(_facet(live, line) for line in facet_lines(visit.host.throttle)),
            connections=join(_pair(live, f"connections:{name}", name) for name in sorted(counters.connections)),
            links=join(_pair(live, f"links:{name}", name) for name in sorted(counters.links)),
            operations=join(_operation(live, one) for one in operations(visit.watch)),
            currency=rate_card().currency,
            prices=f"{rate_card().title}, prices of {rate_card().as_of}",
            ledger=_ledger(visit),
        ),
    )


def live_values(visit: Visit) -> dict[str, str]:
    watch = visit.watch
    counters = watch.services.counters
    reason = busy_reason(visit.host)
    values = {
        "running": span((watch.reading.at_ms - watch.started_ms) / 1_000),
        "entities": _entities(visit),
        "commit": "none" if watch.rates.commit_ms is None else f"{watch.rates.commit_ms:.1f} ms",
        "busy": "Requests are taken." if reason is None else f"Requests are denied with server busy: {reason}",
        "shape": str(hash((*sorted(counters.connections), *sorted(counters.links)))),
        "summary": "" if reason is None else "The server is busy and denies requests",
    }
    for line in facet_lines(visit.host.throttle):
        values[f"facet:{line.name}"] = line.reading
        values[f"state:{line.name}"] = line.state
        values[f"denied:{line.name}"] = line.denied
    values |= {f"connections:{name}": number(count) for name, count in counters.connections.items()}
    values |= {f"links:{name}": number(count) for name, count in counters.links.items()}
    done = operations(watch)
    values |= {f"operations:{one.stage}": number(one.count) for one in done}
    values |= {f"amount:{one.stage}": one.amount for one in done}
    return values


def _entities(visit: Visit) -> str:
    entities = visit.watch.reading.census.entities.values()
    count = sum(entity.kind != "subscription" for entity in entities)
    return f"{number(count)} of {number(visit.host.limits.entities)}"


def _facet(live: dict[str, str], line: FacetLine) -> Markup:
    return fill(
        '<tr><th scope="row">$title</th>$reading<td class="number">$threshold</td>$state$denied</tr>',
        title=line.title,
        reading=cell(live, f"facet:{line.name}"),
        threshold=line.threshold,
        state=cell(live, f"state:{line.name}"),
        denied=cell(live, f"denied:{line.name}"),
    )


def _pair(live: dict[str, str], key: str, name: str) -> Markup:
    return fill("<div><dt>$name</dt>$value</div>", name=name, value=cell(live, key, "dd"))


def _operation(live: dict[str, str], one: Operations) -> Markup:
    return fill(
        '<tr><th scope="row">$stage</th><td>$what</td>$count$amount</tr>',
        stage=one.stage.value,
        what=one.what,
        count=cell(live, f"operations:{one.stage}"),
        amount=cell(live, f"amount:{one.stage}"),
    )


def _ledger(visit: Visit) -> str:
    if visit.watch.services.meter is None:
        return "This server keeps no ledger; start it with --ledger to have everything recorded that would be billed."
    return "This server keeps a ledger: pairbus cost turns it into a bill."
