"""Events that are not in a ledger, though earlier and later ones are: a file was removed, or damaged.

A namespace counts its events one by one, so those that are there show which are not. Some may be missing rightly. A
namespace that is killed takes with it what has changed nothing on disk, in its last moments; a commit that fails takes
back what it was about. After either, the namespace is started. And of a ledger that is being written, a reader sees the
last moments in part. So nothing is said of the last minutes before a start, and before the end.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    coalesce,
    col,
    count,
    count_if,
    floor,
    greatest,
    lag,
    lead,
    lit,
    shiftright,
    unix_seconds,
    when,
)
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import sum as sum_of

from pairbus.ledger.life import Event

_PROCESS_SHIFT: Final = 22
"""An ordinal begins with the time at which its process was started. Those of two processes differ in what is left, also
where one was started with a clock that had been set back, and their minutes are the same."""

_MINUTE_S: Final = 60
_LAST_MINUTES: Final = 2
"""So many, of those in which something has happened."""


def absent_events(lives: DataFrame, since: datetime | None = None) -> int:
    """How many events are not there, of those since some time. What is told to be missed is not among them."""
    minutes = _minutes(lives)
    if since is not None:
        minutes = minutes.where(col("minute") >= int(since.timestamp()) // _MINUTE_S)
    (row,) = minutes.agg(sum_of(_absent()).alias("absent")).collect()
    return int(row["absent"] or 0)


def _minutes(lives: DataFrame) -> DataFrame:
    """The minutes in which something has happened, in the order of events: few beside these, and each is short."""
    started = when(col("event") == Event.STARTED, col("ordinal"))
    is_gap = col("event") == Event.MISSED
    minutes = lives.groupBy(
        shiftright("ordinal", _PROCESS_SHIFT).alias("process"), floor(unix_seconds("at") / _MINUTE_S).alias("minute")
    ).agg(
        count(lit(1)).alias("events"),
        least_of("ordinal").alias("first"),
        greatest_of(col("ordinal") + when(is_gap, col("sequence") - 1).otherwise(0)).alias("last"),
        count_if(is_gap).alias("gaps"),
        least_of(started).alias("first_start"),
        greatest_of(started).alias("last_start"),
    )
    in_order = Window.orderBy("first")
    has_start = col("first_start").isNotNull()
    soon = (lead(has_start, ahead, default=True).over(in_order) for ahead in range(1, _LAST_MINUTES + 1))
    return minutes.select("*", lag("last").over(in_order).alias("before"), reduce(or_, soon).alias("ends_soon"))


def _absent() -> Column:
    """Within a minute, and between it and the one before, unless a start says why, or a gap that is told of."""
    within = greatest(col("last") - col("first") + 1 - col("events"), lit(0))
    between = coalesce(col("first") - col("before") - 1, lit(0))
    begins = coalesce(col("first_start") == col("first"), lit(False))
    is_told = (col("gaps") > 0) | col("ends_soon") | coalesce(col("last_start") > col("first"), lit(False))
    return when(is_told, 0).otherwise(within + when(begins, 0).otherwise(between))
