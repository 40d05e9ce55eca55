"""A bill or a forecast for programs. Amounts are texts, so that no digit is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pairbus.jobs.cost.forecast import Forecast
from pairbus.jobs.cost.month import MonthlyBill
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import Statement, StatementLine

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
    """All of them, and no exponent."""
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
