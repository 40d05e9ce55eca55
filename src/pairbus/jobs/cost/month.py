"""What a month costs, from what was used in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from typing import Final

from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.tier import graduated, included

AMOUNT_DIGITS: Final = 9
"""How many decimals an amount of money is kept with: a single operation costs less than a millionth."""

_SMALLEST: Final = Decimal(1).scaleb(-AMOUNT_DIGITS)
_QUANTITY: Final = Decimal("0.000001")
_TOO_MUCH: Final = Decimal(10) ** 15
"""What an amount has to stay below: so many digits are kept before its point."""


class AmountError(ValueError):
    """Something costs more than can be meant."""


class Meter(StrEnum):
    """What is counted for a bill."""

    OPERATIONS = "operations"
    CONNECTIONS = "connections"
    BANDWIDTH = "gigabytes out"
    MESSAGING_UNITS = "messaging unit hours"
    BASE_CHARGE = "base charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyUsage:
    """What all namespaces of an account used in a calendar month."""

    units: int = 0
    """Of 64 KB, of operations that are billable."""

    connection_peaks: int = 0
    """The most that were open at a time, of every hour, added up."""

    bytes_out: int = 0
    namespace_hours: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterReading:
    """What was used by one meter, and what that costs."""

    meter: Meter
    quantity: Decimal
    included: Decimal
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyBill:
    """What a month costs."""

    usage: MonthlyUsage
    readings: tuple[MeterReading, ...]

    @property
    def total(self) -> Decimal:
        return sum((one.amount for one in self.readings), Decimal(0))

    def amount(self, meter: Meter) -> Decimal:
        return sum((one.amount for one in self.readings if one.meter is meter), Decimal(0))


def monthly_bill(usage: MonthlyUsage, card: RateCard) -> MonthlyBill:
    """What a month costs by a rate card, each meter rounded to the smallest amount."""
    return MonthlyBill(usage=usage, readings=tuple(_readings(usage, card)))


def rounded(amount: Decimal) -> Decimal:
    """An amount with the decimals that amounts are kept with. Raises ``AmountError``."""
    if amount >= _TOO_MUCH:
        raise AmountError(
            f"an amount of {amount:.3e} cannot be meant: look at the prices of the rate card, and at what was counted"
        )
    return amount.quantize(_SMALLEST, ROUND_HALF_EVEN)


def _readings(usage: MonthlyUsage, card: RateCard) -> Iterator[MeterReading]:
    units = Decimal(usage.units)
    tiers = card.operations.tiers
    yield _reading(Meter.OPERATIONS, units, graduated(units, tiers) / card.operations.per, included(tiers))
    if card.connections is not None:
        connections = usage.connection_peaks / card.connections.hours_per_month
        tiers = card.connections.tiers
        yield _reading(Meter.CONNECTIONS, connections, graduated(connections, tiers), included(tiers))
    if card.bandwidth is not None:
        gigabytes = usage.bytes_out / card.bandwidth.gigabyte_bytes
        yield _reading(Meter.BANDWIDTH, gigabytes, gigabytes * card.bandwidth.price)
    if card.messaging_units is not None:
        rates = card.messaging_units
        hours = Decimal(usage.namespace_hours)
        yield _reading(Meter.MESSAGING_UNITS, hours * rates.units, hours * rounded(rates.hour * rates.units))
    if card.month:
        yield _reading(Meter.BASE_CHARGE, Decimal(1), card.month)


def _reading(meter: Meter, quantity: Decimal, amount: Decimal, free: Decimal = Decimal(0)) -> MeterReading:
    return MeterReading(meter=meter, quantity=_shown(quantity), included=free, amount=rounded(amount))


def _shown(quantity: Decimal) -> Decimal:
    whole = quantity.to_integral_value()
    return whole if whole == quantity else quantity.quantize(_QUANTITY, ROUND_HALF_EVEN)
