"""A first look at a ledger: which namespace and entities it speaks of, and whether it has gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, count, count_if, lit, min_by, when
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import sum as sum_of

from pairbus.dialect.backlog_path import TRANSFER, is_backlog_path
from pairbus.dialect.entity_path import split_entity_path
from pairbus.jobs.reconcile.holes import absent_events
from pairbus.ledger.life import Event

_BACKLOG: Final = f"/{TRANSFER}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue, topic or subscription, or the dead letters of one, as a ledger spells it."""

    id: int
    """The same for every spelling of a path."""

    spelling: str
    path: str
    """In small letters: names compare without regard to case."""

    is_dead_letters: bool
    is_topic: bool
    is_subscription: bool
    deletions: tuple[int, ...]
    """The ordinals at which it, or what it belongs to, was deleted: it counts from 1 again after each."""

    @property
    def backlog_of(self) -> str | None:
        """What the pair calls its primary namespace, if this is a backlog queue."""
        return self.path.rpartition(_BACKLOG)[0] if is_backlog_path(self.path) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is in the lives of a namespace."""

    namespaces: frozenset[str]
    entities: tuple[Entity, ...]
    counts: Mapping[str, int]
    """How many there are of each event."""

    missed: int
    """How many events could not be recorded."""

    gaps: int
    """How many times that was so."""

    absent: int
    """How many events are not there though they were recorded."""

    last_started: int
    """The ordinal of the last start of the namespace; what lay in it then is told after it."""

    started_at: datetime | None
    """When that was."""

    first_at: datetime | None
    last_at: datetime | None
    is_cut_off: bool
    """Whether the events that are of interest begin with one that had others before it: those are not there."""

    @property
    def span(self) -> timedelta:
        """From the first event to the last."""
        return timedelta() if self.first_at is None or self.last_at is None else self.last_at - self.first_at

    def has(self, *events: Event) -> bool:
        return any(self.counts.get(event) for event in events)


def survey(
    lives: DataFrame,
    since: datetime | None = None,
    start: datetime | None = None,
    last_before: Callable[[], int | None] = lambda: None,
) -> Survey:
    """Look through the lives of a namespace, and then at their numbers; again for deleted entities, if there are any.

    Gaps and holes are counted that are of a time since then: a gap has the time of its end. The ledger has to go back
    to ``start``, or to its beginning. ``last_before`` returns the largest ordinal that is too old for ``lives``; it
    is called only where these do not go back far enough.
    """
    event = col("event")
    is_gap = (event == Event.MISSED) & (lit(True) if since is None else col("at") >= lit(since))
    rows = (
        lives.groupBy("namespace", "entity", "event")
        .agg(
            count(lit(1)).alias("rows"),
            sum_of(when(is_gap, col("sequence"))).alias("missed"),
            count_if(is_gap).alias("gaps"),
            count_if((event == Event.REMOVED) & (col("sequence") == 0)).alias("deletions"),
            least_of("at").alias("first_at"),
            greatest_of("at").alias("last_at"),
            least_of("ordinal").alias("first_ordinal"),
            greatest_of("ordinal").alias("last_ordinal"),
            min_by("sequence", "ordinal").alias("first_sequence"),
        )
        .collect()
    )
    first_at = min((row["first_at"] for row in rows), default=None)
    is_covered = first_at is None or (start is not None and first_at.astimezone(UTC) < start)
    before = None if is_covered else last_before()
    deletions = _deletions(lives) if any(row["deletions"] for row in rows) else {}
    return Survey(
        namespaces=frozenset(row["namespace"] for row in rows),
        entities=tuple(_entities({row["entity"] for row in rows}, deletions)),
        counts=_counts(rows),
        missed=sum(row["missed"] or 0 for row in rows),
        gaps=sum(row["gaps"] for row in rows),
        absent=absent_events(lives, since, before),
        last_started=max((row["last_ordinal"] for row in rows if row["event"] == Event.STARTED), default=0),
        started_at=max((row["last_at"] for row in rows if row["event"] == Event.STARTED), default=None),
        first_at=first_at,
        last_at=max((row["last_at"] for row in rows), default=None),
        is_cut_off=not is_covered and before is None and not _is_first_start(rows),
    )


def _counts(rows: Iterable[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["event"]] = counts.get(row["event"], 0) + row["rows"]
    return counts


def _is_first_start(rows: Iterable[Row]) -> bool:
    """Whether the first event is the start of a namespace that had recorded nothing before."""
    first = min(rows, key=lambda row: row["first_ordinal"])
    return bool(first["event"] == Event.STARTED and first["first_sequence"] == 0)


def _deletions(lives: DataFrame) -> dict[str, list[int]]:
    deleted = lives.where((col("event") == Event.REMOVED) & (col("sequence") == 0)).select("entity", "ordinal")
    found: dict[str, list[int]] = {}
    for entity, ordinal in deleted.collect():
        found.setdefault(entity.lower(), []).append(ordinal)
    return found


def _entities(spellings: Iterable[str], deletions: Mapping[str, list[int]]) -> Iterator[Entity]:
    parts = {spelling: split_entity_path(spelling) for spelling in sorted(spellings)}
    topics = {found.entity.lower() for found in parts.values() if found is not None and found.subscription is not None}
    ids: dict[str, int] = {}
    for spelling, found in parts.items():
        path = spelling.lower()
        holders = {path}
        if found is not None:
            holders |= {found.entity.lower(), str(found).lower().partition("/$")[0]}
        yield Entity(
            id=ids.setdefault(path, len(ids)),
            spelling=spelling,
            path=path,
            is_dead_letters=found is not None and found.sub_queue is not None,
            is_topic=path in topics,
            is_subscription=found is not None and found.subscription is not None,
            deletions=tuple(sorted({one for holder in holders for one in deletions.get(holder, ())})),
        )
