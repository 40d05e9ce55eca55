"""Marks have one number for each partition, and the ranges between two of them contain the numbers in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.sequences import SequenceMarks, partition_of, start_of

NUMBERS = st.builds(lambda partition, count: start_of(partition) + count, st.integers(0, 15), st.integers(1, 40))
SETS = st.frozensets(NUMBERS)


@given(SETS, NUMBERS)
def test_d1_marks_contain_the_numbers_up_to_the_last_of_each_partition(numbers: frozenset[int], number: int) -> None:
    marks = SequenceMarks.of(numbers)
    same_partition = [one for one in numbers if partition_of(one) == partition_of(number)]
    assert (number in marks) == (number <= max(same_partition, default=0))
    assert bool(marks) == bool(numbers)
    assert len([*marks]) == len({partition_of(one) for one in numbers}) <= 16


@given(SETS, SETS)
def test_d1_ranges_between_marks_hold_each_number_once(before: frozenset[int], after: frozenset[int]) -> None:
    start = SequenceMarks.of(before)
    end = start.advanced(after)
    unread = {number for number in after if number not in start}
    ranges = end.since(start)
    assert unread <= set(ranges)
    assert all(number in end and number not in start for number in ranges)
    assert not end.since(end)
    assert set(end.ranges) == set(start.ranges) | set(ranges)


@given(SETS)
def test_marks_of_marks_are_equal(numbers: frozenset[int]) -> None:
    marks = SequenceMarks.of(numbers)
    assert SequenceMarks.of(marks) == marks
    assert SequenceMarks.of([*numbers, *map(start_of, range(16))]) == marks


def test_marks_contain_only_numbers() -> None:
    assert "1" not in SequenceMarks.of([5])
