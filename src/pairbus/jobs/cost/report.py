"""What a bill or a forecast says, in tables of texts: for a terminal, and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pairbus.jobs.cost.forecast import DAYS, Forecast
from pairbus.jobs.cost.month import Meter
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import DIVERTED_STEPS, Statement, StatementLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    texts: int = 1
    """How many columns from the first hold texts; the others hold numbers."""

    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tables, with a heading above and what they rest on below."""

    heading: str
    sections: tuple[Section, ...]
    footnotes: tuple[str, ...]


def money(amount: Decimal) -> str:
    """An amount with all decimals that it has, and at least two."""
    whole, _, decimals = f"{amount:,f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def number(quantity: int | Decimal) -> str:
    return f"{quantity:,f}" if isinstance(quantity, Decimal) else f"{quantity:,}"


def change(text: str) -> str:
    """With a plus in front of what is more."""
    return text if text.startswith("-") else f"+{text}"


def statement_report(statement: Statement) -> Report:
    """The tables of a bill."""
    currency = statement.card.currency
    heading = f"{money(statement.total)} {currency} by {statement.card.title}"
    return Report(
        heading=heading,
        sections=tuple(_statement_sections(statement, f"amount ({currency})")),
        footnotes=tuple(_footnotes(statement.card)),
    )


def _statement_sections(statement: Statement, amount: str) -> Iterator[Section]:
    yield Section(
        title="By month",
        columns=("month", "meter", "used", "included", amount),
        rows=tuple(
            (f"{month:%Y-%m}", one.meter.value, number(one.quantity), number(one.included), money(one.amount))
            for month, bill in statement.months.items()
            for one in bill.readings
        ),
        total=("total", "", "", "", money(statement.total)),
        texts=2,
    )
    groups = statement.groups
    counts = ("operations", "failed", "messages", "bytes", "units", amount)
    yield Section(
        title=f"By {statement.by.value}",
        columns=(*groups, *counts),
        rows=tuple((*line.labels, *_counts(line)) for line in statement.lines),
        total=("total", *[""] * (len(groups) - 1), *_counts(_sum(statement.lines))),
        texts=len(groups),
    )
    if any(step.operations for step in statement.steps):
        yield Section(
            title="Diverted messages, and what else the pair did",
            columns=("step", *counts),
            rows=tuple((*step.labels, *_counts(step)) for step in statement.steps),
            note=_per_diverted_message(statement),
        )


def _per_diverted_message(statement: Statement) -> str:
    each = statement.per_diverted_message
    if each is None:
        return "No message was diverted."
    four = sum((step.amount for step in statement.steps[: len(DIVERTED_STEPS)]), Decimal(0))
    return (
        f"{statement.diverted_messages:,} messages were diverted. Their four charges are {money(four)} "
        f"{statement.card.currency}, which is {money(each)} for each."
    )


def _counts(line: StatementLine) -> tuple[str, ...]:
    counted = (line.operations, line.failed, line.messages, line.bytes, line.units)
    return (*map(number, counted), money(line.amount))


def _sum(lines: Sequence[StatementLine]) -> StatementLine:
    return StatementLine(
        labels=(),
        operations=sum(line.operations for line in lines),
        failed=sum(line.failed for line in lines),
        messages=sum(line.messages for line in lines),
        bytes=sum(line.bytes for line in lines),
        units=sum(line.units for line in lines),
        amount=sum((line.amount for line in lines), Decimal(0)),
    )


def forecast_report(forecast: Forecast) -> Report:
    """The tables of a forecast."""
    currency = forecast.card.currency
    return Report(
        heading=f"Pairing costs {money(forecast.difference)} {currency} a month by {forecast.card.title}",
        sections=tuple(_forecast_sections(forecast, currency)),
        footnotes=(
            f"A month of {DAYS} days, messages spread evenly over it, each received once.",
            *_footnotes(forecast.card),
        ),
    )


def _forecast_sections(forecast: Forecast, currency: str) -> Iterator[Section]:
    unpaired, paired = forecast.unpaired, forecast.paired
    amounts = ((unpaired.amount(meter), paired.amount(meter), meter) for meter in Meter)
    yield Section(
        title=f"A month, in {currency}",
        columns=("meter", "without pairing", "with pairing", "difference"),
        rows=tuple(
            (meter.value, money(before), money(after), change(money(after - before)))
            for before, after, meter in amounts
            if before or after
        ),
        total=("total", money(unpaired.total), money(paired.total), change(money(forecast.difference))),
    )
    yield Section(
        title="What is done in it, with pairing",
        columns=("operation", "operations", "units"),
        rows=tuple((line.name, number(line.operations), number(line.units)) for line in forecast.lines),
    )
    yield Section(
        title="What each setting changes",
        columns=("setting", "from", "to", "units", f"amount ({currency})"),
        rows=tuple(
            (knob.name, knob.now, knob.then, change(number(knob.units)), change(money(knob.amount)))
            for knob in forecast.knobs
        ),
    )


def _footnotes(card: RateCard) -> Iterator[str]:
    yield f"Rate card: {card.title} ({card.name}), prices as of {card.as_of}, read on {card.read_on}."
    if card.notes:
        yield card.notes
    yield "Sources: " + " ".join(card.sources)
