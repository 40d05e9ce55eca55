"""Comparison of the ledgers of a pair."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from types import MappingProxyType
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    count,
    count_if,
    date_trunc,
    greatest,
    lit,
    percentile_approx,
    shiftright,
    timestamp_seconds,
    unix_millis,
    when,
)
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of
from pyspark.sql.functions import sum as sum_of

from pairbus.jobs.ledger.tables import OLDEST, Period
from pairbus.jobs.reconcile.diverted import (
    DivertedOutcome,
    arrivals,
    arrivals_of,
    copies_of,
    diverted_messages,
    dropped_arrivals,
    forwarded,
    matched,
    not_restored,
)
from pairbus.jobs.reconcile.events import (
    MESSAGE,
    PLACE,
    LedgerContents,
    LedgerEntity,
    by_minute,
    entity_table,
    located,
    repeated,
    survey,
)
from pairbus.jobs.reconcile.open_messages import OpenMessages, last_event, open_in_backlog
from pairbus.ledger.events import LedgerEvent, Stage


class ReconcileError(Exception):
    """Ledgers cannot be reconciled."""

    is_input = False
    """True if the arguments are the cause."""


class ReconcileInputError(ReconcileError):
    """The given ledgers cannot be reconciled; the message says why."""

    is_input = True


class LedgersMixedError(ReconcileInputError):
    """Ledgers of several namespaces on one side, or of one namespace on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockComparison:
    """The time by which the primary's clock is ahead of the secondary's; negative if it is behind."""

    pairs: int
    """Number of messages that the comparison is based on."""

    at_least: timedelta | None
    at_most: timedelta | None
    """Bounds: a message is received from the backlog, then accepted by the primary, then removed from the backlog."""

    correction: timedelta
    """Offset added to the secondary's times; 0 unless the clocks are known to differ."""

    agrees: bool
    """True if one offset fits all messages. If a clock was set in between, it is False, and the offset is a median."""


def compare_clocks(matched: DataFrame) -> ClockComparison:
    """Compare the clocks with messages whose match is unambiguous."""
    unambiguous = matched.where((col("came") == 1) & (col("diverted") == 1))
    restored = unix_millis("restored_at")
    low, high = restored - unix_millis("settled_at"), restored - unix_millis(coalesce("fetched_at", "diverted_at"))
    (row,) = unambiguous.agg(
        count(lit(1)).alias("pairs"),
        greatest_of(low).alias("low"),
        least_of(high).alias("high"),
        percentile_approx(_middle(low, high), 0.5, 10_000).alias("median"),
    ).collect()
    return comparison(row["pairs"], row["low"], row["high"], row["median"])


def _middle(low: Column, high: Column) -> Column:
    return (coalesce(low, high) + high) / 2


def comparison(pairs: int, low_ms: int | None, high_ms: int | None, median_ms: float | None) -> ClockComparison:
    """Derive the offset from the bounds of all messages, and from the median of their middles."""
    agrees = low_ms is None or high_ms is None or low_ms <= high_ms
    correction_ms = 0.0
    if not agrees:
        correction_ms = median_ms or 0.0
    elif high_ms is not None and high_ms < 0:
        correction_ms = high_ms
    elif low_ms is not None and low_ms > 0:
        correction_ms = low_ms
    return ClockComparison(
        pairs=pairs,
        at_least=_ms(low_ms),
        at_most=_ms(high_ms),
        correction=timedelta(milliseconds=round(correction_ms)),
        agrees=agrees,
    )


def _ms(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageSpan:
    """The outage as seen by the messages, on the primary's clock; ``None`` for events that did not happen."""

    first_at: datetime | None
    last_at: datetime | None
    last_restored_at: datetime | None


def diversion_of(diverted: DataFrame, arrivals: DataFrame, correction: timedelta) -> OutageSpan:
    """Return the times of the first and last diverted message, and of the last restored one."""
    never = lit(None).cast("timestamp")
    away = unix_millis("diverted_at")
    both = diverted.select("diverted_at", never.alias("restored_at")).union(
        arrivals.select(never.alias("diverted_at"), "restored_at")
    )
    (row,) = both.agg(
        least_of(away).alias("first"),
        greatest_of(away).alias("last"),
        greatest_of(unix_millis("restored_at")).alias("last_restored"),
    ).collect()
    return OutageSpan(
        first_at=_time(row["first"], correction),
        last_at=_time(row["last"], correction),
        last_restored_at=_time(row["last_restored"]),
    )


def _time(ms: int | None, correction: timedelta = timedelta()) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1_000, UTC) + correction


