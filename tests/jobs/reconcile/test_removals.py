"""Ledgers with removed parts, at their ends or inside: the verdict is neither "fine" nor "missing" (D4)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.jobs.ledger import read_lives
from pairbus.jobs.reconcile import ReconcileReport, ReconcileVerdict, reconcile, report
from pairbus.jobs.reconcile.command import Outputs, Reconcilable
from pairbus.jobs.reconcile.events import by_minute, survey
from pairbus.jobs.reconcile.reconciliation import read_since
from pairbus.ledger.events import LIVES, OPERATIONS, LedgerEvent, LifecycleEvent, Stage
from tests.jobs.ledger.written import operation, write
from tests.jobs.reconcile.books import BEGIN, RecordedNamespace, lives_frame, write_events
from tests.jobs.reconcile.model import BACKLOG, PairModel
from tests.jobs.reconcile.test_reconcile import LIMIT_S, counts, reconciled

HOUR_MS = 3_600_000
HOURS = 3
HOUR = timedelta(hours=1)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def busy_hours(*, is_stopped: bool) -> PairModel:
    """Record three hours with every kind of event, and a clean shutdown if wanted: nothing is missing."""
    model = PairModel()
    model.topic("news", "red")
    for hour in range(HOURS):
        if hour:
            model.restart()
        _direct(model, hour)
        _diverted(model, hour)
        model.send("lying", f"lies {hour}")  # found at the next start
        model.divert("lying", f"lies in the backlog {hour}")
        model.clock.tick(HOUR_MS // 4)
        model.alive()
        model.clock.now_ms = round(BEGIN.timestamp() * 1_000) + (hour + 1) * HOUR_MS
    model.clock.tick(-HOUR_MS // 2)
    if is_stopped:
        model.stop()
    return model


def _direct(model: PairModel, hour: int) -> None:
    ways: list[Callable[..., None]] = [model.expire, model.remove, model.dead_letter, model.complete]
    for number, _ in enumerate(ways):
        model.send("orders", f"direct {hour} {number}")
    place = model.place("orders")
    for way, message in zip(ways, [*place.waiting], strict=True):
        if way not in (model.expire, model.remove):
            model.receive(place, message)
            model.abandon(place, message)
            model.receive(place, message)
            model.defer(place, message)
            model.receive(place, message)
        way(place, message)
    later, book = f"later {hour}", model.primary
    book.note(LedgerEvent.ACCEPTED, Stage.DIRECT, "timed", 2 * hour + 1, None, later)
    book.note(LedgerEvent.SCHEDULED, Stage.DIRECT, "timed", 2 * hour + 1, None, later)
    book.note(LedgerEvent.MOVED, Stage.DIRECT, "timed", 2 * hour + 1, None, later)
    for event in (LedgerEvent.ROUTED, LedgerEvent.RECEIVED, LedgerEvent.COMPLETED):
        book.note(event, Stage.DIRECT, "timed", 2 * hour + 2, 2 * hour + 1, later)
    model.send("news", f"news {hour}")
    _receive(model, "news")


def _receive(model: PairModel, entity: str) -> None:
    for place in model.places_of(entity):
        for message in [*place.waiting]:
            model.receive(place, message)
            model.complete(place, message)


def _diverted(model: PairModel, hour: int) -> None:
    ways: list[Callable[..., None]] = [
        model.syphon,
        model.bury,
        model.expire_in_backlog,
        lambda message: model.syphon(message, drops=1),
    ]
    messages = [model.divert("returns", f"diverted {hour} {number}") for number, _ in enumerate(ways)]
    model.give_back(messages[0])
    model.park(messages[0])
    for way, message in zip(ways, messages, strict=True):
        way(message)
    _receive(model, "returns")


def book_of(model: PairModel, name: str) -> RecordedNamespace:
    book: RecordedNamespace = getattr(model, name)
    return book


MODEL = busy_hours(is_stopped=True)
RUNNING = busy_hours(is_stopped=False)
SIDES = ("primary", "secondary")
ENDS_NOTHING = {LedgerEvent.STOPPED}
"""Its absence proves nothing: a ledger that is being written has none."""


def removals(book: RecordedNamespace) -> Iterator[tuple[str, frozenset[int]]]:
    """Return ordinals: the first, a middle and the last event of each kind, and all events of some messages."""
    by_kind: dict[str, list[set[int]]] = {}
    by_message: dict[str, set[int]] = {}
    for life in book.lives:
        if life.event not in ENDS_NOTHING:
            by_kind.setdefault(life.event, []).append({life.ordinal})
        if life.message_id:
            by_message.setdefault(life.message_id, set()).add(life.ordinal)
    for kind, found in [*by_kind.items(), ("message", [*by_message.values()])]:
        for where, ordinals in (("first", found[0]), ("middle", found[len(found) // 2]), ("last", found[-1])):
            yield f"{where} {kind}", frozenset(ordinals)


def test_removals_cover_every_kind_of_event() -> None:
    kinds = {life.event for side in SIDES for life in book_of(MODEL, side).lives}
    assert kinds == {*LedgerEvent} - {LedgerEvent.MISSED, LedgerEvent.SET_ASIDE}


@pytest.mark.parametrize("side", SIDES)
def test_d4_removed_row_is_counted_as_absent(spark: SparkSession, side: str) -> None:
    book = book_of(MODEL, side)
    unseen = [
        removed
        for removed, ordinals in removals(book)
        if not _is_doubted(spark, book, (life for life in book.lives if life.ordinal not in ordinals))
    ]
    assert not unseen
    assert not _is_doubted(spark, book, book.lives)


@pytest.mark.parametrize("side", SIDES)
def test_d4_removed_step_of_a_running_ledger_is_counted_as_absent(spark: SparkSession, side: str) -> None:
    """Of each step of a message, the first row, one in the middle, and the last."""
    book = book_of(RUNNING, side)
    steps = [step for step, (of_side, _, _) in STEPS.items() if of_side == side]
    unseen = [
        (step, minute)
        for step in steps
        for minute in PLACES
        if not _is_doubted(spark, book, (life for life in book.lives if life is not row_of(RUNNING, step, minute)))
    ]
    assert not unseen
    assert not _is_doubted(spark, book, book.lives)


def _is_doubted(spark: SparkSession, book: RecordedNamespace, lives: Iterable[LifecycleEvent]) -> bool:
    events = lives_frame(spark, book.namespace, lives)
    found = survey(events, by_minute(events))
    return bool(found.absent) or found.is_cut_off


STEPS = {
    "accepted": ("primary", LedgerEvent.ACCEPTED, Stage.DIRECT),
    "diverted": ("secondary", LedgerEvent.ACCEPTED, Stage.BACKLOG),
    "fetched": ("secondary", LedgerEvent.RECEIVED, Stage.SYPHON),
    "restored": ("primary", LedgerEvent.ACCEPTED, Stage.SYPHON),
    "left the backlog": ("secondary", LedgerEvent.COMPLETED, Stage.SYPHON),
    "received": ("primary", LedgerEvent.RECEIVED, Stage.DIRECT),
    "received after that": ("primary", LedgerEvent.RECEIVED, Stage.RETURNED),
    "completed": ("primary", LedgerEvent.COMPLETED, Stage.DIRECT),
    "completed after that": ("primary", LedgerEvent.COMPLETED, Stage.RETURNED),
}
"""The steps of a message, of which each is a row of a ledger."""

PLACES = ("first", "middle", "last")


def row_of(model: PairModel, step: str, place: str) -> LifecycleEvent:
    side, event, stage = STEPS[step]
    rows = [life for life in book_of(model, side).lives if (life.event, life.stage) == (event, stage)]
    return rows[{"first": 0, "middle": len(rows) // 2, "last": -1}[place]]


@pytest.mark.parametrize("minute", PLACES)
@pytest.mark.parametrize("step", STEPS)
def test_d4_no_row_can_be_removed_from_fine_ledgers(spark: SparkSession, step: str, minute: str) -> None:
    removed = row_of(MODEL, step, minute)
    primary, secondary = (
        lives_frame(spark, book.namespace, (life for life in book.lives if life is not removed))
        for book in (book_of(MODEL, name) for name in SIDES)
    )
    found = reconcile(primary, secondary)
    try:
        assert report(found).verdict is ReconcileVerdict.UNKNOWN
    finally:
        found.release()


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ledgers")
    for side in SIDES:
        book_of(MODEL, side).write(directory / side)
    return directory


def without(ledgers: Path, to: Path, side: str, hour: int) -> Path:
    """Return a copy of the ledgers without the files of an hour."""
    shutil.copytree(ledgers, to)
    shutil.rmtree(to / side / LIVES / f"day={BEGIN:%Y-%m-%d}" / f"hour={BEGIN.hour + hour}")
    return to


def verdict_of(spark: SparkSession, directory: Path, start: datetime | None = None) -> ReconcileReport:
    """Read the ledgers as the command does."""
    secondary = read_lives(spark, directory / "secondary")
    primary = read_lives(spark, directory / "primary", read_since(start))
    found = reconcile(
        primary, secondary, start, earlier=lambda: read_lives(spark, directory / "primary", end=read_since(start))
    )
    try:
        return report(found)
    finally:
        found.release()


def test_d4_complete_ledgers_are_fine(spark: SparkSession, ledgers: Path) -> None:
    found = verdict_of(spark, ledgers)
    assert found.verdict is ReconcileVerdict.FINE
    assert not found.notes
    assert found.total.counts["backlog_waiting"] == HOURS


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("hour", range(HOURS))
def test_d4_removed_hour_gives_no_verdict(
    spark: SparkSession, ledgers: Path, tmp_path: Path, side: str, hour: int
) -> None:
    found = verdict_of(spark, without(ledgers, tmp_path / "cut", side, hour))
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert found.notes


def test_d4_hours_before_the_range_are_not_needed(spark: SparkSession, ledgers: Path, tmp_path: Path) -> None:
    """Old files may be deleted."""
    directory = without(ledgers, tmp_path / "primary cut", "primary", 0)
    directory = without(directory, tmp_path / "both cut", "secondary", 0)
    assert verdict_of(spark, directory, BEGIN + 2 * HOUR).verdict is ReconcileVerdict.FINE


def lone_loss() -> PairModel:
    """Record a message lost by the syphon; the time at which it could be restored is in the middle of the ledger."""
    model = PairModel()
    model.send("orders", "before")
    model.syphon(model.divert("orders", "lost"), copies=0)
    model.send("orders", "after")
    return model


def test_d4_loss_is_proved_only_within_the_primary_ledger(spark: SparkSession) -> None:
    model = lone_loss()
    assert reconciled(spark, model).verdict is ReconcileVerdict.MISSING
    del model.primary.lives[-1]
    assert reconciled(spark, model).verdict is ReconcileVerdict.UNKNOWN


@pytest.mark.parametrize(("removed", "verdict"), [("", ReconcileVerdict.FINE), ("m0", ReconcileVerdict.UNKNOWN)])
def test_d4_older_events_show_whether_the_ledger_is_cut_off(
    spark: SparkSession, removed: str, verdict: ReconcileVerdict
) -> None:
    """There are no events for hours before the range."""
    model = PairModel()
    model.send("orders", "early")
    model.receive_all()
    model.clock.tick(5 * HOUR_MS)
    for number in range(3):
        model.send("orders", f"m{number}")
    model.receive_all()
    model.alive()
    model.primary.lives = [life for life in model.primary.lives if life.message_id != removed]
    assert reconciled(spark, model, BEGIN + 4 * HOUR, BEGIN + 6 * HOUR).verdict is verdict


def test_d4_unmatched_messages_give_no_verdict(spark: SparkSession) -> None:
    """The secondary's ledger was enabled during an outage."""
    model = PairModel()
    model.divert("orders", "before")
    model.divert("orders", "known")
    model.drain()
    model.secondary.undo(lambda life: life.message_id == "before")
    reported = reconciled(spark, model)
    assert counts(reported)["orders"]["unmatched"] == 1
    assert reported.verdict is ReconcileVerdict.UNKNOWN


