"""The cost of a month, from its usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from typing import Final

from pairbus.jobs.cost.rate_card import PriceTier, RateCard, graduated, included

_NOTE: Final = (
    "Calculated as if the month's allowances were used up and its base charge paid: everything costs the first price "
    "above zero."
)


def beyond_allowances(card: RateCard) -> RateCard:
    """Return the card for a month whose allowances are used up already.

    A bill by it shows the additional cost of something, such as an outage, and a forecast that of pairing.
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


def _first_price(tiers: Sequence[PriceTier]) -> tuple[PriceTier]:
    """Return one tier with the first price above 0, or 0 if there is none."""
    return (PriceTier(price=next((tier.price for tier in tiers if tier.price), Decimal(0))),)


AMOUNT_DIGITS: Final = 9
"""Decimals of an amount of money: a single operation costs less than a millionth."""

_SMALLEST: Final = Decimal(1).scaleb(-AMOUNT_DIGITS)
_QUANTITY: Final = Decimal("0.000001")
_MAX_AMOUNT: Final = Decimal(10) ** 15
"""Upper limit of an amount, by the digits before the decimal point."""


class AmountError(ValueError):
    """An amount is too large to be correct."""


class BillingMeter(StrEnum):
    """The quantities that are billed."""

    OPERATIONS = "operations"
    CONNECTIONS = "connections"
    BANDWIDTH = "gigabytes out"
    MESSAGING_UNITS = "messaging unit hours"
    BASE_CHARGE = "base charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyUsage:
    """The usage of all namespaces of an account in a calendar month."""

    units: int = 0
    """Units of 64 KB, of billable operations."""

    connection_peaks: int = 0
    """Sum of the hourly maximums of open connections."""

    bytes_out: int = 0
    namespace_hours: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """The usage and the cost of one meter."""

    meter: BillingMeter
    quantity: Decimal
    included: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyBill:
    """The cost of a month."""

    usage: MonthlyUsage
    readings: tuple[MeterReading, ...]

    @property
    def total(self) -> Decimal:
        return sum((one.amount for one in self.readings), Decimal(0))

    def amount(self, meter: BillingMeter) -> Decimal:
        return sum((one.amount for one in self.readings if one.meter is meter), Decimal(0))


def monthly_bill(usage: MonthlyUsage, card: RateCard) -> MonthlyBill:
    """Return the cost of a month by a rate card, with each meter rounded to the smallest amount."""
    return MonthlyBill(usage=usage, readings=tuple(_readings(usage, card)))


def rounded(amount: Decimal) -> Decimal:
    """Round an amount to the decimals of amounts. Raise ``AmountError``."""
    if amount >= _MAX_AMOUNT:
        raise AmountError(
            f"an amount of {amount:.3e} is not plausible; check the prices of the rate card and the counted operations"
        )
    return amount.quantize(_SMALLEST, ROUND_HALF_EVEN)


def _readings(usage: MonthlyUsage, card: RateCard) -> Iterator[MeterReading]:
    units = Decimal(usage.units)
    tiers = card.operations.tiers
    yield _reading(BillingMeter.OPERATIONS, units, graduated(units, tiers) / card.operations.per, included(tiers))
    if card.connections is not None:
        connections = usage.connection_peaks / card.connections.hours_per_month
        tiers = card.connections.tiers
        yield _reading(BillingMeter.CONNECTIONS, connections, graduated(connections, tiers), included(tiers))
    if card.bandwidth is not None:
        gigabytes = usage.bytes_out / card.bandwidth.gigabyte_bytes
        yield _reading(BillingMeter.BANDWIDTH, gigabytes, gigabytes * card.bandwidth.price)
    if card.messaging_units is not None:
        rates = card.messaging_units
        hours = Decimal(usage.namespace_hours)
        yield _reading(BillingMeter.MESSAGING_UNITS, hours * rates.units, hours * rounded(rates.hour * rates.units))
    if card.month:
        yield _reading(BillingMeter.BASE_CHARGE, Decimal(1), card.month)


def _reading(meter: BillingMeter, quantity: Decimal, amount: Decimal, free: Decimal = Decimal(0)) -> MeterReading:
    return MeterReading(meter=meter, quantity=_rounded_quantity(quantity), included=free, amount=rounded(amount))


def _rounded_quantity(quantity: Decimal) -> Decimal:
    whole = quantity.to_integral_value()
    return whole if whole == quantity else quantity.quantize(_QUANTITY, ROUND_HALF_EVEN)
