"""B2: the delay of an event loop, and its processor use."""

from __future__ import annotations

import pytest

from pairbus.server.throttle.gauges import LagSample, LoopLag


def loop_lag(*beats: tuple[float, float, float]) -> LoopLag:
    """Return the lag for times at which samples were due and at which they ran, and the processor time until then."""
    found = LoopLag()
    for due_s, at_s, cpu_s in beats:
        found.beat(LagSample(due_s=due_s, at_s=at_s, cpu_s=cpu_s))
    return found


def test_b2_new_loop_has_no_lag() -> None:
    assert (LoopLag().processor, LoopLag().delay_s) == (0.0, 0.0)
    assert (loop_lag((5, 5, 3)).processor, loop_lag((5, 5, 3)).delay_s) == (0.0, 0.0)


def test_b2_processor_is_the_share_that_the_loop_has_used() -> None:
    assert loop_lag((0, 0, 10), (1, 1, 10.25), (2, 2, 10.5)).processor == pytest.approx(0.25)


def test_b2_old_samples_are_dropped() -> None:
    busy = [(second, second, float(second)) for second in range(10)]
    idle = [(second, second, 9.0) for second in range(10, 15)]
    assert loop_lag(*busy).processor == pytest.approx(1.0)
    assert loop_lag(*busy, *idle).processor == pytest.approx(0.0)


def test_b2_repeatedly_late_loop_is_late() -> None:
    assert loop_lag(*[(second, second + 0.7, 0.0) for second in range(6)]).delay_s == pytest.approx(0.7)


def test_b2_machine_that_was_asleep_is_not_late_for_it() -> None:
    beats = [(second, second + 0.01, 0.0) for second in range(5)]
    assert loop_lag(*beats, (5, 3_605, 0.1)).delay_s == pytest.approx(0.01)


def test_processor_clock_that_stops_or_runs_backwards_counts_as_no_work() -> None:
    assert loop_lag((0, 0, 5), (1, 1, 4)).processor == 0.0
    assert loop_lag((0, 0, 0), (0, 0, 1)).processor > 1.0  # no division by zero
