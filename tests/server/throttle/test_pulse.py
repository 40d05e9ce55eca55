"""B2: how late an event loop is, and how much it works."""

from __future__ import annotations

import pytest

from pairbus.server.throttle.pulse import Beat, Pulse


def pulse(*beats: tuple[float, float, float]) -> Pulse:
    """From times at which beats were due and at which they came, and the processor time until then."""
    found = Pulse()
    for due_s, at_s, cpu_s in beats:
        found.beat(Beat(due_s=due_s, at_s=at_s, cpu_s=cpu_s))
    return found


def test_b2_a_loop_that_has_just_begun_is_well() -> None:
    assert (Pulse().processor, Pulse().delay_s) == (0.0, 0.0)
    assert (pulse((5, 5, 3)).processor, pulse((5, 5, 3)).delay_s) == (0.0, 0.0)


def test_b2_the_processor_is_the_share_that_the_loop_has_used() -> None:
    assert pulse((0, 0, 10), (1, 1, 10.25), (2, 2, 10.5)).processor == pytest.approx(0.25)


def test_b2_what_is_long_over_does_not_count() -> None:
    busy = [(second, second, float(second)) for second in range(10)]
    idle = [(second, second, 9.0) for second in range(10, 15)]
    assert pulse(*busy).processor == pytest.approx(1.0)
    assert pulse(*busy, *idle).processor == pytest.approx(0.0)


def test_b2_a_loop_that_is_late_again_and_again_is_late() -> None:
    assert pulse(*[(second, second + 0.7, 0.0) for second in range(6)]).delay_s == pytest.approx(0.7)


def test_b2_a_machine_that_was_asleep_is_not_late_for_it() -> None:
    beats = [(second, second + 0.01, 0.0) for second in range(5)]
    assert pulse(*beats, (5, 3_605, 0.1)).delay_s == pytest.approx(0.01)


def test_a_clock_of_the_processor_that_stands_still_or_goes_back_is_no_work() -> None:
    assert pulse((0, 0, 5), (1, 1, 4)).processor == 0.0
    assert pulse((0, 0, 0), (0, 0, 1)).processor > 1.0  # no division by zero
