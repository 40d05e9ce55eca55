"""The result of a reconciliation as values: to be shown, printed, or serialized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import col, count, count_if, lit, percentile_approx, timestamp_seconds, unix_seconds
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import sum as sum_of

from pairbus.jobs.ledger.tables import Period
from pairbus.jobs.reconcile.events import LedgerContents
from pairbus.jobs.reconcile.reconciliation import (
    CLOCK_SLACK,
    LINES,
    MEASURES,
    ClockComparison,
    OutageSpan,
    Reconciliation,
)
from pairbus.ledger.events import ALIVE_EVERY_MS


class ReconcileVerdict(StrEnum):
    """The result of a reconciliation."""

    FINE = "fine"
    """Every message is accounted for: it was received, or its place is known."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    """The ledgers are incomplete: messages that seem missing may exist, and vice versa."""


EDGES: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1_800, 3_600, 3 * 3_600, 12 * 3_600, 86_400)
)
"""The boundaries between the bars of the histogram."""

_ACCURACY: Final = 10_000
"""The rank of a percentile has an error of at most one in this many messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Times from the acceptance of a message by the backlog until its first delivery at the primary."""

    messages: int
    p50: timedelta | None
    p99: timedelta | None
    longest: timedelta | None
    histogram: tuple[int, ...]
    """Messages that took less than each of ``EDGES`` and not less than the one before; the last bar has the rest."""


def waits_of(delivered: DataFrame) -> Waits:
    """Summarize ``Reconciliation.delivered``."""
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


_EMPTY: Final = (
    "no message was accepted or diverted in this time range, so nothing is proved: "
    "check that these are the ledgers of the pair, and that the time range is right; times are in UTC"
)


def doubts(
    primary: LedgerContents, secondary: LedgerContents, name: str | None, counts: Mapping[str, int]
) -> list[str]:
    """Return reasons to doubt the result; ``name`` is the primary's name in the paths of the backlog queues."""
    wanted, available, elsewhere = _names(primary, name), _backlogs(secondary), _backlogs(primary)
    is_empty = bool(primary.namespaces and secondary.namespaces) and not any(counts.values())
    if not wanted & available and (_names(secondary, name) & elsewhere or (is_empty and elsewhere)):
        return [_swapped(primary, secondary)]
    if name is not None and available and not wanted & available:
        known = ", ".join(sorted(available))
        return [f"--name is {name!r}, but the secondary has no backlog queues of that name, only those of {known}"]
    return [_EMPTY] if is_empty else []


def _swapped(primary: LedgerContents, secondary: LedgerContents) -> str:
    given, other = min(primary.namespaces), min(secondary.namespaces, default="the other")
    return (
        f"--primary and --secondary seem to be swapped: the ledger of {given!r} has backlog queues, and that of "
        f"{other!r} has none that match; if each of the two is the other's secondary, use --name {given}"
    )


def _names(found: LedgerContents, name: str | None) -> set[str]:
    return {name.lower()} if name is not None else {one.lower() for one in found.namespaces}


def _backlogs(found: LedgerContents) -> set[str]:
    """Return the names of the primaries that the backlog queues of a namespace belong to."""
    return {one.backlog_of for one in found.entities if one.backlog_of is not None}


LISTED: Final = 20
"""Default number of messages in each list."""

_POINTS: Final = 240
"""Maximum number of points in a chart."""

LONGEST_SILENCE: Final = 3 * timedelta(milliseconds=ALIVE_EVERY_MS)
"""Maximum time without an event in the ledger of a running namespace, with the time to write it."""

_READ_APART: Final = timedelta(seconds=10)
"""Maximum time between reading the secondary's ledger and the primary's."""

