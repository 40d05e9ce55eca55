"""Windows of a capture to a URL: each time is in one, which its path names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.jobs.capture.config import LONGEST, WindowLimits
from pairbus.jobs.capture.store import StoreWindow

HOUR_MS = 3_600_000
LONGEST_S = LONGEST // timedelta(seconds=1)

times = st.integers(min_value=0, max_value=4_000_000_000_000)
limits = st.integers(min_value=1, max_value=LONGEST_S).map(lambda s: WindowLimits(length=timedelta(seconds=s)))


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


@given(times, limits)
def test_window_holds_its_time_and_ends_with_its_hour(time_ms: int, limits: WindowLimits) -> None:
    window = StoreWindow.at(time_ms, limits)
    assert window.start_ms <= time_ms < window.end_ms
    assert window.end_ms - window.start_ms <= limits.length_ms
    assert window.start_ms // HOUR_MS == (window.end_ms - 1) // HOUR_MS


@given(times, limits)
def test_windows_follow_each_other_under_different_paths(time_ms: int, limits: WindowLimits) -> None:
    window = StoreWindow.at(time_ms, limits)
    after = StoreWindow.at(window.end_ms, limits)
    assert after.start_ms == window.end_ms
    assert StoreWindow.at(window.end_ms - 1, limits) == StoreWindow.at(window.start_ms, limits) == window
    assert after.path > window.path


@pytest.mark.parametrize(
    ("minutes", "path"),
    [
        (5, "day=2026-11-16/hour=04/window=20261116T045500Z"),
        (7, "day=2026-11-16/hour=04/window=20261116T045600Z"),
        (60, "day=2026-11-16/hour=04/window=20261116T040000Z"),
    ],
)
def test_path_names_the_start_of_the_window(minutes: int, path: str) -> None:
    window = StoreWindow.at(ms("2026-11-16T04:59:59.999"), WindowLimits(length=timedelta(minutes=minutes)))
    assert window.path == path
    assert window.end_ms == ms("2026-11-16T05:00:00")
