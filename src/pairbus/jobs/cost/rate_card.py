"""Rate cards: the prices of a provider, read from a file."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

from pairbus.ledger.events import UNIT_BYTES, OperationKind, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTier:
    """A price up to a monthly quantity; the last tier has no limit."""

    price: Decimal
    up_to: Decimal | None = None


def graduated(quantity: Decimal, tiers: Sequence[PriceTier]) -> Decimal:
    """Return the cost of a quantity, with each part at the price of its tier."""
    amount, previous = Decimal(0), Decimal(0)
    for tier in tiers:
        top = quantity if tier.up_to is None else min(quantity, tier.up_to)
        amount += max(Decimal(0), top - previous) * tier.price
        previous = top
    return amount


def included(tiers: Sequence[PriceTier]) -> Decimal:
    """Return the quantity that is free; 0 if nothing is, or everything is."""
    first = tiers[0]
    return first.up_to if first.price == 0 and first.up_to is not None else Decimal(0)


Choice = TypeVar("Choice", bound=StrEnum)

_PRICE_LIMIT: Final = 10**9
_QUANTITY_LIMIT: Final = 10**18
"""Plausibility limits. Amounts with more digits would not fit into their column."""


class RateCardError(ValueError):
    """A rate card cannot be read: a key is missing, unknown, or has an invalid value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSection:
    """A table of a rate card."""

    place: str
    """The name of the card in errors."""

    path: str
    """The path of the table in the card; empty for the root."""

    values: Mapping[str, Any]

    def invalid(self, key: str, reason: str) -> RateCardError:
        return RateCardError(f"the rate card {self.place} is invalid at {self._at(key)}: {reason}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.invalid(key, f"expected a string, got {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(
            CardSection(place=self.place, path=self.path, values={key: one}).text(key) for one in self._all(key)
        )

    def date(self, key: str) -> dt.date:
        value = self._value(key)
        if type(value) is not dt.date:
            raise self.invalid(key, f"expected a date like 2026-01-31, got {value!r}")
        return value

    def amount(self, key: str, default: Decimal | None = None) -> Decimal:
        """Return a number >= 0 that is plausible as a price."""
        number = self._number(key, default)
        if number >= _PRICE_LIMIT:
            raise self.invalid(key, f"expected a number below {_PRICE_LIMIT:,}, got {number}")
        return number

    def positive(self, key: str) -> Decimal:
        number = self._number(key)
        if number != number.to_integral_value() or not 1 <= number < _QUANTITY_LIMIT:
            raise self.invalid(key, f"expected a whole number >= 1 and below {_QUANTITY_LIMIT:,}, got {number}")
        return number

    def _number(self, key: str, default: Decimal | None = None) -> Decimal:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise self.invalid(key, f"expected a number, got {value!r}")
        number = Decimal(value)
        if not number.is_finite() or number < 0:
            raise self.invalid(key, f"expected a number >= 0, got {value}")
        return number

    def choice(self, key: str, kinds: type[Choice]) -> Choice:
        return self._chosen(key, self._value(key), kinds)

    def choices(self, key: str, kinds: type[Choice]) -> list[Choice]:
        return [self._chosen(key, one, kinds) for one in self._all(key)]

    def section(self, key: str) -> CardSection:
        value = self._value(key)
        if not isinstance(value, dict):
            raise self.invalid(key, f"expected a table, got {value!r}")
        return CardSection(place=self.place, path=self._at(key), values=value)

    def sections(self, key: str) -> list[CardSection]:
        """Return a list of tables, with at least one."""
        found = self._all(key)
        if not found or not all(isinstance(one, dict) for one in found):
            raise self.invalid(key, "expected a list with at least one table")
        return [
            CardSection(place=self.place, path=f"{self._at(key)}[{number}]", values=one)
            for number, one in enumerate(found)
        ]

    def reject_unknown(self, known: Iterable[str]) -> None:
        """Raise for unknown keys: a misspelled key must not be ignored."""
        for key in self.values:
            if key not in known:
                raise RateCardError(f"the rate card {self.place} has an unknown key: {self._at(key)}; remove it")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str, default: Any = None) -> Any:
        if key in self.values:
            return self.values[key]
        if default is None:
            raise RateCardError(f"the rate card {self.place} lacks the key {self._at(key)}")
        return default

    def _all(self, key: str) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list):
            raise self.invalid(key, f"expected a list, got {value!r}")
        return value

    def _chosen(self, key: str, value: Any, kinds: type[Choice]) -> Choice:
        try:
            return kinds(value)
        except ValueError:
            known = ", ".join(repr(one.value) for one in kinds)
            raise self.invalid(key, f"expected one of {known}, got {value!r}") from None


_RATES: Final = files("pairbus.jobs.cost") / "rates"

CARD_NAMES: Final = ("standard", "premium", "basic")
"""The rate cards included in the package."""


class CountedBy(StrEnum):
    """The billed item of a request with several messages."""

    MESSAGE = "message"
    """Each message, by its size."""

    REQUEST = "request"
    """The request, by its total size."""


