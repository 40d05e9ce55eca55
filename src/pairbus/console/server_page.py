"""The page of the server: health, injected faults, throttling, connections, and the cost of operations."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Final
from urllib.parse import urlencode

from pairbus import __version__
from pairbus.console.formatting import date_time, number, size, uptime
from pairbus.console.http import ConsolePage, RequestContext
from pairbus.console.sampler import Sampler
from pairbus.fault_kinds import FAULT_RULES, FaultKind
from pairbus.jobs.cost.rate_card import CountedBy, RateCard, load_rate_card
from pairbus.ledger.events import Stage
from pairbus.server.faults import Fault
from pairbus.server.host import NamespaceHost
from pairbus.server.metering import OperationMeter
from pairbus.server.supervision.diagnostics import Diagnostics
from pairbus.server.throttle.throttle import FacetStatus, Throttle

_NEAR: Final = 0.8
"""A facet is shown as near its threshold from this fraction of it."""

_RATE_CARD: Final = "standard"
_STAGES: Final = {
    Stage.DIRECT: "messages sent and received, without backlog queues",
    Stage.BACKLOG: "messages diverted to backlog queues of this namespace",
    Stage.SYPHON: "messages received from backlog queues of this namespace, or restored to its entities",
    Stage.RETURNED: "restored messages received from entities",
    Stage.PING: "pings",
    Stage.IDLE: "receives from backlog queues without a message",
    Stage.MANAGEMENT: "management requests",
}


def server_page(context: RequestContext) -> ConsolePage:
    services = context.sampler.services
    return ConsolePage(
        template="server.html",
        title="Server",
        section="server",
        events="/console/events?page=server",
        live=live_values(context),
        values={
            "version": __version__,
            "tier": context.settings.tier.value,
            "started": date_time(context.sampler.started_ms),
            "facets": facet_rows(context.host.throttle),
            "connections": sorted(services.counters.connections),
            "links": sorted(services.counters.links),
            "operations": operations(context.sampler),
            "rate_card": rate_card(),
            "has_ledger": services.meter is not None,
            "components": services.supervisor.statuses(),
            "bundles": bundle_rows(services.diagnostics),
            "health": context.health(),
            "faults": fault_rows(context.host),
        },
    )


def live_values(context: RequestContext) -> dict[str, str]:
    sampler = context.sampler
    services = sampler.services
    counters = services.counters
    reason, health = busy_reason(context.host), context.health()
    values = {
        "running": uptime((sampler.reading.at_ms - sampler.started_ms) / 1_000),
        "entities": _entities(context),
        "commit": "none" if sampler.rates.commit_ms is None else f"{sampler.rates.commit_ms:.1f} ms",
        "busy": _accepted(context.host) if reason is None else f"Requests are rejected with server busy: {reason}",
        "shape": str(hash((*sorted(counters.connections), *sorted(counters.links)))),
        "problems": str(hash((health.status, *health.problems, *fault_rows(context.host)))),
        "repairs": str(hash((*services.supervisor.statuses(), *bundle_rows(services.diagnostics)))),
        "summary": "" if reason is None else "The server is busy and rejects requests",
    }
    for row in facet_rows(context.host.throttle):
        values[f"facet:{row.name}"] = row.reading
        values[f"state:{row.name}"] = row.state
        values[f"denied:{row.name}"] = row.denied
    values |= {f"connections:{name}": number(count) for name, count in counters.connections.items()}
    values |= {f"links:{name}": number(count) for name, count in counters.links.items()}
    counted = operations(sampler)
    values |= {f"operations:{one.stage}": number(one.count) for one in counted}
    values |= {f"amount:{one.stage}": one.amount for one in counted}
    return values


def _entities(context: RequestContext) -> str:
    entities = context.sampler.reading.counts.entities.values()
    count = sum(entity.kind != "subscription" for entity in entities)
    return f"{number(count)} of {number(context.host.limits.entities)}"


# Throttling


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetRow:
    """A facet of the throttle, as a row of a table."""

    name: str
    title: str
    reading: str
    threshold: str
    state: str
    denied: str


def facet_rows(throttle: Throttle) -> list[FacetRow]:
    return [
        FacetRow(
            name=status.facet.name,
            title=status.facet.title,
            reading=status.shown_reading,
            threshold=status.shown_threshold,
            state=_state(status),
            denied=number(throttle.denied[status.facet.name]),
        )
        for status in throttle.statuses
    ]


def busy_reason(host: NamespaceHost) -> str | None:
    """Return why sends to all entities are rejected with server busy; ``None`` if they are not."""
    return host.throttle.reason("send") or host.deny("send", None) or _busy_fault(host)


def _busy_fault(host: NamespaceHost) -> str | None:
    found = (fault for fault in engaged_faults(host) if fault.kind is FaultKind.SERVER_BUSY and fault.scope is None)
    return next((f"fault {fault.id} ({fault.kind}) is injected at {fault.place}" for fault in found), None)


def _accepted(host: NamespaceHost) -> str:
    return "Requests are accepted, except where an injected fault applies." if host.faults else "Requests are accepted."


# Injected faults


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """An engaged fault, as a row of a table."""

    id: int
    kind: str
    effect: str
    scope: str
    end: str


def fault_rows(host: NamespaceHost) -> list[FaultRow]:
    return [
        FaultRow(
            id=fault.id,
            kind=fault.kind,
            effect=FAULT_RULES[fault.kind].summary,
            scope="the namespace" if fault.scope is None else str(fault.scope),
            end=_end(fault),
        )
        for fault in engaged_faults(host)
    ]


def engaged_faults(host: NamespaceHost) -> list[Fault]:
    return [] if host.faults is None else host.faults.engaged(host.now_ms())


def _end(fault: Fault) -> str:
    if fault.until_ms is not None:
        return date_time(fault.until_ms)
    return "when it is cleared" if FAULT_RULES[fault.kind].lasts else "when it has happened"


def _state(status: FacetStatus) -> str:
    if status.is_denying:
        return "rejecting"
    if status.pressure is None:
        return ""
    return "near the threshold" if status.pressure >= _NEAR else "ok"


# Self-repair


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    """A kept diagnostic bundle, as a row of a table."""

    name: str
    size: str
    link: str


def bundle_rows(diagnostics: Diagnostics | None) -> list[BundleRow]:
    kept = () if diagnostics is None else diagnostics.kept
    return [
        BundleRow(name=info.name, size=size(info.size_bytes), link=f"/console/bundle?{urlencode({'name': info.name})}")
        for info in kept
    ]


# The cost of operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Billable operations of one stage since the start of the server."""

    stage: Stage
    count: int

    @property
    def description(self) -> str:
        return _STAGES[self.stage]

    @property
    def amount(self) -> str:
        """The cost at the first price of the rate card that is not 0."""
        return f"{self.count * unit_price():.6f}"


