"""Clock comparison from the times at which messages were fetched, accepted and removed, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pairbus.jobs.reconcile.reconciliation import CLOCK_SLACK, comparison, read_since
from tests.jobs.reconcile.books import BEGIN

MS = timedelta(milliseconds=1)


def test_clocks_that_may_agree_are_not_corrected() -> None:
    found = comparison(pairs=9, low_ms=-20, high_ms=30, median_ms=5.0)
    assert found.correction == timedelta()
    assert found.agrees


def test_clock_ahead_is_corrected_by_the_minimum() -> None:
    found = comparison(pairs=9, low_ms=300_000, high_ms=300_400, median_ms=300_200.0)
    assert found.correction == 300_000 * MS
    assert (found.at_least, found.at_most) == (300_000 * MS, 300_400 * MS)


def test_clock_behind_is_corrected_by_the_minimum() -> None:
    assert comparison(pairs=9, low_ms=-300_400, high_ms=-300_000, median_ms=-300_200.0).correction == -300_000 * MS


def test_clock_set_in_between_is_corrected_by_the_median() -> None:
    found = comparison(pairs=9, low_ms=60_000, high_ms=-60_000, median_ms=7.4)
    assert not found.agrees
    assert found.correction == 7 * MS


def test_no_messages_give_no_correction() -> None:
    found = comparison(pairs=0, low_ms=None, high_ms=None, median_ms=None)
    assert found.correction == timedelta()
    assert found.at_least is None


def test_unsettled_messages_bound_one_side_only() -> None:
    assert comparison(pairs=1, low_ms=None, high_ms=-5_000, median_ms=-5_000.0).correction == -5_000 * MS


def test_read_start_is_bounded_by_the_calendar() -> None:
    assert read_since(None) is None
    assert read_since(BEGIN) == BEGIN - CLOCK_SLACK
    assert read_since(datetime.min.replace(tzinfo=UTC)) == datetime(1969, 12, 31, 23, tzinfo=UTC)
