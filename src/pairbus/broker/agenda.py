"""Who has to be looked at when."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

_SPARE: Final = 64
"""How many entries that no longer hold are not worth the trouble."""


class Item(Protocol):
    """Something that time changes. The agenda keeps its own note in ``planned_ms``."""

    planned_ms: int | None

    def next_ms(self) -> int | None:
        """When it has to be looked at next."""

    def run(self, at_ms: int, limit: int, /) -> int:
        """Do what was due at that time, at most ``limit`` things; how many were done."""


class Agenda:
    """Runs its items in the order of their times, whoever they belong to.

    Time only passes here: whether it comes in small steps or in one jump, what happens is the same.
    """

    __slots__ = ("_heap", "_planned", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Item]] = []
        self._planned = 0
        self._serial = count()

    def __len__(self) -> int:
        return len(self._heap)

    def plan(self, item: Item, due_ms: int) -> None:
        """Have an item looked at, at that time or before."""
        if item.planned_ms is None:
            self._planned += 1
        elif due_ms >= item.planned_ms:
            return
        item.planned_ms = due_ms
        heappush(self._heap, (due_ms, next(self._serial), item))
        if len(self._heap) > 2 * self._planned + _SPARE:
            self._tidy()

    def drop(self, item: Item) -> None:
        """Forget an item."""
        if item.planned_ms is not None:
            item.planned_ms = None
            self._planned -= 1

    def _tidy(self) -> None:
        """Throw out the entries in whose place there is an earlier one, or none."""
        current = {id(item): (due_ms, serial, item) for due_ms, serial, item in self._heap if item.planned_ms == due_ms}
        self._heap = list(current.values())
        heapify(self._heap)

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int, limit: int) -> None:
        """Do what is due by now; what is beyond the limit stays due."""
        while self._heap and self._heap[0][0] <= now_ms and limit > 0:
            due_ms, _, item = heappop(self._heap)
            if item.planned_ms != due_ms:  # planned earlier meanwhile, and run
                continue
            self.drop(item)
            try:
                limit -= max(1, item.run(due_ms, limit))
            finally:  # what could not be done now stays due
                again_ms = item.next_ms()
                if again_ms is not None:
                    self.plan(item, again_ms)
