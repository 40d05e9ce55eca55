"""The failover policy: the transition table, the timer, and a comparison with a naive model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.policy import DIVERTING, TRANSITIONS, EntityState, FailoverPolicy, Signal

HEALTHY: Final = EntityState.HEALTHY
FAILING: Final = EntityState.FAILING
FAILED_OVER: Final = EntityState.FAILED_OVER
HELD_OVER: Final = EntityState.HELD_OVER


def reached(*signals: Signal, interval_s: float = 60.0) -> FailoverPolicy:
    """Return a policy after these signals, all at the time 100."""
    policy = FailoverPolicy(interval_s, 100.0)
    for signal in signals:
        policy.on(signal, 100.0)
    return policy


# The table


def test_c6_table_has_every_signal_in_every_state() -> None:
    assert set(TRANSITIONS) == set(product(EntityState, Signal))


WAYS: Final = {
    HEALTHY: (),
    FAILING: (Signal.FAILED,),
    FAILED_OVER: (Signal.FAILED, Signal.EXPIRED),
    HELD_OVER: (Signal.ENGAGED,),
}


@pytest.mark.parametrize(("state", "signal"), [*product(EntityState, Signal)], ids=lambda one: one.name)
def test_c6_policy_follows_the_table(state: EntityState, signal: Signal) -> None:
    policy = reached(*WAYS[state])
    assert policy.state is state
    expected = TRANSITIONS[state, signal]
    assert policy.on(signal, 101.0) is (expected is not state)
    assert policy.state is expected
    assert policy.since_s == (100.0 if expected is state else 101.0)
    assert policy.is_diverting is (expected in {FAILED_OVER, HELD_OVER})


def test_c9_messages_are_diverted_only_when_failed_over_or_held_over() -> None:
    assert {FAILED_OVER, HELD_OVER} == DIVERTING


@pytest.mark.parametrize("signal", [Signal.SENT, Signal.FAILED, Signal.EXPIRED])
def test_c13_only_a_successful_ping_ends_a_failover(signal: Signal) -> None:
    policy = reached(Signal.FAILED, Signal.EXPIRED)
    assert not policy.on(signal, 500.0)
    assert policy.is_diverting
    assert policy.on(Signal.ANSWERED, 501.0)
    assert policy.state is HEALTHY


@pytest.mark.parametrize("signal", [Signal.SENT, Signal.FAILED, Signal.EXPIRED, Signal.ANSWERED, Signal.ENGAGED])
def test_c21_manual_switch_is_only_released_manually(signal: Signal) -> None:
    policy = reached(Signal.ENGAGED)
    assert not policy.on(signal, 500.0)
    assert policy.on(Signal.RELEASED, 501.0)
    assert policy.state is HEALTHY


@pytest.mark.parametrize("state", EntityState, ids=lambda state: state.name)
def test_c21_release_resets_the_state(state: EntityState) -> None:
    policy = reached(*WAYS[state], Signal.RELEASED)
    assert policy.state is HEALTHY
    assert policy.deadline_s is None
    assert not policy.tick(1e9)


# The timer


def test_c6_new_entity_is_healthy_without_a_timer() -> None:
    policy = FailoverPolicy(60.0, 7.0)
    assert (policy.state, policy.since_s, policy.deadline_s) == (HEALTHY, 7.0, None)
    assert not policy.tick(1e9)
    assert policy.state is HEALTHY


def test_c6_first_failure_starts_the_timer_and_others_do_not_move_it() -> None:
    policy = FailoverPolicy(60.0, 0.0)
    assert policy.on(Signal.FAILED, 10.0)
    for now_s in (11.0, 40.0, 69.9):
        assert not policy.on(Signal.FAILED, now_s)
        assert (policy.state, policy.deadline_s, policy.since_s) == (FAILING, 70.0, 10.0)


def test_c6_failover_engages_at_the_end_of_the_interval_and_not_before() -> None:
    policy = FailoverPolicy(60.0, 0.0)
    policy.on(Signal.FAILED, 10.0)
    assert not policy.tick(69.999)
    assert policy.tick(70.0)
    assert (policy.state, policy.since_s, policy.deadline_s) == (FAILED_OVER, 70.0, None)
    assert not policy.tick(71.0)


def test_c6_failure_after_the_interval_engages_without_a_tick() -> None:
    policy = FailoverPolicy(60.0, 0.0)
    policy.on(Signal.FAILED, 10.0)
    assert policy.on(Signal.FAILED, 75.0)
    assert (policy.state, policy.since_s) == (FAILED_OVER, 75.0)


def test_c6_success_stops_the_timer_and_the_next_failure_restarts_it() -> None:
    policy = FailoverPolicy(60.0, 0.0)
    policy.on(Signal.FAILED, 10.0)
    assert policy.on(Signal.SENT, 69.0)
    assert (policy.state, policy.deadline_s) == (HEALTHY, None)
    assert not policy.tick(70.0)
    policy.on(Signal.FAILED, 71.0)
    assert not policy.tick(130.0)
    assert policy.tick(131.0)


@pytest.mark.parametrize("interval_s", [0.0, 0.5, 60.0, 3_600.0])
def test_c6_deadline_is_the_failure_plus_the_interval(interval_s: float) -> None:
    policy = FailoverPolicy(interval_s, 0.0)
    policy.on(Signal.FAILED, 1_000.0)
    assert policy.deadline_s == (1_000.0 + interval_s if interval_s else None)


def test_c6_first_failure_engages_with_a_zero_interval() -> None:
    policy = FailoverPolicy(0.0, 0.0)
    assert policy.on(Signal.FAILED, 5.0)
    assert (policy.state, policy.since_s, policy.deadline_s) == (FAILED_OVER, 5.0, None)


@pytest.mark.parametrize("signal", [Signal.SENT, Signal.EXPIRED, Signal.ANSWERED])
def test_c6_only_a_failure_engages_with_a_zero_interval(signal: Signal) -> None:
    policy = FailoverPolicy(0.0, 0.0)
    assert not policy.on(signal, 5.0)
    assert not policy.tick(5.0)
    assert policy.state is HEALTHY


def test_c6_clock_that_goes_backwards_is_harmless() -> None:
    policy = FailoverPolicy(60.0, 100.0)
    policy.on(Signal.FAILED, 100.0)
    assert not policy.tick(40.0)
    assert not policy.on(Signal.FAILED, 41.0)
    assert (policy.state, policy.deadline_s) == (FAILING, 160.0)
    assert policy.on(Signal.SENT, 42.0)
    policy.on(Signal.FAILED, 43.0)
    assert policy.tick(103.0)


# A naive model


@dataclass
class Model:
    """Records the history, and evaluates all of it each time."""

    interval_s: float
    history: list[tuple[Signal | None, float]]
    """Signals, or ``None`` for ticks, with their times."""

    @property
    def state(self) -> EntityState:
        is_held = is_over = False
        failed_s: float | None = None
        for signal, now_s in self.history:
            if signal in {Signal.ENGAGED, Signal.RELEASED}:
                is_held, is_over, failed_s = signal is Signal.ENGAGED, False, None
            elif is_held:
                continue
            elif is_over:
                is_over = signal is not Signal.ANSWERED
            else:
                if signal in {Signal.SENT, Signal.ANSWERED}:
                    failed_s = None
                elif signal is Signal.FAILED and failed_s is None:
                    failed_s = now_s
                if failed_s is not None and (signal is Signal.EXPIRED or now_s >= failed_s + self.interval_s):
                    is_over, failed_s = True, None
        if is_held:
            return HELD_OVER
        if is_over:
            return FAILED_OVER
        return HEALTHY if failed_s is None else FAILING


INTERVALS: Final = st.sampled_from([0, 1, 5, 60])
STEPS: Final = st.lists(st.tuples(st.none() | st.sampled_from(Signal), st.integers(0, 40)), max_size=30)
LEAPS: Final = st.lists(st.tuples(st.none() | st.sampled_from(Signal), st.integers(-100, 100)), max_size=30)


@given(INTERVALS, STEPS | LEAPS)
def test_c6_policy_agrees_with_a_naive_model(interval_s: int, steps: list[tuple[Signal | None, int]]) -> None:
    policy, model, now_s = FailoverPolicy(interval_s, 0.0), Model(interval_s, []), 0.0
    since_s = 0.0
    for signal, passed_s in steps:
        now_s += passed_s
        before = policy.state
        model.history.append((signal, now_s))
        has_changed = policy.tick(now_s) if signal is None else policy.on(signal, now_s)
        assert policy.state is model.state
        assert has_changed is (policy.state is not before)
        since_s = now_s if has_changed else since_s
        assert policy.since_s == since_s
        assert (policy.deadline_s is not None) is (policy.state is FAILING)


@given(INTERVALS, LEAPS)
def test_c6_interval_ends_a_series_of_failures_with_any_clock(
    interval_s: int, steps: list[tuple[Signal | None, int]]
) -> None:
    policy, now_s = FailoverPolicy(interval_s, 0.0), 0.0
    for signal, passed_s in steps:
        now_s += passed_s
        policy.tick(now_s) if signal is None else policy.on(signal, now_s)
    policy.on(Signal.RELEASED, now_s)
    policy.on(Signal.FAILED, now_s)
    policy.tick(now_s + interval_s)
    assert policy.state is FAILED_OVER
