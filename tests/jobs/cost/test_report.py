"""Bills as output for people and programs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from html.parser import HTMLParser

import pytest

from pairbus.jobs.cost.forecast import Workload, forecast
from pairbus.jobs.cost.month import MonthlyUsage, monthly_bill
from pairbus.jobs.cost.rate_card import load_rate_card
from pairbus.jobs.cost.report import (
    change,
    forecast_document,
    forecast_report,
    html_page,
    money,
    money_column,
    statement_document,
    statement_report,
)
from pairbus.jobs.cost.statement import PAIRING_STEPS, GroupBy, Statement, StatementLine

CARD = load_rate_card("standard")
EVIL = "<script>alert('1')</script> & [bold]"
EMPTY = {"meta", "!doctype", "wbr"}


def counted(*labels: str, operations: int = 0, amount: str = "0") -> StatementLine:
    return StatementLine(
        labels=labels,
        operations=operations,
        failed=0,
        messages=operations,
        bytes=0,
        units=operations,
        amount=Decimal(amount),
    )


def example() -> Statement:
    """Return a bill of 13.5 million sends to one queue, one of which was diverted."""
    return Statement(
        card=CARD,
        by=GroupBy.ENTITY,
        months={date(2026, 4, 1): monthly_bill(MonthlyUsage(units=13_500_000), CARD)},
        lines=(counted("", "", amount="10"), counted("contoso", EVIL, operations=13_500_000, amount="0.80")),
        steps=tuple(counted(step.name, operations=1, amount="0.00000006") for step in PAIRING_STEPS),
    )


class Outline(HTMLParser):
    """Collects the elements of a page, and checks that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0.00"), ("10", "10.00"), ("0.8", "0.80"), ("0.000000661", "0.000000661"), ("1234567.5", "1,234,567.50")],
)
def test_amount_is_shown_with_all_digits(amount: str, text: str) -> None:
    assert money(Decimal(amount).quantize(Decimal("0.000000001"))) == text


def test_amounts_of_a_column_align_at_the_decimal_point() -> None:
    amounts = [Decimal("10.000000000"), Decimal("0.000091669"), Decimal("-0.0184"), Decimal(0)]
    assert money_column(amounts) == ["10.000000000", "0.000091669", "-0.018400000", "0.000000000"]
    assert money_column(amounts[::3]) == ["10.00", "0.00"]
    assert money_column([]) == []


@pytest.mark.parametrize("report", [0, 1], ids=["bill", "forecast"])
def test_amounts_of_a_column_have_equal_decimals(report: int) -> None:
    found = (statement_report(example()), forecast_report(forecast(Workload(messages_per_day=10**7), CARD)))[report]
    for section in found.sections:
        for place, name in enumerate(section.columns):
            if "amount" in name or "pairing" in name or name == "difference":
                rows = [*section.rows, section.total] if section.total is not None else section.rows
                assert len({len(row[place].partition(".")[2]) for row in rows}) == 1, (section.title, name)


def test_pairing_table_ends_with_a_total() -> None:
    pairing = statement_report(example()).sections[-1]
    count = len(PAIRING_STEPS)
    assert pairing.total == ("total", str(count), "0", str(count), "0", str(count), "0.00000048")
    assert statement_document(example())["pairing_total"] == {
        "operations": count, "failed": 0, "messages": count, "bytes": 0, "units": count, "amount": "0.00000048",
    }  # fmt: skip


def test_difference_has_a_sign() -> None:
    assert (change("1.00"), change("-1.00"), change("0.00")) == ("+1.00", "-1.00", "+0.00")


def test_tables_of_a_bill_have_the_same_total() -> None:
    months, lines, pairing = statement_report(example()).sections
    assert months.total is not None
    assert lines.total is not None
    assert months.total[-1] == lines.total[-1] == "10.80"
    assert lines.columns[:2] == ("namespace", "entity")
    assert "1 messages were diverted" in pairing.note
    assert "0.00000024" in pairing.note


def test_bill_without_pairing_has_no_pairing_table() -> None:
    alone = replace(example(), steps=tuple(counted(step.name) for step in PAIRING_STEPS))
    assert len(statement_report(alone).sections) == 2
    assert statement_document(alone)["per_diverted_message"] is None


@pytest.mark.parametrize(
    "report",
    [statement_report(example()), forecast_report(forecast(Workload(messages_per_day=10), CARD))],
    ids=["bill", "forecast"],
)
def test_page_is_self_contained_and_accessible(report: object) -> None:
    page = html_page(report)  # type: ignore[arg-type]
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert not outline.open
    assert not outline.addresses
    assert not {"script", "link", "img", "iframe"} & {*outline.seen}
    assert outline.seen.count("caption") == outline.seen.count("table") >= 2
    assert 'scope="col"' in page
    assert 'scope="row"' in page
    assert "prefers-color-scheme: dark" in page
    assert '<html lang="en">' in page
    assert "@import" not in page
    assert "url(" not in page


def test_entity_names_are_escaped() -> None:
    page = html_page(statement_report(example()))
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_document_keeps_every_digit() -> None:
    document = json.loads(json.dumps(statement_document(example())))
    assert document["total"] == "10.800000000"
    assert document["months"][0]["month"] == "2026-04"
    assert document["months"][0]["meters"]["operations"]["included"] == "12500000"
    assert document["lines"][1]["entity"] == EVIL
    assert document["pairing"][0]["step"] == "send to backlog"
    assert document["per_diverted_message"] == "0.000000240"
    assert document["rates"]["sources"] == [*CARD.sources]
    forecast_text = json.dumps(forecast_document(forecast(Workload(messages_per_day=10), CARD)))
    assert json.loads(forecast_text)["settings"][0]["name"] == "backlog queues"
