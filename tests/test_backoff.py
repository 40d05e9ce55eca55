"""Exponential back-off."""

from __future__ import annotations

import pytest

from pairbus.backoff import Backoff


def test_delay_doubles_after_each_failure_up_to_the_longest() -> None:
    backoff = Backoff(first_s=1.0, longest_s=30.0)
    assert [backoff.delay_s(failures) for failures in range(1, 8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_following_delays_are_those_of_the_failures() -> None:
    backoff = Backoff(first_s=0.5, longest_s=60.0)
    delay_s, found = 0.0, []
    for _ in range(10):
        delay_s = backoff.after(delay_s)
        found.append(delay_s)
    assert found == [backoff.delay_s(failures) for failures in range(1, 11)]


@pytest.mark.parametrize("failures", [100, 10_000])
def test_delay_after_many_failures_is_the_longest(failures: int) -> None:
    assert Backoff(first_s=0.001, longest_s=86_400.0).delay_s(failures) == 86_400.0


def test_delay_longer_than_the_longest_is_reduced_to_it() -> None:
    assert Backoff(first_s=1.0, longest_s=10.0).after(100.0) == 10.0
