"""The rotation of backlog queues: choice, retries, and a comparison with a naive model."""

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
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.pairing.backlog import Rotation

BROKEN: Final = MessagingTimeoutError("silence")
BUSY: Final = ServerBusyError("much to do")
GONE: Final = EntityNotFoundError("deleted")


def rotation(count: int = 4) -> Rotation:
    return Rotation(count, Random(7))  # noqa: S311 (tests have to be repeatable)


def fail_again(queues: Rotation, index: int, cause: MessagingError, now_s: float) -> float:
    """Let the retry of a due queue fail; return when it is due again."""
    assert queues.claim(index, now_s)
    queues.failed(index, cause, now_s, was_due=True)
    due_s = queues.trial_s(index)
    assert due_s is not None
    return due_s


# Choice


def test_c10_all_queues_are_in_the_rotation_at_first() -> None:
    queues = rotation(10)
    assert all(index in queues for index in range(10))
    assert queues.causes == {}
    assert queues.trial_s(None) is None
    assert queues.due(1e9) is None


def test_c10_every_queue_is_picked_equally_often() -> None:
    queues = rotation(10)
    picked = Counter(queues.pick() for _ in range(10_000))
    assert set(picked) == set(range(10))
    assert all(800 < times < 1_200 for times in picked.values())


def test_c10_only_queues_in_the_rotation_are_picked() -> None:
    queues = rotation(5)
    for index in (0, 2, 4):
        queues.failed(index, BROKEN, 0.0)
    assert {queues.pick() for _ in range(200)} == {1, 3}
    queues.worked(4)
    assert {queues.pick() for _ in range(200)} == {1, 3, 4}


def test_c10_no_queue_is_picked_from_an_empty_rotation() -> None:
    queues = rotation(2)
    queues.failed(0, BROKEN, 0.0)
    queues.failed(1, BUSY, 0.0)
    assert queues.pick() is None
    assert queues.next_to(1) is None
    assert queues.causes == {0: BROKEN, 1: BUSY}


def test_c10_next_queue_wraps_around() -> None:
    queues = rotation(4)
    assert [queues.next_to(index) for index in range(4)] == [0, 1, 2, 3]
    queues.failed(2, BROKEN, 0.0)
    queues.failed(3, BROKEN, 0.0)
    assert [queues.next_to(index) for index in range(4)] == [0, 1, 0, 0]
    queues.failed(0, BROKEN, 0.0)
    assert [queues.next_to(index) for index in range(4)] == [1, 1, 1, 1]


def test_c10_next_queue_of_a_single_queue_is_itself() -> None:
    queues = rotation(1)
    assert (queues.pick(), queues.next_to(0)) == (0, 0)
    queues.failed(0, BROKEN, 0.0)
    assert (queues.pick(), queues.next_to(0)) == (None, None)


# Removal and return


def test_c10_first_failure_takes_a_queue_out_for_all_senders() -> None:
    queues = rotation()
    assert queues.failed(1, BROKEN, 0.0)
    assert 1 not in queues
    assert queues.causes == {1: BROKEN}
    assert queues.worked(1)
    assert 1 in queues
    assert queues.causes == {}


def test_c10_success_of_a_queue_in_the_rotation_changes_nothing() -> None:
    queues = rotation()
    assert not queues.worked(1)
    assert 1 in queues


def test_c10_queue_taken_out_is_retried_after_a_second_by_one_sender() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 100.0)
    assert not queues.claim(1, 100.999)
    assert queues.claim(1, 101.0)
    assert not queues.claim(1, 101.0)
    assert queues.due(101.5) is None
    assert 1 not in queues


def test_c10_retry_without_a_result_does_not_keep_a_queue_out() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 100.0)
    assert queues.claim(1, 101.0)
    assert queues.due(101.999) is None
    assert queues.due(102.0) == 1


def test_c10_queue_in_the_rotation_is_not_due() -> None:
    assert not rotation().claim(1, 1e9)


def test_c10_each_due_queue_is_claimed_once() -> None:
    queues = rotation()
    for index in (3, 0, 2):
        queues.failed(index, BROKEN, 0.0)
    assert sorted(str(queues.due(5.0)) for _ in range(5)) == ["0", "2", "3", "None", "None"]


