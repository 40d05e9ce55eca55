"""How far the clocks of the two namespaces are apart, by what the messages say that went from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, count, lit, percentile_approx, unix_millis
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockComparison:
    """By how much the primary's clock is ahead of the secondary's; it is behind if that is negative."""

    pairs: int
    """How many messages this is known from."""

    at_least: timedelta | None
    at_most: timedelta | None
    """A message is fetched from the backlog, then accepted at home, then removed from the backlog."""

    correction: timedelta
    """What is added to the secondary's times; 0 as long as nothing shows that the clocks differ."""

    agrees: bool
    """Whether one difference fits all messages. It does not if a clock was set in between; then it is a median."""


def compare_clocks(matched: DataFrame) -> ClockComparison:
    """Look at the messages that are alone in what they are known by."""
    sure = matched.where((col("came") == 1) & (col("diverted") == 1))
    home = unix_millis("home_at")
    low, high = home - unix_millis("settled_at"), home - unix_millis(coalesce("fetched_at", "diverted_at"))
    (row,) = sure.agg(
        count(lit(1)).alias("pairs"),
        greatest_of(low).alias("low"),
        least_of(high).alias("high"),
        percentile_approx(_middle(low, high), 0.5, 10_000).alias("median"),
    ).collect()
    return comparison(row["pairs"], row["low"], row["high"], row["median"])


def _middle(low: Column, high: Column) -> Column:
    return (coalesce(low, high) + high) / 2


def comparison(pairs: int, low_ms: int | None, high_ms: int | None, median_ms: float | None) -> ClockComparison:
    """What follows from the bounds that all messages together set, and from the middle of those of each."""
    agrees = low_ms is None or high_ms is None or low_ms <= high_ms
    correction_ms = 0.0
    if not agrees:
        correction_ms = median_ms or 0.0
    elif high_ms is not None and high_ms < 0:
        correction_ms = high_ms
    elif low_ms is not None and low_ms > 0:
        correction_ms = low_ms
    return ClockComparison(
        pairs=pairs,
        at_least=_ms(low_ms),
        at_most=_ms(high_ms),
        correction=timedelta(milliseconds=round(correction_ms)),
        agrees=agrees,
    )


def _ms(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)
