"""Diverted messages, one row each: time, destination, and outcome in the backlog."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    coalesce,
    col,
    count,
    count_if,
    greatest,
    least,
    lit,
    lower,
    row_number,
    when,
    xxhash64,
)
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import trim as trimmed

from pairbus.jobs.reconcile.events import MESSAGE, PLACE, first_seen, if_event, is_any
from pairbus.ledger.events import LedgerEvent, Stage


class DivertedOutcome(StrEnum):
    """The outcome of a message in the backlog."""

    WAITING = "waiting"
    COMPLETED = "completed"
    """Completed by a syphon, which has restored it or should have."""

    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    REMOVED = "removed"
    SET_ASIDE = "set aside"


LEFT: Final = (DivertedOutcome.COMPLETED, DivertedOutcome.REMOVED, DivertedOutcome.SET_ASIDE)
"""Outcomes of messages that are neither in the backlog nor among its dead letters, so the primary must have them."""

_OUTCOMES: Final = {
    LedgerEvent.DEAD_LETTERED: DivertedOutcome.DEAD_LETTERED,
    LedgerEvent.EXPIRED: DivertedOutcome.EXPIRED,
    LedgerEvent.COMPLETED: DivertedOutcome.COMPLETED,
    LedgerEvent.MOVED: DivertedOutcome.REMOVED,
    LedgerEvent.REMOVED: DivertedOutcome.REMOVED,
    LedgerEvent.SET_ASIDE: DivertedOutcome.SET_ASIDE,
}


def diverted_messages(events: DataFrame, since: datetime | None, last_started: int, *, with_found: bool) -> DataFrame:
    """Return the messages of the backlog queues, without those that had left them before ``since``.

    ``is_accepted`` is false for those that the ledger has only found there. A message that was not found when the
    namespace was last started has left, even if that was not recorded.
    """
    accepted = first_seen(events, Stage.BACKLOG, with_found=with_found).select(
        *PLACE,
        lower(trimmed(coalesce("destination", lit("")), lit("/"))).alias("destination"),
        "message_id",
        "session_id",
        "session_key",
        col("path").alias("backlog_queue"),
        col("ordinal").alias("diverted_ordinal"),
        col("at").alias("diverted_at"),
        (col("event") == LedgerEvent.ACCEPTED).alias("is_accepted"),
        "is_deleted",
    )
    ended = is_any(*_OUTCOMES)
    outcomes = (
        events.where(~is_any(LedgerEvent.ACCEPTED, LedgerEvent.ROUTED))
        .groupBy(*PLACE)
        .agg(
            *(count_if(col("event") == event).alias(_flag(event)) for event in _OUTCOMES),
            least_of(if_event(LedgerEvent.RECEIVED, "at")).alias("fetched_at"),
            greatest_of(if_event(LedgerEvent.COMPLETED, "at")).alias("settled_at"),
            least_of(when(ended, col("at"))).alias("ended_at"),
            greatest_of(if_event(LedgerEvent.FOUND, "ordinal")).alias("found_ordinal"),
        )
    )
    found = accepted.join(outcomes, list(PLACE), "left").withColumn("outcome", _outcome(last_started))
    left = found.select(*MESSAGE, "session_id", *_DIVERTED_COLUMNS)
    return left if since is None else left.where(col("ended_at").isNull() | (col("ended_at") >= lit(since)))


_DIVERTED_COLUMNS: Final = (
    "backlog_queue",
    "sequence",
    "diverted_ordinal",
    "diverted_at",
    "is_accepted",
    "fetched_at",
    "settled_at",
    "ended_at",
    "outcome",
)


def _flag(event: LedgerEvent) -> str:
    return f"is {event}"


def _outcome(last_started: int) -> Any:
    seen = greatest("diverted_ordinal", "found_ordinal")
    result = (
        when(col("is_deleted"), DivertedOutcome.REMOVED)
        .when(seen < last_started, DivertedOutcome.COMPLETED)
        .otherwise(DivertedOutcome.WAITING)
    )
    for event, outcome in reversed(_OUTCOMES.items()):
        result = when(col(_flag(event)) > 0, outcome).otherwise(result)
    return result


# Matching of diverted messages with those that the primary has accepted from the syphon.
#
# Ids need not be unique, nor present. So messages are matched by count: of those with the same destination, id and
# session, the first restored one is matched with the first diverted one.


def arrivals(events: DataFrame, *, with_found: bool) -> DataFrame:
    """Return messages that the primary has accepted from the syphon, or found in the queue that accepted them."""
    is_first_place = ~col("is_subscription") & (col("sequence") == col("original_sequence"))
    return first_seen(events.where(is_first_place), Stage.SYPHON, with_found=with_found).select(
        *PLACE,
        col("path").alias("destination"),
        "message_id",
        "session_id",
        "session_key",
        col("ordinal").alias("restored_ordinal"),
        col("at").alias("restored_at"),
    )


def matched(arrivals: DataFrame, diverted: DataFrame) -> DataFrame:
    """Join each restored message with a diverted one; a surplus one gets the last, an unmatched one gets none.

    ``diverted`` is the number of diverted messages, ``rank`` the position among the restored ones.
    """
    in_order = Window.partitionBy(*MESSAGE)
    counts = diverted.groupBy(*MESSAGE).agg(count(lit(1)).alias("diverted"))
    came = (
        arrivals.select(
            "*",
            row_number().over(in_order.orderBy("restored_ordinal")).alias("rank"),
            count(lit(1)).over(in_order).alias("came"),
        )
        .join(counts, list(MESSAGE), "left")
        .withColumn("turn", least("rank", "diverted"))
    )
    went = diverted.withColumn("turn", row_number().over(in_order.orderBy("diverted_ordinal"))).drop(
        "session_id", "sequence"
    )
    return came.join(went, [*MESSAGE, "turn"], "left").withColumn(
        "is_surplus", coalesce(col("rank") > col("diverted"), lit(False))
    )


def not_restored(diverted: DataFrame, arrived: DataFrame) -> DataFrame:
    """Return messages that have left the backlog and are not among those that ``arrived``.

    A message that the destination has dropped as a duplicate has arrived.
    """
    counts = arrived.groupBy(*MESSAGE).agg(count(lit(1)).alias("arrived"))
    # Messages that were removed without a syphon are the last to be matched with those that arrived.
    by_likelihood = Window.partitionBy(*MESSAGE).orderBy(
        col("outcome") != DivertedOutcome.COMPLETED, "diverted_ordinal"
    )
    return (
        diverted.where(col("outcome").isin(*LEFT))
        .withColumn("turn", row_number().over(by_likelihood))
        .join(counts, list(MESSAGE), "left")
        .where(col("turn") > coalesce("arrived", lit(0)))
        .drop("turn", "arrived")
    )


def dropped_arrivals(repeated: DataFrame) -> DataFrame:
    """Return messages that the syphon has sent and the destination has dropped as duplicates."""
    return repeated.where(col("stage").isin(Stage.SYPHON, Stage.RETURNED)).withColumn("destination", col("path"))


def arrivals_of(copies: DataFrame, arrivals: DataFrame, *, with_routes: bool) -> DataFrame:
    """Return the places of restored messages, each with the ordinal of its arrival.

    Copies routed by a topic or a forwarding queue are matched by id and original number; if several match, the last one
    before the copy was made is taken.
    """
    direct = copies.where(col("accepted") > 0).select(*PLACE, col("ordinal").alias("restored_ordinal"))
    if not with_routes:
        return direct
    origins = arrivals.select(
        xxhash64("message_id").alias("id_hash"), col("sequence").alias("original_sequence"), "restored_ordinal"
    )
    routed = (
        copies.where(col("accepted") == 0)
        .select(*PLACE, "id_hash", "original_sequence", "ordinal")
        .join(origins, ["id_hash", "original_sequence"])
        .where(col("restored_ordinal") < col("ordinal"))
        .groupBy(*PLACE)
        .agg(greatest_of("restored_ordinal").alias("restored_ordinal"))
    )
    return direct.unionByName(routed)


_STARTS: Final = (LedgerEvent.ACCEPTED, LedgerEvent.ROUTED)
_PRESENT: Final = (*_STARTS, LedgerEvent.FOUND)
_ENDS: Final = (
    LedgerEvent.COMPLETED,
    LedgerEvent.DEAD_LETTERED,
    LedgerEvent.MOVED,
    LedgerEvent.EXPIRED,
    LedgerEvent.REMOVED,
    LedgerEvent.SET_ASIDE,
)


def copies_of(events: DataFrame, last_started: int) -> DataFrame:
    """Return one row for each message in each place where it was put or found while the ledger was recorded.

    A message that was not found when the namespace was last started has left, and the reason is not recorded: an end is
    in the ledger if it is in the store. A namespace restored from a backup issues numbers twice: one of those messages
    may still wait, the state of the others is unknown.

    Texts are left out: Spark groups numbers in place, without sorting, and there may be many millions of rows.
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
        least_of(if_event(LedgerEvent.RECEIVED, "ordinal")).alias("received_ordinal"),
        least_of(if_event(LedgerEvent.RECEIVED, "at")).alias("received_at"),
    )
    is_open = greatest(col("starts"), lit(1)) > col("ends")
    seems_to_wait = is_open & ~col("is_deleted") & ~_is_through_topic()
    is_there = (col("present_ordinal") > last_started) & (col("starts") <= 1)
    again = col("deliveries") - 1
    return counted.where(col("present_ordinal").isNotNull()).select(
        *PLACE,
        *_COPY_COLUMNS,
        (col("of_syphon") > 0).alias("is_restored"),
        (col("removed") + when(is_open & col("is_deleted"), 1).otherwise(0)).alias("removed"),
        when(col("starts") == 0, 1).otherwise(0).alias("found"),
        (seems_to_wait & is_there).alias("waits"),
        (seems_to_wait & ~is_there).alias("is_unrecorded"),
        _or_none(least(again, col("abandoned"))).alias("redelivered"),
        _or_none(again - col("abandoned") - col("deferred")).alias("delivered_twice"),
    )