# Messages that were received after one that had been sent later.
#
# The order of sending is that of acceptance, by the primary or by the backlog. Two messages accepted by the same
# namespace are ordered by ordinal; others by time.

_LATEST: Final = ("direct_ordinal", "direct_at", "restored_ordinal", "restored_at")
"""The latest acceptance so far, of direct messages and of restored ones."""

SORTED_AT_ONCE: Final = 5_000_000
"""Maximum number of events of an entity whose messages are sorted by one task."""

INTERVALS: Final = 256


def overtaken(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the ``rows`` that were received after a later one with the same ``by``.

    Rows have ``received_at``, ``received_ordinal``, ``is_restored``, and the ``sent_ordinal`` and ``sent_at`` of their
    acceptance. The clock of a namespace does not go back.
    """
    return _latest(rows, by).where(_is_late())


def overtaken_in_intervals(rows: DataFrame, by: Sequence[str], span: timedelta) -> DataFrame:
    """Return the same as ``overtaken``, for many rows with the same ``by``: intervals are processed in parallel.

    The latest acceptance before each interval is computed first, from the latest ones of the intervals before.
    """
    width_ms = max(1, -(-span // timedelta(milliseconds=INTERVALS)))
    placed = rows.withColumn("interval", (unix_millis("received_at") / width_ms).cast("long"))
    latest_of_each = (
        _with_sent(placed).groupBy(*by, "interval").agg(*(greatest_of(name).alias(name) for name in _LATEST))
    )
    earlier = Window.partitionBy(*by).orderBy("interval").rowsBetween(Window.unboundedPreceding, -1)
    before = latest_of_each.select(
        *by, "interval", *(greatest_of(name).over(earlier).alias(f"before_{name}") for name in _LATEST)
    )
    within = _latest(placed, [*by, "interval"]).join(before, [*by, "interval"])
    latest = {f"latest_{name}": greatest(f"latest_{name}", f"before_{name}") for name in _LATEST}
    return within.withColumns(latest).where(_is_late())


def near_disorder(rows: DataFrame, late: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return the ``rows`` that may have overtaken a ``late`` one, and those: most of a ledger is in order."""
    spans = late.groupBy(*by).agg(least_of("sent_at").alias("from_at"), greatest_of("received_at").alias("to_at"))
    is_near = (col("sent_at") >= col("from_at")) & (col("received_at") <= col("to_at"))
    return rows.join(broadcast(spans), list(by)).where(is_near).drop("from_at", "to_at")


def _with_sent(rows: DataFrame) -> DataFrame:
    return rows.withColumns({name: when(_is_of(name), col(f"sent_{name.split('_')[1]}")) for name in _LATEST})


def _is_of(name: str) -> Column:
    return col("is_restored") if name.startswith("restored") else ~col("is_restored")


def _latest(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    so_far = (
        Window.partitionBy(*by).orderBy("received_at", "received_ordinal").rowsBetween(Window.unboundedPreceding, -1)
    )
    sent = _with_sent(rows)
    return sent.select("*", *(greatest_of(name).over(so_far).alias(f"latest_{name}") for name in _LATEST))


def _is_late() -> Column:
    restored = (col("latest_restored_ordinal") > col("sent_ordinal"), col("latest_direct_at") > col("sent_at"))
    direct = (col("latest_direct_ordinal") > col("sent_ordinal"), col("latest_restored_at") > col("sent_at"))
    return when(col("is_restored"), _any_of(*restored)).otherwise(_any_of(*direct))


def _any_of(first: Column, second: Column) -> Column:
    return coalesce(first, lit(False)) | coalesce(second, lit(False))


_PARTITION_SHIFT: Final = 48
"""The upper bits of a sequence number in a partitioned entity are the number of the partition."""

_LINE: Final = ("entity_id", "incarnation", "partition", "line")
"""The columns that identify a sequence of messages delivered in the order of their numbers."""


def never_delivered(open_copies: DataFrame, among: DataFrame) -> DataFrame:
    """Return the copies that should have been delivered: lower numbers are delivered first, at least in a session.

    Scheduled messages are not due yet, whatever their number.
    """
    received = _in_line(among.where(col("deliveries") > 0))
    furthest = received.groupBy(*_LINE).agg(greatest_of("sequence").alias("furthest"))
    return (
        _in_line(open_copies.where(col("waits") & (col("deliveries") == 0) & (col("scheduled") == 0)))
        .join(furthest, list(_LINE))
        .where(col("sequence") < col("furthest"))
        .drop("partition", "line", "furthest")
    )


def _in_line(copies: DataFrame) -> DataFrame:
    partition, line = shiftright("sequence", _PARTITION_SHIFT), coalesce("session", lit(0))
    return copies.select("*", partition.alias("partition"), line.alias("line"))


LINES: Final = ("direct", "diverted", "syphoned", "received")


def timeline(minutes: DataFrame, entities: DataFrame, diverted: DataFrame) -> DataFrame:
    """Count messages by minute: accepted from senders by either namespace, restored by the syphon, and received.

    ``minutes`` are those of the primary's ledger, in which only these ``entities`` count; ``diverted`` has the time of
    each message that the backlog has accepted, ``at``.
    """
    accepted, syphon = col("event") == LedgerEvent.ACCEPTED, col("stage") == Stage.SYPHON
    in_primary = (
        minutes.where(col("event").isin(LedgerEvent.ACCEPTED, LedgerEvent.RECEIVED))
        .join(broadcast(entities.select("entity")), "entity", "left_semi")
        .select(
            timestamp_seconds(col("minute") * 60).alias("minute"),
            when(accepted & ~syphon, col("chosen")).alias("direct"),
            lit(0).cast("long").alias("diverted"),
            when(accepted & syphon, col("chosen")).alias("syphoned"),
            when(~accepted, col("chosen")).alias("received"),
        )
    )
    zero = lit(0).cast("long")
    away = diverted.select(
        date_trunc("minute", "at").alias("minute"),
        zero.alias("direct"),
        lit(1).cast("long").alias("diverted"),
        zero.alias("syphoned"),
        zero.alias("received"),
    )
    counted = in_primary.unionByName(away).groupBy("minute").agg(*(_sum(name) for name in LINES))
    return counted.where(reduce(operator.add, map(col, LINES)) > 0).orderBy("minute")


MEASURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accepted": "accepted from senders",
        "diverted": "diverted to the backlog",
        "syphoned": "accepted from the syphon",
        "repeated": "dropped as duplicates",
        "routed": "routed to it",
        "found": "present before the ledger starts",
        "received": "received",
        "completed": "completed",
        "dead_lettered": "dead-lettered",
        "expired": "expired",
        "removed": "removed",
        "waiting": "still waiting",
        "backlog_waiting": "still waiting in the backlog",
        "backlog_dead_lettered": "dead-lettered in the backlog",
        "backlog_expired": "expired in the backlog",
        "unrecorded": "gone without a recorded reason",
        "missing": "missing",
        "duplicated": "duplicated in the destination",
        "delivered_twice": "delivered more than once",
        "redelivered": "redelivered after abandon or lock expiry",
        "out_of_order": "out of order",
        "out_of_order_in_session": "out of order within sessions",
        "unmatched": "from the syphon, origin unknown",
    }
)
"""The columns of the totals, with their labels."""