def test_d4_unmatched_messages_hide_a_lost_one(spark: SparkSession) -> None:
    """A message seems to be lost, but the ledger of the secondary is incomplete."""
    model = PairModel()
    model.divert("orders", "before")
    model.syphon(model.divert("orders", "lost"), copies=0)
    model.drain()
    model.receive_all()
    model.secondary.undo(lambda life: life.message_id == "before")
    reported = reconciled(spark, model)
    assert [one.message_id for one in reported.missing] == ["lost"]
    assert reported.verdict is ReconcileVerdict.UNKNOWN


@pytest.mark.parametrize(("is_stopped", "verdict"), [(True, ReconcileVerdict.FINE), (False, ReconcileVerdict.UNKNOWN)])
def test_d4_primary_that_ends_before_a_diversion_gives_no_verdict(
    spark: SparkSession, is_stopped: bool, verdict: ReconcileVerdict
) -> None:
    model = PairModel()
    model.send("orders", "before")
    model.receive_all()
    if is_stopped:
        model.primary.stop()
    model.clock.tick(HOUR_MS)
    model.divert("orders", "during the outage")
    found = reconciled(spark, model)
    assert found.verdict is verdict
    assert any("ends before the last message was diverted" in note for note in found.notes) is not is_stopped


@pytest.mark.parametrize("side", ["contoso", "fabrikam"])
def test_d4_sends_after_the_last_event_give_no_verdict(spark: SparkSession, tmp_path: Path, side: str) -> None:
    """A file of events was deleted, the file of operations was not."""
    model = PairModel()
    model.send("orders", "m")
    model.receive_all()
    for book in (model.primary, model.secondary):
        book.write(tmp_path / book.namespace)
    pair = Reconcilable(
        primary=[str(tmp_path / "contoso")], secondary=[str(tmp_path / "fabrikam")], start=None, end=None, name=None
    )
    for kind, stage, hour in (("send", "direct", 0), ("send", "ping", 2), ("peek", "direct", 2)):
        for namespace in ("contoso", "fabrikam"):
            write(tmp_path / namespace, [operation(at_hour(hour), kind=kind, stage=stage, namespace=namespace)])
    assert pair.report("local[2]", 0).verdict is ReconcileVerdict.FINE
    write(tmp_path / side, [operation(at_hour(1), namespace=side)])
    found = pair.report("local[2]", 0)
    assert found.verdict is ReconcileVerdict.UNKNOWN
    assert any(
        "has sends or receives until 2026-03-01 13:00:00 UTC, but its last message event is of" in note
        for note in found.notes
    )