class Failures(StrEnum):
    """The billing of rejected operations."""

    FREE = "free"
    BILLED = "billed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRates:
    """Prices of operations."""

    billable: frozenset[OperationKind]
    counted_by: CountedBy
    failures: Failures
    per: Decimal
    """Number of operations that a price is for."""

    tiers: tuple[PriceTier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRates:
    """Prices of open connections, by the maximum of each hour."""

    hours_per_month: Decimal
    """Divisor of the sum of the hourly maximums."""

    tiers: tuple[PriceTier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRates:
    """Prices of data that leaves the region of a namespace; incoming data is free."""

    gigabyte_bytes: Decimal
    kinds: frozenset[OperationKind]
    """Kinds of operations that send data out."""

    stages: frozenset[Stage]
    """Stages whose data leaves the region; the ledger does not know where a receiver is."""

    zone: str
    zones: Mapping[str, Decimal]
    """Prices of a gigabyte, by zone of the namespace."""

    @property
    def price(self) -> Decimal:
        return self.zones[self.zone]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagingUnitRates:
    """Prices of a namespace with dedicated resources."""

    hour: Decimal
    units: int
    """Number of messaging units of each namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCard:
    """The prices of a provider, with their sources."""

    name: str
    title: str
    currency: str
    sources: tuple[str, ...]
    as_of: date
    """Date of the source that states the prices."""

    read_on: date
    """Date on which the prices were looked up."""

    notes: str
    operations: OperationRates
    month: Decimal
    """Price of each started month, for all namespaces together."""

    connections: ConnectionRates | None
    bandwidth: BandwidthRates | None
    messaging_units: MessagingUnitRates | None


def load_rate_card(card: str | Path) -> RateCard:
    """Load a rate card by name (``standard``, ``premium``, ``basic``) or from a file.

    Raise ``RateCardError`` with the key that is missing, unknown or invalid.
    """
    return read_rate_card(str(card), rate_card_text(card))


def rate_card_text(card: str | Path) -> str:
    """Return the text of a rate card, as a template for a new one. Raise ``RateCardError`` if it cannot be read."""
    name = str(card)
    if name in CARD_NAMES:
        return (_RATES / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return Path(card).read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(CARD_NAMES)
        raise RateCardError(f"unknown rate card {name!r}: use one of {known}, or the path of a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RateCardError(f"the rate card {name} cannot be read: {error}") from error


def read_rate_card(place: str, text: str) -> RateCard:
    """Parse a rate card; ``place`` is its name in errors."""
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
    card.reject_unknown(RateCard.__dataclass_fields__)
    return read


def _operations(section: CardSection) -> OperationRates:
    if section.positive("unit_bytes") != UNIT_BYTES:
        raise section.invalid("unit_bytes", f"ledgers count in units of {UNIT_BYTES} bytes only; use that value")
    rates = OperationRates(
        billable=frozenset(section.choices("billable", OperationKind)),
        counted_by=section.choice("counted_by", CountedBy),
        failures=section.choice("failures", Failures),
        per=section.positive("per"),
        tiers=_tiers(section),
    )
    if OperationKind.CONNECTION in rates.billable:
        raise section.invalid("billable", "connections are not operations; use the section [connections]")
    section.reject_unknown({*OperationRates.__dataclass_fields__, "unit_bytes"})
    return rates


def _connections(section: CardSection) -> ConnectionRates:
    rates = ConnectionRates(hours_per_month=section.positive("hours_per_month"), tiers=_tiers(section))
    section.reject_unknown(ConnectionRates.__dataclass_fields__)
    return rates


def _bandwidth(section: CardSection) -> BandwidthRates:
    prices = section.section("zones")
    rates = BandwidthRates(
        gigabyte_bytes=section.positive("gigabyte_bytes"),
        kinds=frozenset(section.choices("kinds", OperationKind)),
        stages=frozenset(section.choices("stages", Stage)),
        zone=section.text("zone"),
        zones={zone: prices.amount(zone) for zone in prices.values},
    )
    if rates.zone not in rates.zones:
        known = ", ".join(rates.zones) or "none"
        raise section.invalid("zone", f"expected one of its zones ({known}), got {rates.zone!r}")
    section.reject_unknown(BandwidthRates.__dataclass_fields__)
    return rates


def _messaging_units(section: CardSection) -> MessagingUnitRates:
    rates = MessagingUnitRates(hour=section.amount("hour"), units=int(section.positive("units")))
    section.reject_unknown(MessagingUnitRates.__dataclass_fields__)
    return rates


def _tiers(section: CardSection) -> tuple[PriceTier, ...]:
    """Return the tiers, each of which ends where the next one starts."""
    tiers: list[PriceTier] = []
    sections = section.sections("tiers")
    for number, one in enumerate(sections, start=1):
        is_last = number == len(sections)
        tier = PriceTier(price=one.amount("price"), up_to=None if is_last else one.positive("up_to"))
        if is_last and "up_to" in one.values:
            raise one.invalid("up_to", "the last tier must not have a limit; remove it")
        if tiers and tier.up_to is not None and tier.up_to <= (tiers[-1].up_to or 0):
            raise one.invalid("up_to", "it must be above that of the previous tier")
        one.reject_unknown(PriceTier.__dataclass_fields__)
        tiers.append(tier)
    return tuple(tiers)


def with_zone(card: RateCard, zone: str) -> RateCard:
    """Return the card for namespaces of another zone."""
    if card.bandwidth is None or zone not in card.bandwidth.zones:
        known = ", ".join(card.bandwidth.zones) if card.bandwidth is not None else "none"
        raise RateCardError(f"the rate card {card.name} has no zone {zone!r}; available: {known}")
    return replace(card, bandwidth=replace(card.bandwidth, zone=zone))
