"""Filters and actions as the management API's documents have them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final

from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    FilterValue,
    RuleFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.times import (
    from_milliseconds,
    happened_ms,
    to_milliseconds,
    to_ms,
)
from pairbus.dialect.atom import TypedValue, Values, ValueType
from pairbus.dialect.atom.duration import LONGEST_MS
from pairbus.dialect.atom.rules import (
    COMPATIBILITY_LEVEL,
    CORRELATION_FILTER,
    EMPTY_ACTION,
    FALSE_FILTER,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
)

_INT32: Final = range(-(2**31), 2**31)
_LEVEL: Final = {"compatibility_level": COMPATIBILITY_LEVEL}


def write_filter(condition: RuleFilter) -> Values:
    match condition:
        case TrueFilter():
            return {"type": TRUE_FILTER, "expression": "1=1", **_LEVEL}
        case FalseFilter():
            return {"type": FALSE_FILTER, "expression": "1=0", **_LEVEL}
        case SqlFilter(expression, parameters):
            return {"type": SQL_FILTER, "expression": expression, "parameters": _typed(parameters), **_LEVEL}
        case CorrelationFilter():
            texts = {field.name: getattr(condition, field.name) for field in fields(condition)}
            return texts | {"type": CORRELATION_FILTER, "properties": _typed(condition.properties)}


def read_filter(values: Values) -> RuleFilter:
    match values["type"]:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(values["expression"], _plain(values.get("parameters", {})))
        case _:
            texts = {name: text for name, text in values.items() if name not in {"type", "properties"}}
            return CorrelationFilter(**texts, properties=_plain(values.get("properties", {})))


def write_action(action: SqlRuleAction) -> Values:
    return {
        "type": SQL_ACTION,
        "expression": action.expression,
        "parameters": _typed(action.parameters),
        **_LEVEL,
    }


def read_action(values: Values) -> SqlRuleAction | None:
    if values["type"] == EMPTY_ACTION:
        return None
    return SqlRuleAction(values["expression"], _plain(values.get("parameters", {})))


def _typed(values: Mapping[str, FilterValue]) -> dict[str, TypedValue]:
    return {name: _typed_value(value) for name, value in values.items()}


def _typed_value(value: FilterValue) -> TypedValue:
    match value:
        case bool():
            return TypedValue(ValueType.BOOLEAN, value)
        case int():
            return TypedValue(ValueType.INT if value in _INT32 else ValueType.LONG, value)
        case float():
            return TypedValue(ValueType.DOUBLE, value)
        case datetime():
            return TypedValue(ValueType.DATE_TIME, to_ms(value))
        case timedelta():
            length_ms = to_milliseconds(value)
            return TypedValue(ValueType.DURATION, LONGEST_MS if length_ms is None else length_ms)
        case str() | None:
            return TypedValue(ValueType.STRING, value)


def _plain(values: Mapping[str, TypedValue]) -> dict[str, FilterValue]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(typed: TypedValue) -> FilterValue:
    match typed:
        case TypedValue(ValueType.DATE_TIME, int(time_ms)):
            return happened_ms(time_ms)
        case TypedValue(ValueType.DURATION, int(length_ms)):
            return from_milliseconds(length_ms)
        case _:
            value: Any = typed.value
            return value  # type: ignore[no-any-return]
