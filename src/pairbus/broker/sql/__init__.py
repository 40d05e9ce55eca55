"""The SQL of subscription rules: filters that select messages, and actions that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import searched

if TYPE_CHECKING:  # at run time they are imported when they are first used
    from pairbus.broker.sql.evaluation import MISSING, Missing, Subject, fold_name
    from pairbus.broker.sql.filter import CompiledSqlFilter, PropertyChanges, SqlAction, parse_action, parse_filter
    from pairbus.broker.sql.syntax import EvaluationError

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

if not TYPE_CHECKING:
    __getattr__ = searched(
        __name__,
        ["pairbus.broker.sql.evaluation", "pairbus.broker.sql.filter", "pairbus.broker.sql.syntax"],
        {"Changes": "PropertyChanges", "SqlFilter": "CompiledSqlFilter"},
    )
