"""Results of reconciliation, compared with a model that knows the outcome of every message (D4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pairbus.jobs.reconcile import LedgersMixedError, ReconcileReport, ReconcileVerdict, reconcile, report
from pairbus.ledger.events import LedgerEvent, Stage
from tests.jobs.reconcile.model import Message, PairModel, Place
from tests.jobs.reconcile.scenes import ROUNDS, FaultyPair, clean_pair, gap
from tests.thoroughness import times

T = TypeVar("T")

LIMIT_S = 900
"""Generous, for a shared machine."""

slow = pytest.mark.slow


def reconciled(
    spark: SparkSession, model: PairModel, start: datetime | None = None, end: datetime | None = None
) -> ReconcileReport:
    found = reconcile(model.primary.frame(spark), model.secondary.frame(spark), start, end)
    try:
        return report(found, listed=100)
    finally:
        found.release()


def counts(found: ReconcileReport) -> dict[str, dict[str, int]]:
    """Return the counts of each entity that are not 0."""
    named = {one.entity: {name: count for name, count in one.counts.items() if count} for one in found.entities}
    return {entity: those for entity, those in named.items() if those}


def ids(found: ReconcileReport, cause: str) -> set[str]:
    return {one.message_id for one in found.missing if one.cause == cause}


@slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_outage_without_loss_is_fine(spark: SparkSession) -> None:
    model = clean_pair()
    found = reconciled(spark, model)
    assert found.verdict is ReconcileVerdict.FINE
    assert counts(found) == model.expected()
    assert not found.notes
    assert not found.missing
    assert found.waits.messages == 4 * ROUNDS
    assert sum(found.waits.histogram) == 4 * ROUNDS
    assert sum(one.diverted for one in found.timeline) == 4 * ROUNDS
    assert sum(one.syphoned for one in found.timeline) == 4 * ROUNDS
    assert found.clocks.correction == timedelta()


@pytest.fixture(scope="module")
def faulty() -> FaultyPair:
    return FaultyPair()


@pytest.fixture(scope="module")
def found(spark: SparkSession, faulty: FaultyPair) -> ReconcileReport:
    return reconciled(spark, faulty.model)


@slow
@pytest.mark.timeout(LIMIT_S)
class TestPlantedFaults:
    """Each fault is in a separate entity."""

    def test_all_outcomes_are_counted(self, found: ReconcileReport, faulty: FaultyPair) -> None:
        assert counts(found) == faulty.model.expected()

    def test_faults_give_verdict_missing(self, found: ReconcileReport) -> None:
        assert found.verdict is ReconcileVerdict.MISSING

    def test_message_lost_by_the_syphon_is_listed(self, found: ReconcileReport) -> None:
        assert ids(found, "not restored") == {"lost-7"}

    def test_message_purged_from_the_backlog_is_listed(self, found: ReconcileReport) -> None:
        assert ids(found, "removed from the backlog") == {"purged-2"}

    def test_message_never_delivered_is_listed(self, found: ReconcileReport) -> None:
        assert ids(found, "never delivered") == {"unreceived-direct-5"}

    def test_unreadable_message_is_listed(self, found: ReconcileReport) -> None:
        assert ids(found, "unreadable") == {"b"}

    def test_message_restored_twice_is_listed(self, found: ReconcileReport) -> None:
        assert [(one.entity, one.message_id) for one in found.duplicated] == [("twice", "twice-3")]

    def test_messages_out_of_order_are_listed(self, found: ReconcileReport) -> None:
        assert "swapped-direct-0" in {one.message_id for one in found.disordered if one.entity == "swapped"}

    def test_missing_message_has_its_acceptance_time(self, found: ReconcileReport, faulty: FaultyPair) -> None:
        lost = next(one for one in found.missing if one.message_id == "lost-7")
        accepted = next(one for one in faulty.model.secondary.lives if one.message_id == "lost-7")
        assert lost.accepted_at == datetime.fromtimestamp(accepted.at_ms / 1000, UTC)


@slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("minutes", [-7, 7])
def test_clock_difference_is_noted_and_corrected(spark: SparkSession, minutes: int) -> None:
    model = PairModel(primary_ahead=timedelta(minutes=minutes))
    for number in range(ROUNDS):
        model.send("orders", f"before-{number}", "s")
    model.receive_all()
    for number in range(ROUNDS):
        model.divert("orders", f"m{number}", "s")
    model.clock.tick(5_000)
    model.drain()
    model.receive_all()
    gap(model, 12)
    found = reconciled(spark, model)
    assert counts(found) == model.expected()
    assert abs(found.clocks.correction - timedelta(minutes=minutes)) < timedelta(milliseconds=50)
    assert any("clocks differ" in note for note in found.notes)
    assert found.waits.p50 is not None
    assert timedelta(seconds=5) <= found.waits.p50 < timedelta(seconds=6)
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any("12 events" in note for note in found.notes)


@slow
@pytest.mark.timeout(LIMIT_S)
def test_time_range_selects_by_acceptance_and_includes_later_events(spark: SparkSession) -> None:
    model = PairModel()
    hour_ms = 3_600_000
    for number in range(3):
        model.divert("queue")  # without ids, messages are matched by count
        model.send("queue", f"early-{number}")
    model.clock.tick(3 * hour_ms)
    start = datetime.fromtimestamp(model.clock.tick() / 1000, UTC)
    for number in range(4):
        model.divert("queue")
        model.divert("queue", f"within-{number}")
        model.send("queue", f"within-direct-{number}")
    end = datetime.fromtimestamp(model.clock.tick() / 1000, UTC)
    for number in range(5):
        model.divert("queue", f"late-{number}")
        model.send("queue", f"late-direct-{number}")
    model.clock.tick(2 * hour_ms)
    for message in list(model.backlog.waiting):
        model.syphon(message, copies=0 if message.message_id in {"within-2", "late-1"} else 1)
    model.receive_all()
    total = reconciled(spark, model, start, end).total.counts
    reported = {name: total[name] for name in ("accepted", "diverted", "syphoned", "received", "missing", "duplicated")}
    assert reported == {"accepted": 4, "diverted": 8, "syphoned": 7, "received": 11, "missing": 1, "duplicated": 0}
    assert reconciled(spark, model).total.counts["missing"] == 2


@slow
@pytest.mark.timeout(LIMIT_S)
def test_unrecorded_end_before_kill_is_not_counted_as_waiting(spark: SparkSession) -> None:
    model = PairModel()
    for number in range(4):
        model.send("orders", f"m{number}")
    model.receive(model.place("orders"), model.place("orders").waiting[0])
    model.divert("orders", "diverted")
    model.syphon(model.backlog.waiting[0])
    recorded = len(model.primary.lives)
    model.receive_all()
    model.lose(len(model.primary.lives) - recorded)
    model.restart()
    found = reconciled(spark, model)
    assert counts(found) == {"orders": {"accepted": 4, "diverted": 1, "syphoned": 1, "received": 1, "unrecorded": 5}}
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any("5 messages were gone" in note for note in found.notes)


@slow
@pytest.mark.timeout(LIMIT_S)
def test_scheduled_message_is_waiting_and_not_missing(spark: SparkSession) -> None:
    model = PairModel()
    accepted = model.primary.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "orders", 1, message_id="later")
    model.primary.note(LedgerEvent.SCHEDULED, Stage.DIRECT, "orders", 1, message_id="later")
    model.primary.same_time(accepted)
    for event in (LedgerEvent.ACCEPTED, LedgerEvent.RECEIVED, LedgerEvent.COMPLETED):
        model.primary.note(event, Stage.DIRECT, "orders", 2, message_id="now")
    found = reconciled(spark, model)
    assert counts(found) == {"orders": {"accepted": 2, "received": 1, "completed": 1, "waiting": 1}}
    assert found.verdict is ReconcileVerdict.FINE


@slow
@pytest.mark.timeout(LIMIT_S)
def test_mixed_ledgers_are_rejected(spark: SparkSession) -> None:
    model = PairModel()
    model.send("queue", "m")
    model.divert("queue", "n")
    primary, secondary = model.primary.frame(spark), model.secondary.frame(spark)
    with pytest.raises(LedgersMixedError, match="several namespaces: contoso, fabrikam"):
        reconcile(primary.unionByName(secondary), secondary)
    with pytest.raises(LedgersMixedError, match="both ledgers belong to the namespace 'contoso'"):
        reconcile(primary, primary)


@slow
@pytest.mark.timeout(LIMIT_S)
def test_ledger_without_events_gives_no_verdict(spark: SparkSession) -> None:
    model = PairModel()
    model.primary.lives.clear()
    found = reconciled(spark, model)
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any("check that it records them" in note for note in found.notes)
    assert not found.entities


# Random operations on the model.


class Steps:
    """A pair with random operations; each queue has messages of one kind."""

    def __init__(self, draw: st.DataObject) -> None:
        self.model = PairModel()
        self.model.topic("unique-topic", "a", "b")
        self._draw = draw
        self._numbers: Counter[str] = Counter()

    def run(self, steps: int) -> PairModel:
        common = (self.send, self.divert, self.syphon, self.receive)
        kinds = (*common, *common, *common, self.settle, self.settle, self.leave, self.model.restart, self.vanish)
        for choice in self._draw.draw(st.lists(st.sampled_from(kinds), min_size=steps, max_size=steps)):
            choice()
        return self.model

    def _names(self) -> tuple[str, str, str | None]:
        entity = self._one("unique", "unique-topic", "nameless", "reused")
        self._numbers[entity] += 1
        number = self._numbers[entity]
        message_id = {"nameless": "", "reused": f"r{number % 2}"}.get(entity, f"m{number}")
        return entity, message_id, self._one(None, "s", "t") if entity.startswith("unique") else None

    def send(self) -> None:
        self.model.send(*self._names())

    def divert(self) -> None:
        self.model.divert(*self._names())

    def syphon(self) -> None:
        waiting = self.model.backlog.waiting
        if not waiting:
            return
        message = self._one(*waiting)
        is_unique = message.message_id.startswith("m")
        fates = ["home", "home", "home", "bury", "expire", "park", "give back"]
        # Where ids are not unique, a lost message and a duplicated one cannot be distinguished.
        match self._one(*fates, *(["lost", "twice", "dropped"] if is_unique else ["lost"])):
            case "home":
                self.model.syphon(message)
            case "lost":
                self.model.syphon(message, copies=0)
            case "twice":
                self.model.syphon(message, copies=2)
            case "dropped":
                self.model.syphon(message, copies=1, drops=1)
            case "bury":
                self.model.bury(message)
            case "expire":
                self.model.expire_in_backlog(message)
            case "park":
                self.model.park(message)
            case _:
                self.model.give_back(message)

    def receive(self) -> None:
        """Return the next message to be received."""
        found = [(place, one) for place, one in self._present() if not one.deliveries]
        if found:
            place, _ = self._one(*found)
            self.model.receive(place, next(one for one in place.waiting if not one.deliveries))

    def settle(self) -> None:
        found = [(place, one) for place, one in self._present() if one.deliveries]
        if not found:
            return
        place, message = self._one(*found)
        match self._one("complete", "complete", "dead-letter", "again", "twice"):
            case "complete":
                self.model.complete(place, message)
            case "dead-letter":
                self.model.dead_letter(place, message)
            case "again":
                self.model.abandon(place, message)
                self.model.receive(place, message)
                self.model.count(place.path, redelivered=1)
            case _:
                self.model.receive(place, message)
                self.model.count(place.path, delivered_twice=1)

    def leave(self) -> None:
        """End a message without its receiver."""
        found = self._present()
        if found:
            self._one(self.model.expire, self.model.remove)(*self._one(*found))

    def vanish(self) -> None:
        """Lose a message in a namespace, which is noticed at its next start."""
        found = self._present()
        lost = [*self.model.backlog.waiting, *(one for _, one in found)]
        if not lost:
            return
        message = self._one(*lost)
        if message in self.model.backlog.waiting:
            assert message.destination is not None
            self.model.backlog.waiting.remove(message)
            self.model.count(message.destination, backlog_waiting=-1, missing=1)
        else:
            place = next(place for place, one in found if one is message)
            place.waiting.remove(message)
            self.model.count(place.path, unrecorded=1)
        self.model.restart()

    def _present(self) -> list[tuple[Place, Message]]:
        places = [place for place in self.model.places.values() if "$" not in place.path]
        return [(place, one) for place in places for one in place.waiting]

    def _one(self, *choices: T) -> T:
        return self._draw.draw(st.sampled_from(choices))


def without_order(found: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Remove what cannot be known: the order of messages that are indistinguishable."""
    return {
        entity: {
            name: count
            for name, count in those.items()
            if entity.startswith("unique") or not name.startswith("out_of_order")
        }
        for entity, those in found.items()
    }


@slow
@pytest.mark.timeout(LIMIT_S)
@settings(
    max_examples=times(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(draw=st.data())
def test_d4_counts_match_the_model_for_random_operations(spark: SparkSession, draw: st.DataObject) -> None:
    model = Steps(draw).run(150)
    model.send("unique", "the last")
    found = reconciled(spark, model)
    assert without_order(counts(found)) == without_order(model.expected())
    assert found.verdict is _expected_verdict(found.total.counts)


def _expected_verdict(total: Mapping[str, int]) -> ReconcileVerdict:
    if total["missing"]:
        return ReconcileVerdict.MISSING
    return ReconcileVerdict.UNKNOWN if total["unrecorded"] else ReconcileVerdict.FINE
