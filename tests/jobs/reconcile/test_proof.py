"""What must not be called fine, since the ledgers do not prove it; and what must not be called missing (D4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from pairbus.jobs.reconcile import Report, Verdict
from pairbus.jobs.reconcile.holes import absent_events
from pairbus.ledger.life import Event, Life
from pairbus.ledger.operation import Stage
from tests.jobs.reconcile.books import BEGIN, lives_frame
from tests.jobs.reconcile.model import BACKLOG, PairModel
from tests.jobs.reconcile.test_reconcile import LIMIT_S, counts, reconciled

MINUTE_MS = 60_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def forward(model: PairModel, front: str, back: str, number: int, message_id: str, stage: Stage = Stage.DIRECT) -> None:
    """A queue that forwards keeps nothing; the other one gives its own number."""
    accepted = model.primary.note(Event.ACCEPTED, stage, front, number, None, message_id)
    onward = Stage.RETURNED if stage is Stage.SYPHON else Stage.DIRECT
    model.primary.note(Event.ROUTED, onward, back, number, number, message_id)
    model.primary.same_time(accepted)


def started_once() -> PairModel:
    """A namespace that was started again, and everything that is hard to tell after that."""
    model = PairModel()
    book = model.primary
    for event in (Event.ACCEPTED, Event.RECEIVED):
        book.note(event, Stage.DIRECT, "taken", 1, None, "received, and gone")
    book.note(Event.ACCEPTED, Stage.DIRECT, "restored", 1, None, "after the copy was made, and gone")
    model.divert("hall", "h")
    model.secondary.note(Event.RECEIVED, Stage.SYPHON, BACKLOG, 1, None, "h")
    forward(model, "hall", "room", 1, "h", Stage.SYPHON)
    model.secondary.note(Event.COMPLETED, Stage.SYPHON, BACKLOG, 1, None, "h")
    book.note(Event.STARTED, Stage.DIRECT, "", 0)
    book.note(Event.FOUND, Stage.SYPHON, "room", 1, 1, "h")
    for event in (Event.ACCEPTED, Event.RECEIVED, Event.COMPLETED):
        book.note(event, Stage.DIRECT, "restored", 1, None, "has the same number")
    for number in (1, 2, 3):
        forward(model, "front", "back", number, f"f{number}")
    for event in (Event.ACCEPTED, Event.RECEIVED, Event.COMPLETED):
        book.note(event, Stage.DIRECT, "front", 4, None, "since it forwards no more")
    return model


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Report:
    return reconciled(spark, started_once())


class TestStartedAgain:
    def test_d4_what_was_received_and_is_gone_without_an_ending_is_not_accounted_for(self, found: Report) -> None:
        assert counts(found)["taken"] == {"accepted": 1, "received": 1, "unrecorded": 1}
        assert found.verdict is Verdict.UNKNOWN

    def test_d4_a_number_that_was_given_twice_hides_no_message(self, found: Report) -> None:
        assert counts(found)["restored"] == {"accepted": 2, "received": 1, "completed": 1, "unrecorded": 1}

    def test_d4_what_a_queue_has_forwarded_before_it_kept_messages_was_not_passed_over(self, found: Report) -> None:
        assert counts(found)["front"] == {"accepted": 4, "received": 1, "completed": 1}
        assert counts(found)["back"] == {"routed": 3, "waiting": 3}
        assert not found.missing

    def test_d4_what_was_forwarded_at_home_came_home_once(self, found: Report) -> None:
        assert counts(found)["hall"] == {"diverted": 1, "syphoned": 1}
        assert counts(found)["room"] == {"routed": 1, "waiting": 1}
        assert not any("of unknown origin" in note or "does not tell of" in note for note in found.notes)


def test_d4_a_secondary_that_records_no_lives_proves_nothing(spark: SparkSession) -> None:
    model = PairModel()
    model.send("orders", "m")
    model.receive_all()
    model.secondary.lives.clear()
    found = reconciled(spark, model)
    assert found.verdict is Verdict.UNKNOWN
    assert any("are their lives recorded" in note for note in found.notes)


# Ledgers that are not all there.


def minutes(*starts: int, names_last: bool = False) -> PairModel:
    """Six minutes with a message each, from its acceptance to its end; the namespace is started at some of them."""
    model = PairModel()
    for number in range(6):
        if number in starts and names_last:
            model.primary.start()
        elif number in starts:
            model.primary.note(Event.STARTED, Stage.DIRECT, "", 0)
        model.send("orders", f"m{number}")
        model.receive_all()
        model.clock.tick(MINUTE_MS)
    return model


def of_message(number: int) -> Callable[[Life], bool]:
    return lambda life: life.message_id == f"m{number}"


def received(number: int) -> Callable[[Life], bool]:
    return lambda life: life.message_id == f"m{number}" and life.event is Event.RECEIVED


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
        (minutes(), of_message(5), 0),  # it may not have happened yet
        (minutes(4), received(3), 0),  # an earlier version was killed, and did not carry what it had not written
        (minutes(4), received(1), 1),
        (minutes(4, names_last=True), received(3), 1),
        (minutes(4, names_last=True), of_message(3), 3),
        (minutes(4, names_last=True), lambda life: of_message(2)(life) or of_message(3)(life), 6),
    ],
)
def test_d4_events_that_are_not_there_are_counted(
    spark: SparkSession, model: PairModel, is_gone: Callable[[Life], bool], absent: int
) -> None:
    lives = [life for life in model.primary.lives if not is_gone(life)]
    assert absent_events(lives_frame(spark, model.primary.namespace, lives)) == absent


def test_d4_what_is_told_to_be_missed_is_no_hole_and_hides_none(spark: SparkSession) -> None:
    model = minutes()
    first, last = (life for life in model.primary.lives if life.message_id == "m3" and life.event is not Event.ACCEPTED)
    gap = Life(last.at_ms, first.ordinal, Event.MISSED, Stage.DIRECT, "", 2, 0, "", None, None, 0)
    model.primary.lives = [gap if life is first else life for life in model.primary.lives if life is not last]
    assert absent_events(model.primary.frame(spark)) == 0
    model.primary.lives = [life for life in model.primary.lives if not of_message(1)(life)]
    assert absent_events(model.primary.frame(spark)) == 3
    assert absent_events(model.primary.frame(spark), BEGIN + timedelta(minutes=3)) == 0


def test_d4_a_clock_that_was_set_back_makes_no_hole(spark: SparkSession) -> None:
    """The next process counts on from the one before it, with a leap; its minutes are the same ones."""
    model = minutes(0)
    again = [life._replace(ordinal=life.ordinal + (1 << 22) + 1_000) for life in model.primary.lives]
    model.primary.lives += again
    assert absent_events(model.primary.frame(spark)) == 0


def test_d4_a_ledger_that_a_part_was_removed_of_proves_nothing(spark: SparkSession) -> None:
    model = minutes()
    model.primary.lives = [life for life in model.primary.lives if not of_message(2)(life)]
    found = reconciled(spark, model)
    assert found.verdict is Verdict.UNKNOWN
    assert any("lacks 3 events" in note for note in found.notes)
