"""What was found, as values: to be shown, printed, or sent on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, timestamp_seconds, unix_seconds
from pyspark.sql.functions import sum as sum_of

from pairbus.jobs.ledger.period import Period
from pairbus.jobs.reconcile.clocks import ClockComparison
from pairbus.jobs.reconcile.diversion import Diversion
from pairbus.jobs.reconcile.doubts import doubts
from pairbus.jobs.reconcile.reconciliation import CLOCK_SLACK, Reconciliation
from pairbus.jobs.reconcile.survey import Survey
from pairbus.jobs.reconcile.timeline import LINES
from pairbus.jobs.reconcile.totals import MEASURES
from pairbus.jobs.reconcile.verdict import Verdict
from pairbus.jobs.reconcile.waits import Waits, waits_of

LISTED: Final = 20
"""How many of the missing are listed if nobody says otherwise."""

_POINTS: Final = 240
"""How many points of time a chart has at most."""

_READ_APART: Final = timedelta(seconds=10)
"""So much later than the secondary's ledger the primary's is read, at most."""

_STEPS_MIN: Final = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1_440)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCounts:
    """What was counted of one entity, or of all."""

    entity: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMessage:
    """A message that was accepted, and is nowhere."""

    entity: str
    message_id: str
    session_id: str | None
    accepted_at: datetime | None
    cause: str
    last_place: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatedMessage:
    """A message that came home more often than it was diverted."""

    entity: str
    message_id: str
    session_id: str | None
    diverted_at: datetime
    home_at: datetime
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisorderedMessage:
    """A message that was received after one that had been sent later."""

    entity: str
    sequence: int
    message_id: str
    session_id: str | None
    sent_at: datetime
    received_at: datetime
    is_within_session: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """How many messages in a stretch of time."""

    at: datetime
    direct: int
    diverted: int
    syphoned: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found. Lists hold the first few; the counts are of all."""

    primary: str | None
    secondary: str | None
    period: Period
    looked_until: tuple[datetime | None, datetime | None]
    """The last event that each of the ledgers tells of."""

    verdict: Verdict
    notes: tuple[str, ...]
    total: EntityCounts
    entities: tuple[EntityCounts, ...]
    missing: tuple[MissingMessage, ...]
    duplicated: tuple[DuplicatedMessage, ...]
    disordered: tuple[DisorderedMessage, ...]
    diversion: Diversion
    waits: Waits
    timeline: tuple[TimelinePoint, ...]
    step: timedelta
    """How long the stretches of the timeline are."""

    clocks: ClockComparison


def report(found: Reconciliation, listed: int = LISTED) -> Report:
    """Compute all that there is to tell, with so many messages in each list."""
    entities = tuple(
        EntityCounts(entity=row["entity"], counts={name: row[name] for name in MEASURES})
        for row in found.totals.collect()
    )
    counts = {name: sum(one.counts[name] for one in entities) for name in MEASURES}
    unproved = found.unproved.count() if counts["missing"] else 0
    doubtful = doubts(found.primary, found.secondary, found.name, counts)
    step, points = _timeline(found)
    return Report(
        primary=next(iter(found.primary.namespaces), None),
        secondary=next(iter(found.secondary.namespaces), None),
        period=found.period,
        looked_until=(_utc(found.primary.last_at), _utc(found.secondary.last_at)),
        verdict=Verdict.UNKNOWN if doubtful else _verdict(found, counts, unproved),
        notes=(*doubtful, *_notes(found, counts, unproved)),
        total=EntityCounts(entity="", counts=counts),
        entities=entities,
        missing=_first(MissingMessage, found.missing, "accepted_at", listed if counts["missing"] else 0),
        duplicated=_first(DuplicatedMessage, found.duplicated, "home_at", listed if counts["duplicated"] else 0),
        disordered=_first(DisorderedMessage, found.disordered, "received_at", listed if _is_disordered(counts) else 0),
        diversion=found.diversion,
        waits=waits_of(found.delivered),
        timeline=points,
        step=step,
        clocks=found.clocks,
    )


def _is_disordered(counts: Mapping[str, int]) -> bool:
    return bool(counts["out_of_order"] or counts["out_of_order_in_session"])


def _first(kind: Any, table: DataFrame, by: str, most: int) -> Any:
    if not most:
        return ()
    rows = table.orderBy(by, "entity", "sequence").limit(most).collect()
    return tuple(kind(**_values(row)) for row in rows)


# What it comes to.


def _verdict(found: Reconciliation, counts: Mapping[str, int], unproved: int) -> Verdict:
    """Where a ledger lacks a part, nothing is certain. Else what is missing is, though there may be more."""
    sides = (found.primary, found.secondary)
    if _ends_early(found) or any(one.gaps or one.absent or one.is_cut_off or not one.namespaces for one in sides):
        return Verdict.UNKNOWN
    if counts["missing"] > unproved:
        return Verdict.MISSING
    return Verdict.UNKNOWN if unproved or counts["unrecorded"] or counts["unmatched"] else Verdict.FINE


