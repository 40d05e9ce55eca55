"""How long diverted messages took to their receivers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, count_if, lit, percentile_approx
from pyspark.sql.functions import max as greatest_of

EDGES: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1_800, 3_600, 3 * 3_600, 12 * 3_600, 86_400)
)
"""Where one bar of the histogram ends, and the next begins."""

_ACCURACY: Final = 10_000
"""The rank of a percentile is off by one in so many messages at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """From the backlog's acceptance of a message until it was first received at the primary."""

    messages: int
    p50: timedelta | None
    p99: timedelta | None
    longest: timedelta | None
    histogram: tuple[int, ...]
    """How many took less than each of ``EDGES`` and not less than the one before; the last is of those above all."""


def waits_of(delivered: DataFrame) -> Waits:
    """Sum up ``Reconciliation.delivered``."""
    bounds = [edge / timedelta(milliseconds=1) for edge in EDGES]
    wait = col("wait_ms")
    (row,) = delivered.agg(
        count(lit(1)).alias("messages"),
        percentile_approx(wait, [0.5, 0.99], _ACCURACY).alias("percentiles"),
        greatest_of(wait).alias("longest"),
        *(
            count_if((wait >= low) & (wait < high)).alias(f"bar{number}")
            for number, (low, high) in enumerate(zip([0.0, *bounds], [*bounds, float("inf")], strict=True))
        ),
    ).collect()
    p50, p99 = row["percentiles"] or (None, None)
    return Waits(
        messages=row["messages"],
        p50=_ms(p50),
        p99=_ms(p99),
        longest=_ms(row["longest"]),
        histogram=tuple(row[f"bar{number}"] for number in range(len(EDGES) + 1)),
    )


def _ms(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)
