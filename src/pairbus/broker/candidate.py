"""A message under the eyes of a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from pairbus.broker.message import NEVER, PropertyView, Record
from pairbus.broker.sql import EvaluationError, Missing
from pairbus.broker.values import Instant, Span, Value

S = TypeVar("S")
T = TypeVar("T")


def _instant(time_ms: int | None) -> Value:
    return None if time_ms is None or time_ms == NEVER else Instant(time_ms)


# What the broker itself knows of a message; all else is what the sender wrote into it.
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
    """The rules have taken more work than they may."""


class Budget:
    """The work that rules may still do for one message, all its copies together."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0

    def spend(self, units: int) -> None:
        self.units -= units
        if self.units < 0:
            raise BudgetSpentError


class LazyView:
    """The properties inside a message, read when a rule first asks for one that the broker does not know."""

    __slots__ = ("_read", "_source", "_view")

    def __init__(self, read: Callable[[S], PropertyView], source: S) -> None:
        self._read: Callable[[Any], PropertyView] = read
        self._source: object = source
        self._view: PropertyView | None = None

    def get(self) -> PropertyView:
        if self._view is None:
            self._view = self._read(self._source)
        return self._view


class Candidate:
    """The properties of a message as they are now: what the sender wrote, with what was changed since."""

    __slots__ = ("_record", "_system", "_user", "_view", "spend")

    def __init__(self, record: Record, view: LazyView, budget: Budget) -> None:
        self._record = record
        self._view = view
        self.spend = budget.spend
        amendments = record.amendments
        self._user = {} if amendments is None else {name.lower(): value for name, value in amendments.user.items()}
        self._system = {} if amendments is None else dict(amendments.system)

    def user(self, name: str) -> Value | Missing:
        if self._user and (key := name.lower()) in self._user:
            return self._user[key]
        return _asked(self._view.get().user, name)

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
        raise EvaluationError(f"the message does not tell its property '{name}': {error}") from error
