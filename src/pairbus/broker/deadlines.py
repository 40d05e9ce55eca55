"""What is due at some time, soonest first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

_SHIFT: Final = 64
_KEY: Final = (1 << _SHIFT) - 1
_SPARE: Final = 64
"""How many entries that no longer hold are kept before the rest is worth sorting again."""


class Deadlines:
    """Pairs of a time and a number, in a heap.

    An entry is not looked for when it no longer holds: ``holds`` says so when its turn comes, and once most entries
    do not hold any more they are dropped together. Each entry is one integer, so that millions of them fit.
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

    def drop(self) -> None:
        """Say that one entry no longer holds."""
        self._dropped += 1
        if self._dropped > _SPARE and self._dropped * 2 > len(self._heap):
            holds = self._holds
            self._heap = [entry for entry in self._heap if holds(entry >> _SHIFT, entry & _KEY)]
            heapify(self._heap)
            self._dropped = 0

    def next_ms(self) -> int | None:
        """The earliest time at which something may be due."""
        return self._heap[0] >> _SHIFT if self._heap else None

    def pop(self, now_ms: int) -> int | None:
        """The key of an entry that holds and is due, soonest first; ``None`` when there is none."""
        while self._heap and self._heap[0] >> _SHIFT <= now_ms:
            entry = heappop(self._heap)
            if self._holds(entry >> _SHIFT, entry & _KEY):
                return entry & _KEY
            self._dropped = max(0, self._dropped - 1)
        return None
