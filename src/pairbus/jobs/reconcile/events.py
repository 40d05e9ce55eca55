"""Message events of a ledger, with exact places: entity, incarnation and sequence number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql.functions import (
    array,
    broadcast,
    coalesce,
    col,
    collect_set,
    concat,
    count,
    count_if,
    floor,
    greatest,
    lag,
    lead,
    lit,
    min_by,
    shiftright,
    size,
    unix_seconds,
    when,
)
from pyspark.sql.functions import filter as only
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pairbus.dialect.paths import TRANSFER, is_backlog_path, split_entity_path
from pairbus.jobs.ledger.tables import Period
from pairbus.ledger.events import LedgerEvent, Stage

# Events that are absent from a ledger between earlier and later ones: a file was deleted or damaged.
#
# A namespace numbers its events consecutively, so absent ones leave a gap. Numbers of events that a kill or a failed
# commit has undone are not used again. The start that follows names the last confirmed event: all events up to it
# belong in the ledger, and there may be none between it and the start. A start of an earlier version names no event;
# then nothing is concluded from the last minutes before it.
#
# A reported gap stands for as many absent events as it counts, on either side of its own number.

_PROCESS_SHIFT: Final = 22
"""An ordinal starts with the time at which its process was started. The upper bits of two processes differ, even if one
was started with a clock that had been set back, and both have events in the same minutes."""

_MINUTE_S: Final = 60
_LAST_MINUTES: Final = 2
"""Minutes with events before a start that names no event, in which events may be absent."""


def by_minute(events: DataFrame, period: Period | None = None, since: datetime | None = None) -> DataFrame:
    """Group the events of a ledger by kind and minute: every summary is computed from this table.

    ``chosen`` is the number of events within ``period``. Gaps are counted since ``since``: a gap has the time of its
    end.
    """
    return _grouped(events, lit(0), period, since)


def _grouped(events: DataFrame, part: Column, period: Period | None = None, since: datetime | None = None) -> DataFrame:
    """Group the events by kind, minute, and part of the minute."""
    is_gap = col("event") == LedgerEvent.MISSED
    is_counted = is_gap if since is None else is_gap & (col("at") >= lit(since))
    process = shiftright("ordinal", _PROCESS_SHIFT).alias("process")
    return events.groupBy(*_KIND, process, _minute().alias("minute"), part.alias("part")).agg(
        count(lit(1)).alias("events"),
        count_if((period or Period()).rows()).alias("chosen"),
        coalesce(sum_of(when(is_gap, col("sequence") - 1)), lit(0)).alias("reported"),
        count_if(is_counted).alias("counted_gaps"),
        sum_of(when(is_counted, col("sequence"))).alias("missed"),
        count_if((col("event") == LedgerEvent.REMOVED) & (col("sequence") == 0)).alias("deletions"),
        least_of("at").alias("first_at"),
        greatest_of("at").alias("last_at"),
        least_of("ordinal").alias("first"),
        greatest_of(col("ordinal") + when(is_gap, col("sequence") - 1).otherwise(0)).alias("last"),
        greatest_of("ordinal").alias("last_present"),
        min_by("sequence", "ordinal").alias("first_sequence"),
    )


_KIND: Final = ("namespace", "entity", "event", "stage")


def _minute() -> Column:
    return floor(unix_seconds("at") / _MINUTE_S)


def absent_events(
    events: DataFrame, minutes: DataFrame, since: datetime | None = None, before: int | None = None
) -> int:
    """Count the events that are absent, since a given time; those reported as missed do not count.

    ``minutes`` is the result of ``by_minute``. ``before`` is the largest ordinal of earlier events that are not in it,
    if there are any. Minutes in which the namespace was loaded again are read from ``events``, and judged in parts.
    """
    found, divided = _absent_of(minutes, since, before)
    if divided:
        found, _ = _absent_of(_divided_at_starts(events, minutes, divided), since, before)
    return found


def _absent_of(minutes: DataFrame, since: datetime | None, before: int | None) -> tuple[int, list[int]]:
    """Return the number of absent events, and the minutes that have a start after other events of its process."""
    in_order = _in_order(minutes, before)
    if since is not None:
        in_order = in_order.where(col("minute") >= int(since.timestamp()) // _MINUTE_S)
    starts_later = col("last_start") > col("first")
    (row,) = in_order.agg(
        sum_of(_absent()).alias("absent"), collect_set(when(starts_later, col("minute"))).alias("divided")
    ).collect()
    return int(row["absent"] or 0), row["divided"]


def _divided_at_starts(events: DataFrame, minutes: DataFrame, divided: Iterable[int]) -> DataFrame:
    """Divide these minutes at each start, which is then the first event of its part."""
    within = events.where(_minute().isin(*divided))
    starts = [row["ordinal"] for row in within.where(is_any(LedgerEvent.STARTED)).select("ordinal").collect()]
    part = size(only(array(*map(lit, starts)), lambda start: start <= col("ordinal")))
    return minutes.where(~col("minute").isin(*divided)).unionByName(_grouped(within, part))


def _in_order(minutes: DataFrame, before: int | None) -> DataFrame:
    """Combine the kinds of events in each part of a minute: there are few such rows, and each covers little."""
    is_start, is_stop = col("event") == LedgerEvent.STARTED, col("event") == LedgerEvent.STOPPED
    combined = minutes.groupBy("process", "minute", "part").agg(
        *(sum_of(name).alias(name) for name in ("events", "reported")),
        least_of("first").alias("first"),
        *(greatest_of(name).alias(name) for name in ("last", "last_present")),
        least_of(when(is_start, col("first"))).alias("first_start"),
        greatest_of(when(is_start, col("last"))).alias("last_start"),
        least_of(when(is_start, col("first_sequence"))).alias("confirmed"),
        greatest_of(when(is_stop, col("last"))).alias("last_stop"),
    )
    in_order = Window.orderBy("first")
    # An orderly stop is the last event of its process: what was recorded before it has not been undone.
    is_stopped = coalesce(lag(col("last_stop") == col("last")).over(in_order), lit(False))
    may_undo = coalesce(col("confirmed") == 0, lit(False)) & ~is_stopped
    starts = combined.select(
        "*", lag("last", default=before).over(in_order).alias("before"), may_undo.alias("may_undo")
    )
    soon = (lead("may_undo", ahead, default=False).over(in_order) for ahead in range(1, _LAST_MINUTES + 1))
    return starts.select("*", reduce(or_, soon).alias("may_be_undone"))


def _absent() -> Column:
    """Count absent events within a minute and before it, unless a start or a reported gap explains them."""
    within = greatest(col("last_present") - col("first") + 1 - col("events"), lit(0))
    begins = coalesce(col("first_start") == col("first"), lit(False))
    up_to = when(begins, col("confirmed")).otherwise(col("first") - 1)
    between = greatest(coalesce(up_to - col("before"), lit(0)), lit(0))
    starts_later = coalesce(col("last_start") > col("first"), lit(False))
    unexplained = greatest(within + between - col("reported"), lit(0))
    return when(col("may_be_undone") | starts_later, 0).otherwise(unexplained)


_BACKLOG: Final = f"/{TRANSFER}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntity:
    """A queue, topic, subscription, or dead-letter queue, as spelled in a ledger."""

    id: int
    """The same for every spelling of a path."""

    spelling: str
    path: str
    """In lower case: names are case-insensitive."""

    is_dead_letters: bool
    is_topic: bool
    is_subscription: bool
    deletions: tuple[int, ...]
    """Ordinals of the deletions of it or its parent: its sequence numbers start from 1 again after each."""

    @property
    def backlog_of(self) -> str | None:
        """The name of the primary namespace, if this is a backlog queue."""
        return self.path.rpartition(_BACKLOG)[0] if is_backlog_path(self.path) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContents:
    """Summary of the message events of a namespace."""

    namespaces: frozenset[str]
    entities: tuple[LedgerEntity, ...]
    counts: Mapping[str, int]
    """Number of events by kind."""

    largest: int
    """Number of events of the entity with the most."""

    missed: int
    """Number of events that could not be recorded."""

    gaps: int
    """Number of gaps with such events."""

    absent: int
    """Number of events that were recorded, but are absent."""

    last_started: int
    """Ordinal of the last start of the namespace; its messages at that time are reported after it."""

    started_at: datetime | None
    """Time of that start."""

    first_at: datetime | None
    last_at: datetime | None
    is_stopped: bool
    """True if the last event is an orderly stop."""

    is_cut_off: bool
    """True if events before the first relevant one existed and are absent."""

    @property
    def span(self) -> timedelta:
        """Time between the first and the last event."""
        return timedelta() if self.first_at is None or self.last_at is None else self.last_at - self.first_at

    def has(self, *events: LedgerEvent) -> bool:
        return any(self.counts.get(event) for event in events)


def survey(
    events: DataFrame,
    minutes: DataFrame,
    since: datetime | None = None,
    start: datetime | None = None,
    last_before: Callable[[], int | None] = lambda: None,
    whole_from: datetime | None = None,
) -> LedgerContents:
    """Summarize the message events of a namespace; this takes a second pass if entities were deleted.

    ``minutes`` is the result of ``by_minute``. Absent events are counted since ``since``. The ledger must go back to
    ``start``, or to its own start. ``last_before`` returns the largest ordinal that is too old for ``events``; it is
    called only if these do not go back far enough. ``events`` has all events since ``whole_from``, an hour, and of
    those before it the last one and some others.
    """
    is_whole = lit(True) if whole_from is None else col("minute") >= int(whole_from.timestamp()) // _MINUTE_S
    rows = (
        minutes.groupBy(*_KIND)
        .agg(
            *(sum_of(name).alias(name) for name in ("events", "missed", "counted_gaps", "deletions")),
            least_of(when(is_whole, col("first_at"))).alias("first_at"),
            greatest_of("last_at").alias("last_at"),
            least_of("first").alias("first"),
            greatest_of("last").alias("last"),
            greatest_of(when(~is_whole, col("last"))).alias("last_before"),
            min_by("first_sequence", "first").alias("first_sequence"),
        )
        .collect()
    )
    first_at = min((row["first_at"] for row in rows if row["first_at"] is not None), default=None)
    is_covered = first_at is None or (start is not None and first_at.astimezone(UTC) < start)
    before = max((row["last_before"] for row in rows if row["last_before"] is not None), default=None)
    if before is None and not is_covered:
        before = last_before()
    deletions = _deletions(events) if any(row["deletions"] for row in rows) else {}
    return LedgerContents(
        namespaces=frozenset(row["namespace"] for row in rows),
        entities=tuple(_entities({row["entity"] for row in rows}, deletions)),
        counts=_counts(rows, "event"),
        largest=max(_counts(rows, "entity").values(), default=0),
        missed=sum(row["missed"] or 0 for row in rows),
        gaps=sum(row["counted_gaps"] for row in rows),
        absent=absent_events(events, minutes.where(is_whole), since, before),
        last_started=max((row["last"] for row in rows if row["event"] == LedgerEvent.STARTED), default=0),
        started_at=max((row["last_at"] for row in rows if row["event"] == LedgerEvent.STARTED), default=None),
        first_at=first_at,
        last_at=max((row["last_at"] for row in rows), default=None),
        is_stopped=bool(rows) and max(rows, key=lambda row: row["last"])["event"] == LedgerEvent.STOPPED,
        is_cut_off=not is_covered and before is None and not _is_first_start(rows),
    )


def _counts(rows: Iterable[Row], by: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[by]] += row["events"]
    return counts


def _is_first_start(rows: Iterable[Row]) -> bool:
    """Return whether the first event is the start of a namespace that had recorded nothing before."""
    first = min(rows, key=lambda row: row["first"])
    return bool(first["event"] == LedgerEvent.STARTED and first["first_sequence"] == 0)


def _deletions(events: DataFrame) -> dict[str, list[int]]:
    deleted = events.where((col("event") == LedgerEvent.REMOVED) & (col("sequence") == 0)).select("entity", "ordinal")
    found: dict[str, list[int]] = {}
    for entity, ordinal in deleted.collect():
        found.setdefault(entity.lower(), []).append(ordinal)
    return found


def _entities(spellings: Iterable[str], deletions: Mapping[str, list[int]]) -> Iterator[LedgerEntity]:
    parts = {spelling: split_entity_path(spelling) for spelling in sorted(spellings)}
    topics = {found.entity.lower() for found in parts.values() if found is not None and found.subscription is not None}
    ids: dict[str, int] = {}
    for spelling, found in parts.items():
        path = spelling.lower()
        holders = {path}
        if found is not None:
            holders |= {found.entity.lower(), str(found).lower().partition("/$")[0]}
        yield LedgerEntity(
            id=ids.setdefault(path, len(ids)),
            spelling=spelling,
            path=path,
            is_dead_letters=found is not None and found.sub_queue is not None,
            is_topic=path in topics,
            is_subscription=found is not None and found.subscription is not None,
            deletions=tuple(sorted({one for holder in holders for one in deletions.get(holder, ())})),
        )


PLACE: Final = ("entity_id", "incarnation", "sequence")
"""The key of a message in an entity. A deleted and recreated entity has another incarnation."""

MESSAGE: Final = ("destination", "message_id", "session_key")
"""The key of a message in both namespaces, which is not unique."""

_ENTITIES: Final = (
    ("entity", pa.string(), StringType()),
    ("entity_id", pa.int32(), IntegerType()),
    ("path", pa.string(), StringType()),
    ("is_topic", pa.bool_(), BooleanType()),
    ("is_subscription", pa.bool_(), BooleanType()),
    ("deletions", pa.list_(pa.int64()), ArrayType(LongType())),
)

_OF_NO_PLACE: Final = (
    LedgerEvent.ALIVE,
    LedgerEvent.MISSED,
    LedgerEvent.REPEATED,
    LedgerEvent.STARTED,
    LedgerEvent.STOPPED,
)


def located(events: DataFrame, entities: Iterable[LedgerEntity]) -> DataFrame:
    """Return the events of messages in these entities, with their places; other events are left out."""
    in_place = events.where(~col("event").isin(*_OF_NO_PLACE) & (col("sequence") != 0))
    return _with_entities(in_place, list(entities))


def repeated(events: DataFrame, entities: Iterable[LedgerEntity]) -> DataFrame:
    """Return messages dropped by the duplicate detection of these entities, which never had a place."""
    found = events.where(col("event") == LedgerEvent.REPEATED)
    return _with_entities(found, list(entities))


def session_key() -> Any:
    """Return a key that is equal for equal session ids, and for messages without one."""
    return coalesce(concat(lit("="), col("session_id")), lit(""))


def _with_entities(events: DataFrame, entities: list[LedgerEntity]) -> DataFrame:
    joined = events.join(broadcast(entity_table(events, entities)), "entity")
    if not any(entity.deletions for entity in entities):
        return joined.select(
            "*", session_key().alias("session_key"), lit(0).alias("incarnation"), lit(False).alias("is_deleted")
        )
    ordinal = col("ordinal")
    before = size(only("deletions", lambda deletion: deletion < ordinal))
    return joined.select(
        "*",
        session_key().alias("session_key"),
        before.alias("incarnation"),
        (before < size("deletions")).alias("is_deleted"),
    )


def entity_table(events: DataFrame, entities: list[LedgerEntity]) -> DataFrame:
    """Return the entities as a table for joins."""
    columns = zip(
        *((one.spelling, one.id, one.path, one.is_topic, one.is_subscription, list(one.deletions)) for one in entities),
        strict=True,
    )
    arrays = list(columns) or [()] * len(_ENTITIES)
    table = pa.table(
        {name: pa.array(list(values), kind) for (name, kind, _), values in zip(_ENTITIES, arrays, strict=True)}
    )
    schema = StructType([StructField(name, kind) for name, _, kind in _ENTITIES])
    return events.sparkSession.createDataFrame(table, schema)


def first_seen(events: DataFrame, stage: Stage, *, with_found: bool) -> DataFrame:
    """Return the acceptance of messages, or, if that is not in the ledger, the event with which they were first found.

    Routed messages were accepted elsewhere, even if both entities have assigned the same number.
    """
    accepted = events.where((col("event") == LedgerEvent.ACCEPTED) & (col("stage") == stage))
    if not with_found:
        return accepted
    found = events.where((col("event") == LedgerEvent.FOUND) & (col("stage") == stage))
    first = found.groupBy(*PLACE).agg(least_of("ordinal").alias("ordinal"))
    begun = events.where(is_any(LedgerEvent.ACCEPTED, LedgerEvent.ROUTED))
    earliest = found.join(first, [*PLACE, "ordinal"]).join(begun, list(PLACE), "left_anti")
    return accepted.unionByName(earliest.select(*accepted.columns))


def is_any(*events: LedgerEvent) -> Any:
    """Return the condition that an event is one of these."""
    return col("event").isin(*events)


def if_event(event: LedgerEvent, column: str) -> Any:
    """Return the column for events of this kind, and null for others."""
    return when(col("event") == event, col(column))