QUESTIONABLE: Final = frozenset({"missing", "duplicated", "delivered_twice", "out_of_order", "out_of_order_in_session"})


def copy_counts(copies: DataFrame) -> DataFrame:
    """Count messages in their entities, without dead letters."""
    return copies.groupBy("entity_id").agg(
        _sum("accepted", when=~col("is_restored")),
        _sum("routed"),
        _sum("found"),
        count_if(col("deliveries") > 0).alias("received"),
        *(_sum(name) for name in ("completed", "dead_lettered", "expired", "removed")),
        count_if("waits").alias("waiting"),
        count_if("is_unrecorded").alias("unrecorded"),
        _sum("set_aside").alias("missing"),
        *(_sum(name) for name in ("delivered_twice", "redelivered")),
    )


def forwarded_counts(copies: DataFrame) -> DataFrame:
    """Return the corrections of waiting and unrecorded counts for forwarded messages."""
    return copies.groupBy("entity_id").agg(
        (-count_if("waits")).alias("waiting"), (-count_if("is_unrecorded")).alias("unrecorded")
    )


def skipped_counts(copies: DataFrame) -> DataFrame:
    """Return the counts of messages that were never delivered, and the corrections of the waiting ones."""
    found = count_if(lit(True))
    return copies.groupBy("entity_id").agg(found.alias("missing"), (-found).alias("waiting"))


