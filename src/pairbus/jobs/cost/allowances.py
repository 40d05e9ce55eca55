"""What a rate card includes, taken out of it: what more costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.tier import Tier

_NOTE: Final = (
    "Counted as if all that a month includes were used up, and its base charge paid: everything has the first price "
    "above."
)


def beyond_allowances(card: RateCard) -> RateCard:
    """The same card for a month in which all that it includes is used up already.

    A bill by it says what something costs on top, such as an outage, and a forecast says what pairing would.
    """
    connections = card.connections
    return replace(
        card,
        title=f"{card.title}, beyond what is included",
        notes=f"{_NOTE} {card.notes}".strip(),
        month=Decimal(0),
        operations=replace(card.operations, tiers=_first_price(card.operations.tiers)),
        connections=None if connections is None else replace(connections, tiers=_first_price(connections.tiers)),
    )


def _first_price(tiers: Sequence[Tier]) -> tuple[Tier]:
    """Nothing, if nothing has a price."""
    return (Tier(price=next((tier.price for tier in tiers if tier.price), Decimal(0))),)
