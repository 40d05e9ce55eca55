"""Rate cards: the included cards, and errors of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.jobs.cost.month import beyond_allowances
from pairbus.jobs.cost.rate_card import (
    CARD_NAMES,
    PriceTier,
    RateCardError,
    graduated,
    load_rate_card,
    rate_card_text,
    read_rate_card,
    with_zone,
)
from pairbus.ledger.events import OperationKind

STANDARD = (files("pairbus.jobs.cost") / "rates" / "standard.toml").read_text(encoding="utf-8")
TIERS = (
    PriceTier(price=Decimal(0), up_to=Decimal(10)),
    PriceTier(price=Decimal(3), up_to=Decimal(100)),
    PriceTier(price=Decimal(1)),
)


@pytest.mark.parametrize("name", CARD_NAMES)
def test_every_card_has_sources(name: str) -> None:
    card = load_rate_card(name)
    assert card.name == name
    assert card.sources
    assert all(source.startswith(("https://", "http://")) for source in card.sources)
    assert card.currency == "USD"
    assert card.as_of < card.read_on


def test_every_card_of_the_package_has_a_name() -> None:
    found = {file.name.removesuffix(".toml") for file in (files("pairbus.jobs.cost") / "rates").iterdir()}
    assert found == set(CARD_NAMES)


@pytest.mark.parametrize("name", CARD_NAMES)
def test_operations_of_a_pair_are_billable(name: str) -> None:
    billable = load_rate_card(name).operations.billable
    assert {
        OperationKind.SEND,
        OperationKind.RECEIVE,
        OperationKind.EMPTY_RECEIVE,
        OperationKind.MANAGEMENT,
    } <= billable
    assert not {OperationKind.SETTLE, OperationKind.RENEW_LOCK, OperationKind.CONNECTION} & billable


def test_custom_card_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(STANDARD.replace("price = 0.80", "price = 0.10"), encoding="utf-8")
    assert load_rate_card(file).operations.tiers[1].price == Decimal("0.10")


@pytest.mark.parametrize("name", CARD_NAMES)
def test_text_of_a_card_can_be_parsed(name: str) -> None:
    assert read_rate_card("mine.toml", rate_card_text(name)) == load_rate_card(name)


def test_notes_of_a_card_agree_with_its_values() -> None:
    card = load_rate_card("standard")
    assert card.operations.tiers[0].up_to == 12_500_000
    assert "include 13 million operations instead of 12.5" in card.notes


def test_card_beyond_allowances_has_one_price() -> None:
    card = load_rate_card("standard")
    beyond = beyond_allowances(card)
    assert beyond.operations.tiers == (PriceTier(price=Decimal("0.80")),)
    assert beyond.connections is not None
    assert beyond.connections.tiers == (PriceTier(price=Decimal("0.03")),)
    assert not beyond.month
    assert beyond.bandwidth == card.bandwidth
    assert beyond.title == "Azure Service Bus, Standard tier, beyond what is included"
    assert card.notes in beyond.notes
    assert "used up" in beyond.notes


@pytest.mark.parametrize(("name", "price"), [("basic", "0.05"), ("premium", "0")])
def test_card_without_allowances_has_the_same_prices_beyond(name: str, price: str) -> None:
    beyond = beyond_allowances(load_rate_card(name))
    assert beyond.operations.tiers == (PriceTier(price=Decimal(price)),)
    assert beyond.connections is None
    assert beyond.messaging_units == load_rate_card(name).messaging_units


@pytest.mark.parametrize(("quantity", "amount"), [(0, 0), (10, 0), (11, 3), (100, 270), (101, 271), (1_000, 1_170)])
def test_quantity_is_priced_by_tier(quantity: int, amount: int) -> None:
    assert graduated(Decimal(quantity), TIERS) == amount


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_larger_quantity_never_costs_less(one: int, more: int) -> None:
    assert graduated(Decimal(one + more), TIERS) >= graduated(Decimal(one), TIERS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("currency", "# currency"), "lacks the key currency"),
        (lambda text: text.replace("counted_by", "# counted_by"), "lacks the key operations.counted_by"),
        (lambda text: text.replace("{ price = 0.20 }", "{ }"), "lacks the key operations.tiers[3].price"),
        (lambda text: text.replace("[operations]", "[operation]"), "lacks the key operations"),
        (lambda text: text.replace("hours_per_month", "hours"), "lacks the key connections.hours_per_month"),
        (lambda text: text.replace("\nmonth =", "\nmonths ="), "an unknown key: months"),
        (lambda text: text.replace("failures =", "failure = 1\nfailures ="), "an unknown key: operations.failure"),
        (lambda text: text.replace('"session state"', '"sessions"'), "operations.billable: expected one of"),
        (
            lambda text: text.replace('"session state"', '"connection"'),
            "operations.billable: connections are not operations",
        ),
        (lambda text: text.replace('"message"', '"byte"'), "operations.counted_by: expected one of 'message'"),
        (lambda text: text.replace("price = 0.80", 'price = "a lot"'), "operations.tiers[1].price: expected a number"),
        (lambda text: text.replace("price = 0.80", "price = -1"), "operations.tiers[1].price: expected a number >= 0"),
        (lambda text: text.replace("price = 0.80", "price = nan"), "operations.tiers[1].price: expected a number >= 0"),
        (
            lambda text: text.replace("price = 0.80", "price = 8e20"),
            "operations.tiers[1].price: expected a number below",
        ),
        (
            lambda text: text.replace("per = 1_000_000", "per = 1e999999999"),
            "operations.per: expected a whole number >= 1",
        ),
        (lambda text: text.replace("price = 0.80", "price = true"), "operations.tiers[1].price: expected a number"),
        (lambda text: text.replace("up_to = 100_000_000", "up_to = 1"), "operations.tiers[1].up_to: it must be above"),
        (
            lambda text: text.replace("{ price = 0.20 }", "{ price = 0.20, up_to = 9 }"),
            "the last tier must not have a limit",
        ),
        (lambda text: text.replace("65_536", "1_024"), "operations.unit_bytes: ledgers count in units of 65536"),
        (lambda text: text.replace("per = 1_000_000", "per = 0"), "operations.per: expected a whole number >= 1"),
        (lambda text: text.replace('zone = "north', 'zone = "south'), "bandwidth.zone: expected one of its zones"),
        (lambda text: text.replace("read_on = 2026-11-16", 'read_on = "today"'), "read_on: expected a date"),
        (lambda text: text.replace('["syphon"]', '"syphon"'), "bandwidth.stages: expected a list"),
        (lambda text: "connections = 3\n" + text.replace("[connections]", "[other]"), "connections: expected a table"),
        (lambda text: text.replace('name = "standard"', "name = "), "not TOML"),
        (lambda text: text.replace('name = "standard"', "name = 3"), "name: expected a string"),
    ],
)
def test_invalid_card_is_rejected_with_the_key(change: Callable[[str], str], said: str) -> None:
    changed = change(STANDARD)
    assert changed != STANDARD
    with pytest.raises(RateCardError) as caught:
        read_rate_card("mine.toml", changed)
    assert said in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_missing_or_unreadable_card_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        RateCardError, match="unknown rate card 'gold': use one of standard, premium, basic, or the path of a file"
    ):
        load_rate_card("gold")
    with pytest.raises(RateCardError, match="cannot be read"):
        load_rate_card(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RateCardError, match="cannot be read"):
        load_rate_card(tmp_path / "binary.toml")


def test_bandwidth_price_depends_on_zone() -> None:
    card = with_zone(load_rate_card("standard"), "asia-pacific")
    assert card.bandwidth is not None
    assert card.bandwidth.price == Decimal("0.20")
    with pytest.raises(RateCardError, match="no zone 'moon'; available: north-america-europe, asia-pacific"):
        with_zone(card, "moon")