def test_c10_time_of_the_next_retry_is_known() -> None:
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


def test_c10_pause_is_short_again_after_a_success() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    due_s = fail_again(queues, 1, BROKEN, fail_again(queues, 1, BROKEN, 1.0))
    queues.worked(1)
    queues.failed(1, BROKEN, due_s)
    assert queues.trial_s(1) == due_s + 1.0


def test_b2_busy_queue_is_retried_after_ten_seconds() -> None:
    queues = rotation()
    queues.failed(1, BUSY, 0.0)
    assert not queues.claim(1, 9.999)
    assert fail_again(queues, 1, BUSY, 10.0) == 30.0
    assert fail_again(queues, 1, BUSY, 30.0) == 70.0
    assert fail_again(queues, 1, BUSY, 70.0) == 130.0
    assert fail_again(queues, 1, BUSY, 130.0) == 190.0


def test_b2_failed_queue_that_becomes_busy_is_retried_after_ten_seconds() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert fail_again(queues, 1, BUSY, 1.0) == 11.0


@pytest.mark.parametrize("first", [BROKEN, BUSY], ids=lambda error: type(error).__name__)
def test_c10_concurrent_failures_count_once(first: MessagingError) -> None:
    queues = rotation()
    assert queues.failed(1, first, 0.0)
    due_s = queues.trial_s(1)
    late = EntityDisabledError("off")
    assert not any(queues.failed(1, late, 0.1) for _ in range(100))
    assert queues.trial_s(1) == due_s
    assert queues.causes == {1: late}


def test_b2_busy_response_of_a_queue_out_of_rotation_restarts_ten_seconds() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert not queues.failed(1, BUSY, 0.5)
    assert not queues.claim(1, 10.499)
    assert queues.claim(1, 10.5)


def test_c10_failed_retry_after_a_success_of_another_sender_takes_the_queue_out_again() -> None:
    queues = rotation()
    queues.failed(1, BROKEN, 0.0)
    assert queues.claim(1, 1.0)
    queues.worked(1)
    assert queues.failed(1, BROKEN, 2.0, was_due=True)
    assert queues.trial_s(1) == 3.0


# Deleted queues


def test_c10_deleted_queue_is_missing_until_it_works() -> None:
    queues = rotation()
    assert queues.deleted(1, GONE, 100.0)
    assert not queues.deleted(1, GONE, 100.5)
    assert queues.is_missing(1)
    assert 1 not in queues
    assert queues.causes == {1: GONE}
    assert queues.worked(1)
    assert not queues.is_missing(1)
    assert 1 in queues


def test_c10_missing_queue_is_never_due_for_a_sender() -> None:
    queues = rotation()
    queues.failed(0, BROKEN, 0.0)
    queues.deleted(1, GONE, 0.0)
    assert not queues.claim(1, 1e9)
    assert queues.due(1e9) == 0
    assert queues.due(1e9) is None
    assert queues.trial_s(1) is None


def test_c10_missing_queue_is_created_at_once_and_then_after_growing_pauses() -> None:
    queues = rotation()
    queues.deleted(1, GONE, 100.0)
    assert queues.recreation_s(1) == queues.recreation_s(None) == 100.0
    now_s, pauses = 100.0, []
    for _ in range(9):
        queues.not_recreated(1, GONE, now_s)
        due_s = queues.recreation_s(1)
        assert due_s is not None
        pauses.append(due_s - now_s)
        now_s = due_s
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_c10_failed_queue_that_is_deleted_is_created_at_once() -> None:
    queues = rotation()
    queues.failed(1, BUSY, 0.0)
    assert not queues.deleted(1, GONE, 2.0)
    assert queues.recreation_s(1) == 2.0
    assert queues.trial_s(1) is None


@pytest.mark.parametrize("was_due", [False, True])
def test_c10_late_failure_does_not_change_a_missing_queue(was_due: bool) -> None:
    queues = rotation()
    queues.deleted(1, GONE, 0.0)
    assert not queues.failed(1, BUSY, 1.0, was_due=was_due)
    assert queues.is_missing(1)
    assert queues.recreation_s(1) == 0.0
    assert queues.causes == {1: GONE}