def disorder_counts(late: DataFrame) -> DataFrame:
    is_within_session = col("is_within_session")
    return late.groupBy("entity_id").agg(
        count_if(~is_within_session).alias("out_of_order"),
        count_if(is_within_session).alias("out_of_order_in_session"),
    )


def arrival_counts(matched: DataFrame, is_diverted_chosen: Column, is_restored_chosen: Column) -> DataFrame:
    return matched.groupBy("entity_id").agg(
        count_if(is_diverted_chosen).alias("syphoned"),
        count_if(is_diverted_chosen & col("is_surplus")).alias("duplicated"),
        count_if(is_restored_chosen & col("diverted").isNull()).alias("unmatched"),
    )


def diverted_counts(diverted: DataFrame) -> DataFrame:
    return diverted.groupBy(col("destination").alias("entity")).agg(
        count_if(lit(True)).alias("diverted"),
        *(
            count_if(col("outcome") == outcome).alias(name)
            for outcome, name in (
                (DivertedOutcome.WAITING, "backlog_waiting"),
                (DivertedOutcome.DEAD_LETTERED, "backlog_dead_lettered"),
                (DivertedOutcome.EXPIRED, "backlog_expired"),
            )
        ),
    )


def counted(rows: DataFrame, name: str, by: str = "entity_id") -> DataFrame:
    """Count the rows of each entity."""
    return rows.groupBy(by).agg(count_if(lit(True)).alias(name))


def totals(by_id: Iterable[DataFrame], by_path: Iterable[DataFrame], entities: DataFrame) -> DataFrame:
    """Combine all counts, with a row for each entity that has any. A measure without counts is 0."""
    paths = entities.select("entity_id", col("path").alias("entity")).distinct()
    found = _union(by_id).join(broadcast(paths), "entity_id").drop("entity_id")
    combined = _union([found, *by_path])
    sums = (_sum(name) if name in combined.columns else lit(0).cast("long").alias(name) for name in MEASURES)
    return combined.groupBy("entity").agg(*sums).coalesce(1).sortWithinPartitions("entity")  # saves a job


