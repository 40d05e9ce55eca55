"""When messages for an entity go to the backlog, and when they go home again: a table, driven by outcomes and time."""

from __future__ import annotations

from enum import Enum
from typing import Final


class EntityState(Enum):
    """How an entity of the primary namespace looks to the senders of a factory."""

    HEALTHY = "healthy"
    FAILING = "failing"
    """Something failed, and nothing has succeeded since: the failover interval runs."""
    FAILED_OVER = "failed over"
    """Messages go to the backlog until a ping is answered."""
    HELD_OVER = "held over"
    """Messages go to the backlog because somebody wants that, until somebody wants it no more."""


class Signal(Enum):
    """What can happen to it."""

    SENT = "sent"
    """The primary has confirmed a message."""
    FAILED = "failed"
    """An attempt came to something that counts."""
    EXPIRED = "expired"
    """The failover interval is over."""
    ANSWERED = "answered"
    """A ping was answered."""
    ENGAGED = "engaged"
    """Somebody has switched to the backlog by hand."""
    RELEASED = "released"
    """Somebody has switched back by hand."""


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
    # Then only a ping brings the senders back: what still comes of older attempts changes nothing.
    (_FAILED_OVER, Signal.SENT): _FAILED_OVER,
    (_FAILED_OVER, Signal.FAILED): _FAILED_OVER,
    (_FAILED_OVER, Signal.EXPIRED): _FAILED_OVER,
    (_FAILED_OVER, Signal.ANSWERED): _HEALTHY,
    # What was switched by hand is switched back by hand.
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
    """The state of one entity. Time is an argument, in seconds of whatever clock the caller has."""

    def __init__(self, failover_interval_s: float, now_s: float) -> None:
        self.state = EntityState.HEALTHY
        self.since_s = now_s
        """When it became what it is."""

        self.deadline_s: float | None = None
        """When the failover interval is over, while that runs."""

        self._interval_s = failover_interval_s

    @property
    def is_diverting(self) -> bool:
        return self.state in DIVERTING

    def on(self, signal: Signal, now_s: float) -> bool:
        """Take note of what has happened; tells whether the state is another one now."""
        before = self.state
        self._change(signal, now_s)
        if self.deadline_s is not None and now_s >= self.deadline_s:  # an interval of zero is over when it begins
            self._change(Signal.EXPIRED, now_s)
        return self.state is not before

    def tick(self, now_s: float) -> bool:
        """Look at the clock; tells whether the state is another one now."""
        return self.deadline_s is not None and now_s >= self.deadline_s and self.on(Signal.EXPIRED, now_s)

    def _change(self, signal: Signal, now_s: float) -> None:
        state = TRANSITIONS[self.state, signal]
        if state is not self.state:
            self.state = state
            self.since_s = now_s
            self.deadline_s = now_s + self._interval_s if state is EntityState.FAILING else None
