"""Output of bills and forecasts: tables for a terminal, an HTML page, and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pairbus.html import environment
from pairbus.jobs.cost.forecast import DAYS, Forecast
from pairbus.jobs.cost.month import BillingMeter, MonthlyBill
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import Statement, StatementLine, added_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    texts: int = 1
    """Number of leading text columns; the others hold numbers."""

    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """Tables with a heading and footnotes."""

    heading: str
    sections: tuple[Section, ...]
    footnotes: tuple[str, ...]


def money(amount: Decimal, decimals: int = 2) -> str:
    """Format an amount with all its decimals, and at least ``decimals``."""
    integer, _, digits = f"{amount:,f}".partition(".")
    return f"{integer}.{digits.rstrip('0').ljust(decimals, '0')}"


def money_column(amounts: Iterable[Decimal]) -> list[str]:
    """Format the amounts of a column, all with as many decimals as one of them needs."""
    column = [*amounts]
    longest = max((len(money(amount).partition(".")[2]) for amount in column), default=0)
    return [money(amount, longest) for amount in column]


def number(quantity: int | Decimal) -> str:
    return f"{quantity:,f}" if isinstance(quantity, Decimal) else f"{quantity:,}"


def change(text: str) -> str:
    """Prefix a text with a plus sign unless it is negative."""
    return text if text.startswith("-") else f"+{text}"


def statement_report(statement: Statement) -> CostReport:
    """Return the tables of a bill."""
    currency = statement.card.currency
    heading = f"{money(statement.total)} {currency} by {statement.card.title}"
    return CostReport(
        heading=heading,
        sections=tuple(_statement_sections(statement, f"amount ({currency})")),
        footnotes=tuple(_footnotes(statement.card)),
    )


def _statement_sections(statement: Statement, amount: str) -> Iterator[Section]:
    yield _by_month(statement, amount)
    groups = statement.groups
    counts = ("operations", "failed", "messages", "bytes", "units", amount)
    rows, total = _count_rows(statement.lines)
    yield Section(
        title=f"By {statement.by.value}",
        columns=(*groups, *counts),
        rows=rows,
        total=("total", *[""] * (len(groups) - 1), *total),
        texts=len(groups),
    )
    if statement.pairing_total.operations:
        rows, total = _count_rows(statement.steps)
        yield Section(
            title="Operations of the pair",
            columns=("step", *counts),
            rows=rows,
            total=("total", *total),
            note=_per_diverted_message(statement),
        )


def _by_month(statement: Statement, amount: str) -> Section:
    readings = [(f"{month:%Y-%m}", one) for month, bill in statement.months.items() for one in bill.readings]
    *amounts, total = money_column([*(one.amount for _, one in readings), statement.total])
    return Section(
        title="By month",
        columns=("month", "meter", "used", "included", amount),
        rows=tuple(
            (month, one.meter.value, number(one.quantity), number(one.included), cost)
            for (month, one), cost in zip(readings, amounts, strict=True)
        ),
        total=("total", "", "", "", total),
        texts=2,
    )


def _per_diverted_message(statement: Statement) -> str:
    each = statement.per_diverted_message
    if each is None:
        if restored := statement.messages_restored:
            return f"{restored:,} messages were restored from a backlog; the secondary's ledger has the diverted ones."
        return "No message was diverted."
    return (
        f"{statement.diverted_messages:,} messages were diverted. Their four charges amount to "
        f"{money(statement.four_charges)} {statement.card.currency}, or {money(each)} per message."
    )


def _count_rows(lines: Sequence[StatementLine]) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the rows of lines, and their total without a label."""
    sum_line = added_up(lines)
    *amounts, total = money_column([*(line.amount for line in lines), sum_line.amount])
    rows = tuple((*line.labels, *_counts(line), amount) for line, amount in zip(lines, amounts, strict=True))
    return rows, (*_counts(sum_line), total)


def _counts(line: StatementLine) -> tuple[str, ...]:
    return tuple(map(number, (line.operations, line.failed, line.messages, line.bytes, line.units)))


def forecast_report(forecast: Forecast) -> CostReport:
    """Return the tables of a forecast."""
    currency = forecast.card.currency
    return CostReport(
        heading=f"Pairing costs {money(forecast.difference)} {currency} a month by {forecast.card.title}",
        sections=tuple(_forecast_sections(forecast, currency)),
        footnotes=(
            f"Assumes a month of {DAYS} days with evenly distributed messages, each received once.",
            *_footnotes(forecast.card),
        ),
    )


