"""What is concluded from when messages were fetched, accepted and removed, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pairbus.jobs.reconcile.clocks import comparison
from pairbus.jobs.reconcile.reconciliation import CLOCK_SLACK, read_since
from tests.jobs.reconcile.books import BEGIN

MS = timedelta(milliseconds=1)


def test_clocks_that_may_agree_are_left_alone() -> None:
    found = comparison(pairs=9, low_ms=-20, high_ms=30, median_ms=5.0)
    assert found.correction == timedelta()
    assert found.agrees


def test_a_clock_ahead_is_corrected_by_what_is_certain() -> None:
    found = comparison(pairs=9, low_ms=300_000, high_ms=300_400, median_ms=300_200.0)
    assert found.correction == 300_000 * MS
    assert (found.at_least, found.at_most) == (300_000 * MS, 300_400 * MS)


def test_a_clock_behind_is_corrected_by_what_is_certain() -> None:
    assert comparison(pairs=9, low_ms=-300_400, high_ms=-300_000, median_ms=-300_200.0).correction == -300_000 * MS


def test_a_clock_that_was_set_in_between_gives_a_median() -> None:
    found = comparison(pairs=9, low_ms=60_000, high_ms=-60_000, median_ms=7.4)
    assert not found.agrees
    assert found.correction == 7 * MS


def test_without_messages_nothing_is_known() -> None:
    found = comparison(pairs=0, low_ms=None, high_ms=None, median_ms=None)
    assert found.correction == timedelta()
    assert found.at_least is None


def test_what_was_never_removed_from_the_backlog_bounds_one_side_only() -> None:
    assert comparison(pairs=1, low_ms=None, high_ms=-5_000, median_ms=-5_000.0).correction == -5_000 * MS


def test_the_time_before_a_range_is_left_out_where_there_is_none() -> None:
    assert read_since(None) is None
    assert read_since(BEGIN) == BEGIN - CLOCK_SLACK
    assert read_since(datetime.min.replace(tzinfo=UTC)) == datetime(1969, 12, 31, 23, tzinfo=UTC)
