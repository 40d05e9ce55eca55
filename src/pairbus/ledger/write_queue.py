"""Bounded queue of rows that are not on disk yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple

from pairbus.ledger.events import HOUR_MS, LedgerEvent, LifecycleEvent, OperationRow, Stage

_MINUTE_MS: Final = 60_000
_MAX_UNMERGED: Final = 60
"""Hand-overs of operations kept unmerged: as long as the writer takes them soon, merging is not worth the work."""

_MAX_EVENTS_TAKEN: Final = 50_000
"""Events after which ``take`` returns."""

_KEY_COLUMNS: Final = OperationRow._fields.index("operations")
"""Rows that agree in the columns before this one can be merged."""

_NOTHING: Final = LifecycleEvent(0, 0, LedgerEvent.MISSED, Stage.DIRECT, "", 0, 0, "", None, None, 0)


class QueuedRows(NamedTuple):
    """The rows that the writer takes at a time."""

    operations: Sequence[OperationRow]
    events: Sequence[LifecycleEvent]
    hand_over: int
    """Number of the last hand-over of events that was taken, now or before."""


class WriteQueue:
    """Queue between the threads of the namespace and the ledger; neither waits longer than an append takes."""

    def __init__(self, max_events: int, max_operations: int) -> None:
        self.events = 0
        """Number of queued events, including those taken and not on disk yet."""

        self.events_missed = 0
        self._max_events = max_events
        self._max_operations = max_operations
        self._lock = Lock()
        self._operations: list[OperationRow] = []
        self._unmerged = 0
        """Number of hand-overs in ``_operations``."""

        self._merged: dict[tuple[object, ...], OperationRow] = {}
        """Rows by their times and keys."""

        self._events: deque[tuple[int, Sequence[LifecycleEvent]]] = deque()
        """With the numbers of their hand-overs."""

        self._hand_over = 0
        self._taken = 0
        self._gap: LifecycleEvent | None = None
        """Event that stands for all events dropped since the queue was full."""

    def add_operations(self, rows: Sequence[OperationRow]) -> None:
        with self._lock:
            if self._unmerged < _MAX_UNMERGED:
                self._unmerged += 1
                self._operations += rows
            else:
                for row in rows:
                    self._merge(row)

    def add_events(self, events: Sequence[LifecycleEvent]) -> int:
        """Queue events, and return the number of the hand-over."""
        with self._lock:
            self._hand_over += 1
            room = max(0, self._max_events - self.events)
            kept = events if len(events) <= room else events[:room]
            if kept:
                self._end_gap(self._hand_over - 1)
                self._events.append((self._hand_over, kept))
                self.events += len(kept)
            self._widen_gap(events[len(kept) :])
            return self._hand_over

    def take(self) -> QueuedRows | None:
        """Return all operations and a limited number of events, in order; ``None`` if the queue is empty."""
        with self._lock:
            operations, self._operations, self._unmerged = self._operations, [], 0
            merged, self._merged = self._merged, {}
            if not self._events:
                self._end_gap(self._hand_over)
            groups = self._pop_events()
            self._taken = groups[-1][0] if groups else self._taken
        events = [*chain.from_iterable(group for _, group in groups)]
        operations += merged.values()
        return QueuedRows(operations, events, self._taken) if operations or events else None

    def done(self, events: int) -> None:
        """Note that this many events are on disk."""
        with self._lock:
            self.events -= events

    def give_up(self, events: Sequence[LifecycleEvent], now_ms: int) -> None:
        """Count taken events as missed that can never be written, since they hold an invalid number or time."""
        missed = sum(event.sequence for event in events if event.event is LedgerEvent.MISSED)
        with self._lock:
            self.events -= len(events)
            self._widen_gap(
                [_NOTHING._replace(at_ms=now_ms) for event in events if event.event is not LedgerEvent.MISSED]
            )
            if missed:  # gaps that were to be written with them
                gap = self._gap or _NOTHING._replace(at_ms=now_ms)
                self._gap = gap._replace(sequence=gap.sequence + missed)

    # Operations

    def _merge(self, row: OperationRow) -> None:
        """Merge counts, by minute or hour as the queue fills up; when it is full, entities and keys are dropped."""
        filled = len(self._merged) / self._max_operations
        if filled >= 0.5:
            row = row._replace(at_ms=row.at_ms - row.at_ms % (_MINUTE_MS if filled < 0.75 else HOUR_MS))
        if filled >= 1:
            row = row._replace(entity="", key_name="")
        name = row[:_KEY_COLUMNS]
        found = self._merged.get(name)
        self._merged[name] = row if found is None else found.merged(row)

    # Events

    def _pop_events(self) -> list[tuple[int, Sequence[LifecycleEvent]]]:
        groups: list[tuple[int, Sequence[LifecycleEvent]]] = []
        count = 0
        while self._events and count < _MAX_EVENTS_TAKEN:
            groups.append(self._events.popleft())
            count += len(groups[-1][1])
        return groups

    def _widen_gap(self, missed: Sequence[LifecycleEvent]) -> None:
        """Add events to the gap. It has the time of its end, so that a reader that starts inside the gap finds it."""
        if not missed:
            return
        self.events_missed += len(missed)
        gap = self._gap
        if gap is None:
            gap = _NOTHING._replace(ordinal=missed[0].ordinal)
        self._gap = gap._replace(at_ms=missed[-1].at_ms, sequence=gap.sequence + len(missed))

    def _end_gap(self, hand_over: int) -> None:
        if self._gap is not None:
            self._events.append((hand_over, (self._gap,)))
            self.events += 1
            self._gap = None
