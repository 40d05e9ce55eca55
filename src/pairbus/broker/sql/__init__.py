"""The SQL of subscription rules: filters that look at a message, and actions that change it."""

from __future__ import annotations

from pairbus.broker.sql.action import Changes, SqlAction, parse_action
from pairbus.broker.sql.errors import EvaluationError
from pairbus.broker.sql.filter import SqlFilter, parse_filter
from pairbus.broker.sql.subject import MISSING, Missing, Subject, fold_name

__all__ = [
    "MISSING",
    "Changes",
    "EvaluationError",
    "Missing",
    "SqlAction",
    "SqlFilter",
    "Subject",
    "fold_name",
    "parse_action",
    "parse_filter",
]
