"""How far an entity goes, or has been read: the last sequence number of each of its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from pairbus.spark.sequence_ranges import SequenceRanges

_PARTITION_SHIFT: Final = 48
"""The upper 16 bits of a sequence number are the partition that issued it. Each partition counts for itself, so a newer
message of a lower partition has a smaller number than an older one of a higher partition."""


def partition_of(number: int) -> int:
    """Return the partition that issued a sequence number; 0 for all numbers of an entity without partitions."""
    return number >> _PARTITION_SHIFT


def start_of(partition: int) -> int:
    """Return the number before the first one that a partition issues."""
    return partition << _PARTITION_SHIFT


@dataclass(frozen=True, slots=True)
class SequenceMarks:
    """One mark for each partition that has been reached. Contains every number up to the mark of its partition."""

    last: Mapping[int, int] = field(default_factory=dict)
    """The last number, by partition. A partition without messages has none."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Mark the largest number of each partition."""
        ordered = sorted(number for number in numbers if number > start_of(partition_of(number)))
        return cls({partition_of(number): number for number in ordered})

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number <= self.end(partition_of(number))

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.last.values()))

    def __bool__(self) -> bool:
        return bool(self.last)

    @property
    def is_partitioned(self) -> bool:
        """Whether there are marks of several partitions."""
        return len(self.last) > 1

    def end(self, partition: int) -> int:
        """Return the mark of a partition, or the number before its first one."""
        return self.last.get(partition, start_of(partition))

    def advanced(self, numbers: Iterable[int]) -> SequenceMarks:
        """Return these marks moved on to larger numbers."""
        return SequenceMarks.of((*self, *numbers))

    def since(self, start: SequenceMarks) -> SequenceRanges:
        """Return the numbers behind the marks of ``start``, up to these."""
        behind = ((start.end(partition) + 1, last) for partition, last in self.last.items())
        return SequenceRanges((first, last) for first, last in behind if first <= last)

    @property
    def ranges(self) -> SequenceRanges:
        """All numbers up to the marks."""
        return self.since(SequenceMarks())
