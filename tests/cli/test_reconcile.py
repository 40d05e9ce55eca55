"""`pairbus reconcile`, as an operator runs it: ledgers in directories, a report, a code (D4)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pairbus.cli.main import app
from pairbus.jobs.reconcile.session import SESSION
from pairbus.spark.session import ensured_session
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS
from tests.docs.snippets import ROOT
from tests.docs.tables import codes, rows_of
from tests.jobs.reconcile.model import PairModel
from tests.jobs.reconcile.scenes import gap

LIMIT_S = 900
PAGE = ROOT / "docs" / "how-to" / "prove-that-nothing-was-lost.md"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reconcile", *map(str, arguments)])


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with a Spark of its own."""
    command = [*PAIRBUS, "reconcile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Running, so that the command need not start one each time."""
    with ensured_session("local[2]", config=SESSION) as session:
        yield session


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
def test_d4_what_is_missing_is_listed_and_told_by_the_code(tmp_path: Path) -> None:
    done = run(*ledgers(tmp_path, outage(lost=True)), "--format", "json")
    assert done.returncode == 1, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["verdict"] == "missing"
    (lost,) = document["missing"]
    assert (lost["entity"], lost["message_id"], lost["session_id"]) == ("orders", "diverted-3", "s")
    assert lost["accepted_at"].startswith("2026-03-01T12:00:00.")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_a_clean_pair_gets_a_page(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = invoke(*ledgers(tmp_path, outage()), "--format", "html", "--out", out, "--from", "2026-03-01", "--list", 0)
    assert done.exit_code == 0, done.stderr
    assert "nothing is missing" in done.stdout
    assert "<h1>Nothing is missing</h1>" in out.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_a_gap_leaves_it_open(spark: SparkSession, tmp_path: Path) -> None:
    model = outage()
    gap(model, 3)
    done = invoke(*ledgers(tmp_path, model))
    assert done.exit_code == 3, done.stderr
    assert "it cannot be told" in done.stdout
    assert "3 events could not be recorded" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_what_is_no_ledger_is_bad_input(spark: SparkSession, tmp_path: Path) -> None:
    good = ledgers(tmp_path, outage())
    done = invoke("--primary", tmp_path / "nothing", *good[2:])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("pairbus: there is no directory")
    (file,) = (tmp_path / "contoso").rglob("*.parquet")
    whole = file.read_bytes()
    for content, word in ((whole[: len(whole) // 2], "damaged"), (other_columns(tmp_path), "column")):
        file.write_bytes(content)
        done = invoke(*good)
        assert done.exit_code == 2
        assert word in done.stderr
        assert str(file) in done.stderr


def other_columns(directory: Path) -> bytes:
    file = directory / "other.parquet"
    pq.write_table(pa.table({"at": [1]}), file)
    return file.read_bytes()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--from", "yesterday"), "--from is no time"),
        (("--to", "12:00"), "--to is no time"),
        (("--from", "2026-03-02", "--to", "2026-03-01"), "--to is not after --from"),
    ],
)
def test_times_that_are_none_are_refused(options: tuple[str, ...], text: str) -> None:
    result = invoke("--primary", "a", "--secondary", "b", *options)
    assert result.exit_code == 2
    assert text in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("missing", ["--primary", "--secondary"])
def test_both_ledgers_are_needed(missing: str) -> None:
    given = {"--primary": "a", "--secondary": "b"}
    del given[missing]
    assert invoke(*(part for pair in given.items() for part in pair)).exit_code == 2


def test_every_option_is_on_the_page() -> None:
    told = [option for row in rows_of(PAGE, "option", "what it says") for option in codes(row[0])]
    command = typer.main.get_command(app).commands["reconcile"]  # type: ignore[attr-defined]
    assert told == [parameter.opts[0] for parameter in command.params]
