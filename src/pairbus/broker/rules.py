"""Which messages a subscription gets, and in what form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from pairbus.broker.descriptions import (
    CorrelationFilter,
    FalseFilter,
    FilterDescription,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
)
from pairbus.broker.errors import InvalidDescriptionError
from pairbus.broker.limits import Limits
from pairbus.broker.sql import MISSING, SqlAction, Subject, parse_action, parse_filter
from pairbus.broker.values import Instant, Span, Value

Predicate: TypeAlias = Callable[[Subject], bool]

# Measured with a filter that has as many comparisons as fit into it.
_RULE_UNITS: Final = 200
_PROPERTY_UNITS: Final = 200
EXPRESSION_UNITS: Final = 20
"""About how many nanoseconds each character of an expression takes when it is evaluated."""

_CORRELATED: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule made ready to be applied. ``position`` is its place among the rules of its subscription."""

    position: int
    description: RuleDescription
    created_ms: int
    matches: Predicate
    action: SqlAction | None
    units: int
    """About how many nanoseconds the filter takes, apart from what it spends on long texts."""

    @property
    def is_sql(self) -> bool:
        return is_sql_filter(self.description.filter)


def is_sql_filter(description: FilterDescription) -> bool:
    """Whether it counts as an SQL filter; the true and the false filter do."""
    return not isinstance(description, CorrelationFilter)


def make_rule(
    description: RuleDescription, position: int, created_ms: int, limits: Limits, fresh_id: Callable[[], UUID]
) -> Rule:
    """Read the rule's expressions; raises ``InvalidExpressionError`` or ``InvalidDescriptionError``."""
    return Rule(
        position=position,
        description=description,
        created_ms=created_ms,
        matches=_predicate(description.filter, limits, fresh_id),
        action=None if description.action is None else _action(description.action, limits, fresh_id),
        units=_units(description.filter),
    )


def _units(description: FilterDescription) -> int:
    match description:
        case SqlFilterDescription(expression):
            return _RULE_UNITS + EXPRESSION_UNITS * len(expression)
        case CorrelationFilter(properties=properties):
            return _RULE_UNITS + _PROPERTY_UNITS * len(properties)
    return _RULE_UNITS


def _predicate(description: FilterDescription, limits: Limits, fresh_id: Callable[[], UUID]) -> Predicate:
    match description:
        case TrueFilter():
            return _always
        case FalseFilter():
            return _never
        case SqlFilterDescription(expression, parameters):
            _check_length(expression, limits)
            return parse_filter(expression, parameters, fresh_id=fresh_id).matches
        case CorrelationFilter():
            return _correlation(description)


def _action(description: SqlActionDescription, limits: Limits, fresh_id: Callable[[], UUID]) -> SqlAction:
    _check_length(description.expression, limits)
    return parse_action(
        description.expression,
        description.parameters,
        fresh_id=fresh_id,
        max_statements=limits.statements_per_action,
    )


def _check_length(expression: str, limits: Limits) -> None:
    if len(expression) > limits.expression_characters:
        raise InvalidDescriptionError(
            f"the expression has {len(expression)} characters; at most {limits.expression_characters} are allowed"
        )


def _always(_subject: Subject) -> bool:
    return True


def _never(_subject: Subject) -> bool:
    return False


def _correlation(description: CorrelationFilter) -> Predicate:
    wanted = tuple(
        (name, value) for field, name in _CORRELATED.items() if (value := getattr(description, field)) is not None
    )
    properties = tuple(description.properties.items())
    if not wanted and not properties:
        raise InvalidDescriptionError("a correlation filter needs at least one property to compare")

    def matches(subject: Subject) -> bool:  # no generators: a topic may have 100,000 of these
        for name, value in wanted:
            if subject.system(name) != value:
                return False
        for name, value in properties:  # noqa: SIM110
            if not _equal(subject.user(name), value):
                return False
        return True

    return matches


def _equal(found: object, wanted: Value) -> bool:
    """Numbers compare by value; a truth value is no number, and neither is a time."""
    return found == wanted and found is not MISSING and _kind(found) is _kind(wanted)


def _kind(value: object) -> type:
    for kind in (bool, Instant, Span):
        if isinstance(value, kind):
            return kind
    return object


class Rules:
    """The rules of one subscription, by name, in the order of their creation."""

    __slots__ = ("_by_name", "_last_position", "sql_count", "units")

    def __init__(self) -> None:
        self._by_name: dict[str, Rule] = {}
        self._last_position = 0
        self.sql_count = 0
        self.units = 0
        """The work of evaluating all of them, apart from what they spend on long texts."""

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Rule | None:
        return self._by_name.get(name.lower())

    def next_position(self) -> int:
        return self._last_position + 1

    @property
    def correlation_count(self) -> int:
        return len(self._by_name) - self.sql_count

    def add(self, rule: Rule) -> None:
        """Add a rule, or put it in the place of the one with its name."""
        before = self._by_name.get(rule.description.name.lower())
        self.sql_count += rule.is_sql - (before is not None and before.is_sql)
        self.units += rule.units - (0 if before is None else before.units)
        self._by_name[rule.description.name.lower()] = rule
        self._last_position = max(self._last_position, rule.position)

    def remove(self, rule: Rule) -> None:
        del self._by_name[rule.description.name.lower()]
        self.sql_count -= rule.is_sql
        self.units -= rule.units
