"""Deadlines compared with a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker.context import Deadlines


class Timetable:
    """Deadlines where each key is valid at one time at most, as with locks that are renewed."""

    def __init__(self) -> None:
        self.valid: dict[int, int] = {}
        self.deadlines = Deadlines(lambda due_ms, key: self.valid.get(key) == due_ms)

    def set(self, key: int, due_ms: int) -> None:
        if key in self.valid:
            self.deadlines.drop()
        self.valid[key] = due_ms
        self.deadlines.add(due_ms, key)

    def extend(self, times: dict[int, int]) -> None:
        for key in times:
            self.remove(key)
        self.valid.update(times)
        self.deadlines.extend((due_ms, key) for key, due_ms in times.items())

    def remove(self, key: int) -> None:
        if self.valid.pop(key, None) is not None:
            self.deadlines.drop()

    def pop(self, now_ms: int) -> int | None:
        key = self.deadlines.pop(now_ms)
        if key is not None:
            del self.valid[key]
        return key


def drained(table: Timetable, now_ms: int) -> list[int]:
    keys = []
    while (key := table.pop(now_ms)) is not None:
        keys.append(key)
    return keys


def test_empty_deadlines_have_nothing_due() -> None:
    table = Timetable()
    assert table.deadlines.next_ms() is None
    assert table.pop(10**15) is None
    assert len(table.deadlines) == 0


def test_deadlines_are_popped_in_order_and_exactly_on_time() -> None:
    table = Timetable()
    for key, due_ms in ((1, 30), (2, 10), (3, 20)):
        table.set(key, due_ms)
    assert table.deadlines.next_ms() == 10
    assert table.pop(9) is None
    assert table.pop(10) == 2
    assert table.pop(10) is None
    assert drained(table, 30) == [3, 1]


def test_deadlines_of_the_same_time_are_popped_in_key_order() -> None:
    table = Timetable()
    for key in (5, 1, 3):
        table.set(key, 10)
    assert drained(table, 10) == [1, 3, 5]


def test_stale_deadlines_are_not_popped() -> None:
    table = Timetable()
    table.set(1, 10)
    table.set(2, 10)
    table.remove(1)
    table.set(2, 20)
    assert drained(table, 10) == []
    assert drained(table, 20) == [2]


@pytest.mark.parametrize("key", [0, 15 << 48 | 1, 2**63 - 1])
def test_any_sequence_number_is_a_key(key: int) -> None:
    table = Timetable()
    table.set(key, 1_700_000_000_000)
    assert drained(table, 1_700_000_000_000) == [key]


def test_stale_deadlines_do_not_accumulate() -> None:
    table = Timetable()
    for due_ms in range(100_000):
        table.set(due_ms % 10, due_ms)
    assert len(table.deadlines) < 1_000
    assert len(drained(table, 100_000)) == 10


KEYS = st.integers(0, 400)
TIMES = st.integers(0, 1_000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, TIMES),
        st.tuples(st.just("remove"), KEYS, TIMES),
        st.tuples(st.just("fill"), KEYS, TIMES),
        st.tuples(st.just("extend"), KEYS, TIMES),
        st.tuples(st.just("clear"), KEYS, TIMES),
        st.tuples(st.just("pop"), KEYS, TIMES),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_deadlines_behave_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    table, model = Timetable(), dict[int, int]()
    for what, key, time_ms in steps:
        match what:
            case "set":
                table.set(key, time_ms)
                model[key] = time_ms
            case "remove":
                table.remove(key)
                model.pop(key, None)
            case "fill":
                for each in range(key, key + 150):
                    table.set(each, (time_ms + each * 7) % 1_000)
                    model[each] = (time_ms + each * 7) % 1_000
            case "extend":
                times = {each: (time_ms + each * 11) % 1_000 for each in range(key, key + 150)}
                table.extend(times)
                model.update(times)
            case "clear":
                for each in range(key, key + 150):
                    table.remove(each)
                    model.pop(each, None)
            case _:
                due = sorted((due_ms, each) for each, due_ms in model.items() if due_ms <= time_ms)
                assert drained(table, time_ms) == [each for _, each in due]
                for _, each in due:
                    del model[each]
        soonest = table.deadlines.next_ms()
        assert not model or (soonest is not None and soonest <= min(model.values()))
