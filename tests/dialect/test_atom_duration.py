"""Lengths of time as the management API writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.atom.values import LONGEST_MS, NEVER, format_duration, parse_duration

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("PT0S", 0),
        ("PT1M", MINUTE),
        ("PT1M30S", 90 * SECOND),
        ("PT0.5S", 500),
        ("PT13S", 13 * SECOND),
        ("P1DT2H3M4.005S", DAY + 2 * HOUR + 3 * MINUTE + 4_005),
        ("P14D", 14 * DAY),
        ("-PT1M", -MINUTE),
    ],
)
def test_duration_round_trips(text: str, length_ms: int) -> None:
    assert parse_duration(text) == length_ms
    assert format_duration(length_ms) == text


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("PT300S", 5 * MINUTE),
        ("P1W", 7 * DAY),
        ("P1Y2M", 425 * DAY),
        ("PT36H", 36 * HOUR),
        ("PT1.9999999S", 1_999),
        ("P0D", 0),
        ("P0DT0H0M0S", 0),
        ("PT01M", MINUTE),
    ],
)
def test_other_spellings_are_parsed(text: str, length_ms: int) -> None:
    assert parse_duration(text) == length_ms


@pytest.mark.parametrize(
    "text",
    [NEVER, "P10675199DT2H48M5.477539S", "P10675199D", "P10675200D", "P999999999999D", "PT999999999999999S", "P30000Y"],
)
def test_maximum_and_beyond_mean_never(text: str) -> None:
    assert parse_duration(text) is None


def test_never_is_written_as_maximum() -> None:
    assert format_duration(None) == NEVER
    assert format_duration(LONGEST_MS) == NEVER


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1", "1M", "PT1", "PT1X", "P1DT", "pt1m", "PT1M ", "PT.5S", "PT1.S", "P-1D", "1:00:00", "P1M1Y",
     "PT1S1M", "P" + "9" * 40 + "D", "-" + NEVER, "PT\u0661M"],
)  # fmt: skip
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|out of range"):
        parse_duration(text)


@given(st.integers(-LONGEST_MS + 1, LONGEST_MS - 1))
def test_every_duration_round_trips(length_ms: int) -> None:
    assert parse_duration(format_duration(length_ms)) == length_ms
