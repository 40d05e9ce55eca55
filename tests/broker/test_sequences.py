"""Sorted sets of sequence numbers, compared with a Python set."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker.session import CHUNK, Sequences

MANY = 5 * CHUNK


def filled(numbers: range | list[int]) -> Sequences:
    sequences = Sequences()
    for number in numbers:
        sequences.add(number)
    return sequences


def shuffled(count: int) -> list[int]:
    numbers = list(range(count))
    Random(1).shuffle(numbers)  # noqa: S311 (the same each time)
    return numbers


def assert_same(sequences: Sequences, model: set[int]) -> None:
    ordered = sorted(model)
    assert list(sequences) == ordered
    assert len(sequences) == len(ordered)
    assert bool(sequences) == bool(ordered)
    assert sequences.first() == (ordered[0] if ordered else None)


def test_empty_set_has_nothing() -> None:
    sequences = Sequences()
    assert_same(sequences, set())
    assert 1 not in sequences
    assert not sequences.discard(1)
    assert list(sequences.since(0)) == []


@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, MANY])
def test_numbers_added_in_order_are_iterated_in_order(count: int) -> None:
    sequences = filled(range(count))
    assert_same(sequences, set(range(count)))
    assert [sequences.pop_first() for _ in range(count)] == list(range(count))
    assert_same(sequences, set())


def test_numbers_added_backwards_are_iterated_in_order() -> None:
    assert_same(filled(list(range(MANY, 0, -1))), set(range(1, MANY + 1)))


def test_numbers_added_at_random_are_iterated_in_order() -> None:
    numbers = shuffled(MANY)
    assert_same(filled(numbers), set(numbers))


def test_chunks_are_bounded() -> None:
    sequences = filled(shuffled(MANY))
    assert max(len(chunk) for chunk in sequences._chunks) <= CHUNK


def test_readded_number_returns_to_its_position() -> None:
    sequences = filled(range(MANY))
    taken = [sequences.pop_first() for _ in range(CHUNK + 10)]
    for number in reversed(taken):
        sequences.add(number)
    assert_same(sequences, set(range(MANY)))


@pytest.mark.parametrize("step", [2, 3, 7, CHUNK - 1])
def test_removing_most_of_a_large_set(step: int) -> None:
    sequences, model = filled(range(MANY)), set(range(MANY))
    for number in range(MANY):
        if number % step:
            assert sequences.discard(number)
            model.discard(number)
    assert_same(sequences, model)
    for number in range(MANY):
        assert (number in sequences) == (number in model)


def test_removing_at_random_until_nothing_is_left() -> None:
    sequences, model = filled(range(MANY)), set(range(MANY))
    for turn, number in enumerate(shuffled(MANY)):
        assert sequences.discard(number)
        assert not sequences.discard(number)
        model.discard(number)
        if turn % 500 == 0:
            assert_same(sequences, model)
    assert_same(sequences, set())


def test_shrunk_set_uses_few_chunks() -> None:
    sequences = filled(range(100 * CHUNK))
    for number in range(100 * CHUNK):
        if number % 512:
            sequences.discard(number)
    assert len(sequences) == 200
    assert len(sequences._chunks) < 20


def test_since_iterates_from_a_number_on() -> None:
    sequences = filled(range(0, 2 * MANY, 2))
    for number in (-1, 0, 1, 2, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 2 * MANY - 2, 2 * MANY - 1, 2 * MANY):
        expected = [each for each in range(0, 2 * MANY, 2) if each >= number][:5]
        assert list(islice(sequences.since(number), 5)) == expected


def test_numbers_of_the_highest_partition_fit() -> None:
    numbers = [partition << 48 | number for partition in range(16) for number in range(3)]
    sequences = filled(numbers[::-1])
    assert_same(sequences, set(numbers))


RUNS = st.tuples(st.integers(0, 6 * CHUNK), st.integers(1, 2 * CHUNK), st.integers(1, 3))
"""Start, count, and step."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), RUNS),
        st.tuples(st.just("add backwards"), RUNS),
        st.tuples(st.just("extend"), RUNS),
        st.tuples(st.just("discard"), RUNS),
        st.tuples(st.just("discard backwards"), RUNS),
        st.tuples(st.just("pop"), RUNS),
        st.tuples(st.just("since"), RUNS),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_sequences_behave_like_a_sorted_set(steps: list[tuple[str, tuple[int, int, int]]]) -> None:
    sequences, model = Sequences(), set[int]()
    for what, (start, count, gap) in steps:
        numbers = range(start, start + count * gap, gap)
        match what:
            case "add" | "add backwards":
                for number in numbers if what == "add" else reversed(numbers):
                    if number not in model:
                        sequences.add(number)
                model.update(numbers)
            case "extend":
                end = max(model, default=0) + 1
                sequences.extend([end + number for number in numbers])
                model.update(end + number for number in numbers)
                assert max(map(len, sequences._chunks)) <= CHUNK
            case "discard" | "discard backwards":
                for number in numbers if what == "discard" else reversed(numbers):
                    assert sequences.discard(number) == (number in model)
                    model.discard(number)
            case "pop":
                ordered = sorted(model)[:count]
                assert [sequences.pop_first() for _ in ordered] == ordered
                model.difference_update(ordered)
            case _:
                ordered = sorted(model)
                assert list(sequences.since(start)) == ordered[bisect_left(ordered, start) :]
                assert (start in sequences) == (start in model)
        assert_same(sequences, model)
