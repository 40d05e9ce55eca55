"""Prices that depend on how much of something is used in a month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A price, up to a quantity a month; the last has no end."""

    price: Decimal
    up_to: Decimal | None = None


def graduated(quantity: Decimal, tiers: Sequence[Tier]) -> Decimal:
    """What a quantity costs, each part of it at the price of its tier."""
    amount, below = Decimal(0), Decimal(0)
    for tier in tiers:
        top = quantity if tier.up_to is None else min(quantity, tier.up_to)
        amount += max(Decimal(0), top - below) * tier.price
        below = top
    return amount


def included(tiers: Sequence[Tier]) -> Decimal:
    """How much of it costs nothing; none of it if nothing does, or all does."""
    first = tiers[0]
    return first.up_to if first.price == 0 and first.up_to is not None else Decimal(0)
