"""What a bill or a forecast says, in tables of texts: for a terminal, and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pairbus.jobs.cost.forecast import DAYS, Forecast
from pairbus.jobs.cost.month import Meter
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import Statement, StatementLine, added_up


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


def money(amount: Decimal, decimals: int = 2) -> str:
    """An amount with all decimals that it has, and at least so many."""
    whole, _, digits = f"{amount:,f}".partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(decimals, '0')}"


def money_column(amounts: Iterable[Decimal]) -> list[str]:
    """Amounts that stand below each other: all have as many decimals as one of them needs."""
    column = [*amounts]
    longest = max((len(money(amount).partition(".")[2]) for amount in column), default=0)
    return [money(amount, longest) for amount in column]


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
    yield _by_month(statement, amount)
    groups = statement.groups
    counts = ("operations", "failed", "messages", "bytes", "units", amount)
    rows, total = _counted(statement.lines)
    yield Section(
        title=f"By {statement.by.value}",
        columns=(*groups, *counts),
        rows=rows,
        total=("total", *[""] * (len(groups) - 1), *total),
        texts=len(groups),
    )
    if statement.pairing_total.operations:
        rows, total = _counted(statement.steps)
        yield Section(
            title="Diverted messages, and what else the pair did",
            columns=("step", *counts),
            rows=rows,
            total=("all of it", *total),
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
        if home := statement.messages_home:
            return f"{home:,} messages came home from a backlog; what was diverted is in the ledger of the secondary."
        return "No message was diverted."
    return (
        f"{statement.diverted_messages:,} messages were diverted. Their four charges are "
        f"{money(statement.four_charges)} {statement.card.currency}, which is {money(each)} for each."
    )


def _counted(lines: Sequence[StatementLine]) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The rows of lines, and what they come to without a label."""
    whole = added_up(lines)
    *amounts, total = money_column([*(line.amount for line in lines), whole.amount])
    rows = tuple((*line.labels, *_counts(line), amount) for line, amount in zip(lines, amounts, strict=True))
    return rows, (*_counts(whole), total)


def _counts(line: StatementLine) -> tuple[str, ...]:
    return tuple(map(number, (line.operations, line.failed, line.messages, line.bytes, line.units)))


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
    yield _compared(forecast, currency)
    yield Section(
        title="What is done in it, with pairing",
        columns=("operation", "operations", "units"),
        rows=tuple((line.name, number(line.operations), number(line.units)) for line in forecast.lines),
    )
    amounts = money_column(knob.amount for knob in forecast.knobs)
    yield Section(
        title="What each setting changes",
        columns=("setting", "from", "to", "units", f"amount ({currency})"),
        rows=tuple(
            (knob.name, knob.now, knob.then, change(number(knob.units)), change(amount))
            for knob, amount in zip(forecast.knobs, amounts, strict=True)
        ),
    )


def _compared(forecast: Forecast, currency: str) -> Section:
    unpaired, paired = forecast.unpaired, forecast.paired
    meters = [meter for meter in Meter if unpaired.amount(meter) or paired.amount(meter)]
    before = money_column([*map(unpaired.amount, meters), unpaired.total])
    after = money_column([*map(paired.amount, meters), paired.total])
    differences = [*(paired.amount(meter) - unpaired.amount(meter) for meter in meters), forecast.difference]
    names = [*(meter.value for meter in meters), "total"]
    *rows, total = zip(names, before, after, map(change, money_column(differences)), strict=True)
    return Section(
        title=f"A month, in {currency}",
        columns=("meter", "without pairing", "with pairing", "difference"),
        rows=tuple(rows),
        total=total,
    )


def _footnotes(card: RateCard) -> Iterator[str]:
    yield f"Rate card: {card.title} ({card.name}), prices as of {card.as_of}, read on {card.read_on}."
    if card.notes:
        yield card.notes
    yield "Sources: " + " ".join(card.sources)
