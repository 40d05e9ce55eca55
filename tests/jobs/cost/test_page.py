"""The reference page of rate cards agrees with the cards."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final

from pairbus.jobs.cost.rate_card import (
    CARD_NAMES,
    BandwidthRates,
    ConnectionRates,
    MessagingUnitRates,
    OperationRates,
    PriceTier,
    RateCard,
    load_rate_card,
)
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

PAGE: Final = ROOT / "docs" / "reference" / "rate-cards.md"
PARTS: Final = {
    "operations": OperationRates,
    "connections": ConnectionRates,
    "bandwidth": BandwidthRates,
    "messaging_units": MessagingUnitRates,
}


def prices(cell: str) -> list[str]:
    """Return the numbers that follow a colon, or the only number."""
    return re.findall(r": ([\d.]+)", cell) or [cell]


def names_of(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def shown(tiers: tuple[PriceTier, ...]) -> list[str]:
    return [str(tier.price) for tier in tiers]


def test_every_card_is_listed_with_its_date() -> None:
    rows = {code(name): (title, date) for name, title, date in rows_of(PAGE, "card", "what it is", "prices as of")}
    assert rows == {name: (load_rate_card(name).title, load_rate_card(name).as_of.isoformat()) for name in CARD_NAMES}


def test_documented_prices_match_the_cards() -> None:
    rows = rows_of(PAGE, "", *(f"`{name}`" for name in CARD_NAMES))
    for place, card in enumerate(map(load_rate_card, CARD_NAMES), start=1):
        month, operations, connections, unit, america, asia = [row[place] for row in rows]
        assert month == (str(card.month) if card.month else "none")
        assert prices(operations) == shown(card.operations.tiers)
        assert prices(connections) == (shown(card.connections.tiers) if card.connections else ["0"])
        assert unit == (str(card.messaging_units.hour) if card.messaging_units else "none")
        assert card.bandwidth is not None
        assert [america, asia] == [str(price) for price in card.bandwidth.zones.values()]


def test_every_key_is_documented() -> None:
    named = {key for row in rows_of(PAGE, "key", "what it is") for key in codes(row[0])}
    keys = {name for name in names_of(RateCard) if name not in PARTS}
    keys |= {f"{part}.{name}" for part, kind in PARTS.items() for name in names_of(kind)}
    assert named == keys | {"operations.unit_bytes"}
