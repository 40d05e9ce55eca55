"""The SQL of subscription rules: filters that select messages, and actions that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.broker.sql.evaluation import MISSING, Missing, Subject, fold_name
from pairbus.broker.sql.filter import CompiledSqlFilter, PropertyChanges, SqlAction, parse_action, parse_filter
from pairbus.broker.sql.syntax import EvaluationError
from pairbus.renamed import renamed

__all__ = [
    "MISSING",
    "CompiledSqlFilter",
    "EvaluationError",
    "Missing",
    "PropertyChanges",
    "SqlAction",
    "Subject",
    "fold_name",
    "parse_action",
    "parse_filter",
]

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = renamed(__name__, {"Changes": "PropertyChanges", "SqlFilter": "CompiledSqlFilter"})
