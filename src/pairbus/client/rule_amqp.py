"""Rules as management nodes say them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pairbus.client.errors import InternalServerError, InvalidRequestError
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    FilterValue,
    RuleDescription,
    RuleFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.times import from_ms, to_ms
from pairbus.dialect.rules import CORRELATED, CORRELATION_FILTER, FALSE_FILTER, SQL_ACTION, SQL_FILTER, TRUE_FILTER
from pairbus.wire import Described, Timestamp

_ALWAYS: Final = "1=1"
_NEVER: Final = "1=0"


def write_rule(rule: RuleDescription, entity: str) -> dict[str, Any]:
    """What adds a rule."""
    described: dict[str, Any] = _written_filter(rule.filter, entity)
    if rule.action is not None:
        _check_parameters(rule.action, entity)
        described["sql-rule-action"] = {"expression": rule.action.expression}
    return described


def _written_filter(rule_filter: RuleFilter, entity: str) -> dict[str, Any]:
    match rule_filter:
        case TrueFilter():
            return {"sql-filter": {"expression": _ALWAYS}}
        case FalseFilter():
            return {"sql-filter": {"expression": _NEVER}}
        case SqlFilter():
            _check_parameters(rule_filter, entity)
            return {"sql-filter": {"expression": rule_filter.expression}}
        case CorrelationFilter():
            fields = {name.replace("_", "-"): getattr(rule_filter, name) for name in CORRELATED}
            given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
            if rule_filter.properties:
                given["properties"] = {name: _written(value) for name, value in rule_filter.properties.items()}
            return {"correlation-filter": given}


def _written(value: FilterValue) -> Any:
    return Timestamp(to_ms(value)) if isinstance(value, datetime) else value


def _check_parameters(part: SqlFilter | SqlRuleAction, entity: str) -> None:
    if part.parameters:
        raise InvalidRequestError(
            "rules with parameters cannot be added over AMQP; NamespaceManager.create_rule can", entity=entity
        )


def read_rule(described: Any, entity: str) -> RuleDescription:
    """A rule as it was told."""
    try:
        rule_filter, action, name, created = described.value[:4]
        return RuleDescription(
            str(name),
            filter=_read_filter(rule_filter),
            action=SqlRuleAction(str(action.value[0])) if action.descriptor == SQL_ACTION else None,
            created_at=from_ms(created),
        )
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise InternalServerError(f"a rule that makes no sense: {error}", entity=entity) from error


def _read_filter(described: Described) -> RuleFilter:
    values: Any = described.value
    if described.descriptor == TRUE_FILTER:
        return TrueFilter()
    if described.descriptor == FALSE_FILTER:
        return FalseFilter()
    if described.descriptor == SQL_FILTER:
        return SqlFilter(str(values[0]))
    if described.descriptor == CORRELATION_FILTER:
        fields = {name: None if value is None else str(value) for name, value in zip(CORRELATED, values, strict=False)}
        properties = values[len(CORRELATED)] if len(values) > len(CORRELATED) else None
        read = {
            name: from_ms(value) if type(value) is Timestamp else value for name, value in (properties or {}).items()
        }
        return CorrelationFilter(**fields, properties=read)
    raise ValueError(f"{described.descriptor!r} is no filter")
