"""What was done since the start that a service would bill, by what it was for, and what that would cost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Final

from pairbus.console.watch import Watch
from pairbus.jobs.cost.rate_card import CountedBy, RateCard, load_rate_card
from pairbus.ledger.operation import Stage
from pairbus.server.metering import Meter

_CARD: Final = "standard"
_WHAT: Final = {
    Stage.DIRECT: "messages sent and received, backlog queues left out",
    Stage.BACKLOG: "messages diverted to backlog queues here",
    Stage.SYPHON: "messages taken from backlog queues here, or brought home to entities here",
    Stage.RETURNED: "messages received that had been brought home",
    Stage.PING: "pings",
    Stage.IDLE: "receives from backlog queues that found nothing",
    Stage.MANAGEMENT: "management requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations of one stage, counted by this server."""

    stage: Stage
    count: int

    @property
    def what(self) -> str:
        return _WHAT[self.stage]

    @property
    def amount(self) -> str:
        """At the first price that the card has above nothing."""
        return f"{self.count * unit_price():.6f}"


def operations(watch: Watch) -> list[Operations]:
    """Since the start: as the ledger has it, if one is kept; else estimated from what the server counts anyway."""
    meter = watch.services.meter
    return _estimated(watch) if meter is None else _metered(meter)


def _metered(meter: Meter) -> list[Operations]:
    """In units of 64 KB, of the kinds that the card bills."""
    rates = rate_card().operations
    by_message = rates.counted_by is CountedBy.MESSAGE
    counts = dict.fromkeys(Stage, 0)
    for (kind, stage), tally in meter.totals().items():
        if kind in rates.billable:
            counts[stage] += tally.units if by_message else tally.request_units
    return [Operations(stage=stage, count=count) for stage, count in counts.items()]


def _estimated(watch: Watch) -> list[Operations]:
    """Counted in messages, of 64 KB at most each.

    What came to backlog queues and left them is counted from the first look on.
    """
    counters = watch.services.counters
    pings = counters.pings.total()
    diverted, syphoned = watch.diverted_count, watch.syphoned_count
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
    """Whose prices are shown."""
    return load_rate_card(_CARD)


def unit_price() -> Decimal:
    """Of one operation, without what a month includes."""
    rates = rate_card().operations
    return next((tier.price for tier in rates.tiers if tier.price), Decimal(0)) / rates.per
