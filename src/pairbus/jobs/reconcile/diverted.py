"""Messages that were diverted, one row each: when, where to, and what became of them in the backlog."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, col, count_if, greatest, lit, lower, when
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import trim as trimmed

from pairbus.jobs.reconcile.events import MESSAGE, PLACE, first_seen, if_event, is_any
from pairbus.ledger.life import Event
from pairbus.ledger.operation import Stage


class Fate(StrEnum):
    """What became of a message in the backlog."""

    WAITING = "waiting"
    COMPLETED = "completed"
    """A syphon has brought it home, or says so."""

    DEAD_LETTERED = "dead-lettered"
    EXPIRED = "expired"
    REMOVED = "removed"
    SET_ASIDE = "set aside"


LEFT: Final = (Fate.COMPLETED, Fate.REMOVED, Fate.SET_ASIDE)
"""It is not in the backlog any more, nor among its dead letters: so it has to be at home."""

_FATES: Final = {
    Event.DEAD_LETTERED: Fate.DEAD_LETTERED,
    Event.EXPIRED: Fate.EXPIRED,
    Event.COMPLETED: Fate.COMPLETED,
    Event.MOVED: Fate.REMOVED,
    Event.REMOVED: Fate.REMOVED,
    Event.SET_ASIDE: Fate.SET_ASIDE,
}


def diverted_messages(events: DataFrame, since: datetime | None, last_started: int) -> DataFrame:
    """The messages of the backlog queues; those that had left them before ``since`` are left out.

    One that was not found when the namespace was last started has left, also if that was not recorded.
    """
    accepted = first_seen(events, Stage.BACKLOG).select(
        *PLACE,
        lower(trimmed(coalesce("destination", lit("")), lit("/"))).alias("destination"),
        "message_id",
        "session_id",
        "session_key",
        col("path").alias("backlog_queue"),
        col("ordinal").alias("diverted_ordinal"),
        col("at").alias("diverted_at"),
        "is_deleted",
    )
    ended = is_any(*_FATES)
    fates = (
        events.where(~is_any(Event.ACCEPTED, Event.ROUTED))
        .groupBy(*PLACE)
        .agg(
            *(count_if(col("event") == event).alias(_flag(event)) for event in _FATES),
            least_of(if_event(Event.RECEIVED, "at")).alias("fetched_at"),
            greatest_of(if_event(Event.COMPLETED, "at")).alias("settled_at"),
            least_of(when(ended, col("at"))).alias("ended_at"),
            greatest_of(if_event(Event.FOUND, "ordinal")).alias("found_ordinal"),
        )
    )
    found = accepted.join(fates, list(PLACE), "left").withColumn("fate", _fate(last_started))
    left = found.select(*MESSAGE, "session_id", *_KEPT)
    return left if since is None else left.where(col("ended_at").isNull() | (col("ended_at") >= lit(since)))


_KEPT: Final = (
    "backlog_queue",
    "sequence",
    "diverted_ordinal",
    "diverted_at",
    "fetched_at",
    "settled_at",
    "ended_at",
    "fate",
)


def _flag(event: Event) -> str:
    return f"is {event}"


def _fate(last_started: int) -> Any:
    seen = greatest("diverted_ordinal", "found_ordinal")
    fate = when(col("is_deleted"), Fate.REMOVED).when(seen < last_started, Fate.COMPLETED).otherwise(Fate.WAITING)
    for event, meant in reversed(_FATES.items()):
        fate = when(col(_flag(event)) > 0, meant).otherwise(fate)
    return fate
