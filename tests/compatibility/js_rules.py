"""Rules of @azure/service-bus, from and to the suite's own; it has no words for the filters true and false."""

from __future__ import annotations

from typing import Any, Final

from tests.compatibility.administration import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleAction,
    RuleFilter,
    SqlFilter,
    TrueFilter,
)

_TRUE: Final = "1=1"
_FALSE: Final = "1=0"

_CORRELATION: Final = {
    "correlation_id": "correlationId",
    "message_id": "messageId",
    "to": "to",
    "reply_to": "replyTo",
    "subject": "subject",
    "session_id": "sessionId",
    "reply_to_session_id": "replyToSessionId",
    "content_type": "contentType",
}


def filter_out(rule_filter: RuleFilter) -> dict[str, Any]:
    match rule_filter:
        case TrueFilter():
            return {"sqlExpression": _TRUE}
        case FalseFilter():
            return {"sqlExpression": _FALSE}
        case SqlFilter():
            return _sql_out(rule_filter)
        case CorrelationFilter():
            given = {js: getattr(rule_filter, name) for name, js in _CORRELATION.items()}
            given["applicationProperties"] = dict(rule_filter.properties) or None
            return {js: value for js, value in given.items() if value is not None}


def action_out(action: RuleAction | None) -> dict[str, Any] | None:
    return None if action is None else _sql_out(action)


def _sql_out(text: SqlFilter | RuleAction) -> dict[str, Any]:
    parameters = {"sqlParameters": dict(text.parameters)} if text.parameters else {}
    return {"sqlExpression": text.expression, **parameters}


def rule_in(found: dict[str, Any]) -> Rule:
    action = found["action"] or {}
    expression = action.get("sqlExpression")
    return Rule(
        name=found["name"],
        filter=_filter_in(found["filter"]),
        action=RuleAction(expression, action.get("sqlParameters") or {}) if expression else None,
    )


def _filter_in(found: dict[str, Any]) -> RuleFilter:
    match found.get("sqlExpression"):
        case None:
            return CorrelationFilter(
                **{name: found.get(js) for name, js in _CORRELATION.items()},
                properties=found.get("applicationProperties") or {},
            )
        case "1=1":
            return TrueFilter()
        case "1=0":
            return FalseFilter()
        case expression:
            return SqlFilter(expression, found.get("sqlParameters") or {})
