"""Allocation of channel and handle numbers: always the lowest that is free."""

from __future__ import annotations

from heapq import heappop, heappush


class NumberPool:
    """Allocates the lowest free number, in time that does not depend on how many are in use."""

    __slots__ = ("_next", "_returned")

    def __init__(self) -> None:
        self._next = 0
        self._returned: list[int] = []

    def lowest(self) -> int:
        """The number that ``take`` would return."""
        return self._returned[0] if self._returned else self._next

    def take(self) -> int:
        if self._returned:
            return heappop(self._returned)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heappush(self._returned, number)