def at_hour(hour: int) -> str:
    return f"{BEGIN + hour * HOUR:%Y-%m-%dT%H:%M}"


# Ledgers of which one ends before the other.


def one_goes_on(side: str) -> PairModel:
    """Record messages in one ledger for an hour after the last event of the other."""
    model = PairModel()
    model.send("orders", "early")
    model.divert("orders", "diverted early")
    model.drain()
    model.receive_all()
    model.clock.tick(HOUR_MS)
    if side == "primary":
        model.send("orders", "late")
        model.receive_all()
    else:
        model.secondary.note(LedgerEvent.REPEATED, Stage.BACKLOG, BACKLOG, 0, 0, "late")
    return model


@pytest.mark.parametrize("going_on", SIDES)
@pytest.mark.parametrize(
    ("last_event", "verdict"),
    [
        (None, ReconcileVerdict.UNKNOWN),
        (LedgerEvent.ALIVE, ReconcileVerdict.FINE),
        (LedgerEvent.STOPPED, ReconcileVerdict.FINE),
    ],
)
def test_d4_ledger_that_ends_before_the_other_gives_no_verdict(
    spark: SparkSession, going_on: str, last_event: LedgerEvent | None, verdict: ReconcileVerdict
) -> None:
    """Its last files were removed, unless it records that it was idle, or was stopped."""
    model = one_goes_on(going_on)
    other = book_of(model, next(side for side in SIDES if side != going_on))
    if last_event is not None:
        other.note(last_event, Stage.DIRECT, "", 0)
    found = reconciled(spark, model)
    assert found.verdict is verdict
    assert any("and the other one continues until" in note for note in found.notes) is (last_event is None)