def _forecast_sections(forecast: Forecast, currency: str) -> Iterator[Section]:
    yield _comparison(forecast, currency)
    yield Section(
        title="Operations a month, with pairing",
        columns=("operation", "operations", "units"),
        rows=tuple((line.name, number(line.operations), number(line.units)) for line in forecast.lines),
    )
    amounts = money_column(knob.amount for knob in forecast.knobs)
    yield Section(
        title="Effect of each setting",
        columns=("setting", "from", "to", "units", f"amount ({currency})"),
        rows=tuple(
            (knob.name, knob.now, knob.then, change(number(knob.units)), change(amount))
            for knob, amount in zip(forecast.knobs, amounts, strict=True)
        ),
    )


def _comparison(forecast: Forecast, currency: str) -> Section:
    unpaired, paired = forecast.unpaired, forecast.paired
    meters = [meter for meter in BillingMeter if unpaired.amount(meter) or paired.amount(meter)]
    before = money_column([*map(unpaired.amount, meters), unpaired.total])
    after = money_column([*map(paired.amount, meters), paired.total])
    differences = [*(paired.amount(meter) - unpaired.amount(meter) for meter in meters), forecast.difference]
    names = [*(meter.value for meter in meters), "total"]
    *rows, total = zip(names, before, after, map(change, money_column(differences)), strict=True)
    return Section(
        title=f"Cost a month, in {currency}",
        columns=("meter", "without pairing", "with pairing", "difference"),
        rows=tuple(rows),
        total=total,
    )


def _footnotes(card: RateCard) -> Iterator[str]:
    yield f"Rate card: {card.title} ({card.name}), prices as of {card.as_of}, read on {card.read_on}."
    if card.notes:
        yield card.notes
    yield "Sources: " + " ".join(card.sources)


def html_page(report: CostReport) -> str:
    """Return the complete HTML page."""
    return environment("pairbus.jobs").get_template("cost.html").render(report=report) + "\n"


Document = dict[str, Any]


def statement_document(statement: Statement) -> Document:
    each = statement.per_diverted_message
    return {
        "rates": _card(statement.card),
        "total": _digits(statement.total),
        "months": [{"month": f"{month:%Y-%m}", **_month(bill)} for month, bill in statement.months.items()],
        "by": statement.by.value,
        "lines": [_line(line, statement.groups) for line in statement.lines],
        "pairing": [_line(step, ("step",)) for step in statement.steps],
        "pairing_total": _line(statement.pairing_total, ()),
        "diverted_messages": statement.diverted_messages,
        "per_diverted_message": None if each is None else _digits(each),
    }


def forecast_document(forecast: Forecast) -> Document:
    return {
        "rates": _card(forecast.card),
        "difference": _digits(forecast.difference),
        "without_pairing": _month(forecast.unpaired),
        "with_pairing": _month(forecast.paired),
        "operations": [
            {"name": line.name, "kind": line.kind.value, "stage": line.stage.value, "operations": line.operations}
            for line in forecast.lines
        ],
        "settings": [
            {"name": knob.name, "from": knob.now, "to": knob.then, "units": knob.units, "amount": _digits(knob.amount)}
            for knob in forecast.knobs
        ],
    }


def _digits(number: Decimal) -> str:
    """Format all digits, without an exponent."""
    return f"{number:f}"


def _card(card: RateCard) -> Document:
    return {
        "name": card.name,
        "title": card.title,
        "currency": card.currency,
        "as_of": card.as_of.isoformat(),
        "read_on": card.read_on.isoformat(),
        "sources": [*card.sources],
    }


def _month(bill: MonthlyBill) -> Document:
    readings = {
        one.meter.value: {
            "used": _digits(one.quantity),
            "included": _digits(one.included),
            "amount": _digits(one.amount),
        }
        for one in bill.readings
    }
    return {"total": _digits(bill.total), "meters": readings}


def _line(line: StatementLine, groups: tuple[str, ...]) -> Document:
    return {
        **dict(zip(groups, line.labels, strict=True)),
        "operations": line.operations,
        "failed": line.failed,
        "messages": line.messages,
        "bytes": line.bytes,
        "units": line.units,
        "amount": _digits(line.amount),
    }
