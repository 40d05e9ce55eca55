"""How windows are written, and what cannot be meant."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pairbus.jobs.capture.limits import LONGEST, WindowLimits


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
def test_d5_a_window_is_a_time_a_size_or_both(texts: list[str], length: timedelta, size_bytes: int | None) -> None:
    assert WindowLimits.parse(texts) == WindowLimits(length=length, size_bytes=size_bytes)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["soon"], "'soon' is neither"),
        (["2h"], "'2h' is neither"),
        (["10ms"], "is neither"),
        (["1KB"], "'1KB' is out of range"),
        (["2000GB"], "'2000GB' is out of range"),
        (["64"], "is neither"),
        (["-1MB"], "is neither"),
        (["5m", "6m"], "the same twice"),
        (["5MB", "6MB"], "the same twice"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_told(texts: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WindowLimits.parse(texts)