_STEPS_MIN: Final = (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1_440)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityTotals:
    """The counts of one entity, or of all."""

    entity: str
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMessage:
    """A message that was accepted, and is in no entity."""

    entity: str
    message_id: str
    session_id: str | None
    accepted_at: datetime | None
    cause: str
    last_place: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatedMessage:
    """A message that was restored to the primary more often than it was diverted."""

    entity: str
    message_id: str
    session_id: str | None
    diverted_at: datetime
    restored_at: datetime
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
    """Message counts of one interval."""

    at: datetime
    direct: int
    diverted: int
    syphoned: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The part of the ledgers that was read, and evidence that a namespace was running after its last event."""

    until: datetime | None = None
    """The end of what was read of the secondary's ledger; ``None`` if both ledgers were read to their ends."""

    operations_until: Mapping[str, datetime] = field(default_factory=dict)
    """Time of the last operation of a namespace, for those that have one after their last event."""

    def end_of(self, contents: LedgerContents) -> datetime | None:
        """Return the time until which a ledger is known to be complete."""
        times = [contents.last_at, *(self.operations_until.get(name) for name in contents.namespaces)]
        return max((time.astimezone(UTC) for time in times if time is not None), default=None)


_READ_COMPLETELY: Final = Coverage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """The result of a reconciliation. Lists hold the first few messages; the counts cover all."""

    primary: str | None
    secondary: str | None
    period: Period
    looked_until: tuple[datetime | None, datetime | None]
    """Time of the last event in each ledger."""

    verdict: ReconcileVerdict
    notes: tuple[str, ...]
    total: EntityTotals
    entities: tuple[EntityTotals, ...]
    missing: tuple[MissingMessage, ...]
    duplicated: tuple[DuplicatedMessage, ...]
    disordered: tuple[DisorderedMessage, ...]
    diversion: OutageSpan
    waits: Waits
    timeline: tuple[TimelinePoint, ...]
    step: timedelta
    """Length of the intervals of the timeline."""

    clocks: ClockComparison


def report(
    found: Reconciliation,
    listed: int = LISTED,
    notes: Sequence[str] = (),
    reasons: Sequence[str] = (),
    coverage: Coverage = _READ_COMPLETELY,
) -> ReconcileReport:
    """Compute the report, with up to ``listed`` messages in each list, and with these notes after its own.

    If there are ``reasons`` to doubt the result, or a ledger ends before the other, the verdict is ``UNKNOWN``.
    """
    entities = tuple(
        EntityTotals(entity=row["entity"], counts={name: row[name] for name in MEASURES})
        for row in found.totals.collect()
    )
    counts = {name: sum(one.counts[name] for one in entities) for name in MEASURES}
    unproved = found.unproved.count() if counts["missing"] else 0
    reasons = [
        *doubts(found.primary, found.secondary, found.name, counts),
        *reasons,
        *early_ends(found, counts, coverage),
    ]
    step, points = _timeline(found)
    return ReconcileReport(
        primary=next(iter(found.primary.namespaces), None),
        secondary=next(iter(found.secondary.namespaces), None),
        period=found.period,
        looked_until=(utc(found.primary.last_at), utc(found.secondary.last_at)),
        verdict=ReconcileVerdict.UNKNOWN if reasons else _verdict(found, counts, unproved),
        notes=(*reasons, *_notes(found, counts, unproved), *notes),
        total=EntityTotals(entity="", counts=counts),
        entities=entities,
        missing=_first(MissingMessage, found.missing, "accepted_at", listed if counts["missing"] else 0),
        duplicated=_first(DuplicatedMessage, found.duplicated, "restored_at", listed if counts["duplicated"] else 0),
        disordered=_first_disordered(found, listed if _is_disordered(counts) else 0),
        diversion=found.diversion,
        waits=waits_of(found.delivered),
        timeline=points,
        step=step,
        clocks=found.clocks,
    )


def _is_disordered(counts: Mapping[str, int]) -> bool:
    return bool(counts["out_of_order"] or counts["out_of_order_in_session"])


def _first(kind: Any, table: DataFrame, by: str, limit: int, *then: str) -> Any:
    if not limit:
        return ()
    rows = table.orderBy(by, "entity", "sequence", *then).limit(limit).collect()
    return tuple(kind(**_values(row)) for row in rows)


