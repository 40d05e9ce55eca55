"""Sets of sequence numbers behave like sets, and have a short text form."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.sequences import Range, SequenceRanges

NUMBERS = st.sets(st.integers(-30, 60) | st.integers(2**62, 2**62 + 20))


@given(NUMBERS, NUMBERS)
def test_d1_set_operations_match_python_sets(one: set[int], other: set[int]) -> None:
    first, second = SequenceRanges.of(one), SequenceRanges.of(other)
    assert set(first | second) == one | other
    assert set(first - second) == one - other
    assert set(first & second) == one & other
    assert (first == second) == (one == other)
    assert len(first) == len(one)
    assert bool(first) == bool(one)


@given(NUMBERS, NUMBERS)
def test_equal_sets_compare_equal(one: set[int], other: set[int]) -> None:
    whole = SequenceRanges.of(one | other)
    made = SequenceRanges.of(one) | SequenceRanges.of(other)
    assert made == whole
    assert hash(made) == hash(whole)
    assert str(made) == str(whole)
    assert made.ranges == whole.ranges


@given(NUMBERS)
def test_ranges_are_sorted_and_disjoint(numbers: set[int]) -> None:
    found = SequenceRanges.of(numbers)
    assert list(found) == sorted(numbers)
    assert all(before.last + 1 < after.first for before, after in pairwise(found.ranges))
    assert sum(run.size for run in found.ranges) == len(numbers)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10))))
def test_unsorted_overlapping_ranges_are_merged(given: list[tuple[int, int]]) -> None:
    ranges = [(first, first + more) for first, more in given]
    wanted = {number for first, last in ranges for number in range(first, last + 1)}
    assert set(SequenceRanges(ranges)) == wanted


@given(NUMBERS, st.integers(-40, 70))
def test_set_contains_exactly_its_numbers(numbers: set[int], asked: int) -> None:
    found = SequenceRanges.of(numbers)
    assert all(number in found for number in numbers)
    assert (asked in found) == (asked in numbers)
    assert "1" not in found
    assert None not in found


@given(NUMBERS, st.integers(-40, 70))
def test_since_returns_numbers_from_a_minimum(numbers: set[int], least: int) -> None:
    assert set(SequenceRanges.of(numbers).since(least)) == {number for number in numbers if number >= least}


@given(NUMBERS, st.integers(1, 12))
def test_d1_split_gives_ordered_parts_of_similar_size(numbers: set[int], parts: int) -> None:
    split = SequenceRanges.of(numbers).split(parts)
    assert [number for part in split for number in part] == sorted(numbers)
    assert len(split) == min(parts, len(numbers))
    sizes = [len(part) for part in split]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_split_cost_does_not_depend_on_size() -> None:
    parts = SequenceRanges([(1, 2**62)]).split(3)
    assert [len(part.ranges) for part in parts] == [1, 1, 1]
    assert (parts[0].ranges[0].first, parts[2].ranges[0].last) == (1, 2**62)


@given(NUMBERS)
def test_text_and_pickle_round_trip(numbers: set[int]) -> None:
    found = SequenceRanges.of(numbers)
    assert SequenceRanges.parse(str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 (ours)
    assert str(found) in repr(found)


def test_text_form() -> None:
    assert str(SequenceRanges()) == ""
    assert str(SequenceRanges.of([4, 1, 2, 3, 7])) == "1..4,7"
    assert SequenceRanges.parse("1..4,7").ranges == (Range(1, 4), Range(7, 7))
    assert SequenceRanges.parse("") == SequenceRanges()


@pytest.mark.parametrize(
    "text",
    [
        "1..",
        "..4",
        "1-4",
        "1,,2",
        ",1",
        "1,",
        "a",
        " 1",
        "1 ",
        "1\n",
        "1...4",
        "4..1",
        "1.4",
        "0x1",
        "1e3",
        "1" * 5_000,
    ],
)
def test_e3_invalid_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"sequence numbers|range|digits"):
        SequenceRanges.parse(text)


@pytest.mark.parametrize("value", [None, 5, b"1..4", ["1"]])
def test_e3_value_of_wrong_type_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="expected sequence numbers"):
        SequenceRanges.parse(value)  # type: ignore[arg-type]


@given(st.text(alphabet="0123456789.,- ", max_size=20))
def test_e3_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        found = SequenceRanges.parse(text)
    except ValueError:
        return
    assert SequenceRanges.parse(str(found)) == found


@given(st.sets(st.integers(10**6, 10**6 + 5_000), max_size=2_000))
def test_d1_many_single_numbers_are_a_short_bitmap(numbers: set[int]) -> None:
    found = SequenceRanges.of(numbers)
    text = str(found)
    assert SequenceRanges.parse(text) == found
    assert len(text) <= max(100, 5_000 // 6 + 20)
    assert len(text) <= len(",".join(f"{first}..{last}" for first, last in found.ranges)) + 8


def test_distant_numbers_are_not_filled_up() -> None:
    found = SequenceRanges.of(number * 2**40 for number in range(100))
    assert len(str(found)) < 2_000
    assert SequenceRanges.parse(str(found)) == found


@pytest.mark.parametrize("text", ["1:", "1:*", "1:A", "1..2:AA", ":AA"])
def test_invalid_bitmap_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"sequence numbers|base64|padded"):
        SequenceRanges.parse(text)
