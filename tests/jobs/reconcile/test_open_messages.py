"""Reconciliations of one day after another: each reads its day, and what the one before has left open (D4)."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pairbus.jobs.reconcile import ReconcileReport, ReconcileVerdict
from pairbus.jobs.reconcile.command import Outputs, Reconcilable
from pairbus.jobs.reconcile.open_messages import OpenMessagesDirectory
from pairbus.ledger.events import LIVES, LedgerEvent, Stage
from tests.jobs.reconcile.books import BEGIN
from tests.jobs.reconcile.model import BACKLOG, PairModel
from tests.jobs.reconcile.test_reconcile import LIMIT_S

DAY = timedelta(days=1)
DAYS = 3
FIRST = BEGIN.replace(hour=0)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def at(model: PairModel, day: int, hour: int) -> None:
    model.clock.now_ms = round((FIRST + day * DAY + timedelta(hours=hour)).timestamp() * 1_000)


def busy_days() -> PairModel:
    """Record days of which each leaves messages in the backlog; of those of the second day, one is lost."""
    model = PairModel()
    for day in range(DAYS):
        at(model, day, 14)
        if day == 1:
            model.restart()
        for number in range(4):
            model.send("orders", f"direct {day} {number}", "s")
            model.divert("orders", f"diverted {day} {number}", "s")
            model.divert("nameless")
        for message in model.backlog.waiting[:10]:
            model.syphon(message, copies=0 if message.message_id == "diverted 1 0" else 1)
        model.receive_all()
        _delete_a_backlog_queue(model, day)
    return model


def _delete_a_backlog_queue(model: PairModel, day: int) -> None:
    """Delete a backlog queue in which a message was syphoned, and create it again: its numbers start from 1."""
    other, message_id = BACKLOG.replace("/0", "/1"), f"in another queue {day}"
    model.secondary.note(LedgerEvent.ACCEPTED, Stage.BACKLOG, other, 1, None, message_id, None, "orders")
    if day < DAYS - 1:
        model.secondary.note(LedgerEvent.EXPIRED, Stage.BACKLOG, other, 1, None, message_id)
        model.secondary.note(LedgerEvent.REMOVED, Stage.MANAGEMENT, other, 0)


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, model = tmp_path_factory.mktemp("ledgers"), busy_days()
    for book in (model.primary, model.secondary):
        book.write(directory / book.namespace)
    return directory


def report_of(ledgers: Path, day: int, state: Path | None = None) -> ReconcileReport:
    start = FIRST + day * DAY
    return Reconcilable(
        primary=[str(ledgers / "contoso")],
        secondary=[str(ledgers / "fabrikam")],
        start=start,
        end=start + DAY,
        name=None,
        outputs=Outputs(state=None if state is None else str(state)),
    ).report("local[2]", 20)


def day_of(ledgers: Path, namespace: str, day: int) -> Path:
    return ledgers / namespace / LIVES / f"day={FIRST + day * DAY:%Y-%m-%d}"


def test_d4_day_after_day_gives_the_reports_of_whole_ledgers(
    spark: SparkSession, ledgers: Path, tmp_path: Path
) -> None:
    expected = [report_of(ledgers, day) for day in range(DAYS)]
    assert [one.verdict for one in expected] == [
        ReconcileVerdict.FINE,
        ReconcileVerdict.MISSING,
        ReconcileVerdict.FINE,
    ]
    assert expected[2].total.counts["backlog_waiting"] > 0
    remaining = shutil.copytree(ledgers, tmp_path / "ledgers")
    for day in range(DAYS):
        assert report_of(remaining, day, tmp_path / "state") == expected[day]
        for namespace in ("contoso", "fabrikam"):
            # Only the last hour of the day is read again.
            shutil.rmtree(day_of(remaining, namespace, day) / "hour=14", ignore_errors=True)


def test_d4_day_whose_messages_have_ended_is_read_without_later_ones(spark: SparkSession, tmp_path: Path) -> None:
    model = PairModel()
    for day in range(DAYS):
        at(model, day, 14)
        model.send("orders", f"direct {day}")
        model.divert("orders", f"diverted {day}")
        model.drain()
        model.receive_all()
    for book in (model.primary, model.secondary):
        book.write(tmp_path / book.namespace)
    expected = report_of(tmp_path, 0)
    for namespace in ("contoso", "fabrikam"):
        for file in day_of(tmp_path, namespace, 2).rglob("*.parquet"):
            file.write_bytes(b"PAR1")
    found = report_of(tmp_path, 0)
    assert found == expected
    assert found.verdict is ReconcileVerdict.FINE
    assert found.looked_until[0] is not None
    assert found.looked_until[0] < FIRST + DAY


def test_state_that_cannot_be_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """A state that is taken for an empty one would be overwritten."""
    assert OpenMessagesDirectory(spark=spark, place=str(tmp_path / "none")).latest(FIRST) is None
    hour = tmp_path / "until=2026-03-01T00" / "until=2026-03-01T01"
    hour.mkdir(parents=True)
    (hour / "part.parquet").touch()
    with pytest.raises(AnalysisException, match="until"):
        OpenMessagesDirectory(spark=spark, place=str(tmp_path)).latest(FIRST)


def test_d4_tables_are_written_for_other_programs(spark: SparkSession, ledgers: Path, tmp_path: Path) -> None:
    pair = Reconcilable(
        primary=[str(ledgers / "contoso")],
        secondary=[str(ledgers / "fabrikam")],
        start=None,
        end=None,
        name=None,
        outputs=Outputs(tables=str(tmp_path / "tables")),
    )
    found = pair.report("local[2]", 20)
    missing = spark.read.parquet(str(tmp_path / "tables" / "missing")).collect()
    assert [row["message_id"] for row in missing] == [one.message_id for one in found.missing] == ["diverted 1 0"]
    totals = spark.read.parquet(str(tmp_path / "tables" / "totals")).groupBy().sum("diverted").collect()
    assert totals[0][0] == found.total.counts["diverted"]