def _ends_early(found: Reconciliation) -> bool:
    """Whether messages came home from the secondary when its ledger had ended; a few may do so while both are read."""
    home_at, last_at = found.diversion.last_home_at, _utc(found.secondary.last_at)
    return home_at is not None and last_at is not None and home_at - found.clocks.correction > last_at + _READ_APART


def _notes(found: Reconciliation, counts: Mapping[str, int], unproved: int) -> list[str]:
    sides = (("primary", found.primary), ("secondary", found.secondary))
    notes = [note(side, one) for note in (_cut_off_note, _gap_note) for side, one in sides]
    notes.append(_empty_note(found))
    if _ends_early(found):
        notes.append(
            "the secondary's ledger ends before the last message came home from its backlog: a file was removed, or "
            "events are still to be recorded when the secondary is started"
        )
    if unproved:
        notes.append(
            f"{unproved:,} messages left the backlog at a time that the primary's ledger does not cover: "
            "they may have come home then"
        )
    notes.append(_clock_note(found.clocks))
    if found.period.start is not None:
        notes.append(
            f"messages were chosen by when they were accepted; the primary's ledger was read from {CLOCK_SLACK} before"
            " that on, and both to their ends"
        )
    if counts["unrecorded"]:
        notes.append(
            f"{counts['unrecorded']:,} messages were gone when the primary was started again, and its ledger does not "
            "tell how they have ended: it was not kept all the time, or the namespace was restored from a copy"
        )
    if counts["unmatched"]:
        notes.append(
            f"{counts['unmatched']:,} messages came home that the secondary's ledger does not tell of: it was begun "
            "after they were diverted, a file was removed, or they were diverted while the ledgers were read"
        )
    return [note for note in notes if note]


def _cut_off_note(side: str, found: Survey) -> str:
    if not found.is_cut_off:
        return ""
    return (
        f"the {side}'s ledger lacks its beginning: there were events before {_utc(found.first_at):%Y-%m-%d %H:%M:%S} "
        "UTC, its first; use --from with a later time, or name all directories of the ledger"
    )


def _gap_note(side: str, found: Survey) -> str:
    if found.absent:
        return (
            f"the {side}'s ledger lacks {found.absent:,} events that were recorded: a file was removed, or damaged, "
            "so what is missing cannot be told for certain"
        )
    if not found.gaps:
        return ""
    return (
        f"the {side}'s ledger has {found.gaps:,} gaps: {found.missed:,} events could not be recorded, "
        "so what is missing cannot be told for certain"
    )


def _empty_note(found: Reconciliation) -> str:
    if not found.primary.namespaces:
        return "the primary's ledger tells nothing of messages in this time: are their lives recorded?"
    if not found.secondary.namespaces:
        return "the secondary's ledger tells nothing of messages: are their lives recorded?"
    return ""


def _clock_note(clocks: ClockComparison) -> str:
    if not clocks.correction:
        return ""
    which = "ahead of" if clocks.correction > timedelta() else "behind"
    if not clocks.agrees:
        return (
            f"the clocks differ, and not always by the same: the primary's is {abs(clocks.correction)} {which} the "
            "secondary's in the middle; times between the namespaces, and the order of messages, are uncertain by that"
        )
    return (
        f"the clocks differ: the primary's is at least {abs(clocks.correction)} {which} the secondary's; "
        "the secondary's times are corrected by that"
    )


# The chart.


def _timeline(found: Reconciliation) -> tuple[timedelta, tuple[TimelinePoint, ...]]:
    """Minutes put together to stretches, of which there are not too many."""
    step_min = _step_min(found.period, found.primary)
    seconds = step_min * 60
    stretch = timestamp_seconds((unix_seconds("minute") / seconds).cast("long") * seconds)
    rows = (
        found.timeline.groupBy(stretch.alias("at"))
        .agg(*(sum_of(col(name)).alias(name) for name in LINES))
        .orderBy("at")
        .collect()
    )
    return timedelta(minutes=step_min), tuple(TimelinePoint(**_values(row)) for row in rows)


def _step_min(period: Period, found: Survey) -> int:
    first, last = period.start or _utc(found.first_at), period.end or _utc(found.last_at)
    if first is None or last is None:
        return 1
    span_min = (last - first) // timedelta(minutes=1) + 1
    return next((step for step in _STEPS_MIN if span_min <= step * _POINTS), -(-span_min // _POINTS))


def _values(row: Row) -> dict[str, Any]:
    return {name: _utc(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def _utc(time: datetime | None) -> datetime | None:
    """Spark gives times without a zone, in that of this machine."""
    return None if time is None else time.astimezone(UTC)
