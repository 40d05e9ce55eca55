"""Which backlog queues are used, and when those that failed are tried again; with a naive model beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.errors import (
    EntityDisabledError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.pairing.rotation import Rotation

BROKEN: Final = MessagingTimeoutError("silence")
BUSY: Final = ServerBusyError("much to do")


def rotation(count: int = 4) -> Rotation:
    return Rotation(count, Random(7))  # noqa: S311 (it has to be repeatable)


def fail_again(queues: Rotation, index: int, cause: MessagingError, now_s: float) -> float:
    """Try one that is due, in vain; tells when it is due the next time."""
    assert queues.claim(index, now_s)
    queues.failed(index, cause, now_s, was_due=True)
    due_s = queues.trial_s(index)
    assert due_s is not None
    return due_s


# Choosing


def test_c10_all_are_in_at_first() -> None:
    queues = rotation(10)
    assert all(index in queues for index in range(10))
    assert queues.causes == {}
    assert queues.trial_s(None) is None
    assert queues.due(1e9) is None


def test_c10_every_queue_is_picked_and_none_is_preferred() -> None:
    queues = rotation(10)
    picked = Counter(queues.pick() for _ in range(10_000))
    assert set(picked) == set(range(10))
    assert all(800 < times < 1_200 for times in picked.values())


def test_c10_only_those_in_the_rotation_are_picked() -> None:
    queues = rotation(5)
    for index in (0, 2, 4):
        queues.failed(index, BROKEN, 0.0)
    assert {queues.pick() for _ in range(200)} == {1, 3}
    queues.worked(4)
    assert {queues.pick() for _ in range(200)} == {1, 3, 4}


def test_c10_none_is_picked_when_none_is_left() -> None:
    queues = rotation(2)
    queues.failed(0, BROKEN, 0.0)
    queues.failed(1, BUSY, 0.0)
    assert queues.pick() is None
    assert queues.next_to(1) is None
    assert queues.causes == {0: BROKEN, 1: BUSY}


def test_c10_the_next_one_is_found_around_the_ring() -> None:
    queues = rotation(4)
    assert [queues.next_to(index) for index in range(4)] == [0, 1, 2, 3]
    queues.failed(2, BROKEN, 0.0)
    queues.failed(3, BROKEN, 0.0)
    assert [queues.next_to(index) for index in range(4)] == [0, 1, 0, 0]
    queues.failed(0, BROKEN, 0.0)
    assert [queues.next_to(index) for index in range(4)] == [1, 1, 1, 1]


def test_c10_one_queue_is_a_ring_as_well() -> None:
    queues = rotation(1)
    assert (queues.pick(), queues.next_to(0)) == (0, 0)
    queues.failed(0, BROKEN, 0.0)
    assert (queues.pick(), queues.next_to(0)) == (None, None)


# Out and in again


def test_c10_whoever_takes_one_out_is_told_and_the_others_know() -> None:
    queues = rotation()
    assert queues.failed(1, BROKEN, 0.0)
    assert 1 not in queues
    assert queues.causes == {1: BROKEN}
    assert queues.worked(1)
    assert 1 in queues
    assert queues.causes == {}


def test_c10_that_one_works_which_was_in_is_nothing_new() -> None:
    queues = rotation()
    assert not queues.worked(1)
    assert 1 in queues


def test_c10_one_that_was_taken_out_is_tried_again_after_a_second_by_one_sender() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 100.0)
    assert not queues.claim(1, 100.999)
    assert queues.claim(1, 101.0)
    assert not queues.claim(1, 101.0)
    assert queues.due(101.5) is None
    assert 1 not in queues


def test_c10_a_trial_that_nobody_has_heard_of_again_does_not_leave_a_queue_out_for_ever() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 100.0)
    assert queues.claim(1, 101.0)
    assert queues.due(101.999) is None
    assert queues.due(102.0) == 1


def test_c10_one_that_is_in_is_not_due() -> None:
    assert not rotation().claim(1, 1e9)


def test_c10_each_of_those_that_are_due_is_given_out_once() -> None:
    queues = rotation()
    for index in (3, 0, 2):
        queues.failed(index, BROKEN, 0.0)
    assert sorted(str(queues.due(5.0)) for _ in range(5)) == ["0", "2", "3", "None", "None"]


def test_c10_when_the_next_trial_is_can_be_asked() -> None:
    queues = rotation()
    queues.failed(1, BUSY, 100.0)
    queues.failed(2, BROKEN, 105.0)
    assert queues.trial_s(0) is None
    assert queues.trial_s(1) == 110.0
    assert queues.trial_s(None) == 106.0
    queues.worked(2)
    assert queues.trial_s(None) == 110.0


# Pauses


def test_c10_pauses_grow_from_a_second_to_a_minute() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    now_s, pauses = 1.0, []
    for _ in range(9):
        due_s = fail_again(queues, 1, BROKEN, now_s)
        pauses.append(due_s - now_s)
        now_s = due_s
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_c10_one_that_has_worked_begins_with_a_short_pause() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    due_s = fail_again(queues, 1, BROKEN, fail_again(queues, 1, BROKEN, 1.0))
    queues.worked(1)
    queues.failed(1, BROKEN, due_s)
    assert queues.trial_s(1) == due_s + 1.0


def test_b2_a_busy_queue_is_left_alone_for_ten_seconds() -> None:
    queues = rotation()
    queues.failed(1, BUSY, 0.0)
    assert not queues.claim(1, 9.999)
    assert fail_again(queues, 1, BUSY, 10.0) == 30.0
    assert fail_again(queues, 1, BUSY, 30.0) == 70.0
    assert fail_again(queues, 1, BUSY, 70.0) == 130.0
    assert fail_again(queues, 1, BUSY, 130.0) == 190.0


def test_b2_one_that_failed_and_is_busy_then_is_left_alone_for_ten_seconds() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert fail_again(queues, 1, BUSY, 1.0) == 11.0


@pytest.mark.parametrize("first", [BROKEN, BUSY], ids=lambda error: type(error).__name__)
def test_c10_many_failures_at_once_are_one(first: MessagingError) -> None:
    queues = rotation()
    assert queues.failed(1, first, 0.0)
    due_s = queues.trial_s(1)
    late = EntityDisabledError("off")
    assert not any(queues.failed(1, late, 0.1) for _ in range(100))
    assert queues.trial_s(1) == due_s
    assert queues.causes == {1: late}


def test_b2_a_queue_that_says_busy_while_it_is_out_is_left_alone_for_ten_seconds_from_then() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert not queues.failed(1, BUSY, 0.5)
    assert not queues.claim(1, 10.499)
    assert queues.claim(1, 10.5)


def test_c10_a_trial_that_fails_when_somebody_else_has_found_that_it_works_takes_it_out_anew() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert queues.claim(1, 1.0)
    queues.worked(1)
    assert queues.failed(1, BROKEN, 2.0, was_due=True)
    assert queues.trial_s(1) == 3.0


# A naive model


@dataclass
class Model:
    """Remembers for each queue what it failed with since it worked, and counts pauses from the beginning."""

    count: int
    trials: dict[int, list[MessagingError]] = field(default_factory=dict)
    last: dict[int, MessagingError] = field(default_factory=dict)
    due_s: dict[int, float] = field(default_factory=dict)

    def pause_s(self, index: int) -> float:
        pause_s = 0.5
        for cause in self.trials[index]:
            pause_s = min(60.0, 2 * pause_s)
            if isinstance(cause, ServerBusyError):
                pause_s = max(10.0, pause_s)
        return pause_s

    def failed(self, index: int, cause: MessagingError, now_s: float, *, was_due: bool) -> bool:
        is_new = index not in self.trials
        self.last[index] = cause
        if is_new or was_due:
            self.trials.setdefault(index, []).append(cause)
            self.due_s[index] = now_s + self.pause_s(index)
        elif isinstance(cause, ServerBusyError):
            self.due_s[index] = max(self.due_s[index], now_s + 10.0)
        return is_new

    def worked(self, index: int) -> bool:
        for known in (self.due_s, self.last):
            known.pop(index, None)
        return self.trials.pop(index, None) is not None

    def claim(self, index: int, now_s: float) -> bool:
        if index not in self.trials or now_s < self.due_s[index]:
            return False
        self.due_s[index] = now_s + self.pause_s(index)
        return True

    def next_to(self, index: int) -> int | None:
        ring = [*range(index, self.count), *range(index)]
        return next((one for one in ring if one not in self.trials), None)


@dataclass(frozen=True)
class Step:
    """Time passes, and something comes of a queue."""

    passed_s: float
    index: int
    what: str
    cause: MessagingError


CAUSES: Final = st.sampled_from([BROKEN, BUSY, MessagingCommunicationError("refused")])
STEPS: Final = st.lists(
    st.builds(
        Step,
        st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 60.0]),
        st.integers(0, 3),
        st.sampled_from(["failed", "try in vain", "try", "worked", "due"]),
        CAUSES,
    ),
    max_size=40,
)


@given(st.integers(4, 6), STEPS, st.randoms(use_true_random=False))
def test_c10_a_rotation_agrees_with_a_naive_model(count: int, steps: list[Step], random: Random) -> None:
    queues, model, now_s = Rotation(count, random), Model(count), 0.0
    for step in steps:
        now_s += step.passed_s
        play(queues, model, step, now_s)
        left = [index for index in range(count) if index not in model.trials]
        assert [index for index in range(count) if index in queues] == left
        picked = queues.pick()
        assert picked in left if left else picked is None
        assert queues.causes == model.last
        assert [queues.next_to(index) for index in range(count)] == [model.next_to(index) for index in range(count)]
        assert [queues.trial_s(index) for index in range(count)] == [model.due_s.get(index) for index in range(count)]
        assert queues.trial_s(None) == min(model.due_s.values(), default=None)


def play(queues: Rotation, model: Model, step: Step, now_s: float) -> None:
    index, cause = step.index, step.cause
    match step.what:
        case "failed":
            assert queues.failed(index, cause, now_s) is model.failed(index, cause, now_s, was_due=False)
        case "worked":
            assert queues.worked(index) is model.worked(index)
        case "due":
            found = queues.due(now_s)
            is_any_due = any(model.due_s[one] <= now_s for one in model.trials)
            assert (found is not None) is is_any_due
            assert found is None or model.claim(found, now_s)
        case _:
            claimed = queues.claim(index, now_s)
            assert claimed is model.claim(index, now_s)
            if claimed and step.what == "try in vain":
                assert queues.failed(index, cause, now_s, was_due=True) is False
                model.failed(index, cause, now_s, was_due=True)
