"""The filter of a rule, written in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pairbus.broker.sql.compilation import Compiler
from pairbus.broker.sql.evaluation import Evaluate
from pairbus.broker.sql.parameters import NO_PARAMETERS, Parameters
from pairbus.broker.sql.parser import parse_predicate
from pairbus.broker.sql.subject import Subject
from pairbus.broker.values import Value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SqlFilter:
    """A filter that has been read and compiled; ``parse_filter`` makes it."""

    expression: str
    parameters: Mapping[str, Value]
    _evaluate: Evaluate = field(repr=False)

    def matches(self, subject: Subject) -> bool:
        """Whether the filter is true for a message, neither false nor unknown.

        Raises ``EvaluationError`` where the filter has no result.
        """
        return self._evaluate(subject) is True


def parse_filter(
    expression: str, parameters: Mapping[str, Value] = NO_PARAMETERS, *, fresh_id: Callable[[], UUID]
) -> SqlFilter:
    """Read a filter, or raise ``InvalidExpressionError``; ``fresh_id`` is asked for every ``newid()``."""
    known = Parameters(parameters, expression)
    evaluate = Compiler(expression, fresh_id).compile(parse_predicate(expression, known))
    return SqlFilter(expression=expression, parameters=known.given, _evaluate=evaluate)
