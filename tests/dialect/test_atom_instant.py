"""Points in time as the management API writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.atom.values import format_instant, parse_instant

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = -62_135_596_800_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", FIRST),
        ("2021-04-19T17:21:10Z", 1_618_852_870_000),
        ("2021-04-19T17:21:10.257Z", 1_618_852_870_257),
        ("2000-02-29T23:59:59.999Z", 951_868_799_999),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_instant_round_trips(text: str, time_ms: int) -> None:
    assert parse_instant(text) == time_ms
    assert format_instant(time_ms) == text


@pytest.mark.parametrize(
    "text",
    [
        "2021-04-19T17:21:10",
        "2021-04-19T17:21:10.0000000Z",
        "2021-04-19T19:21:10+02:00",
        "2021-04-19T16:51:10-00:30",
        "2021-04-19T17:21:10.0009999Z",
    ],
)
def test_zones_and_fractions_are_parsed(text: str) -> None:
    assert parse_instant(text) == 1_618_852_870_000


@pytest.mark.parametrize(
    "text",
    ["", "now", "2021-04-19", "2021-04-19 17:21:10Z", "2021-13-01T00:00:00Z", "2021-00-01T00:00:00Z",
     "2021-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2021-04-31T00:00:00Z", "2021-01-01T24:00:00Z",
     "2021-01-01T00:60:00Z", "2021-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "2021-01-01T00:00:00z ",
     "\u0662021-01-01T00:00:00Z"],
)  # fmt: skip
def test_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (time|valid date)"):
        parse_instant(text)


def test_years_beyond_four_digits_are_clamped() -> None:
    assert format_instant(-(10**18)) == "0001-01-01T00:00:00Z"
    assert format_instant(10**18) == "9999-12-31T23:59:59.999Z"


@given(st.integers(FIRST, 253_402_300_799_999))
def test_conversion_agrees_with_calendar(time_ms: int) -> None:
    moment = EPOCH + timedelta(milliseconds=time_ms)
    text = format_instant(time_ms)
    assert datetime.fromisoformat(text) == moment
    assert parse_instant(text) == time_ms
    assert parse_instant(moment.isoformat()) == time_ms