def operations(sampler: Sampler) -> list[Operations]:
    """Return the operations that the ledger's meter counted, or an estimate if there is no ledger."""
    meter = sampler.services.meter
    return _estimated(sampler) if meter is None else _metered(meter)


def _metered(meter: OperationMeter) -> list[Operations]:
    """Return operations in units of 64 KB, of the kinds that the rate card bills."""
    rates = rate_card().operations
    by_message = rates.counted_by is CountedBy.MESSAGE
    counts = dict.fromkeys(Stage, 0)
    for (kind, stage), count in meter.totals().items():
        if kind in rates.billable:
            counts[stage] += count.units if by_message else count.request_units
    return [Operations(stage=stage, count=count) for stage, count in counts.items()]


def _estimated(sampler: Sampler) -> list[Operations]:
    """Return an estimate in messages, as if each had at most 64 KB.

    Messages of backlog queues are counted from the first sample.
    """
    counters = sampler.services.counters
    pings = counters.pings.total()
    diverted, syphoned = sampler.diverted_count, sampler.syphoned_count
    sent = max(0, counters.messages_sent - pings - diverted)
    received = max(0, counters.messages_delivered - syphoned)
    return [
        Operations(stage=Stage.DIRECT, count=sent + received),
        Operations(stage=Stage.BACKLOG, count=diverted),
        Operations(stage=Stage.SYPHON, count=syphoned),
        Operations(stage=Stage.PING, count=pings),
        Operations(stage=Stage.MANAGEMENT, count=counters.requests.total()),
    ]


@cache
def rate_card() -> RateCard:
    """Return the rate card whose prices are shown."""
    return load_rate_card(_RATE_CARD)


def unit_price() -> Decimal:
    """Return the price of one operation, without the operations that a month includes."""
    rates = rate_card().operations
    return next((tier.price for tier in rates.tiers if tier.price), Decimal(0)) / rates.per
