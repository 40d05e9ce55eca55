"""Events that are not in a ledger, though earlier and later ones are: a file was removed, or damaged.

A namespace counts its events one by one, so those that are there show which are not. What a kill or a failed commit has
undone has no event, though it was counted. The start that follows names the last event that was confirmed: up to there
every event belongs in the ledger, and from there to the start there may be none. A start of an earlier version names
none; then nothing is concluded from the last minutes before it.
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
"""So many, of those in which something has happened, may lack events before a start that names no last one."""


def absent_events(lives: DataFrame, since: datetime | None = None, before: int | None = None) -> int:
    """Count the events that are not there, of those since some time; those that are reported as missed do not count.

    ``before`` is the largest ordinal among earlier events that are not in ``lives``, if there are any.
    """
    minutes = _minutes(lives, before)
    if since is not None:
        minutes = minutes.where(col("minute") >= int(since.timestamp()) // _MINUTE_S)
    (row,) = minutes.agg(sum_of(_absent()).alias("absent")).collect()
    return int(row["absent"] or 0)


def _minutes(lives: DataFrame, before: int | None) -> DataFrame:
    """The minutes in which something has happened, in the order of events: few beside these, and each is short."""
    is_start = col("event") == Event.STARTED
    is_gap = col("event") == Event.MISSED
    minutes = lives.groupBy(
        shiftright("ordinal", _PROCESS_SHIFT).alias("process"), floor(unix_seconds("at") / _MINUTE_S).alias("minute")
    ).agg(
        count(lit(1)).alias("events"),
        least_of("ordinal").alias("first"),
        greatest_of(col("ordinal") + when(is_gap, col("sequence") - 1).otherwise(0)).alias("last"),
        count_if(is_gap).alias("gaps"),
        least_of(when(is_start, col("ordinal"))).alias("first_start"),
        greatest_of(when(is_start, col("ordinal"))).alias("last_start"),
        least_of(when(is_start, col("sequence"))).alias("confirmed"),
    )
    in_order = Window.orderBy("first")
    names_none = coalesce(col("confirmed") == 0, lit(False))
    soon = (lead(names_none, ahead, default=False).over(in_order) for ahead in range(1, _LAST_MINUTES + 1))
    last_before = lag("last", default=before).over(in_order)
    return minutes.select("*", last_before.alias("before"), reduce(or_, soon).alias("may_be_undone"))


def _absent() -> Column:
    """Within a minute, and between it and the one before, unless a start says why, or a gap that is reported."""
    within = greatest(col("last") - col("first") + 1 - col("events"), lit(0))
    begins = coalesce(col("first_start") == col("first"), lit(False))
    up_to = when(begins, col("confirmed")).otherwise(col("first") - 1)
    between = greatest(coalesce(up_to - col("before"), lit(0)), lit(0))
    starts_later = coalesce(col("last_start") > col("first"), lit(False))
    return when((col("gaps") > 0) | col("may_be_undone") | starts_later, 0).otherwise(within + between)