def _first_disordered(found: Reconciliation, limit: int) -> tuple[DisorderedMessage, ...]:
    """Return the first ones: there may be many, and each has texts to be looked up."""
    if not limit:
        return ()
    first: tuple[DisorderedMessage, ...] = _first(
        DisorderedMessage, found.first_disordered(limit), "received_at", limit, "is_within_session"
    )
    return first


# The verdict and the notes.


def _verdict(found: Reconciliation, counts: Mapping[str, int], unproved: int) -> ReconcileVerdict:
    """Return ``UNKNOWN`` if a ledger is incomplete; otherwise missing messages are certain, but there may be more."""
    sides = (found.primary, found.secondary)
    if any(one.gaps or one.absent or one.is_cut_off or not one.namespaces for one in sides):
        return ReconcileVerdict.UNKNOWN
    if counts["unmatched"] or _secondary_ends_early(found) or _primary_ends_early(found):
        return ReconcileVerdict.UNKNOWN
    if counts["missing"] > unproved:
        return ReconcileVerdict.MISSING
    return ReconcileVerdict.UNKNOWN if unproved or counts["unrecorded"] else ReconcileVerdict.FINE


def early_ends(found: Reconciliation, counts: Mapping[str, int], coverage: Coverage) -> list[str]:
    """Return a reason to doubt the result for each ledger that ends before the other, without an orderly stop.

    The ledger of a running namespace has an event at least every minute, so this one was cut off, or is not complete
    yet. If all messages have ended, both ledgers need to reach the end of the time range only.
    """
    primary, secondary = coverage.end_of(found.primary), coverage.end_of(found.secondary)
    if primary is None or secondary is None:
        return []
    secondary += found.clocks.correction
    until = None if coverage.until is None else coverage.until + found.clocks.correction
    needed = [max(primary, secondary), until]
    if not counts["waiting"] and not counts["backlog_waiting"]:
        needed.append(found.period.end)
    needed_until = min(time for time in needed if time is not None)
    return [
        _early_end_note(side, end, needed_until)
        for side, contents, end in (("primary", found.primary, primary), ("secondary", found.secondary, secondary))
        if not contents.is_stopped and end + LONGEST_SILENCE < needed_until
    ]


def _early_end_note(side: str, end: datetime, needed_until: datetime) -> str:
    return (
        f"the {side}'s ledger ends at {end:%Y-%m-%d %H:%M:%S} UTC, and the other one continues until "
        f"{needed_until:%Y-%m-%d %H:%M:%S} UTC: a file was deleted, the namespace is down, or it was idle and its "
        "version does not record that"
    )


def _secondary_ends_early(found: Reconciliation) -> bool:
    """Return whether messages were restored after the secondary's ledger ends; reading both takes some seconds."""
    restored_at, last_at = found.diversion.last_restored_at, utc(found.secondary.last_at)
    return (
        restored_at is not None
        and last_at is not None
        and restored_at - found.clocks.correction > last_at + _READ_APART
    )


def _primary_ends_early(found: Reconciliation) -> bool:
    """Return whether messages were diverted after the primary's ledger ends, without an orderly stop.

    The secondary's ledger is read first, so it cannot be ahead.
    """
    diverted_at, last_at = found.diversion.last_at, utc(found.primary.last_at)
    return (
        not found.primary.is_stopped
        and diverted_at is not None
        and last_at is not None
        and diverted_at > last_at + _READ_APART
    )