# A naive model


@dataclass
class Model:
    """Records the failures of each queue since its last success, and computes pauses from the start."""

    count: int
    trials: dict[int, list[MessagingError]] = field(default_factory=dict)
    last: dict[int, MessagingError] = field(default_factory=dict)
    due_s: dict[int, float] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    """Number of failed creations of each deleted queue."""

    def pause_s(self, index: int) -> float:
        pause_s = 0.5
        for cause in self.trials[index]:
            pause_s = min(60.0, 2 * pause_s)
            if isinstance(cause, ServerBusyError):
                pause_s = max(10.0, pause_s)
        return pause_s

    def failed(self, index: int, cause: MessagingError, now_s: float, *, was_due: bool) -> bool:
        if index in self.missing:
            return False
        is_new = index not in self.trials
        self.last[index] = cause
        if is_new or was_due:
            self.trials.setdefault(index, []).append(cause)
            self.due_s[index] = now_s + self.pause_s(index)
        elif isinstance(cause, ServerBusyError):
            self.due_s[index] = max(self.due_s[index], now_s + 10.0)
        return is_new

    def deleted(self, index: int, now_s: float) -> bool:
        is_new = index not in self.trials
        if index not in self.missing:
            self.missing[index] = 0
            self.last[index], self.due_s[index] = GONE, now_s
            self.trials[index] = []
        return is_new

    def not_recreated(self, index: int, now_s: float) -> None:
        self.due_s[index] = now_s + min(60.0, 2.0 ** self.missing[index])
        self.missing[index] += 1

    def worked(self, index: int) -> bool:
        for known in (self.due_s, self.last, self.missing):
            known.pop(index, None)
        return self.trials.pop(index, None) is not None

    def claim(self, index: int, now_s: float) -> bool:
        if index not in self.trials or index in self.missing or now_s < self.due_s[index]:
            return False
        self.due_s[index] = now_s + self.pause_s(index)
        return True

    def next_to(self, index: int) -> int | None:
        ring = [*range(index, self.count), *range(index)]
        return next((one for one in ring if one not in self.trials), None)


@dataclass(frozen=True)
class Step:
    """A passage of time, and an event of a queue."""

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
        st.sampled_from(["failed", "try in vain", "try", "worked", "due", "deleted", "not recreated"]),
        CAUSES,
    ),
    max_size=40,
)


@given(st.integers(4, 6), STEPS, st.randoms(use_true_random=False))
def test_c10_rotation_agrees_with_a_naive_model(count: int, steps: list[Step], random: Random) -> None:
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
        trials = {index: due_s for index, due_s in model.due_s.items() if index not in model.missing}
        recreations = {index: due_s for index, due_s in model.due_s.items() if index in model.missing}
        for next_s, expected in ((queues.trial_s, trials), (queues.recreation_s, recreations)):
            assert [next_s(index) for index in range(count)] == [expected.get(index) for index in range(count)]
            assert next_s(None) == min(expected.values(), default=None)
        assert [index for index in range(count) if queues.is_missing(index)] == sorted(model.missing)


def play(queues: Rotation, model: Model, step: Step, now_s: float) -> None:
    index, cause = step.index, step.cause
    match step.what:
        case "failed":
            assert queues.failed(index, cause, now_s) is model.failed(index, cause, now_s, was_due=False)
        case "worked":
            assert queues.worked(index) is model.worked(index)
        case "deleted":
            assert queues.deleted(index, GONE, now_s) is model.deleted(index, now_s)
        case "not recreated":
            if queues.is_missing(index):
                queues.not_recreated(index, GONE, now_s)
                model.not_recreated(index, now_s)
        case "due":
            found = queues.due(now_s)
            is_any_due = any(model.due_s[one] <= now_s for one in model.trials.keys() - model.missing.keys())
            assert (found is not None) is is_any_due
            assert found is None or model.claim(found, now_s)
        case _:
            claimed = queues.claim(index, now_s)
            assert claimed is model.claim(index, now_s)
            if claimed and step.what == "try in vain":
                assert queues.failed(index, cause, now_s, was_due=True) is False
                model.failed(index, cause, now_s, was_due=True)
