"""Messages of the primary, one row for each place that one was in: what has happened to it there."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, count_if, greatest, least, lit, when, xxhash64
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of

from pairbus.jobs.reconcile.events import PLACE, if_event, is_any
from pairbus.ledger.life import Event
from pairbus.ledger.operation import Stage

_STARTS: Final = (Event.ACCEPTED, Event.ROUTED)
_PRESENT: Final = (*_STARTS, Event.FOUND)
_ENDS: Final = (
    Event.COMPLETED,
    Event.DEAD_LETTERED,
    Event.MOVED,
    Event.EXPIRED,
    Event.REMOVED,
    Event.SET_ASIDE,
)


def copies_of(events: DataFrame, last_started: int) -> DataFrame:
    """One row for each message in each place that it was put into, or found in, while the ledger was kept.

    One that was not found when the namespace was last started has left, and how was not recorded: an ending is in the
    ledger if it is in the store. A number is given twice by a namespace that was restored from a copy: one of those
    messages may still wait, and of the others nobody knows.

    Texts stay behind: numbers are what Spark groups in place, without sorting, and there may be many millions.
    """
    counted = events.groupBy(*PLACE).agg(
        greatest_of("is_deleted").alias("is_deleted"),
        greatest_of("is_topic").alias("is_topic"),
        *(count_if(col("event") == event).alias(name) for event, name in _COUNTED.items()),
        count_if(is_any(*_STARTS)).alias("starts"),
        greatest_of(when(is_any(*_PRESENT), col("ordinal"))).alias("present_ordinal"),
        count_if(is_any(*_ENDS)).alias("ends"),
        count_if(col("stage").isin(Stage.SYPHON, Stage.RETURNED)).alias("of_syphon"),
        least_of(_at_start("ordinal")).alias("ordinal"),
        least_of(_at_start("at")).alias("at"),
        greatest_of(_at_start("original_sequence")).alias("original_sequence"),
        greatest_of(when(is_any(*_PRESENT), xxhash64("message_id"))).alias("id_hash"),
        greatest_of(when(is_any(*_PRESENT) & col("session_id").isNotNull(), xxhash64("session_id"))).alias("session"),
        least_of(if_event(Event.RECEIVED, "ordinal")).alias("received_ordinal"),
        least_of(if_event(Event.RECEIVED, "at")).alias("received_at"),
    )
    is_open = greatest(col("starts"), lit(1)) > col("ends")
    seems_to_wait = is_open & ~col("is_deleted") & ~_is_through_topic()
    is_there = (col("present_ordinal") > last_started) & (col("starts") <= 1)
    again = col("deliveries") - 1
    return counted.where(col("present_ordinal").isNotNull()).select(
        *PLACE,
        *_KEPT,
        (col("of_syphon") > 0).alias("is_home"),
        (col("removed") + when(is_open & col("is_deleted"), 1).otherwise(0)).alias("removed"),
        when(col("starts") == 0, 1).otherwise(0).alias("found"),
        (seems_to_wait & is_there).alias("waits"),
        (seems_to_wait & ~is_there).alias("is_unrecorded"),
        _or_none(least(again, col("abandoned"))).alias("redelivered"),
        _or_none(again - col("abandoned") - col("deferred")).alias("delivered_twice"),
    )


_COUNTED: Final = {
    Event.ACCEPTED: "accepted",
    Event.ROUTED: "routed",
    Event.RECEIVED: "deliveries",
    Event.COMPLETED: "completed",
    Event.ABANDONED: "abandoned",
    Event.DEFERRED: "deferred",
    Event.DEAD_LETTERED: "dead_lettered",
    Event.EXPIRED: "expired",
    Event.REMOVED: "removed",
    Event.SET_ASIDE: "set_aside",
    Event.MOVED: "moved",
    Event.SCHEDULED: "scheduled",
    Event.FOUND: "sightings",
}


_KEPT: Final = (
    "accepted",
    "routed",
    "deliveries",
    "completed",
    "dead_lettered",
    "expired",
    "set_aside",
    "moved",
    "scheduled",
    "ordinal",
    "at",
    "original_sequence",
    "id_hash",
    "session",
    "received_ordinal",
    "received_at",
)


def _or_none(count: Column) -> Column:
    return greatest(count, lit(0))


def _at_start(column: str) -> Column:
    return when(is_any(*_PRESENT), col(column))


def _is_through_topic() -> Column:
    """What a topic takes is not kept there, but in its subscriptions."""
    return col("is_topic") & (col("routed") == 0) & (col("sightings") == 0)


def forwarded(copies: DataFrame, lives: DataFrame) -> DataFrame:
    """Those that seem to wait, or to be gone, and are not: their queue has routed them on in the same moment."""
    onward = lives.where(is_any(Event.ROUTED, Event.REPEATED)).select(
        xxhash64("message_id").alias("id_hash"),
        col("original_sequence").alias("sequence"),
        "at",
        col("ordinal").alias("onward_ordinal"),
    )
    waiting = copies.where((col("waits") | col("is_unrecorded")) & (col("accepted") > 0) & (col("deliveries") == 0))
    onward = onward.groupBy("id_hash", "sequence", "at").agg(greatest_of("onward_ordinal").alias("onward_ordinal"))
    return waiting.join(onward, ["id_hash", "sequence", "at"]).where(col("onward_ordinal") > col("ordinal"))
