"""Verdicts where the ledgers prove neither "fine" nor "missing" (D4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from pairbus.jobs.reconcile import ReconcileReport, ReconcileVerdict
from pairbus.jobs.reconcile.events import absent_events, by_minute
from pairbus.ledger.events import LedgerEvent, LifecycleEvent, Stage
from tests.jobs.reconcile.books import BEGIN, lives_frame
from tests.jobs.reconcile.model import BACKLOG, PairModel
from tests.jobs.reconcile.test_reconcile import LIMIT_S, counts, reconciled

MINUTE_MS = 60_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def forward(model: PairModel, front: str, back: str, number: int, message_id: str, stage: Stage = Stage.DIRECT) -> None:
    """Add a forwarding queue, which keeps no messages; the other queue assigns its own numbers."""
    accepted = model.primary.note(LedgerEvent.ACCEPTED, stage, front, number, None, message_id)
    onward = Stage.RETURNED if stage is Stage.SYPHON else Stage.DIRECT
    model.primary.note(LedgerEvent.ROUTED, onward, back, number, number, message_id)
    model.primary.same_time(accepted)


def started_once() -> PairModel:
    """Restart a namespace, with all outcomes that are hard to determine after that."""
    model = PairModel()
    book = model.primary
    for event in (LedgerEvent.ACCEPTED, LedgerEvent.RECEIVED):
        book.note(event, Stage.DIRECT, "taken", 1, None, "received, and gone")
    book.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "restored", 1, None, "after the copy was made, and gone")
    model.divert("hall", "h")
    model.secondary.note(LedgerEvent.RECEIVED, Stage.SYPHON, BACKLOG, 1, None, "h")
    forward(model, "hall", "room", 1, "h", Stage.SYPHON)
    model.secondary.note(LedgerEvent.COMPLETED, Stage.SYPHON, BACKLOG, 1, None, "h")
    book.note(LedgerEvent.STARTED, Stage.DIRECT, "", 0)
    book.note(LedgerEvent.FOUND, Stage.SYPHON, "room", 1, 1, "h")
    for event in (LedgerEvent.ACCEPTED, LedgerEvent.RECEIVED, LedgerEvent.COMPLETED):
        book.note(event, Stage.DIRECT, "restored", 1, None, "has the same number")
    for number in (1, 2, 3):
        forward(model, "front", "back", number, f"f{number}")
    for event in (LedgerEvent.ACCEPTED, LedgerEvent.RECEIVED, LedgerEvent.COMPLETED):
        book.note(event, Stage.DIRECT, "front", 4, None, "since it forwards no more")
    return model


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> ReconcileReport:
    return reconciled(spark, started_once())


class TestStartedAgain:
    def test_d4_received_message_without_recorded_end_is_unrecorded(self, found: ReconcileReport) -> None:
        assert counts(found)["taken"] == {"accepted": 1, "received": 1, "unrecorded": 1}
        assert found.verdict is ReconcileVerdict.UNKNOWN

    def test_d4_reused_sequence_number_hides_no_message(self, found: ReconcileReport) -> None:
        assert counts(found)["restored"] == {"accepted": 2, "received": 1, "completed": 1, "unrecorded": 1}

    def test_d4_forwarded_message_is_not_missing(self, found: ReconcileReport) -> None:
        assert counts(found)["front"] == {"accepted": 4, "received": 1, "completed": 1}
        assert counts(found)["back"] == {"routed": 3, "waiting": 3}
        assert not found.missing

    def test_d4_message_forwarded_at_the_primary_is_restored_once(self, found: ReconcileReport) -> None:
        assert counts(found)["hall"] == {"diverted": 1, "syphoned": 1}
        assert counts(found)["room"] == {"routed": 1, "waiting": 1}
        assert not any("of unknown origin" in note or "does not tell of" in note for note in found.notes)


def test_d4_secondary_without_events_gives_no_verdict(spark: SparkSession) -> None:
    model = PairModel()
    model.send("orders", "m")
    model.receive_all()
    model.secondary.lives.clear()
    found = reconciled(spark, model)
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any("check that it records them" in note for note in found.notes)


# Incomplete ledgers.


def minutes(*starts: int, names_last: bool = False, stops: bool = False) -> PairModel:
    """Record six minutes with one complete message each; the namespace is started in some of them."""
    model = PairModel()
    for number in range(6):
        if number in starts and names_last:
            model.primary.start()
        elif number in starts:
            model.primary.note(LedgerEvent.STARTED, Stage.DIRECT, "", 0)
        model.send("orders", f"m{number}")
        model.receive_all()
        if number + 1 in starts and stops:
            model.primary.stop()
        model.clock.tick(MINUTE_MS)
    return model


def of_message(number: int) -> Callable[[LifecycleEvent], bool]:
    return lambda life: life.message_id == f"m{number}"


def received(number: int) -> Callable[[LifecycleEvent], bool]:
    return lambda life: life.message_id == f"m{number}" and life.event is LedgerEvent.RECEIVED


@pytest.mark.parametrize(
    ("model", "is_gone", "absent"),
    [
        (minutes(), lambda _life: False, 0),
        (minutes(0, 3), lambda _life: False, 0),
        (minutes(0, 3, names_last=True), lambda _life: False, 0),
        (minutes(), of_message(0), 3),
        (minutes(), of_message(2), 3),
        (minutes(), received(2), 1),
        (minutes(0), of_message(1), 3),
        (minutes(), of_message(4), 3),
        (minutes(), of_message(5), 0),  # these may not have happened yet
        (minutes(4), received(3), 0),  # an earlier version was killed, and did not replay unwritten events
        (minutes(4), received(1), 1),
        (minutes(4, stops=True), received(3), 1),  # it was not killed
        (minutes(4, stops=True), lambda _life: False, 0),
        (minutes(4, names_last=True), received(3), 1),
        (minutes(4, names_last=True), of_message(3), 3),
        (minutes(4, names_last=True), lambda life: of_message(2)(life) or of_message(3)(life), 6),
    ],
)
def test_d4_absent_events_are_counted(
    spark: SparkSession, model: PairModel, is_gone: Callable[[LifecycleEvent], bool], absent: int
) -> None:
    lives = [life for life in model.primary.lives if not is_gone(life)]
    assert count_absent(lives_frame(spark, model.primary.namespace, lives)) == absent


def count_absent(events: DataFrame, since: datetime | None = None) -> int:
    return absent_events(events, by_minute(events, since=since), since)


def reloaded() -> PairModel:
    """Record a minute in which a commit fails twice: the namespace is loaded again, and counts on from there."""
    model = PairModel()
    model.send("orders", "before")
    model.receive_all()
    for number in range(2):
        model.primary.reload(undone=5)
        model.send("orders", f"m{number}")
        model.receive_all()
    return model


@pytest.mark.parametrize("place", [1, 2, 3, 5, 6, 7, 9, 10])
def test_d4_hole_beside_a_start_in_the_same_minute_is_found(spark: SparkSession, place: int) -> None:
    """A row in the middle of a part, or at its end: before a start, after it, or between two."""
    lives = [*reloaded().primary.lives]
    assert lives.pop(place).event is not LedgerEvent.STARTED
    assert count_absent(lives_frame(spark, "contoso", lives)) == 1


def test_d4_undone_events_before_a_start_in_the_same_minute_are_not_absent(spark: SparkSession) -> None:
    assert count_absent(reloaded().primary.frame(spark)) == 0


def test_d4_reported_gap_is_not_absent_and_hides_nothing(spark: SparkSession) -> None:
    model = minutes()
    first, last = (
        life for life in model.primary.lives if life.message_id == "m3" and life.event is not LedgerEvent.ACCEPTED
    )
    gap = LifecycleEvent(last.at_ms, first.ordinal, LedgerEvent.MISSED, Stage.DIRECT, "", 2, 0, "", None, None, 0)
    model.primary.lives = [gap if life is first else life for life in model.primary.lives if life is not last]
    assert count_absent(model.primary.frame(spark)) == 0
    model.primary.lives = [life for life in model.primary.lives if not of_message(1)(life)]
    assert count_absent(model.primary.frame(spark)) == 3
    assert count_absent(model.primary.frame(spark), BEGIN + timedelta(minutes=3)) == 0


@pytest.mark.parametrize("is_at_its_end", [False, True])
def test_d4_hole_beside_a_reported_gap_in_the_same_minute_is_found(spark: SparkSession, is_at_its_end: bool) -> None:
    """A gap has the number of its first event, or of its last one if it was found at the next start."""
    model = PairModel()
    for number in range(8):
        model.send("orders", f"m{number}")
    reported = {"m2", "m3", "m4"}
    numbered = next(life for life in model.primary.lives if life.message_id == ("m4" if is_at_its_end else "m2"))
    gap = numbered._replace(event=LedgerEvent.MISSED, sequence=len(reported), message_id="")
    lives = [life for life in model.primary.lives if life.message_id not in reported]
    lives.append(gap)
    assert count_absent(lives_frame(spark, "contoso", lives)) == 0
    lives = [life for life in lives if life.message_id != "m6"]
    assert count_absent(lives_frame(spark, "contoso", lives)) == 1


def test_d4_clock_set_back_causes_no_absent_events(spark: SparkSession) -> None:
    """The ordinals of the next process continue with a jump; its events are in the same minutes."""
    model = minutes(0)
    again = [life._replace(ordinal=life.ordinal + (1 << 22) + 1_000) for life in model.primary.lives]
    model.primary.lives += again
    assert count_absent(model.primary.frame(spark)) == 0


def test_d4_ledger_with_removed_part_gives_no_verdict(spark: SparkSession) -> None:
    model = minutes()
    model.primary.lives = [life for life in model.primary.lives if not of_message(2)(life)]
    found = reconciled(spark, model)
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any("lacks 3 recorded events" in note for note in found.notes)
