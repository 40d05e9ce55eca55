"""A set of sequence numbers, kept as ranges: what a batch holds of one entity."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"(-?\d+(\.\.-?\d+)?)(,-?\d+(\.\.-?\d+)?)*|")
_NUMBERS: Final = re.compile(r"(-?\d+)(?:\.\.(-?\d+))?")


class Range(NamedTuple):
    """Numbers one after the other, both ends included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class SequenceRanges:
    """Immutable; its ranges are in order, and neither overlap nor touch, so equal sets are equal ranges."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges: Final[tuple[Range, ...]] = tuple(_joined(ranges))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> SequenceRanges:
        return cls((number, number) for number in numbers)

    @classmethod
    def parse(cls, text: str) -> SequenceRanges:
        """Read what ``str`` gives, such as ``1..20,23``; raises ``ValueError`` for anything else."""
        if not isinstance(text, str) or _TEXT.fullmatch(text) is None:
            raise ValueError(f"{text!r:.100} is no list of sequence numbers such as 1..20,23")
        found = [(int(first), int(last or first)) for first, last in _NUMBERS.findall(text)]
        if any(first > last for first, last in found):
            raise ValueError(f"{text!r:.100} has a range that ends before it begins")
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{first}..{last}" if first < last else f"{first}" for first, last in self.ranges)

    def __repr__(self) -> str:
        return f"<SequenceRanges {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __reduce__(self) -> tuple[type[SequenceRanges], tuple[tuple[Range, ...]]]:
        return SequenceRanges, (self.ranges,)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return sum(run.size for run in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        index = bisect_right(self.ranges, number, key=lambda run: run.first)
        return index > 0 and number <= self.ranges[index - 1].last

    def __or__(self, other: SequenceRanges) -> SequenceRanges:
        return SequenceRanges((*self.ranges, *other.ranges))

    def __sub__(self, other: SequenceRanges) -> SequenceRanges:
        return SequenceRanges(_without(self.ranges, other.ranges))

    def __and__(self, other: SequenceRanges) -> SequenceRanges:
        return self - (self - other)

    def since(self, number: int) -> SequenceRanges:
        """Those from a number on."""
        return SequenceRanges((max(first, number), last) for first, last in self.ranges if last >= number)

    def split(self, parts: int) -> list[SequenceRanges]:
        """As many sets as asked for, or as there are numbers, of about the same size and in order."""
        count = len(self)
        bounds = sorted({count * part // parts for part in range(parts + 1)})
        return [self._between(start, end) for start, end in pairwise(bounds)]

    def _between(self, start: int, end: int) -> SequenceRanges:
        """Its numbers from the one at an index to before the one at another."""
        found: list[tuple[int, int]] = []
        position = 0
        for run in self.ranges:
            first, last = max(start - position, 0), min(end - position, run.size) - 1
            if first <= last:
                found.append((run.first + first, run.first + last))
            position += run.size
        return SequenceRanges(found)


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[Range]:
    current: Range | None = None
    for first, last in sorted(ranges):
        if current is not None and first <= current.last + 1:
            current = Range(current.first, max(current.last, last))
            continue
        if current is not None:
            yield current
        current = Range(first, last)
    if current is not None:
        yield current


def _without(ranges: Iterable[Range], others: tuple[Range, ...]) -> Iterator[tuple[int, int]]:
    """What is left of ranges; both are in order, so each of the others is passed once."""
    index = 0
    for first, last in ranges:
        start = first
        while index < len(others) and others[index].last < start:
            index += 1
        at = index
        while at < len(others) and others[at].first <= last:
            if start < others[at].first:
                yield start, others[at].first - 1
            start = max(start, others[at].last + 1)
            at += 1
        if start <= last:
            yield start, last
