"""Filters and actions of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from pairbus.broker.descriptions import CORRELATION_FIELDS
from pairbus.dialect.atom.table import INTEGER, PAIRS, TEXT, Element, Table, Values, Variant
from pairbus.dialect.atom.values import Plain, TypedValue, ValueType, format_duration, format_instant

TRUE_FILTER: Final = "TrueFilter"
FALSE_FILTER: Final = "FalseFilter"
SQL_FILTER: Final = "SqlFilter"
CORRELATION_FILTER: Final = "CorrelationFilter"
EMPTY_ACTION: Final = "EmptyRuleAction"
SQL_ACTION: Final = "SqlRuleAction"

COMPATIBILITY_LEVEL: Final = 20

_SQL: Final = (
    Element("SqlExpression", TEXT, "expression"),
    Element("CompatibilityLevel", INTEGER, "compatibility_level", read_only=True),
    Element("Parameters", PAIRS, "parameters"),
)
_CORRELATION: Final = (
    *(Element(name, TEXT, field) for field, name in CORRELATION_FIELDS.items()),
    Element("Properties", PAIRS, "properties"),
)

FILTER: Final = Variant(
    {
        TRUE_FILTER: Table("Filter", _SQL),
        FALSE_FILTER: Table("Filter", _SQL),
        SQL_FILTER: Table("Filter", _SQL),
        CORRELATION_FILTER: Table("Filter", _CORRELATION),
    }
)
ACTION: Final = Variant({EMPTY_ACTION: Table("Action", ()), SQL_ACTION: Table("Action", _SQL)})


_MAPS: Final = ("parameters", "properties")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def filter_text(values: Values) -> str:
    """Format a filter on one line; a correlation filter as the SQL filter that matches the same messages.

    SQL has no literal for a time, a duration or a line break. Such a value is followed by a note in parentheses, and
    the text is not valid SQL then.
    """
    return _FILTERS.get(values["type"], _sql_text)(values)


def action_text(values: Values) -> str:
    """Format an action on one line; empty if there is none."""
    return "" if values["type"] == EMPTY_ACTION else _sql_text(values)


def plain_part(values: Values) -> dict[str, Any] | None:
    """Return a filter or an action with plain values, without unset ones; ``None`` if there is no action."""
    if values["type"] == EMPTY_ACTION:
        return None
    plain = {name: _plain_map(value) if name in _MAPS else value for name, value in values.items()}
    is_constant = values["type"] in {TRUE_FILTER, FALSE_FILTER}
    hidden = {"compatibility_level", *({"expression"} if is_constant else ())}
    return {name: value for name, value in plain.items() if name not in hidden and value not in (None, {})}


def _sql_text(values: Values) -> str:
    parameters = values.get("parameters", {})
    assigned = ", ".join(f"{name} = {_literal(value)}" for name, value in parameters.items())
    expression = _one_line(str(values["expression"]))
    return f"{expression} ({assigned})" if assigned else expression


def _correlation_text(values: Values) -> str:
    own = {name: values.get(field) for field, name in CORRELATION_FIELDS.items()}
    terms = [f"sys.{name} = {_quoted(value)}" for name, value in own.items() if value is not None]
    terms += [_term(_property(name), value) for name, value in values.get("properties", {}).items()]
    return " AND ".join(terms) or "all messages"


def _term(name: str, typed: TypedValue) -> str:
    # Nothing equals NULL in SQL, but a correlation filter matches a property whose value is null.
    return f"EXISTS({name}) AND {name} IS NULL" if typed.value is None else f"{name} = {_literal(typed)}"


def _property(name: str) -> str:
    from pairbus.broker.sql.syntax import RESERVED  # noqa: PLC0415 (a client that shows no rule does not need the SQL)

    if _WORD.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return _one_line(f"[{name.replace(']', ']]')}]")


_FILTERS: Final[Mapping[str, Callable[[Values], str]]] = {
    TRUE_FILTER: lambda _: "all messages",
    FALSE_FILTER: lambda _: "no messages",
    CORRELATION_FILTER: _correlation_text,
}


def _literal(typed: TypedValue) -> str:
    value = _plain(typed)
    note = _NO_LITERALS.get(typed.type)
    if value is None:
        return "null"
    if note is not None:
        return f"{value} ({note})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if typed.type is ValueType.DOUBLE and isinstance(value, str):
        return f"{value} (a double)"
    return _quoted(value) if isinstance(value, str) else str(value)


_NO_LITERALS: Final = {ValueType.DATE_TIME: "a time", ValueType.DURATION: "a duration"}


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return _one_line(f"'{escaped}'")


def _one_line(text: str) -> str:
    """Escape unprintable characters, and add a note, because SQL has no such escapes."""
    if text.isprintable():
        return text
    escaped = "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode() for one in text
    )
    return f"{escaped} (with escapes)"


def _plain_map(values: Mapping[str, TypedValue]) -> dict[str, Plain]:
    return {name: _plain(value) for name, value in values.items()}


def _plain(typed: TypedValue) -> Plain:
    match typed:
        case TypedValue(ValueType.DATE_TIME, int(time_ms)):
            return format_instant(int(time_ms))  # without a zone it is UTC
        case TypedValue(ValueType.DURATION, int(length_ms)):
            return format_duration(length_ms)
        case TypedValue(ValueType.DOUBLE, float(value)) if not isfinite(value):  # JSON has no such numbers
            return str(value)
    return typed.value