_COUNTED: Final = {
    LedgerEvent.ACCEPTED: "accepted",
    LedgerEvent.ROUTED: "routed",
    LedgerEvent.RECEIVED: "deliveries",
    LedgerEvent.COMPLETED: "completed",
    LedgerEvent.ABANDONED: "abandoned",
    LedgerEvent.DEFERRED: "deferred",
    LedgerEvent.DEAD_LETTERED: "dead_lettered",
    LedgerEvent.EXPIRED: "expired",
    LedgerEvent.REMOVED: "removed",
    LedgerEvent.SET_ASIDE: "set_aside",
    LedgerEvent.MOVED: "moved",
    LedgerEvent.SCHEDULED: "scheduled",
    LedgerEvent.FOUND: "sightings",
}


_COPY_COLUMNS: Final = (
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
    """Return whether a topic has only passed a message on: it is kept in the subscriptions."""
    return col("is_topic") & (col("routed") == 0) & (col("sightings") == 0)


def forwarded(copies: DataFrame, events: DataFrame) -> DataFrame:
    """Return messages that seem to wait or to be gone, but were forwarded by their queue at the same moment."""
    forwards = events.where(is_any(LedgerEvent.ROUTED, LedgerEvent.REPEATED)).select(
        xxhash64("message_id").alias("id_hash"),
        col("original_sequence").alias("sequence"),
        "at",
        col("ordinal").alias("onward_ordinal"),
    )
    waiting = copies.where((col("waits") | col("is_unrecorded")) & (col("accepted") > 0) & (col("deliveries") == 0))
    forwards = forwards.groupBy("id_hash", "sequence", "at").agg(greatest_of("onward_ordinal").alias("onward_ordinal"))
    return waiting.join(forwards, ["id_hash", "sequence", "at"]).where(col("onward_ordinal") > col("ordinal"))
