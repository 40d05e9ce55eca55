"""Formats of windows, and invalid ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pairbus.jobs.capture.config import LONGEST, WindowLimits


@pytest.mark.parametrize(
    ("texts", "length", "size_bytes"),
    [
        ([], timedelta(minutes=5), None),
        (["5m"], timedelta(minutes=5), None),
        (["30 seconds"], timedelta(seconds=30), None),
        (["64MB"], LONGEST, 64_000_000),
        (["1.5 gb"], LONGEST, 1_500_000_000),
        (["10m", "2MB"], timedelta(minutes=10), 2_000_000),
        (["2000KB", "1h"], timedelta(hours=1), 2_000_000),
    ],
    ids=str,
)
def test_d5_window_is_a_time_a_size_or_both(texts: list[str], length: timedelta, size_bytes: int | None) -> None:
    assert WindowLimits.parse(texts) == WindowLimits(length=length, size_bytes=size_bytes)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["soon"], "got 'soon'"),
        (["2h"], "got '2h'"),
        (["10ms"], "a window must be "),
        (["1KB"], "got '1KB'"),
        (["2000GB"], "got '2000GB'"),
        (["64"], "a window must be "),
        (["-1MB"], "a window must be "),
        (["5m", "6m"], "given twice"),
        (["5MB", "6MB"], "given twice"),
    ],
    ids=str,
)
def test_invalid_window_is_rejected(texts: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WindowLimits.parse(texts)
