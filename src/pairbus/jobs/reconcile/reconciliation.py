"""The ledgers of a pair, held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, greatest, lit, unix_millis, when
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.functions import min as least_of

from pairbus.jobs.ledger.period import OLDEST, Period
from pairbus.jobs.reconcile.clocks import ClockComparison, compare_clocks
from pairbus.jobs.reconcile.copies import copies_of, forwarded
from pairbus.jobs.reconcile.diversion import Diversion, diversion_of
from pairbus.jobs.reconcile.diverted import Fate, diverted_messages
from pairbus.jobs.reconcile.errors import LedgersMixedError
from pairbus.jobs.reconcile.events import PLACE, entity_table, located, repeated
from pairbus.jobs.reconcile.homecomings import home_of, homecomings, matched, not_home, repeated_homecomings
from pairbus.jobs.reconcile.order import overtaken, overtaken_in_stretches
from pairbus.jobs.reconcile.passed_over import passed_over
from pairbus.jobs.reconcile.survey import Entity, Survey, survey
from pairbus.jobs.reconcile.timeline import timeline
from pairbus.jobs.reconcile.totals import copy_counts, counted, diverted_counts, forwarded_counts, totals
from pairbus.ledger.life import Event

CLOCK_SLACK: Final = timedelta(hours=1)
"""How far the clocks of two namespaces may be apart: so much earlier the primary's ledger is looked at."""

NOT_HOME: Final = "not home"
REMOVED_FROM_BACKLOG: Final = "removed from the backlog"
PASSED_OVER: Final = "passed over"
SET_ASIDE: Final = "set aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What was found, as tables to go on from. They are computed when they are used, from what is kept on disk."""

    totals: DataFrame
    """A row for each entity, with a column for each of ``MEASURES``."""

    missing: DataFrame
    """``entity``, ``message_id``, ``session_id``, ``accepted_at``, ``cause``, and the place it was last known in:
    ``last_place``, ``sequence``."""

    duplicated: DataFrame
    """What came home too often: ``entity``, ``message_id``, ``session_id``, ``diverted_at``, ``home_at``,
    ``sequence``."""

    disordered: DataFrame
    """Received after a later one: ``entity``, ``sequence``, ``message_id``, ``session_id``, ``sent_at``,
    ``received_at``, ``is_within_session``."""

    delivered: DataFrame
    """Of what was diverted and received: ``entity``, ``diverted_at``, ``received_at``, ``wait_ms``."""

    timeline: DataFrame
    """``minute``, and what ``LINES`` names."""

    unproved: DataFrame
    """Those of ``missing`` that may have come home before the primary's ledger begins, or after it ends."""

    diversion: Diversion
    clocks: ClockComparison
    primary: Survey
    secondary: Survey
    period: Period
    name: str | None
    """What the backlog queues call the primary, if somebody has said so."""

    _kept: DataFrame = field(repr=False)

    def release(self) -> None:
        """Remove what was kept for these tables from Spark's disks; they are computed from the ledgers after that."""
        self._kept.unpersist()


def read_since(start: datetime | None) -> datetime | None:
    """From when on the primary's ledger is looked at, for messages that were accepted from ``start`` on."""
    return None if start is None else max(start, OLDEST) - CLOCK_SLACK


def reconcile(
    primary_lives: DataFrame,
    secondary_lives: DataFrame,
    start: datetime | None = None,
    end: datetime | None = None,
    name: str | None = None,
    earlier: Callable[[], DataFrame] | None = None,
) -> Reconciliation:
    """Hold the lives of messages in two namespaces against each other.

    ``start`` and ``end`` choose messages by when they were accepted, by either namespace; what happened to them later
    is looked up as far as the ledgers go. ``name`` is what the backlog queues call the primary: without it, its
    namespace if there are such backlog queues, else all backlog queues that the secondary has. ``earlier`` returns the
    primary's lives before ``read_since(start)`` where ``primary_lives`` lack them; it is called only if the primary's
    ledger may lack its beginning.

    Raises ``LedgersMixedError`` if there are several namespaces on a side, or one on both.
    """
    period = Period(start=start, end=end)
    since = read_since(start)
    unread = primary_lives
    last_before = partial(_last_before, earlier or (lambda: unread), since)
    if since is not None:
        primary_lives = primary_lives.where(col("at") >= lit(since))
    primary, secondary = survey(primary_lives, since, start, last_before), survey(secondary_lives, since, start)
    _check(primary, secondary)
    return _Comparison(primary_lives, secondary_lives, primary, secondary, period, since, name).result()


def _last_before(earlier: Callable[[], DataFrame], since: datetime | None) -> int | None:
    if since is None:
        return None
    (row,) = earlier().where(col("at") < lit(since)).agg(greatest_of("ordinal").alias("last")).collect()
    last: int | None = row["last"]
    return last