def _notes(found: Reconciliation, counts: Mapping[str, int], unproved: int) -> list[str]:
    sides = (("primary", found.primary), ("secondary", found.secondary))
    notes = [note(side, one) for note in (_cut_off_note, _gap_note) for side, one in sides]
    notes.append(_empty_note(found))
    if _primary_ends_early(found):
        notes.append(
            "the primary's ledger ends before the last message was diverted, without an orderly stop: a file was "
            "deleted, or events will be recorded when the primary is started again"
        )
    if _secondary_ends_early(found):
        notes.append(
            "the secondary's ledger ends before the last message was restored from its backlog: a file was deleted, or "
            "events will be recorded when the secondary is started again"
        )
    if unproved:
        notes.append(
            f"{unproved:,} messages left the backlog at a time that the primary's ledger does not cover: "
            "they may have been restored then"
        )
    notes.append(_clock_note(found.clocks))
    if found.period.start is not None:
        notes.append(
            "messages were selected by the time they were accepted; the primary's ledger was read from "
            f"{CLOCK_SLACK} before that time, and both ledgers to their ends"
        )
    if counts["unrecorded"]:
        notes.append(
            f"{counts['unrecorded']:,} messages were gone when the primary was restarted, and its ledger does not say "
            "why: it was not recorded all the time, or the namespace was restored from a backup"
        )
    if counts["unmatched"]:
        notes.append(
            f"{counts['unmatched']:,} restored messages are not in the secondary's ledger: it was started after they "
            "were diverted, a file was deleted, or they were diverted while the ledgers were read"
        )
    return [note for note in notes if note]


def _cut_off_note(side: str, found: LedgerContents) -> str:
    if not found.is_cut_off:
        return ""
    return (
        f"the {side}'s ledger is cut off at its start: there were events before its first one, of "
        f"{utc(found.first_at):%Y-%m-%d %H:%M:%S} UTC; use --from with a later time, or name all its directories"
    )


def _gap_note(side: str, found: LedgerContents) -> str:
    if found.absent:
        return (
            f"the {side}'s ledger lacks {found.absent:,} recorded events: a file was deleted or damaged, "
            "so missing messages cannot be determined with certainty"
        )
    if not found.gaps:
        return ""
    return (
        f"the {side}'s ledger has {found.gaps:,} gaps: {found.missed:,} events could not be recorded, "
        "so missing messages cannot be determined with certainty"
    )


def _empty_note(found: Reconciliation) -> str:
    if not found.primary.namespaces:
        return "the primary's ledger has no message events in this time range; check that it records them"
    if not found.secondary.namespaces:
        return "the secondary's ledger has no message events; check that it records them"
    return ""


def _clock_note(clocks: ClockComparison) -> str:
    if not clocks.correction:
        return ""
    which = "ahead of" if clocks.correction > timedelta() else "behind"
    if not clocks.agrees:
        return (
            f"the clocks differ by varying amounts: the primary's is {abs(clocks.correction)} {which} the "
            "secondary's in the median; times between the namespaces and the order of messages are uncertain by that"
        )
    return (
        f"the clocks differ: the primary's is at least {abs(clocks.correction)} {which} the secondary's; "
        "the secondary's times are corrected by that"
    )


# The timeline.


def _timeline(found: Reconciliation) -> tuple[timedelta, tuple[TimelinePoint, ...]]:
    """Aggregate minutes to intervals, with at most ``_POINTS`` of them."""
    step_min = _step_min(found.period, found.primary)
    seconds = step_min * 60
    interval = timestamp_seconds((unix_seconds("minute") / seconds).cast("long") * seconds)
    rows = (
        found.timeline.groupBy(interval.alias("at")).agg(*(sum_of(col(name)).alias(name) for name in LINES)).collect()
    )
    points = (TimelinePoint(**_values(row)) for row in rows)
    return timedelta(minutes=step_min), tuple(sorted(points, key=attrgetter("at")))


def _step_min(period: Period, found: LedgerContents) -> int:
    first, last = period.start or utc(found.first_at), period.end or utc(found.last_at)
    if first is None or last is None:
        return 1
    span_min = (last - first) // timedelta(minutes=1) + 1
    return next((step for step in _STEPS_MIN if span_min <= step * _POINTS), -(-span_min // _POINTS))


def _values(row: Row) -> dict[str, Any]:
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def utc(time: datetime | None) -> datetime | None:
    """Convert a time of Spark, which is naive and in the zone of this machine."""
    return None if time is None else time.astimezone(UTC)
