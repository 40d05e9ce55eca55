"""Sequence numbers in ascending order, eight bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

CHUNK: Final = 1024
"""How many numbers lie together: adding or removing one in the middle moves at most that many."""


class Sequences:
    """A sorted set of integers, kept as a list of sorted arrays.

    A queue of a million messages is a thousand arrays. Numbers are nearly always added at the end and taken from the
    front; anything else is two binary searches and a short move.
    """

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: list[array[int]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return self.since(-1)

    def __contains__(self, number: int) -> bool:
        at = self._chunk_of(number)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        return chunk[bisect_left(chunk, number)] == number

    def first(self) -> int | None:
        return self._chunks[0][0] if self._chunks else None

    def add(self, number: int) -> None:
        """Add a number that is not there yet."""
        chunks = self._chunks
        self._count += 1
        if chunks and number < chunks[-1][-1]:
            self._insert(number)
        elif chunks and len(chunks[-1]) < CHUNK:
            chunks[-1].append(number)
        else:
            chunks.append(array("q", (number,)))

    def pop_first(self) -> int:
        chunk = self._chunks[0]
        self._count -= 1
        number = chunk.pop(0)
        if not chunk:
            del self._chunks[0]
        return number

    def discard(self, number: int) -> bool:
        """Remove the number; whether it was there."""
        at = self._chunk_of(number)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        index = bisect_left(chunk, number)
        if chunk[index] != number:
            return False
        del chunk[index]
        self._count -= 1
        if len(chunk) < CHUNK // 4:
            self._shrink(at)
        return True

    def since(self, number: int) -> Iterator[int]:
        """All numbers from this one on. The set must not change while they are read."""
        at = self._chunk_of(number)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            yield from chunk[bisect_left(chunk, number) :]
        for chunk in self._chunks[at + 1 :]:
            yield from chunk

    def _chunk_of(self, number: int) -> int:
        """The first chunk that reaches as far as the number."""
        chunks = self._chunks
        if chunks and number <= chunks[0][-1]:  # where receivers work
            return 0
        return bisect_left(chunks, number, key=_last)

    def _insert(self, number: int) -> None:
        at = self._chunk_of(number)
        chunk = self._chunks[at]
        chunk.insert(bisect_right(chunk, number), number)
        if len(chunk) > CHUNK:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]

    def _shrink(self, at: int) -> None:
        """Join a chunk that has become short with its neighbours, so that few numbers do not cost an array each."""
        if not self._chunks[at]:
            del self._chunks[at]
            return
        for left in (at, at - 1):
            pair = self._chunks[left : left + 2] if left >= 0 else []
            if len(pair) == 2 and len(pair[0]) + len(pair[1]) <= CHUNK // 2:
                pair[0].extend(self._chunks.pop(left + 1))


def _last(chunk: array[int]) -> int:
    return chunk[-1]
