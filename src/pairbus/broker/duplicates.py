"""Duplicate detection: the recent message ids of an entity."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappush, heappushpop
from typing import Final

from pairbus.broker.context import BrokerContext
from pairbus.broker.limits import SECOND_MS
from pairbus.broker.ports import Records

_LONG_AGO: Final = -(2**62)
_WATERMARK: Final = ""
"""Key of the time up to which ids are forgotten, in the store. No message is remembered under it."""


class IdMemory:
    """The number of ids that all entities of a namespace hold in memory, and its limit."""

    __slots__ = ("held", "maximum")

    def __init__(self, maximum: int) -> None:
        self.held = 0
        self.maximum = maximum


class DuplicateCleanup:
    """A background job that scans the stored ids of an entity and removes those past the window."""

    __slots__ = ("_done", "_entity_id", "_found", "_is_over", "_records")

    def __init__(
        self,
        records: Records,
        entity_id: int,
        is_over: Callable[[str, int, int], bool] = lambda _key, _first_ms, _now_ms: True,
        done: Callable[[int], object] = lambda _now_ms: None,
    ) -> None:
        self._records = records
        self._entity_id = entity_id
        self._is_over = is_over
        self._done = done
        self._found: Iterator[tuple[str, int]] | None = None

    def step(self, now_ms: int) -> bool:
        """Check one id; return whether there are more."""
        if self._found is None:
            self._found = self._records.duplicates(self._entity_id)
        try:
            seen = next(self._found, None)
        except BaseException:  # the store cannot be read now: restart the scan later
            self._found = None
            raise
        if seen is None:
            self._done(now_ms)
            return False
        if self._is_over(*seen, now_ms):
            self._records.remove_duplicate(self._entity_id, seen[0])
        return True


class Duplicates:
    """The duplicate history of one queue or topic. Each id counts from its first message, for the length of the window.

    The store holds the whole history, memory the newest ids. When the namespace holds as many ids in memory as it may,
    an entity that remembers another one evicts its own oldest id, and looks it up in the store from then on. Ids in
    memory are forgotten in the order of their times. Ids that are only in the store are ignored once the window has
    passed, and a sweep removes them later: it scans all of them, so it waits until an eighth of the window has passed.
    """

    __slots__ = (
        "_add_job", "_entity_id", "_forgotten_ms", "_history", "_memory", "_oldest_ms", "_order",
        "_records", "_spilled_ms", "_sweep_ms", "_timers", "planned_ms", "window_ms",
    )  # fmt: skip

    def __init__(
        self,
        entity_id: int,
        window_ms: int,
        context: BrokerContext,
        memory: IdMemory,
        add_job: Callable[[DuplicateCleanup], object],
    ) -> None:
        self._entity_id = entity_id
        self._records = context.records
        self._timers = context.timers
        self._memory = memory
        self._add_job = add_job
        self._history: dict[str, tuple[int, int]] = {}
        self._order: deque[tuple[int, str]] = deque()
        self._spilled_ms = _LONG_AGO
        """Time of the newest id that is only in the store."""
        self._sweep_ms: int | None = None
        """Start of the next sweep, or ``None`` if there is nothing to sweep."""
        self._oldest_ms: int | None = None
        """Time of the oldest id that the current sweep has found and kept."""
        self._forgotten_ms = _LONG_AGO
        """Ids seen up to this time had been forgotten before the window became longer."""
        self.window_ms = window_ms
        self.planned_ms: int | None = None

    def __len__(self) -> int:
        """Return the number of ids in memory."""
        return len(self._history)

    def seen(self, key: str, now_ms: int) -> bool:
        """Return whether a message with that id arrived within the window. Older ids may not have been removed yet."""
        first = self._history.get(key)
        if first is None:
            if not self.reads_store(now_ms):
                return False
            first = self._records.duplicate(self._entity_id, key)
            if first is None or first[0] <= self._forgotten_ms:
                return False
        return first[0] + self.window_ms > now_ms

    def reads_store(self, now_ms: int) -> bool:
        """Return whether ``seen`` may have to read the store, which may not be readable."""
        return self._spilled_ms + self.window_ms > now_ms

    def is_first(self, key: str, sequence: int) -> bool:
        """Return whether this is the same message that was remembered, forwarded back to where it was before."""
        first = self._history.get(key) or self._records.duplicate(self._entity_id, key)
        return first is not None and first[1] == sequence

    def remember(self, key: str, now_ms: int, sequence: int) -> None:
        """Remember an id, with the message's first sequence number."""
        self._records.put_duplicate(self._entity_id, key, now_ms, sequence)
        if key not in self._history:
            self._memory.held += 1
        self._history[key] = (now_ms, sequence)
        self._order.append((now_ms, key))
        if self._memory.held > self._memory.maximum:
            self._spill()
        self._timers.plan(self, now_ms + self.window_ms)

    def _spill(self) -> None:
        """Evict the oldest id from memory; it stays in the store."""
        while self._order:
            first_ms, key = self._order.popleft()
            if self._drop(first_ms, key):
                self._note_spilled(first_ms)
                return

    def _note_spilled(self, first_ms: int) -> None:
        self._spilled_ms = max(self._spilled_ms, first_ms)
        if self._sweep_ms is None:
            self._plan_sweep(first_ms)

    def _plan_sweep(self, oldest_ms: int) -> None:
        self._sweep_ms = oldest_ms + self.window_ms + max(self.window_ms // 8, SECOND_MS)
        self._timers.plan(self, self._sweep_ms)

    def set_window(self, window_ms: int, now_ms: int) -> None:
        """Change the window. A longer one does not restore forgotten ids, whether or not they were swept."""
        if window_ms > self.window_ms and self._spilled_ms > _LONG_AGO:
            self._forgotten_ms = max(self._forgotten_ms, now_ms - self.window_ms)
            self._records.put_duplicate(self._entity_id, _WATERMARK, self._forgotten_ms, 0)
        self.window_ms = window_ms
        self._plan()

    def restore(self, history: Iterable[tuple[int, str, int]]) -> None:
        """Load the history from before a restart, in any order; keep the newest ids, as many as fit."""
        free = max(0, self._memory.maximum - self._memory.held)
        newest: list[tuple[int, str, int]] = []
        oldest_ms: int | None = None
        for seen in history:
            if seen[1] == _WATERMARK:
                self._forgotten_ms = seen[0]
            elif len(newest) < free:
                heappush(newest, seen)
            else:
                first_ms = heappushpop(newest, seen)[0]
                oldest_ms = first_ms if oldest_ms is None else min(oldest_ms, first_ms)
                self._spilled_ms = max(self._spilled_ms, first_ms)
        for first_ms, key, sequence in sorted(newest):
            self._history[key] = (first_ms, sequence)
            self._order.append((first_ms, key))
        self._memory.held += len(newest)
        if oldest_ms is not None:
            self._plan_sweep(oldest_ms)
        self._plan()

    def _plan(self) -> None:
        due_ms = self.next_ms()
        if due_ms is not None:
            self._timers.plan(self, due_ms)

    def next_ms(self) -> int | None:
        if not self._order:
            return self._sweep_ms
        due_ms = self._order[0][0] + self.window_ms
        return due_ms if self._sweep_ms is None else min(due_ms, self._sweep_ms)

    def run(self, at_ms: int, limit: int) -> int:
        """Forget the ids that the window no longer covers."""
        done = 0
        while self._order and self._order[0][0] + self.window_ms <= at_ms and done < limit:
            self._forget(*self._order.popleft())
            done += 1
        if self._sweep_ms is not None and self._sweep_ms <= at_ms:
            self._sweep_ms = None
            self._add_job(DuplicateCleanup(self._records, self._entity_id, self._is_over, self._swept))
        return done

    def _is_over(self, key: str, first_ms: int, now_ms: int) -> bool:
        """Return whether a sweep may remove an id; ids in memory are forgotten separately."""
        is_alive = first_ms > self._forgotten_ms or key == _WATERMARK
        if is_alive and first_ms + self.window_ms > now_ms:
            self._oldest_ms = first_ms if self._oldest_ms is None else min(self._oldest_ms, first_ms)
            return False
        # The entry that was found may be older than one written since.
        current = None if key in self._history else self._records.duplicate(self._entity_id, key)
        return current is not None and current[0] == first_ms

    def _swept(self, now_ms: int) -> None:
        oldest_ms, self._oldest_ms = self._oldest_ms, None
        if oldest_ms is None and self._spilled_ms + self.window_ms > now_ms:
            oldest_ms = self._spilled_ms
        if oldest_ms is not None:
            self._plan_sweep(oldest_ms)

    def step(self, _now_ms: int) -> bool:
        """Forget one id in memory because the entity was deleted; return whether there are more. The store's ids
        follow.
        """
        if self._order:
            self._forget(*self._order.popleft())
        if not self._order:
            self._add_job(DuplicateCleanup(self._records, self._entity_id))
        return bool(self._order)

    def _forget(self, first_ms: int, key: str) -> None:
        if self._drop(first_ms, key):
            self._records.remove_duplicate(self._entity_id, key)

    def _drop(self, first_ms: int, key: str) -> bool:
        """Remove an id from memory, unless it was seen again and the later time counts."""
        first = self._history.get(key)
        if first is None or first[0] != first_ms:
            return False
        del self._history[key]
        self._memory.held -= 1
        return True