def _union(parts: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _sum(name: str, when: Column | None = None) -> Column:
    value = col(name) if when is None else col(name) * when.cast("int")
    return coalesce(sum_of(value), lit(0)).alias(name)


CLOCK_SLACK: Final = timedelta(hours=1)
"""Maximum difference of the clocks: the primary's ledger is read from this much earlier."""

NOT_RESTORED: Final = "not restored"
REMOVED_FROM_BACKLOG: Final = "removed from the backlog"
NEVER_DELIVERED: Final = "never delivered"
UNREADABLE: Final = "unreadable"


TABLES: Final = ("totals", "missing", "duplicated", "disordered", "delivered", "timeline")
"""The tables of a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The result as tables, which are computed on use from data kept on disk."""

    totals: DataFrame
    """A row for each entity, with a column for each of ``MEASURES``."""

    missing: DataFrame
    """``entity``, ``message_id``, ``session_id``, ``accepted_at``, ``cause``, and its last known place: ``last_place``,
    ``sequence``."""

    duplicated: DataFrame
    """Messages restored too often: ``entity``, ``message_id``, ``session_id``, ``diverted_at``, ``restored_at``,
    ``sequence``."""

    disordered: DataFrame
    """Messages received after a later one: ``entity``, ``sequence``, ``message_id``, ``session_id``, ``sent_at``,
    ``received_at``, ``is_within_session``."""

    delivered: DataFrame
    """Messages that were diverted and received: ``entity``, ``diverted_at``, ``received_at``, ``wait_ms``."""

    timeline: DataFrame
    """``minute``, and the columns of ``LINES``."""

    unproved: DataFrame
    """Rows of ``missing`` that may have been restored before the primary's ledger starts, or after it ends."""

    diversion: OutageSpan
    clocks: ClockComparison
    primary: LedgerContents
    secondary: LedgerContents
    period: Period
    name: str | None
    """The primary's name in the paths of the backlog queues, if it was given."""

    first_disordered: Callable[[int], DataFrame] = field(repr=False)
    """Returns the first so many rows of ``disordered``: by ``received_at``, ``entity`` and ``sequence``."""

    open_messages: Callable[[datetime], OpenMessages] = field(repr=False)
    """Returns the messages that were in the backlog at a time, which must not be before ``read_since(start)``."""

    _kept: DataFrame = field(repr=False)

    def save(self, place: str, table_format: str = "parquet") -> None:
        """Write each table to a directory of its name below ``place``, in a format that the session has."""
        for name in TABLES:
            table: DataFrame = getattr(self, name)
            table.write.format(table_format).mode("overwrite").save(f"{place.rstrip('/')}/{name}")

    def release(self) -> None:
        """Remove the data kept on disk; tables used after that are computed from the ledgers."""
        self._kept.unpersist()


def read_since(start: datetime | None) -> datetime | None:
    """Return the time from which to read the primary's ledger, for messages accepted since ``start``."""
    return None if start is None else max(start, OLDEST) - CLOCK_SLACK


def reconcile(
    primary_events: DataFrame,
    secondary_events: DataFrame,
    start: datetime | None = None,
    end: datetime | None = None,
    name: str | None = None,
    earlier: Callable[[], DataFrame] | None = None,
    carried: OpenMessages | None = None,
) -> Reconciliation:
    """Compare the message events of two namespaces.

    ``start`` and ``end`` select messages by when either namespace accepted them; their later events are included as far
    as the ledgers go. ``name`` is the primary's name in the paths of the backlog queues. By default it is that of its
    namespace, if there are such queues; otherwise all backlog queues of the secondary are used. ``earlier`` returns the
    primary's events before ``read_since(start)`` if ``primary_events`` lack them; it is called only if the primary's
    ledger may lack its start. ``carried`` are the messages that were open in the secondary at an hour that is not
    after ``read_since(start)``: then ``secondary_events`` need not go back further.

    Raise ``LedgersMixedError`` if there are several namespaces on a side, or one on both.
    """
    period = Period(start=start, end=end)
    since = read_since(start)
    unread = primary_events
    last_before = partial(_last_before, earlier or (lambda: unread), since)
    if since is not None:
        primary_events = primary_events.where(col("at") >= lit(since))
    home = _Ledger.of(primary_events, period, since, last_before)
    whole_from = None if carried is None else carried.until
    if carried is not None:
        secondary_events = secondary_events.where(col("at") >= lit(carried.until)).unionByName(carried.secondary)
    away = _Ledger.of(secondary_events, period, since, whole_from=whole_from)
    _check(home.contents, away.contents)
    return _Comparison(home, away, period, since, name, carried).result()


def _last_before(earlier: Callable[[], DataFrame], since: datetime | None) -> int | None:
    if since is None:
        return None
    (row,) = earlier().where(col("at") < lit(since)).agg(greatest_of("ordinal").alias("last")).collect()
    last: int | None = row["last"]
    return last


def _check(primary: LedgerContents, secondary: LedgerContents) -> None:
    for side, found in (("primary", primary), ("secondary", secondary)):
        if len(found.namespaces) > 1:
            names = ", ".join(sorted(found.namespaces))
            raise LedgersMixedError(
                f"the ledgers of the {side} belong to several namespaces: {names}; name those of one, and use a"
                " separate directory for each namespace"
            )
    if primary.namespaces & secondary.namespaces:
        name = next(iter(primary.namespaces))
        raise LedgersMixedError(f"both ledgers belong to the namespace {name!r}; a pair has two")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """One side of a pair."""

    events: DataFrame
    minutes: DataFrame
    contents: LedgerContents

    @classmethod
    def of(
        cls,
        events: DataFrame,
        period: Period,
        since: datetime | None,
        last_before: Callable[[], int | None] = lambda: None,
        whole_from: datetime | None = None,
    ) -> _Ledger:
        minutes = _lazily_kept(by_minute(events, period, since))
        contents = survey(events, minutes, since, period.start, last_before, whole_from)
        return cls(events=events, minutes=minutes, contents=contents)


class _Comparison:
    """The steps from two ledgers to the result. Tables that several of them need are kept.

    Each step reads as few rows as it can, and is left out if the summaries of the ledgers show that it has none: most
    of the time with a small ledger is planning.
    """

    def __init__(
        self,
        home: _Ledger,
        away: _Ledger,
        period: Period,
        since: datetime | None,
        name: str | None,
        carried: OpenMessages | None,
    ) -> None:
        primary, secondary = home.contents, away.contents
        self._primary, self._secondary, self._period, self._name = primary, secondary, period, name
        self._entities = [one for one in primary.entities if one.backlog_of is None and not one.is_dead_letters]
        self._primary_events, self._minutes = home.events, home.minutes
        self._events = located(home.events, self._entities)
        self._backlog = located(away.events, _backlog_queues(primary, secondary, name))
        self._secondary_events, self._carried = away.events, carried
        with_found = secondary.has(LedgerEvent.FOUND)
        self._diverted = _kept(diverted_messages(self._backlog, since, secondary.last_started, with_found=with_found))
        self._repeated = repeated(home.events, self._entities) if primary.has(LedgerEvent.REPEATED) else None
        with_found = primary.has(LedgerEvent.FOUND)
        self._matched = _kept(matched(arrivals(self._events, with_found=with_found), self._diverted))
        self._clocks = compare_clocks(self._matched)
        self._copies = copies_of(self._events, primary.last_started).persist(_STORED)

    def result(self) -> Reconciliation:
        copies = self._restored()
        chosen = self._with_direct(copies.where(self._is_restored_chosen()), self._is_chosen("sent_at"))
        sent = self._with_direct(copies.where(col("sent_ordinal").isNotNull()))
        diverted = self._diverted.where(self._is_chosen("diverted_at"))
        lost = _kept(self._not_restored())
        restored = self._matched.where(self._is_chosen("diverted_at"))
        late = self._late(sent)
        open_copies = _lazily_kept(chosen.where(col("waits") | col("is_unrecorded")))
        is_any_open = open_copies.count() > 0
        forwarded = self._forwarded(open_copies) if is_any_open else None
        skipped = self._skipped(open_copies, forwarded) if is_any_open else None
        by_id = [
            copy_counts(chosen),
            None if forwarded is None else forwarded_counts(forwarded),
            None if skipped is None else skipped_counts(skipped),
            disorder_counts(late),
            arrival_counts(self._matched, self._is_chosen("diverted_at"), self._is_chosen("restored_at")),
            None if self._repeated is None else counted(self._repeated.where(self._is_chosen("at")), "repeated"),
        ]
        missing = [
            lost.drop("is_proved"),
            None if skipped is None else self._missing_rows(skipped, NEVER_DELIVERED),
            self._missing_rows(chosen.where(col("set_aside") > 0), UNREADABLE),
        ]
        return Reconciliation(
            totals=totals(
                _present(by_id),
                [diverted_counts(diverted), counted(lost, "missing", by="entity")],
                self._entity_table(),
            ),
            missing=_union(_present(missing)),
            duplicated=restored.where("is_surplus").select(
                col("destination").alias("entity"), "message_id", "session_id", "diverted_at", "restored_at", "sequence"
            ),
            disordered=self._disordered(late, self._events),
            first_disordered=partial(self._first_disordered, late),
            delivered=self._delivered(copies),
            timeline=timeline(self._minutes, self._entity_table(), self._diverted_at()),
            unproved=lost.where(~col("is_proved")).drop("is_proved"),
            diversion=diversion_of(diverted, restored, self._clocks.correction),
            clocks=self._clocks,
            primary=self._primary,
            secondary=self._secondary,
            period=self._period,
            name=self._name,
            open_messages=self._open_messages,
            _kept=self._copies,
        )

    def _open_messages(self, until: datetime) -> OpenMessages:
        is_before, ended_at = col("at") < lit(until), col("ended_at")
        primary = self._primary_events.where(is_before)
        if self._carried is not None:
            primary = primary.unionByName(self._carried.primary)
        is_open = ended_at.isNull() | (ended_at >= lit(until))
        secondary = open_in_backlog(
            self._secondary_events.where(is_before), self._backlog.where(is_before), self._diverted.where(is_open)
        )
        return OpenMessages(until=until, primary=last_event(primary), secondary=secondary)

    # Copies of messages, with the time they were sent.

    def _direct(self) -> DataFrame:
        direct = self._copies.where(~col("is_restored"))
        return direct.select("*", col("ordinal").alias("sent_ordinal"), col("at").alias("sent_at"))

    def _restored(self) -> DataFrame:
        """Return restored messages with the time they were diverted; it is unknown for unmatched ones."""
        restored = self._copies.where(col("is_restored"))
        with_routes = self._primary.has(LedgerEvent.ROUTED)
        found_arrivals = arrivals_of(restored, self._matched, with_routes=with_routes)
        origins = self._matched.select("restored_ordinal", "diverted_ordinal", "diverted_at")
        found = restored.join(found_arrivals.join(origins, "restored_ordinal", "left"), list(PLACE), "left")
        sent_at = col("diverted_at") + lit(self._clocks.correction)
        return _kept(
            found.drop("restored_ordinal").select(
                "*", col("diverted_ordinal").alias("sent_ordinal"), sent_at.alias("sent_at")
            )
        )

    def _with_direct(self, restored: DataFrame, condition: Column | None = None) -> DataFrame:
        direct = self._direct() if condition is None else self._direct().where(condition)
        return direct.unionByName(restored.drop("diverted_ordinal", "diverted_at"))

    def _is_chosen(self, column: str) -> Column:
        return _within(self._period, column)

    def _diverted_at(self) -> DataFrame:
        """Return the times at which the backlog accepted messages, on the primary's clock."""
        at = (col("diverted_at") + lit(self._clocks.correction)).alias("at")
        return self._diverted.where("is_accepted").select(at).where(self._period.rows())

    def _is_restored_chosen(self) -> Column:
        return when(col("diverted_at").isNull(), self._is_chosen("at")).otherwise(self._is_chosen("diverted_at"))

    # Results.

    def _not_restored(self) -> DataFrame:
        arrived = self._matched.select(*MESSAGE)
        if self._repeated is not None:
            arrived = arrived.unionByName(dropped_arrivals(self._repeated).select(*MESSAGE))
        lost = not_restored(self._diverted, arrived)
        return lost.where(self._is_chosen("diverted_at")).select(
            col("destination").alias("entity"),
            "message_id",
            "session_id",
            col("diverted_at").alias("accepted_at"),
            when(col("outcome") == DivertedOutcome.COMPLETED, NOT_RESTORED)
            .when(col("outcome") == DivertedOutcome.SET_ASIDE, UNREADABLE)
            .otherwise(REMOVED_FROM_BACKLOG)
            .alias("cause"),
            col("backlog_queue").alias("last_place"),
            "sequence",
            self._is_proved().alias("is_proved"),
        )

    def _is_proved(self) -> Column:
        """Return whether the primary's ledger covers the time at which a message from the backlog could arrive."""
        correction = lit(self._clocks.correction)
        left_at = coalesce("ended_at", lit(self._secondary.started_at), "diverted_at") + correction
        is_before_end = left_at <= lit(self._primary.last_at)
        if self._period.start is None:
            fetched_at = coalesce("fetched_at", "diverted_at") + correction
            is_before_end &= fetched_at >= lit(self._primary.first_at)
        return coalesce(is_before_end, lit(False))

    def _late(self, sent: DataFrame) -> DataFrame:
        """Return the messages that are out of order in their entity, and those that are within their session.

        A message that is out of order within its session is so in its entity, too.
        """
        rows = sent.where(col("received_ordinal").isNotNull()).select(
            *PLACE, "session", "received_ordinal", "received_at", "is_restored", "sent_ordinal", "sent_at"
        )
        place, is_chosen, in_session = (
            ("entity_id", "incarnation"),
            self._is_chosen("sent_at"),
            col("session").isNotNull(),
        )
        in_place = (
            overtaken(rows, place)
            if self._primary.largest <= SORTED_AT_ONCE
            else overtaken_in_intervals(rows, place, self._primary.span)
        )
        late = _kept(in_place.where(is_chosen).select(rows.columns))
        in_entity = late.withColumn("is_within_session", lit(False))
        if late.where(in_session).isEmpty():
            return in_entity
        near = near_disorder(rows.where(in_session), late, place)
        late_in_session = _kept(overtaken(near, (*place, "session")).where(is_chosen).select(rows.columns))
        return in_entity.unionByName(late_in_session.withColumn("is_within_session", lit(True)))

    def _forwarded(self, open_copies: DataFrame) -> DataFrame | None:
        """Return the messages that a queue has forwarded at once."""
        if not self._primary.has(LedgerEvent.ROUTED, LedgerEvent.REPEATED):
            return None
        return _kept(forwarded(open_copies, self._primary_events))

    def _skipped(self, open_copies: DataFrame, forwarded: DataFrame | None) -> DataFrame:
        held = open_copies if forwarded is None else open_copies.join(forwarded, list(PLACE), "left_anti")
        return _kept(never_delivered(held, self._copies))

    def _delivered(self, restored: DataFrame) -> DataFrame:
        """Return the first delivery of each message, over all its copies."""
        received = restored.where(
            col("received_at").isNotNull() & col("diverted_at").isNotNull() & self._is_chosen("diverted_at")
        )
        first = received.groupBy("diverted_ordinal", "sent_at").agg(least_of("received_at").alias("received_at"))
        destinations = self._diverted.select("diverted_ordinal", col("destination").alias("entity"), "diverted_at")
        wait = unix_millis("received_at") - unix_millis("sent_at")
        return first.join(destinations, "diverted_ordinal").select(
            "entity", "diverted_at", "received_at", greatest(wait, lit(0)).alias("wait_ms")
        )

    # Texts, which are only looked up for rows that are shown.

    def _disordered(self, late: DataFrame, events: DataFrame) -> DataFrame:
        return _named(late, events).select(
            "entity", "sequence", "message_id", "session_id", "sent_at", "received_at", "is_within_session"
        )

    def _first_disordered(self, late: DataFrame, limit: int) -> DataFrame:
        paths = self._entity_table().select("entity_id", "path").distinct()
        in_order = late.join(broadcast(paths), "entity_id").orderBy(
            "received_at", "path", "sequence", "is_within_session"
        )
        first = _kept(in_order.drop("path").limit(limit))
        # Spark skips the parts of a ledger that have none of these numbers.
        numbers = [row["sequence"] for row in first.select("sequence").collect()]
        return self._disordered(broadcast(first), self._events.where(col("sequence").isin(numbers)))

    def _missing_rows(self, copies: DataFrame, cause: str) -> DataFrame:
        return _named(copies, self._events).select(
            "entity",
            "message_id",
            "session_id",
            col("sent_at").alias("accepted_at"),
            lit(cause).alias("cause"),
            col("entity").alias("last_place"),
            "sequence",
        )

    def _entity_table(self) -> DataFrame:
        return entity_table(self._primary_events, self._entities)


def _named(copies: DataFrame, events: DataFrame) -> DataFrame:
    texts = events.where(col("event").isin(LedgerEvent.ACCEPTED, LedgerEvent.ROUTED)).select(
        *PLACE, col("path").alias("entity"), "message_id", "session_id"
    )
    return copies.join(texts, list(PLACE))


_STORED: Final = StorageLevel.MEMORY_AND_DISK
"""Spark moves to disk what does not fit into its memory."""


def _kept(table: DataFrame) -> DataFrame:
    """Compute a table now and keep it while it is referenced, which keeps later query plans short."""
    return table.localCheckpoint(storageLevel=_STORED)


def _lazily_kept(table: DataFrame) -> DataFrame:
    """Return the same, computed by the first query that uses it."""
    return table.localCheckpoint(eager=False, storageLevel=_STORED)


def _present(parts: Iterable[DataFrame | None]) -> list[DataFrame]:
    return [part for part in parts if part is not None]


def _backlog_queues(primary: LedgerContents, secondary: LedgerContents, name: str | None) -> Iterable[LedgerEntity]:
    queues = [one for one in secondary.entities if one.backlog_of is not None]
    names = {name.lower()} if name is not None else {one.lower() for one in primary.namespaces}
    of_primary = [one for one in queues if one.backlog_of in names]
    return of_primary if of_primary or name is not None else queues


def _within(period: Period, column: str) -> Column:
    condition = lit(True)
    if period.start is not None:
        condition &= col(column) >= lit(period.start)
    if period.end is not None:
        condition &= col(column) < lit(period.end)
    return coalesce(condition, lit(False))
