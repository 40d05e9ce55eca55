"""Filters and actions of rules as people read them, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from pairbus.dialect.atom.duration import format_duration
from pairbus.dialect.atom.instant import format_instant
from pairbus.dialect.atom.rules import CORRELATION_FILTER, EMPTY_ACTION, FALSE_FILTER, TRUE_FILTER
from pairbus.dialect.atom.table import Values
from pairbus.dialect.atom.values import Plain, TypedValue, ValueType

_MAPS: Final = ("parameters", "properties")


def filter_text(values: Values) -> str:
    """Write a filter in one line; a correlation filter as the SQL filter that says the same."""
    return _FILTERS.get(values["type"], _sql_text)(values)


def action_text(values: Values) -> str:
    """Write an action in one line; empty if there is none."""
    return "" if values["type"] == EMPTY_ACTION else _sql_text(values)


def plain_part(values: Values) -> dict[str, Any] | None:
    """Return a filter or an action with plain values, without what is not set; ``None`` if there is no action."""
    if values["type"] == EMPTY_ACTION:
        return None
    plain = {name: _plain_map(value) if name in _MAPS else value for name, value in values.items()}
    is_constant = values["type"] in {TRUE_FILTER, FALSE_FILTER}
    hidden = {"compatibility_level", *({"expression"} if is_constant else ())}
    return {name: value for name, value in plain.items() if name not in hidden and value not in (None, {})}


def _sql_text(values: Values) -> str:
    parameters = _plain_map(values.get("parameters", {}))
    told = ", ".join(f"{name} = {_literal(value)}" for name, value in parameters.items())
    return f"{values['expression']} ({told})" if told else str(values["expression"])


def _correlation_text(values: Values) -> str:
    own = {name: value for name, value in values.items() if name not in {"type", *_MAPS} and value is not None}
    terms = [f"sys.{name.title().replace('_', '')} = {_literal(value)}" for name, value in own.items()]
    terms += [f"{name} = {_literal(value)}" for name, value in _plain_map(values.get("properties", {})).items()]
    return " AND ".join(terms) or "all messages"


_FILTERS: Final[Mapping[str, Callable[[Values], str]]] = {
    TRUE_FILTER: lambda _: "all messages",
    FALSE_FILTER: lambda _: "no messages",
    CORRELATION_FILTER: _correlation_text,
}


def _literal(value: Plain) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    return str(value)


def _plain_map(values: Mapping[str, TypedValue]) -> dict[str, Plain]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(typed: TypedValue) -> Plain:
    match typed:
        case TypedValue(ValueType.DATE_TIME, int(time_ms)):
            return format_instant(time_ms)
        case TypedValue(ValueType.DURATION, int(length_ms)):
            return format_duration(length_ms)
        case TypedValue(ValueType.DOUBLE, float(value)) if not isfinite(value):  # JSON has no such numbers
            return str(value)
    return typed.value
