"""State shared by all parts of the broker: records, timers, limits, and the source of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol
from uuid import UUID

from pairbus.broker.limits import Limits
from pairbus.broker.message import Address, PropertyView
from pairbus.broker.ports import BodyStore, EventSink, Notice, Records

_SPARE: Final = 64
"""Number of stale heap entries that are tolerated before a cleanup."""

_POSTPONED_MS: Final = 60_000
"""Delay after which an item that has failed runs again."""

DEFECTS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that only a defect or an inconsistent index raises; the store, which may work again soon, raises others."""


class TimedItem(Protocol):
    """An object with work that becomes due. ``planned_ms`` belongs to the ``TimerQueue``."""

    planned_ms: int | None

    def next_ms(self) -> int | None:
        """Return when work becomes due next, or ``None``."""

    def run(self, at_ms: int, limit: int, /) -> int:
        """Do what was due at that time, at most ``limit`` steps; return the number of steps done."""


class TimerQueue:
    """A timer queue that runs its items in the order of their due times, across all entities.

    Time advances only here, and the outcome is the same whether it advances in small steps or in one jump.
    """

    __slots__ = ("_heap", "_planned", "_serial", "faults")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimedItem]] = []
        self._planned = 0
        self._serial = count()
        self.faults: list[tuple[TimedItem, Exception]] = []
        """Items that have failed, with the defect. They must not keep the others, of all entities, from running."""

    def __len__(self) -> int:
        return len(self._heap)

    def plan(self, item: TimedItem, due_ms: int) -> None:
        """Schedule an item to run at ``due_ms`` or earlier."""
        if item.planned_ms is None:
            self._planned += 1
        elif due_ms >= item.planned_ms:
            return
        item.planned_ms = due_ms
        heappush(self._heap, (due_ms, next(self._serial), item))
        if len(self._heap) > 2 * self._planned + _SPARE:
            self._tidy()

    def drop(self, item: TimedItem) -> None:
        """Unschedule an item."""
        if item.planned_ms is not None:
            item.planned_ms = None
            self._planned -= 1

    def _tidy(self) -> None:
        """Remove stale heap entries: those whose item was rescheduled earlier, or dropped."""
        current = {id(item): (due_ms, serial, item) for due_ms, serial, item in self._heap if item.planned_ms == due_ms}
        self._heap = list(current.values())
        heapify(self._heap)

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int, limit: int) -> None:
        """Run what is due by now; what exceeds the limit stays due."""
        while self._heap and self._heap[0][0] <= now_ms and limit > 0:
            due_ms, _, item = heappop(self._heap)
            if item.planned_ms != due_ms:  # stale: it was rescheduled earlier, and has run
                continue
            self.drop(item)
            try:
                limit -= max(1, item.run(due_ms, limit))
            except DEFECTS as error:
                limit -= 1
                self.faults.append((item, error))
                self.plan(item, now_ms + _POSTPONED_MS)
                continue
            except BaseException:  # what could not be done now stays due
                self._plan_again(item)
                raise
            self._plan_again(item)

    def _plan_again(self, item: TimedItem) -> None:
        again_ms = item.next_ms()
        if again_ms is not None:
            self.plan(item, again_ms)


_SHIFT: Final = 64
_KEY: Final = (1 << _SHIFT) - 1


class Deadlines:
    """A heap of deadlines: pairs of a time and a number.

    Stale entries are not searched for: ``holds`` is asked about each entry when its time comes, and once most entries
    are stale they are all removed together. Each entry is one integer, so that millions of them fit in memory.
    """

    __slots__ = ("_dropped", "_heap", "_holds")

    def __init__(self, holds: Callable[[int, int], bool]) -> None:
        self._holds = holds
        self._heap: list[int] = []
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, key: int) -> None:
        heappush(self._heap, due_ms << _SHIFT | key)

    def extend(self, deadlines: Iterable[tuple[int, int]]) -> None:
        """Add many deadlines, each with its time and number: faster than one by one."""
        self._heap += [due_ms << _SHIFT | key for due_ms, key in deadlines]
        heapify(self._heap)

    def drop(self) -> None:
        """Count one entry as stale; remove all stale entries once they are the majority."""
        self._dropped += 1
        if self._dropped > _SPARE and self._dropped * 2 > len(self._heap):
            holds = self._holds
            self._heap = [entry for entry in self._heap if holds(entry >> _SHIFT, entry & _KEY)]
            heapify(self._heap)
            self._dropped = 0

    def next_ms(self) -> int | None:
        """Return the earliest time at which an entry may be due, or ``None``."""
        return self._heap[0] >> _SHIFT if self._heap else None

    def pop(self, now_ms: int) -> int | None:
        """Remove and return the key of the earliest valid entry that is due; ``None`` if there is none."""
        while self._heap and self._heap[0] >> _SHIFT <= now_ms:
            entry = heappop(self._heap)
            if self._holds(entry >> _SHIFT, entry & _KEY):
                return entry & _KEY
            self._dropped = max(0, self._dropped - 1)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The shared collaborators of the broker: storage, timers, limits, id sources, and the message decoder."""

    limits: Limits
    records: Records
    bodies: BodyStore
    timers: TimerQueue
    view: Callable[[bytes], PropertyView]
    fresh_id: Callable[[], UUID]
    fresh_token: Callable[[], bytes]
    stub_body: bytes = b""
    """Encoded message that replaces an unreadable one in a dead-letter queue."""

    event_sink: EventSink | None = None
    """Receives the lifecycle events of messages; usually ``None``."""

    woken: dict[Address, None] = field(default_factory=dict)
    """Addresses at which messages or sessions have become available, in order."""

    woken_sessions: dict[bytes, None] = field(default_factory=dict)
    """Tokens of held sessions in which a message has become available."""

    notices: list[Notice] = field(default_factory=list)
