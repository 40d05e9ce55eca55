"""Filters and actions of rules."""

from __future__ import annotations

from typing import Final

from pairbus.dialect.atom.kinds import INTEGER, PAIRS, TEXT, Variant
from pairbus.dialect.atom.table import Element, Table

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
    Element("CorrelationId", TEXT, "correlation_id"),
    Element("MessageId", TEXT, "message_id"),
    Element("To", TEXT, "to"),
    Element("ReplyTo", TEXT, "reply_to"),
    Element("Label", TEXT, "label"),
    Element("SessionId", TEXT, "session_id"),
    Element("ReplyToSessionId", TEXT, "reply_to_session_id"),
    Element("ContentType", TEXT, "content_type"),
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
