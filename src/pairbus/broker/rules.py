"""Rules of subscriptions: which messages a subscription gets, and in what form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from pairbus.broker.descriptions import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    FilterDescription,
    Instant,
    RuleDescription,
    Span,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
    Value,
)
from pairbus.broker.errors import InvalidDescriptionError
from pairbus.broker.limits import Limits
from pairbus.broker.message import NEVER, PropertyView, Record
from pairbus.broker.sql import MISSING, EvaluationError, Missing, SqlAction, Subject, parse_action, parse_filter

S = TypeVar("S")
T = TypeVar("T")


def _instant(time_ms: int | None) -> Value:
    return None if time_ms is None or time_ms == NEVER else Instant(time_ms)


# Properties that the broker itself knows; all others are decoded from the sender's message.
_KNOWN: Final[dict[str, Callable[[Record], Value]]] = {
    "MessageId": lambda record: record.message_id,
    "SessionId": lambda record: record.session_id,
    "PartitionKey": lambda record: record.partition_key,
    "TimeToLive": lambda record: None if record.time_to_live_ms is None else Span(record.time_to_live_ms),
    "ScheduledEnqueueTimeUtc": lambda record: _instant(record.scheduled_ms),
    "EnqueuedTimeUtc": lambda record: _instant(record.enqueued_ms),
    "ExpiresAtUtc": lambda record: _instant(record.expires_ms),
    "SequenceNumber": lambda record: record.sequence,
    "EnqueuedSequenceNumber": lambda record: record.original_sequence,
    "DeliveryCount": lambda record: record.delivery_count,
    "Size": lambda record: record.size,
    "State": lambda record: record.state.name.capitalize(),
    "DeadLetterSource": lambda record: record.dead_letter_source,
    "LockToken": lambda _: None,
    "LockedUntilUtc": lambda _: None,
}


class BudgetSpentError(Exception):
    """The rules have used up their budget of work."""


class RuleBudget:
    """The work that rules may still do for one message, all its copies together."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0

    def spend(self, units: int) -> None:
        self.units -= units
        if self.units < 0:
            raise BudgetSpentError


class LazyView:
    """The properties inside a message, decoded when a rule first asks for one that the broker does not know."""

    __slots__ = ("_read", "_source", "_view")

    def __init__(self, read: Callable[[S], PropertyView], source: S) -> None:
        self._read: Callable[[Any], PropertyView] = read
        self._source: object = source
        self._view: PropertyView | None = None

    def get(self) -> PropertyView:
        if self._view is None:
            self._view = self._read(self._source)
        return self._view


class RuleSubject:
    """The current properties of a message: the sender's, with all changes made since."""

    __slots__ = ("_changed", "_record", "_system", "_user", "_view", "spend")

    def __init__(self, record: Record, view: LazyView, budget: RuleBudget) -> None:
        self._record = record
        self._view = view
        self.spend = budget.spend
        amendments = record.amendments
        self._changed = {} if amendments is None else {name.lower(): value for name, value in amendments.user.items()}
        self._user: dict[str, Value | Missing] = {}
        """The values by the names as expressions spell them: the rules of a topic ask for the same ones."""
        self._system = {} if amendments is None else dict(amendments.system)

    def user(self, name: str) -> Value | Missing:
        if name in self._user:
            return self._user[name]
        if self._changed and (key := name.lower()) in self._changed:
            value = self._changed[key]
        else:
            value = _asked(self._view.get().user, name)
        self._user[name] = value
        return value

    def system(self, name: str) -> Value:
        if name in self._system:
            return self._system[name]
        known = _KNOWN.get(name)
        # A view may decode all of them each time.
        value = _asked(self._view.get().system, name) if known is None else known(self._record)
        self._system[name] = value
        return value


def _asked(ask: Callable[[str], T], name: str) -> T:
    try:
        return ask(name)
    except Exception as error:
        raise EvaluationError(f"the property '{name}' of the message cannot be read: {error}") from error


MessagePredicate: TypeAlias = Callable[[Subject], bool]

# Measured with a filter that has as many comparisons as fit into it.
_RULE_UNITS: Final = 200
_PROPERTY_UNITS: Final = 200
EXPRESSION_UNITS: Final = 20
"""About how many nanoseconds each character of an expression takes to evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A compiled rule. ``position`` is its place among the rules of its subscription."""

    position: int
    description: RuleDescription
    created_ms: int
    matches: MessagePredicate
    action: SqlAction | None
    units: int
    """About how many nanoseconds the filter takes, apart from what it spends on long texts."""

    @property
    def is_sql(self) -> bool:
        return is_sql_filter(self.description.filter)


def is_sql_filter(description: FilterDescription) -> bool:
    """Return whether a filter counts as an SQL filter; the true and the false filter do."""
    return not isinstance(description, CorrelationFilter)


def make_rule(
    description: RuleDescription, position: int, created_ms: int, limits: Limits, fresh_id: Callable[[], UUID]
) -> Rule:
    """Parse and compile a rule; raises ``InvalidExpressionError`` or ``InvalidDescriptionError``."""
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


def _predicate(description: FilterDescription, limits: Limits, fresh_id: Callable[[], UUID]) -> MessagePredicate:
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


def _correlation(description: CorrelationFilter) -> MessagePredicate:
    wanted = tuple(
        (name, value)
        for field, name in CORRELATION_FIELDS.items()
        if (value := getattr(description, field)) is not None
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
    """Return whether two values are equal. Numbers compare by value; booleans and times are not numbers."""
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
        """Work of evaluating all rules, apart from what they spend on long texts."""

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
        """Add a rule, or replace the rule of the same name."""
        before = self._by_name.get(rule.description.name.lower())
        self.sql_count += rule.is_sql - (before is not None and before.is_sql)
        self.units += rule.units - (0 if before is None else before.units)
        self._by_name[rule.description.name.lower()] = rule
        self._last_position = max(self._last_position, rule.position)

    def remove(self, rule: Rule) -> None:
        del self._by_name[rule.description.name.lower()]
        self.sql_count -= rule.is_sql
        self.units -= rule.units
