"""Rules of our own client, from and to the suite's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pairbus
from pairbus import RuleDescription
from tests.compatibility.administration import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleAction,
    RuleFilter,
    SqlFilter,
    TrueFilter,
)

_CORRELATION: Final = {
    "correlation_id": "correlation_id",
    "message_id": "message_id",
    "to": "to",
    "reply_to": "reply_to",
    "subject": "label",
    "session_id": "session_id",
    "reply_to_session_id": "reply_to_session_id",
    "content_type": "content_type",
    "properties": "properties",
}
"""The suite's words, and ours."""


def rule_out(rule: Rule) -> RuleDescription:
    action = rule.action
    return RuleDescription(
        rule.name,
        filter=_filter_out(rule.filter),
        action=None if action is None else pairbus.SqlRuleAction(action.expression, _parameters(action)),
    )


def _filter_out(rule_filter: RuleFilter) -> Any:
    match rule_filter:
        case TrueFilter():
            return pairbus.TrueFilter()
        case FalseFilter():
            return pairbus.FalseFilter()
        case SqlFilter():
            return pairbus.SqlFilter(rule_filter.expression, _parameters(rule_filter))
        case CorrelationFilter():
            given: dict[str, Any] = {ours: getattr(rule_filter, name) for name, ours in _CORRELATION.items()}
            return pairbus.CorrelationFilter(**given)


def _parameters(part: SqlFilter | RuleAction) -> Mapping[str, Any]:
    """The suite's values are more than a rule may have."""
    return part.parameters


def rule_in(found: RuleDescription) -> Rule:
    action = found.action
    return Rule(
        name=found.name,
        filter=_filter_in(found.filter),
        action=None if action is None else RuleAction(action.expression, _known(action.parameters)),
    )


def _filter_in(found: Any) -> RuleFilter:
    match found:
        case pairbus.TrueFilter():
            return TrueFilter()
        case pairbus.FalseFilter():
            return FalseFilter()
        case pairbus.SqlFilter():
            return SqlFilter(found.expression, _known(found.parameters))
        case _:
            assert isinstance(found, pairbus.CorrelationFilter)
            given: dict[str, Any] = {name: getattr(found, ours) for name, ours in _CORRELATION.items()}
            return CorrelationFilter(**given)


def _known(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ours have lengths of time, which the suite's rules have not."""
    return parameters
