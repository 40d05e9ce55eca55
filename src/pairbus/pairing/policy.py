"""The failover policy of an entity: a transition table, driven by outcomes and time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.validation import shown


class EntityState(Enum):
    """The state of an entity of the primary namespace, as the senders of a factory see it."""

    HEALTHY = "healthy"
    FAILING = "failing"
    """An attempt failed, and none has succeeded since: the failover interval is running."""
    FAILED_OVER = "failed over"
    """Messages go to the backlog until a ping succeeds."""
    HELD_OVER = "held over"
    """Messages go to the backlog by a manual switch, until it is released."""


class Signal(Enum):
    """An event that may change the state of an entity."""

    SENT = "sent"
    """The primary has confirmed a message."""
    FAILED = "failed"
    """An attempt failed with an error that counts."""
    EXPIRED = "expired"
    """The failover interval has passed."""
    ANSWERED = "answered"
    """A ping succeeded."""
    ENGAGED = "engaged"
    """Failover was engaged manually."""
    RELEASED = "released"
    """Failover was released manually."""


_HEALTHY: Final = EntityState.HEALTHY
_FAILING: Final = EntityState.FAILING
_FAILED_OVER: Final = EntityState.FAILED_OVER
_HELD_OVER: Final = EntityState.HELD_OVER

TRANSITIONS: Final[dict[tuple[EntityState, Signal], EntityState]] = {
    # A failure starts the timer, a success stops it.
    (_HEALTHY, Signal.SENT): _HEALTHY,
    (_HEALTHY, Signal.FAILED): _FAILING,
    (_HEALTHY, Signal.EXPIRED): _HEALTHY,
    (_HEALTHY, Signal.ANSWERED): _HEALTHY,
    (_FAILING, Signal.SENT): _HEALTHY,
    (_FAILING, Signal.FAILED): _FAILING,
    (_FAILING, Signal.EXPIRED): _FAILED_OVER,
    (_FAILING, Signal.ANSWERED): _HEALTHY,
    # Then only a ping ends the failover: the outcomes of older attempts change nothing.
    (_FAILED_OVER, Signal.SENT): _FAILED_OVER,
    (_FAILED_OVER, Signal.FAILED): _FAILED_OVER,
    (_FAILED_OVER, Signal.EXPIRED): _FAILED_OVER,
    (_FAILED_OVER, Signal.ANSWERED): _HEALTHY,
    # A manual switch is released manually.
    (_HELD_OVER, Signal.SENT): _HELD_OVER,
    (_HELD_OVER, Signal.FAILED): _HELD_OVER,
    (_HELD_OVER, Signal.EXPIRED): _HELD_OVER,
    (_HELD_OVER, Signal.ANSWERED): _HELD_OVER,
    **{(state, Signal.ENGAGED): _HELD_OVER for state in EntityState},
    **{(state, Signal.RELEASED): _HEALTHY for state in EntityState},
}

DIVERTING: Final = frozenset({_FAILED_OVER, _HELD_OVER})
"""The states in which messages go to the backlog."""


class FailoverPolicy:
    """The state of one entity. Time is an argument, in seconds of any monotonic clock."""

    def __init__(self, failover_interval_s: float, now_s: float) -> None:
        self.state = EntityState.HEALTHY
        self.since_s = now_s
        """The time of the last change of the state."""

        self.deadline_s: float | None = None
        """The time at which the failover interval ends; ``None`` while it is not running."""

        self._interval_s = failover_interval_s

    @property
    def is_diverting(self) -> bool:
        return self.state in DIVERTING

    def on(self, signal: Signal, now_s: float) -> bool:
        """Apply a signal; return whether the state has changed."""
        before = self.state
        self._change(signal, now_s)
        if self.deadline_s is not None and now_s >= self.deadline_s:  # an interval of zero ends at once
            self._change(Signal.EXPIRED, now_s)
        return self.state is not before

    def tick(self, now_s: float) -> bool:
        """Apply the passing of time; return whether the state has changed."""
        return self.deadline_s is not None and now_s >= self.deadline_s and self.on(Signal.EXPIRED, now_s)

    def _change(self, signal: Signal, now_s: float) -> None:
        state = TRANSITIONS[self.state, signal]
        if state is not self.state:
            self.state = state
            self.since_s = now_s
            self.deadline_s = now_s + self._interval_s if state is EntityState.FAILING else None


class FailureVerdict(Enum):
    """The effect of an error on the state of an entity."""

    COUNTS = "counts"
    """The entity seems unavailable."""
    COUNTS_UNLESS_TRANSIENT = "counts unless transient"
    """The entity seems unavailable if the error is not transient, or is the last one of a send that timed out."""
    IGNORED = "ignored"
    """The entity is available, or the error is that of the client."""


FailureRules = Mapping[type[MessagingError], FailureVerdict]

FAILURE_RULES: Final[FailureRules] = MappingProxyType(
    {
        MessagingError: FailureVerdict.COUNTS_UNLESS_TRANSIENT,
        MessagingTimeoutError: FailureVerdict.COUNTS,
        MessagingCommunicationError: FailureVerdict.COUNTS,
        # The entity is available, and asks for a pause.
        ServerBusyError: FailureVerdict.IGNORED,
        # A misconfigured client would fail elsewhere, too.
        UnauthorizedError: FailureVerdict.IGNORED,
        EntityNotFoundError: FailureVerdict.IGNORED,
        # Errors of the message, or of its sender.
        MessageSizeExceededError: FailureVerdict.IGNORED,
        InvalidMessageError: FailureVerdict.IGNORED,
        InvalidRequestError: FailureVerdict.IGNORED,
        ClosedError: FailureVerdict.IGNORED,
    }
)
"""The default rules. The most specific class of an error decides."""


def counts(error: MessagingError, rules: FailureRules = FAILURE_RULES, *, is_last: bool = False) -> bool:
    """Return whether a failed attempt counts, or, with ``is_last``, a send that timed out."""
    for kind in type(error).__mro__:
        verdict = rules.get(kind)
        if verdict is FailureVerdict.COUNTS_UNLESS_TRANSIENT:
            return is_last or not error.is_transient
        if verdict is not None:
            return verdict is FailureVerdict.COUNTS
    return False


def check_rules(rules: FailureRules) -> None:
    """Raise ``TypeError`` if it is not a valid table of rules."""
    if not isinstance(rules, Mapping):
        raise TypeError(f"failure_rules must be a mapping of error classes to FailureVerdict, got {shown(rules)}")
    for kind, verdict in rules.items():
        if not (isinstance(kind, type) and issubclass(kind, MessagingError) and isinstance(verdict, FailureVerdict)):
            raise TypeError(
                "failure_rules must map subclasses of MessagingError to FailureVerdict, got "
                f"{kind!r:.50}: {verdict!r:.50}"
            )
