"""The broker's rules as the management API's, and back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

from pairbus.broker import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    FilterDescription,
    Instant,
    RuleDescription,
    Span,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
    Value,
    ZonelessInstant,
)
from pairbus.dialect.atom import TypedValue, Values, ValueType, Zoneless
from pairbus.dialect.atom.rules import (
    COMPATIBILITY_LEVEL,
    CORRELATION_FILTER,
    EMPTY_ACTION,
    FALSE_FILTER,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
)
from pairbus.server.errors import BadRequestError

_INT32: Final = range(-(2**31), 2**31)
_LEVEL: Final = {"compatibility_level": COMPATIBILITY_LEVEL}
_TRUE: Final = {"type": TRUE_FILTER, "expression": "1=1", **_LEVEL}
_FALSE: Final = {"type": FALSE_FILTER, "expression": "1=0", **_LEVEL}


def rule_values(rule: RuleDescription) -> dict[str, Any]:
    return {"name": rule.name, "filter": _filter_values(rule.filter), "action": _action_values(rule.action)}


def rule_of(values: Values, name: str | None = None) -> RuleDescription:
    """The broker's rule, under the name that the path gives it; raises ``BadRequestError``."""
    return RuleDescription(
        name=values.get("name", DEFAULT_RULE) if name is None else name,
        filter=_filter_of(values["filter"]) if "filter" in values else TrueFilter(),
        action=_action_of(values["action"]) if "action" in values else None,
    )


def _filter_values(description: FilterDescription) -> Values:
    match description:
        case TrueFilter():
            return _TRUE
        case FalseFilter():
            return _FALSE
        case SqlFilterDescription(expression, parameters):
            return {"type": SQL_FILTER, "expression": expression, "parameters": _typed(parameters), **_LEVEL}
        case CorrelationFilter():
            texts = {field.name: getattr(description, field.name) for field in fields(description)}
            return texts | {"type": CORRELATION_FILTER, "properties": _typed(description.properties)}


def _action_values(description: SqlActionDescription | None) -> Values:
    if description is None:
        return {"type": EMPTY_ACTION}
    parameters = _typed(description.parameters)
    return {"type": SQL_ACTION, "expression": description.expression, "parameters": parameters, **_LEVEL}


def _filter_of(values: Values) -> FilterDescription:
    match values["type"]:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilterDescription(_expression(values, "Filter"), _plain(values.get("parameters", {})))
        case _:
            given = {name: value for name, value in values.items() if name not in {"type", "properties"}}
            return CorrelationFilter(**given, properties=_plain(values.get("properties", {})))


def _action_of(values: Values) -> SqlActionDescription | None:
    if values["type"] == EMPTY_ACTION:
        return None
    return SqlActionDescription(_expression(values, "Action"), _plain(values.get("parameters", {})))


def _expression(values: Values, element: str) -> str:
    expression = values.get("expression")
    if not isinstance(expression, str):
        raise BadRequestError(f"{element}: an SqlExpression is needed")
    return expression


# Values: the time ones are numbers that say by their class what they are.


def _typed(values: Mapping[str, Value]) -> dict[str, TypedValue]:
    return {name: _typed_value(value) for name, value in values.items()}


def _typed_value(value: Value) -> TypedValue:
    match value:
        case bool():
            return TypedValue(ValueType.BOOLEAN, value)
        case ZonelessInstant():
            return TypedValue(ValueType.DATE_TIME, Zoneless(value))
        case Instant():
            return TypedValue(ValueType.DATE_TIME, int(value))
        case Span():
            return TypedValue(ValueType.DURATION, int(value))
        case int():
            return TypedValue(ValueType.INT if value in _INT32 else ValueType.LONG, value)
        case float():
            return TypedValue(ValueType.DOUBLE, value)
        case UUID():
            return TypedValue(ValueType.STRING, str(value))
        case bytes():
            return TypedValue(ValueType.STRING, base64.b64encode(value).decode())
        case str() | None:
            return TypedValue(ValueType.STRING, value)


def _plain(values: Mapping[str, TypedValue]) -> dict[str, Value]:
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(typed: TypedValue) -> Value:
    match typed:
        case TypedValue(ValueType.DATE_TIME, Zoneless(value)):
            return ZonelessInstant(value)
        case TypedValue(ValueType.DATE_TIME, int(value)):
            return Instant(value)
        case TypedValue(ValueType.DURATION, int(value)):
            return Span(value)
        case _:
            return typed.value
