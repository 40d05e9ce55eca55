"""Who has to be looked at when."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Protocol


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

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Item]] = []
        self._serial = count()

    def plan(self, item: Item, due_ms: int) -> None:
        if item.planned_ms is None or due_ms < item.planned_ms:
            item.planned_ms = due_ms
            heappush(self._heap, (due_ms, next(self._serial), item))

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int, limit: int) -> None:
        """Do what is due by now; what is beyond the limit stays due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms and limit > 0:
            due_ms, _, item = heappop(heap)
            if item.planned_ms != due_ms:  # planned earlier meanwhile, and run
                continue
            item.planned_ms = None
            limit -= max(1, item.run(due_ms, limit))
            again_ms = item.next_ms()
            if again_ms is not None:
                self.plan(item, again_ms)
