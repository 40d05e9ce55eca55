"""What a provider takes for what, as a file says it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Final

from pairbus.jobs.cost.card_section import CardSection, RateCardError
from pairbus.jobs.cost.tier import Tier
from pairbus.ledger.operation import UNIT_BYTES, Kind, Stage

_RATES: Final = files("pairbus.jobs.cost") / "rates"

CARD_NAMES: Final = ("standard", "premium", "basic")
"""The cards that come with the package."""


class CountedBy(StrEnum):
    """What of a request that holds several messages is billed."""

    MESSAGE = "message"
    """Each message, by its own size."""

    REQUEST = "request"
    """The request, by the size of all of them."""


class Failures(StrEnum):
    """Whether operations cost something that were refused."""

    FREE = "free"
    BILLED = "billed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRates:
    """What operations cost."""

    billable: frozenset[Kind]
    counted_by: CountedBy
    failures: Failures
    per: Decimal
    """How many operations a price is for."""

    tiers: tuple[Tier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRates:
    """What open connections cost: by the peak of every hour."""

    hours_per_month: Decimal
    """What the sum of the peaks is divided by."""

    tiers: tuple[Tier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRates:
    """What data costs that leaves the region of a namespace; what comes in is free."""

    gigabyte_bytes: Decimal
    kinds: frozenset[Kind]
    """What carries data out."""

    stages: frozenset[Stage]
    """For whom it leaves the region; the ledger does not know where a receiver is."""

    zone: str
    zones: Mapping[str, Decimal]
    """Prices of a gigabyte, by where the namespace is."""

    @property
    def price(self) -> Decimal:
        return self.zones[self.zone]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingUnitRates:
    """What a namespace costs that has machines of its own."""

    hour: Decimal
    units: int
    """How many each namespace has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCard:
    """What a provider takes for what, with where that is from."""

    name: str
    title: str
    currency: str
    sources: tuple[str, ...]
    as_of: date
    """From when the source is that states the prices."""

    read_on: date
    """When somebody looked them up."""

    notes: str
    operations: OperationRates
    month: Decimal
    """What a month costs that has begun, for all namespaces together."""

    connections: ConnectionRates | None
    bandwidth: BandwidthRates | None
    messaging_units: MessagingUnitRates | None


def load_rate_card(card: str | Path) -> RateCard:
    """A card by its name (``standard``, ``premium``, ``basic``) or from a file of one's own.

    Raises ``RateCardError`` with the key that is missing, unknown or wrong.
    """
    return read_rate_card(str(card), rate_card_text(card))


def rate_card_text(card: str | Path) -> str:
    """The file of such a card as it is, for somebody to change. Raises ``RateCardError`` if it cannot be read."""
    name = str(card)
    if name in CARD_NAMES:
        return (_RATES / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return Path(card).read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(CARD_NAMES)
        raise RateCardError(f"there is no rate card {name!r}: it is one of {known}, or a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RateCardError(f"the rate card {name} cannot be read: {error}") from error


def read_rate_card(place: str, text: str) -> RateCard:
    """A card from its text; ``place`` is what errors call it."""
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise RateCardError(f"the rate card {place} is not TOML: {error}") from error
    return _card(CardSection(place=place, path="", values=document))


def _card(card: CardSection) -> RateCard:
    read = RateCard(
        name=card.text("name"),
        title=card.text("title"),
        currency=card.text("currency"),
        sources=card.texts("sources"),
        as_of=card.date("as_of"),
        read_on=card.date("read_on"),
        notes=card.text("notes", ""),
        operations=_operations(card.section("operations")),
        month=card.amount("month", Decimal(0)),
        connections=_connections(card.section("connections")) if "connections" in card.values else None,
        bandwidth=_bandwidth(card.section("bandwidth")) if "bandwidth" in card.values else None,
        messaging_units=_messaging_units(card.section("messaging_units")) if "messaging_units" in card.values else None,
    )
    card.refuse_others(RateCard.__dataclass_fields__)
    return read


def _operations(section: CardSection) -> OperationRates:
    if section.positive("unit_bytes") != UNIT_BYTES:
        raise section.wrong("unit_bytes", f"ledgers count in units of {UNIT_BYTES} bytes, and in no others")
    rates = OperationRates(
        billable=frozenset(section.choices("billable", Kind)),
        counted_by=section.choice("counted_by", CountedBy),
        failures=section.choice("failures", Failures),
        per=section.positive("per"),
        tiers=_tiers(section),
    )
    if Kind.CONNECTION in rates.billable:
        raise section.wrong("billable", "connections are no operations; they have a section of their own")
    section.refuse_others({*OperationRates.__dataclass_fields__, "unit_bytes"})
    return rates


def _connections(section: CardSection) -> ConnectionRates:
    rates = ConnectionRates(hours_per_month=section.positive("hours_per_month"), tiers=_tiers(section))
    section.refuse_others(ConnectionRates.__dataclass_fields__)
    return rates


def _bandwidth(section: CardSection) -> BandwidthRates:
    prices = section.section("zones")
    rates = BandwidthRates(
        gigabyte_bytes=section.positive("gigabyte_bytes"),
        kinds=frozenset(section.choices("kinds", Kind)),
        stages=frozenset(section.choices("stages", Stage)),
        zone=section.text("zone"),
        zones={zone: prices.amount(zone) for zone in prices.values},
    )
    if rates.zone not in rates.zones:
        raise section.wrong(
            "zone", f"{rates.zone!r} is none of its zones: {', '.join(rates.zones) or 'there are none'}"
        )
    section.refuse_others(BandwidthRates.__dataclass_fields__)
    return rates


def _messaging_units(section: CardSection) -> MessagingUnitRates:
    rates = MessagingUnitRates(hour=section.amount("hour"), units=int(section.positive("units")))
    section.refuse_others(MessagingUnitRates.__dataclass_fields__)
    return rates


def _tiers(section: CardSection) -> tuple[Tier, ...]:
    """The tiers, each ending where the next begins."""
    tiers: list[Tier] = []
    sections = section.sections("tiers")
    for number, one in enumerate(sections, start=1):
        is_last = number == len(sections)
        tier = Tier(price=one.amount("price"), up_to=None if is_last else one.positive("up_to"))
        if is_last and "up_to" in one.values:
            raise one.wrong("up_to", "the last tier has no end")
        if tiers and tier.up_to is not None and tier.up_to <= (tiers[-1].up_to or 0):
            raise one.wrong("up_to", "it is not above that of the tier before")
        one.refuse_others(Tier.__dataclass_fields__)
        tiers.append(tier)
    return tuple(tiers)


def with_zone(card: RateCard, zone: str) -> RateCard:
    """The same card for namespaces of another zone."""
    if card.bandwidth is None or zone not in card.bandwidth.zones:
        known = ", ".join(card.bandwidth.zones) if card.bandwidth is not None else "none"
        raise RateCardError(f"the rate card {card.name} has no zone {zone!r}; it has: {known}")
    return replace(card, bandwidth=replace(card.bandwidth, zone=zone))
