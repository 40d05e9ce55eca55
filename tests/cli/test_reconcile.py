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
from pairbus.jobs.ledger.workload import HANDFUL
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
    """Running, so that the command need not start one each time; where it does, it is the one that users have."""
    with ensured_session("local[2]", config=HANDFUL) as session:
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
    assert "\ndiverted from 2026-03-01 12:00:00." in done.stdout


def test_d4_a_ledger_on_both_sides_is_told_before_spark_is_started(tmp_path: Path) -> None:
    _, primary, _, _ = ledgers(tmp_path, outage())
    done = invoke("--primary", primary, "--secondary", f"{primary}/../contoso", "--master", "nowhere")
    assert done.exit_code == 2
    assert "is named as --primary and as --secondary" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_d4_ledgers_that_are_swapped_prove_nothing(spark: SparkSession, tmp_path: Path) -> None:
    _, primary, _, secondary = ledgers(tmp_path, outage(lost=True))
    done = invoke("--primary", secondary, "--secondary", primary)
    assert done.exit_code == 3, done.stderr
    assert "it cannot be told" in done.stdout
    assert "note: --primary and --secondary seem to be swapped" in done.stdout


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


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_damage_that_only_spark_finds_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    good = ledgers(tmp_path, outage())
    (file,) = (tmp_path / "contoso").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(400) + whole[404:])
    done = invoke(*good)
    assert (done.exit_code, done.stdout) == (3, ""), done.exception
    assert done.stderr.splitlines()[-1].startswith("pairbus: Spark could not do it: [FAILED_READ_FILE")
    assert file.name in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_d4_the_secondary_is_read_first_so_that_what_comes_home_meanwhile_is_not_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
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
        (("--from", "yesterday"), "--from is 'yesterday'; it is a time in UTC such as"),
        (("--to", "12:00"), "--to is '12:00'; it is a time"),
        (("--from", "2026-03-02", "--to", "2026-03-01"), "--to is not after --from"),
        (("--out", "/nonexistent/x.json"), "--out: there is no directory /nonexistent"),
        (("--out", "/tmp"), "--out: /tmp is a directory"),  # noqa: S108 (nothing is written)
        ((), "there is no directory"),
    ],
)
def test_what_cannot_be_is_told_before_spark_is_started(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    """A master that nobody is at: whoever starts Spark hears of that instead."""
    paths = ("--primary", tmp_path / "a", "--secondary", tmp_path / "b")
    result = invoke(*paths, "--master", "no such master", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


@pytest.mark.parametrize("missing", ["--primary", "--secondary"])
def test_both_ledgers_are_needed(missing: str) -> None:
    given = {"--primary": "a", "--secondary": "b"}
    del given[missing]
    assert invoke(*(part for pair in given.items() for part in pair)).exit_code == 2


def test_every_option_is_on_the_page() -> None:
    told = [option for row in rows_of(PAGE, "option", "what it says") for option in codes(row[0])]
    command = typer.main.get_command(app).commands["reconcile"]  # type: ignore[attr-defined]
    assert told == [parameter.opts[0] for parameter in command.params]
