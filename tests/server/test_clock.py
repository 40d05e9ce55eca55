"""A4: time advances, whatever happens to the machine's clock."""

from __future__ import annotations

from pairbus.server.clock import SystemClock

SECOND = 1_000_000_000


class Clocks:
    """The two clocks of a machine, in nanoseconds."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.steady = 5 * SECOND

    def go_on(self, seconds: float) -> None:
        self.wall += int(seconds * SECOND)
        self.steady += int(seconds * SECOND)


def test_clock_is_the_time_of_day() -> None:
    clocks = Clocks()
    clock = SystemClock(lambda: clocks.wall, lambda: clocks.steady)
    for _ in range(5):
        clocks.go_on(1.5)
        assert clock() == clocks.wall // 1_000_000


def test_clock_that_is_set_back_is_caught_up_with_at_half_the_speed() -> None:
    clocks = Clocks()
    clock = SystemClock(lambda: clocks.wall, lambda: clocks.steady)
    before = clock()
    clocks.wall -= 3_600 * SECOND
    clocks.go_on(10)
    assert clock() == before + 5_000
    clocks.go_on(7_200)
    assert clock() == clocks.wall // 1_000_000


def test_clock_that_is_set_forward_is_followed() -> None:
    clocks = Clocks()
    clock = SystemClock(lambda: clocks.wall, lambda: clocks.steady)
    clocks.wall += 86_400 * SECOND
    assert clock() == clocks.wall // 1_000_000


def test_clock_never_runs_backwards() -> None:
    clocks = Clocks()
    clock = SystemClock(lambda: clocks.wall, lambda: clocks.steady)
    times = []
    for step in (1, -50, 0.1, 30, -0.001, 0, 100):
        clocks.wall += int(step * SECOND)
        clocks.steady += int(abs(step) * SECOND)
        times.append(clock())
    assert times == sorted(times)


def test_tokens_are_checked_against_the_wall_clock() -> None:
    clocks = Clocks()
    clock = SystemClock(lambda: clocks.wall, lambda: clocks.steady)
    clocks.wall -= 7_200 * SECOND
    assert clock.wall_ms() == clocks.wall // 1_000_000
    assert clock() > clock.wall_ms()
