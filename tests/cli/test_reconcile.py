"""`pairbus reconcile` as an operator runs it: ledger directories, a report, an exit code (D4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pairbus.cli.main import app
from tests.docs.snippets import ROOT
from tests.docs.tables import codes, rows_of
from tests.jobs.reconcile.model import PairModel
from tests.jobs.reconcile.scenes import gap

LIMIT_S = 900
PAGE = ROOT / "docs" / "how-to" / "prove-that-nothing-was-lost.md"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reconcile", *map(str, arguments)])


@pytest.fixture(scope="module")
def spark(ledger_session: SparkSession) -> SparkSession:
    """A running session, so that the command need not start one; configured like the one of the command."""
    return ledger_session


def outage(*, lost: bool = False) -> PairModel:
    model = PairModel()
    for number in range(5):
        model.send("orders", f"direct-{number}")
    for number in range(5):
        model.divert("orders", f"diverted-{number}", "s")
    for message in list(model.backlog.waiting):
        model.syphon(message, copies=0 if lost and message.message_id == "diverted-3" else 1)
    model.receive_all()
    return model


def ledgers(directory: Path, model: PairModel) -> tuple[str, str, str, str]:
    primary, secondary = model.primary.write(directory / "contoso"), model.secondary.write(directory / "fabrikam")
    return "--primary", str(primary), "--secondary", str(secondary)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_missing_messages_are_listed_and_exit_with_1(spark: SparkSession, tmp_path: Path) -> None:
    done = invoke(*ledgers(tmp_path, outage(lost=True)), "--format", "json")
    assert done.exit_code == 1, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["verdict"] == "missing"
    (lost,) = document["missing"]
    assert (lost["entity"], lost["message_id"], lost["session_id"]) == ("orders", "diverted-3", "s")
    assert lost["accepted_at"].startswith("2026-03-01T12:00:00.")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_clean_pair_writes_a_page_and_exits_with_0(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = invoke(*ledgers(tmp_path, outage()), "--format", "html", "--out", out, "--from", "2026-03-01", "--list", 0)
    assert done.exit_code == 0, done.stderr
    assert "nothing is missing" in done.stdout
    assert "<h1>Nothing is missing</h1>" in out.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_gap_in_a_ledger_exits_with_3(spark: SparkSession, tmp_path: Path) -> None:
    model = outage()
    gap(model, 3)
    done = invoke(*ledgers(tmp_path, model))
    assert done.exit_code == 3, done.stderr
    assert "cannot determine whether messages are missing" in done.stdout
    assert "3 events could not be recorded" in done.stdout
    assert "\ndiverted from 2026-03-01 12:00:00." in done.stdout


def test_d4_same_ledger_on_both_sides_is_rejected_before_spark_starts(tmp_path: Path) -> None:
    _, primary, _, _ = ledgers(tmp_path, outage())
    done = invoke("--primary", primary, "--secondary", f"{primary}/../contoso", "--master", "nowhere")
    assert done.exit_code == 2
    assert "is given as --primary and as --secondary" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_swapped_ledgers_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    _, primary, _, secondary = ledgers(tmp_path, outage(lost=True))
    done = invoke("--primary", secondary, "--secondary", primary)
    assert done.exit_code == 3, done.stderr
    assert "cannot determine whether messages are missing" in done.stdout
    assert "note: --primary and --secondary seem to be swapped" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_missing_or_damaged_ledger_exits_with_2(spark: SparkSession, tmp_path: Path) -> None:
    good = ledgers(tmp_path, outage())
    done = invoke("--primary", tmp_path / "nothing", *good[2:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith(" does not exist")
    (file,) = (tmp_path / "contoso").rglob("*.parquet")
    whole = file.read_bytes()
    for content, word in ((whole[: len(whole) // 2], "damaged"), (other_columns(tmp_path), "column")):
        file.write_bytes(content)
        done = invoke(*good)
        assert done.exit_code == 2
        assert word in done.stderr
        assert str(file) in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_damage_found_by_spark_prints_one_line(spark: SparkSession, tmp_path: Path) -> None:
    good = ledgers(tmp_path, outage())
    (file,) = (tmp_path / "contoso").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(400) + whole[404:])
    done = invoke(*good)
    assert (done.exit_code, done.stdout) == (3, ""), done.exception
    assert done.stderr.splitlines()[-1].startswith("pairbus: the Spark job failed: [FAILED_READ_FILE")
    assert file.name in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_d4_message_delivered_while_ledgers_are_read_is_not_missing(spark: SparkSession, tmp_path: Path) -> None:
    both = ledgers(tmp_path, outage())
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"PAR1")
    done = invoke(*both)
    assert f"{tmp_path / 'fabrikam'}/" in done.stderr.splitlines()[-1]
    assert "contoso" not in done.stderr.splitlines()[-1]


def other_columns(directory: Path) -> bytes:
    file = directory / "other.parquet"
    pq.write_table(pa.table({"at": [1]}), file)
    return file.read_bytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--from", "yesterday"), "--from must be a time in UTC such as"),
        (("--to", "12:00"), "--to must be a time in UTC"),
        (("--from", "2026-03-02", "--to", "2026-03-01"), "--to must be after --from"),
        (("--out", "/nonexistent/x.json"), "--out: the directory /nonexistent does not exist"),
        (("--out", "/tmp"), "--out: /tmp is a directory"),  # noqa: S108 (nothing is written)
        ((), "does not exist"),
    ],
)
def test_invalid_options_are_rejected_before_spark_starts(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    """The master is unreachable, so starting Spark would report that instead."""
    paths = ("--primary", tmp_path / "a", "--secondary", tmp_path / "b")
    result = invoke(*paths, "--master", "no such master", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


@pytest.mark.parametrize("missing", ["--primary", "--secondary"])
def test_both_ledgers_are_required(missing: str) -> None:
    given = {"--primary": "a", "--secondary": "b"}
    del given[missing]
    assert invoke(*(part for pair in given.items() for part in pair)).exit_code == 2


def test_page_lists_every_option() -> None:
    reported = [option for row in rows_of(PAGE, "option", "description") for option in codes(row[0])]
    command = typer.main.get_command(app).commands["reconcile"]  # type: ignore[attr-defined]
    assert reported == [parameter.opts[0] for parameter in command.params]