def _check(primary: Survey, secondary: Survey) -> None:
    for side, found in (("primary", primary), ("secondary", secondary)):
        if len(found.namespaces) > 1:
            names = ", ".join(sorted(found.namespaces))
            raise LedgersMixedError(
                f"the ledgers of the {side} are of several namespaces: {names}; name those of one, and give each"
                " namespace a directory of its own"
            )
    if primary.namespaces & secondary.namespaces:
        name = next(iter(primary.namespaces))
        raise LedgersMixedError(f"both ledgers are of the namespace {name!r}; a pair has two")


class _Comparison:
    """The steps from two ledgers to what is found. What several of them need is kept on disk."""

    def __init__(
        self,
        primary_lives: DataFrame,
        secondary_lives: DataFrame,
        primary: Survey,
        secondary: Survey,
        period: Period,
        since: datetime | None,
        name: str | None,
    ) -> None:
        self._primary, self._secondary, self._period, self._name = primary, secondary, period, name
        self._entities = [one for one in primary.entities if one.backlog_of is None and not one.is_dead_letters]
        self._primary_lives = primary_lives
        self._events = located(primary_lives, self._entities)
        self._backlog = located(secondary_lives, _backlog_queues(primary, secondary, name))
        self._diverted = _settled(diverted_messages(self._backlog, since, secondary.last_started))
        self._repeated = repeated(primary_lives, self._entities)
        self._matched = _settled(matched(homecomings(self._events), self._diverted))
        self._clocks = compare_clocks(self._matched)
        self._copies = copies_of(self._events, primary.last_started).persist(StorageLevel.DISK_ONLY)

    def result(self) -> Reconciliation:
        at_home = self._at_home()
        chosen = self._with_direct(at_home.where(self._is_home_chosen()), self._is_chosen("sent_at"))
        sent = self._with_direct(at_home.where(col("sent_ordinal").isNotNull()))
        diverted = self._diverted.where(self._is_chosen("diverted_at"))
        lost = _settled(self._not_home())
        home = self._matched.where(self._is_chosen("diverted_at"))
        surplus = home.where("is_surplus")
        late, late_in_session = self._late(sent)
        forwarded = _settled(self._forwarded(chosen))
        over = _settled(passed_over(chosen.join(forwarded, list(PLACE), "left_anti"), self._copies))
        return Reconciliation(
            totals=totals(
                [
                    copy_counts(chosen),
                    forwarded_counts(forwarded),
                    counted(over, "missing").withColumn("waiting", -col("missing")),
                    counted(late, "out_of_order"),
                    counted(late_in_session, "out_of_order_in_session"),
                    counted(surplus, "duplicated"),
                    counted(home, "syphoned"),
                    counted(self._matched.where(col("diverted").isNull() & self._is_chosen("home_at")), "unmatched"),
                    counted(self._repeated.where(self._is_chosen("at")), "repeated"),
                ],
                [diverted_counts(diverted), counted(lost, "missing", by="entity")],
                self._entity_table(),
            ),
            missing=lost.drop("is_proved")
            .unionByName(self._told(over, PASSED_OVER))
            .unionByName(self._told(chosen.where(col("set_aside") > 0), SET_ASIDE)),
            duplicated=surplus.select(
                col("destination").alias("entity"), "message_id", "session_id", "diverted_at", "home_at", "sequence"
            ),
            disordered=self._named(
                late.withColumn("is_within_session", lit(False)).unionByName(
                    late_in_session.withColumn("is_within_session", lit(True)), allowMissingColumns=True
                )
            ).select("entity", "sequence", "message_id", "session_id", "sent_at", "received_at", "is_within_session"),
            delivered=self._delivered(at_home),
            timeline=timeline(self._events, self._backlog, self._period, self._clocks.correction),
            unproved=lost.where(~col("is_proved")).drop("is_proved"),
            diversion=diversion_of(diverted, home, self._clocks.correction),
            clocks=self._clocks,
            primary=self._primary,
            secondary=self._secondary,
            period=self._period,
            name=self._name,
            _kept=self._copies,
        )

    # Messages in their places, with when they were sent.

    def _direct(self) -> DataFrame:
        direct = self._copies.where(~col("is_home"))
        return direct.select("*", col("ordinal").alias("sent_ordinal"), col("at").alias("sent_at"))

    def _at_home(self) -> DataFrame:
        """What came home was sent when it was diverted; of a stray, nobody knows when."""
        at_home = self._copies.where(col("is_home"))
        with_routes = self._primary.has(Event.ROUTED)
        homes = home_of(at_home, self._matched, with_routes=with_routes)
        origins = self._matched.select("home_ordinal", "diverted_ordinal", "diverted_at")
        found = at_home.join(homes.join(origins, "home_ordinal", "left"), list(PLACE), "left")
        sent_at = col("diverted_at") + lit(self._clocks.correction)
        return _settled(
            found.drop("home_ordinal").select(
                "*", col("diverted_ordinal").alias("sent_ordinal"), sent_at.alias("sent_at")
            )
        )

    def _with_direct(self, at_home: DataFrame, condition: Column | None = None) -> DataFrame:
        direct = self._direct() if condition is None else self._direct().where(condition)
        return direct.unionByName(at_home.drop("diverted_ordinal", "diverted_at"))

    def _is_chosen(self, column: str) -> Column:
        return _within(self._period, column)

    def _is_home_chosen(self) -> Column:
        return when(col("diverted_at").isNull(), self._is_chosen("at")).otherwise(self._is_chosen("diverted_at"))

    # What is found.

    def _not_home(self) -> DataFrame:
        lost = not_home(self._diverted, self._matched, repeated_homecomings(self._repeated))
        return lost.where(self._is_chosen("diverted_at")).select(
            col("destination").alias("entity"),
            "message_id",
            "session_id",
            col("diverted_at").alias("accepted_at"),
            when(col("fate") == Fate.COMPLETED, NOT_HOME)
            .when(col("fate") == Fate.SET_ASIDE, SET_ASIDE)
            .otherwise(REMOVED_FROM_BACKLOG)
            .alias("cause"),
            col("backlog_queue").alias("last_place"),
            "sequence",
            self._is_proved().alias("is_proved"),
        )

    def _is_proved(self) -> Column:
        """Whether the primary's ledger covers the time in which a message that left the backlog could come home."""
        correction = lit(self._clocks.correction)
        left_at = coalesce("ended_at", lit(self._secondary.started_at), "diverted_at") + correction
        is_before_end = left_at <= lit(self._primary.last_at)
        if self._period.start is None:
            fetched_at = coalesce("fetched_at", "diverted_at") + correction
            is_before_end &= fetched_at >= lit(self._primary.first_at)
        return coalesce(is_before_end, lit(False))

    def _late(self, sent: DataFrame) -> tuple[DataFrame, DataFrame]:
        rows = sent.where(col("received_ordinal").isNotNull()).select(
            *PLACE, "session", "received_ordinal", "received_at", "is_home", "sent_ordinal", "sent_at"
        )
        place = ("entity_id", "incarnation")
        late = overtaken_in_stretches(rows, place, self._primary.span)
        in_session = overtaken(rows.where(col("session").isNotNull()), (*place, "session"))
        is_chosen = self._is_chosen("sent_at")
        return late.where(is_chosen), in_session.where(is_chosen)

    def _forwarded(self, chosen: DataFrame) -> DataFrame:
        """What a queue has passed on at once."""
        if not self._primary.has(Event.ROUTED, Event.REPEATED):
            return chosen.where(lit(False))
        return forwarded(chosen, self._primary_lives)

    def _delivered(self, at_home: DataFrame) -> DataFrame:
        """When a message was first received, of all its copies."""
        received = at_home.where(
            col("received_at").isNotNull() & col("diverted_at").isNotNull() & self._is_chosen("diverted_at")
        )
        first = received.groupBy("diverted_ordinal", "sent_at").agg(least_of("received_at").alias("received_at"))
        destinations = self._diverted.select("diverted_ordinal", col("destination").alias("entity"), "diverted_at")
        wait = unix_millis("received_at") - unix_millis("sent_at")
        return first.join(destinations, "diverted_ordinal").select(
            "entity", "diverted_at", "received_at", greatest(wait, lit(0)).alias("wait_ms")
        )

    # Texts, which are looked up in the ledger for what is shown only.

    def _told(self, copies: DataFrame, cause: str) -> DataFrame:
        return self._named(copies).select(
            "entity",
            "message_id",
            "session_id",
            col("sent_at").alias("accepted_at"),
            lit(cause).alias("cause"),
            col("entity").alias("last_place"),
            "sequence",
        )

    def _named(self, copies: DataFrame) -> DataFrame:
        texts = self._events.where(col("event").isin(Event.ACCEPTED, Event.ROUTED)).select(
            *PLACE, col("path").alias("entity"), "message_id", "session_id"
        )
        return copies.join(texts, list(PLACE))

    def _entity_table(self) -> DataFrame:
        return entity_table(self._primary_lives, self._entities)


def _settled(table: DataFrame) -> DataFrame:
    """The same, computed now and kept on disk while somebody refers to it: plans that go on from here are short."""
    return table.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def _backlog_queues(primary: Survey, secondary: Survey, name: str | None) -> Iterable[Entity]:
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