def pair_below(directory: Path, start: datetime | None = None, end: datetime | None = None) -> Reconcilable:
    """Return the ledgers in a directory, to be reconciled from the state of an earlier time if there is a range."""
    return Reconcilable(
        primary=[str(directory / "primary")],
        secondary=[str(directory / "secondary")],
        start=start,
        end=end,
        name=None,
        outputs=Outputs(state=None if start is None else str(directory / "state")),
    )


def test_d4_operations_show_that_a_ledger_without_events_was_idle(spark: SparkSession, tmp_path: Path) -> None:
    """Versions before have recorded no event while nothing happened."""
    model = one_goes_on("primary")
    for side in SIDES:
        book_of(model, side).write(tmp_path / side)
    pair = pair_below(tmp_path)
    write(tmp_path / "primary", [operation(at_hour(0)), operation(at_hour(1))])
    assert pair.report("local[2]", 0).verdict is ReconcileVerdict.UNKNOWN
    write(tmp_path / "secondary", [operation(at_hour(1), kind="connection", namespace="fabrikam")])
    assert pair.report("local[2]", 0).verdict is ReconcileVerdict.FINE


@pytest.fixture(scope="module")
def running(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return ledgers of running namespaces with both tables, and the state at the end of their first hour."""
    directory = tmp_path_factory.mktemp("running")
    for side in SIDES:
        book = book_of(RUNNING, side)
        book.write(directory / side)
        write(directory / side, [operation(at_hour(hour), namespace=book.namespace) for hour in range(HOURS)])
    assert pair_below(directory, BEGIN, BEGIN + 2 * HOUR).report("local[2]", 0).verdict is ReconcileVerdict.FINE
    return directory


def without_both_tables(running: Path, to: Path, side: str, hour: int) -> Path:
    shutil.copytree(running, to)
    for table in (LIVES, OPERATIONS):
        shutil.rmtree(to / side / table / f"day={BEGIN:%Y-%m-%d}" / f"hour={BEGIN.hour + hour}")
    return to


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("hour", [1, HOURS - 1])
def test_d4_removed_hour_of_both_tables_gives_no_verdict(
    spark: SparkSession, running: Path, tmp_path: Path, side: str, hour: int
) -> None:
    cut = without_both_tables(running, tmp_path / "cut", side, hour)
    assert pair_below(cut).report("local[2]", 0).verdict is ReconcileVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("side", "hour", "verdict"),
    [
        ("secondary", 0, ReconcileVerdict.FINE),  # the state has what is needed of it
        ("secondary", 1, ReconcileVerdict.UNKNOWN),
        ("secondary", HOURS - 1, ReconcileVerdict.UNKNOWN),
        ("primary", HOURS - 1, ReconcileVerdict.UNKNOWN),
    ],
)
def test_d4_removed_hour_gives_no_verdict_with_a_state(
    spark: SparkSession, running: Path, tmp_path: Path, side: str, hour: int, verdict: ReconcileVerdict
) -> None:
    cut = without_both_tables(running, tmp_path / "cut", side, hour)
    found = pair_below(cut, BEGIN + 2 * HOUR, BEGIN + 3 * HOUR).report("local[2]", 0)
    assert found.verdict is verdict


@pytest.mark.parametrize("place", [0, -1])
def test_d4_removed_row_gives_no_verdict_with_a_state(
    spark: SparkSession, running: Path, tmp_path: Path, place: int
) -> None:
    """The first row after the state, and the last one of a message."""
    cut = shutil.copytree(running, tmp_path / "cut")
    book = book_of(RUNNING, "secondary")
    since_ms = round((BEGIN + HOUR).timestamp() * 1_000)
    later = [life for life in book.lives if life.at_ms >= since_ms]
    removed = later[0] if place == 0 else [life for life in later if life.message_id][-1]
    shutil.rmtree(cut / "secondary" / LIVES)
    write_events(cut / "secondary", book.namespace, (life for life in book.lives if life is not removed))
    found = pair_below(cut, BEGIN + 2 * HOUR, BEGIN + 3 * HOUR).report("local[2]", 0)
    assert found.verdict is ReconcileVerdict.UNKNOWN
