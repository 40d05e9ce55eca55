"""The rules of a subscription, in the form that the SDK for JavaScript asks for over AMQP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pairbus.broker import (
    CorrelationFilter,
    FalseFilter,
    FilterDescription,
    InvalidOperationError,
    Rule,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
)
from pairbus.dialect.management import Response
from pairbus.dialect.rules import (
    CORRELATED,
    CORRELATION_FILTER,
    EMPTY_ACTION,
    FALSE_FILTER,
    RULE,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
)
from pairbus.server.amqp.management.call import Call
from pairbus.server.errors import BadRequestError
from pairbus.server.messages import to_wire, values_from_wire
from pairbus.wire import Described, Int, Timestamp, ULong

_COMPATIBILITY: Final = Int(20)


def add(call: Call) -> Response:
    name = call.text("rule-name")
    described = call.mapping("rule-description")
    action = described.get("sql-rule-action")
    rule = RuleDescription(
        name=name,
        filter=_filter(described),
        action=SqlActionDescription(_expression(action, "sql-rule-action")) if action else None,
    )
    call.namespace.add_rule(*_subscription(call), rule, call.now_ms)
    return Response()


def remove(call: Call) -> Response:
    call.namespace.remove_rule(*_subscription(call), call.text("rule-name"), call.now_ms)
    return Response()


def enumerate_rules(call: Call) -> Response:
    rules = call.namespace.rules(*_subscription(call), call.now_ms)
    skip = max(0, call.number("skip", 0))
    page = rules[skip : skip + max(0, call.number("top", 100))]
    if not page:
        return Response(status=204, description="No rules")
    return Response(body={"rules": [{"rule-description": _described(rule)} for rule in page]})


def _subscription(call: Call) -> tuple[str, str]:
    if call.address.subscription is None:
        raise InvalidOperationError("only a subscription has rules", str(call.address))
    return call.address.entity, call.address.subscription


def _filter(described: Mapping[Any, Any]) -> FilterDescription:
    sql, correlation = described.get("sql-filter"), described.get("correlation-filter")
    if sql is not None:
        return SqlFilterDescription(_expression(sql, "sql-filter"))
    if isinstance(correlation, Mapping):
        return CorrelationFilter(
            properties=values_from_wire(correlation.get("properties") or {}),
            **{field: _text(correlation.get(field.replace("_", "-"))) for field in CORRELATED},
        )
    return TrueFilter()


def _expression(described: object, name: str) -> str:
    expression = described.get("expression") if isinstance(described, Mapping) else None
    if not isinstance(expression, str):
        raise BadRequestError(f"'{name}' is a map with the text as 'expression'")
    return expression


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _described(rule: Rule) -> Described:
    action = rule.description.action
    return Described(
        RULE,
        [
            _described_filter(rule.description.filter),
            Described(EMPTY_ACTION, []) if action is None else _sql(SQL_ACTION, action.expression),
            rule.description.name,
            Timestamp(rule.created_ms),
        ],
    )


def _described_filter(described: FilterDescription) -> Described:
    match described:
        case TrueFilter():
            return Described(TRUE_FILTER, [])
        case FalseFilter():
            return Described(FALSE_FILTER, [])
        case SqlFilterDescription():
            return _sql(SQL_FILTER, described.expression)
        case CorrelationFilter():
            fields: list[Any] = [getattr(described, field) for field in CORRELATED]
            properties = {name: to_wire(value) for name, value in described.properties.items()}
            return Described(CORRELATION_FILTER, [*fields, properties])


def _sql(descriptor: ULong, expression: str) -> Described:
    return Described(descriptor, [expression, _COMPATIBILITY])
