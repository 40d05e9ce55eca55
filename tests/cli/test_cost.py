"""`pairbus cost` as the payer of the bill runs it."""

from __future__ import annotations

import csv
import io
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
import typer.main
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pairbus.cli.failure import FAILED, USAGE
from pairbus.cli.main import app
from tests.cli.test_cli import run
from tests.docs.snippets import ROOT
from tests.jobs.ledger.written import operation, write

PAGE = ROOT / "docs" / "how-to" / "know-what-it-costs.md"
EVIL = "=[red]<b>orders"


@pytest.fixture(scope="module")
def spark(ledger_session: SparkSession) -> SparkSession:
    """A running session, so that the command need not start one each time."""
    return ledger_session


@pytest.fixture
def ledgers(tmp_path: Path) -> tuple[Path, Path]:
    """Ledgers of a pair that diverted a million messages; it sent 12.5 million directly, which are included."""
    first, second = tmp_path / "contoso", tmp_path / "fabrikam"
    million = {"operations": 10**6, "messages": 10**6, "bytes": 10**9, "units": 10**6, "request_units": 10**6}
    away = {"namespace": "fabrikam", "entity": "contoso/x-servicebus-transfer/0", **million}
    sent = {"operations": 12_500_000, "messages": 12_500_000, "units": 12_500_000}
    write(
        first,
        [
            operation("2026-04-01T00:00", entity=EVIL, **sent),
            operation("2026-04-01T11:00", kind="send", stage="syphon", **million),
            operation("2026-04-01T12:00", kind="receive", stage="returned", **million),
        ],
    )
    write(
        second,
        [
            operation("2026-04-01T10:00", kind="send", stage="backlog", **away),
            operation("2026-04-01T11:00", kind="receive", stage="syphon", **away),
            operation("2026-04-01T13:00", kind="empty receive", stage="idle", **(away | {"messages": 0, "bytes": 0})),
        ],
    )
    return first, second


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def both(ledgers: tuple[Path, Path]) -> tuple[object, ...]:
    return ("--ledger", ledgers[0], "--ledger", ledgers[1])


@pytest.mark.slow
def test_d3_bill_is_printed_in_every_format(spark: SparkSession, ledgers: tuple[Path, Path]) -> None:
    # 17.5 million operations, 5 million of them above what is included: 4.00. A gigabyte out: 0.15. The month: 10.
    reported = invoke(*both(ledgers), "--rates", "standard", "--format", "json")
    assert reported.exit_code == 0, reported.output
    document = json.loads(reported.stdout)
    assert Decimal(document["total"]) == Decimal("14.15")
    assert document["diverted_messages"] == 1_000_000
    assert Decimal(document["per_diverted_message"]) == Decimal("0.000001064")  # (4 x 4.00 / 17.5 + 0.15) / 1,000,000
    assert sum(Decimal(line["amount"]) for line in document["lines"]) == Decimal("14.15")

    lines = [*csv.DictReader(io.StringIO(invoke(*both(ledgers), "--by", "entity", "--format", "csv").stdout))]
    assert sum(Decimal(line["amount"]) for line in lines) == Decimal("14.15")
    assert f"'{EVIL}" in {line["entity"] for line in lines}  # escaped, so that a spreadsheet does not evaluate it
    assert {line["currency"] for line in lines} == {"USD"}

    table = invoke(*both(ledgers), "--by", "entity").stdout
    assert EVIL in table
    assert "14.15 USD by Azure Service Bus, Standard tier" in table
    for step in ("send to backlog", "receive from backlog", "send to primary", "receive from primary", "idle polls"):
        assert step in table

    assert {"(base charge)", "contoso/x-servicebus-transfer/0"} < {line["entity"] for line in lines}
    assert all(line["namespace"] for line in lines)

    page = invoke(*both(ledgers), "--by", "entity", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "<b>orders" not in page


@pytest.mark.slow
def test_d3_bill_without_the_secondary_ledger_does_not_claim_that_nothing_was_diverted(
    spark: SparkSession, ledgers: tuple[Path, Path]
) -> None:
    reported = invoke("--ledger", ledgers[0])
    assert "1,000,000 messages were restored from a backlog; the secondary's ledger has the" in reported.stdout
    assert "No message was diverted" not in reported.stdout


@pytest.mark.slow
def test_d3_bill_of_an_outage_beyond_allowances(spark: SparkSession, ledgers: tuple[Path, Path]) -> None:
    # Four charges of a million messages and a million idle polls, at 0.80 a million; a gigabyte out at 0.15.
    time = ("--from", "2026-04-01T10:00", "--to", "2026-04-01T14:00")
    reported = invoke(*both(ledgers), *time, "--beyond-allowances", "--format", "json")
    assert reported.exit_code == 0, reported.output
    document = json.loads(reported.stdout)
    assert Decimal(document["pairing_total"]["amount"]) == Decimal("4.15")
    assert Decimal(document["total"]) == Decimal("4.15")  # nothing else was done, and no base charge is in it
    assert document["rates"]["title"] == "Azure Service Bus, Standard tier, beyond what is included"
    table = invoke(*both(ledgers), *time, "--beyond-allowances").stdout
    assert re.search(r"total .* 4\.15 *$", table, re.MULTILINE)


@pytest.mark.slow
def test_time_range_limits_the_bill(spark: SparkSession, ledgers: tuple[Path, Path]) -> None:
    # From 10:00 to before 12:00: three million operations, at 0.05 a million; a gigabyte out.
    times = ("--from", "2026-04-01T10:00", "--to", "2026-04-01T14:00+02:00")
    reported = invoke(*both(ledgers), "--rates", "basic", *times, "--format", "json", "--by", "hour")
    document = json.loads(reported.stdout)
    assert Decimal(document["total"]) == Decimal("0.30")
    assert [line["hour"] for line in document["lines"]] == ["2026-04-01T10:00Z", "2026-04-01T11:00Z"]


@pytest.mark.slow
def test_missing_or_damaged_ledger_prints_one_line(
    spark: SparkSession, ledgers: tuple[Path, Path], tmp_path: Path
) -> None:
    nothing = invoke("--ledger", tmp_path / "nothing")
    assert nothing.exit_code == FAILED
    assert nothing.stderr.startswith("pairbus: the directory ")
    file = next(ledgers[1].rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    damaged = invoke(*both(ledgers))
    assert damaged.exit_code == FAILED
    assert str(file) in damaged.stderr
    assert "Traceback" not in damaged.output
    assert damaged.stdout == ""


@pytest.mark.slow
def test_damage_found_by_spark_prints_one_line(spark: SparkSession, ledgers: tuple[Path, Path]) -> None:
    file = next(ledgers[1].rglob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(400) + content[404:])
    damaged = invoke(*both(ledgers))
    assert damaged.exit_code == FAILED, damaged.exception
    assert damaged.stderr.startswith("pairbus: Spark could not read the ledgers: ")
    assert file.name in damaged.stderr
    assert damaged.stderr.count("\n") == 1
    assert damaged.stdout == ""


def test_d3_forecast_is_printed_as_table_and_json() -> None:
    options = ("--forecast", "--messages-per-day", 1_000_000, "--outage-hours", 12, "--entities", 5, "--senders", 4)
    table = invoke(*options)
    assert table.exit_code == 0, table.output
    assert "Pairing costs 0.91536 USD a month" in table.stdout
    assert "28,800" in table.stdout
    document = json.loads(invoke(*options, "--format", "json").stdout)
    assert Decimal(document["difference"]) == Decimal("0.91536")
    in_process = json.loads(invoke(*options, "--format", "json", "--engine", "in-process").stdout)
    assert Decimal(in_process["difference"]) == Decimal("0.91536")
    polls = next(line for line in document["operations"] if line["name"] == "idle polls")
    assert polls["operations"] == 28_800


def test_forecast_does_not_start_spark() -> None:
    done = run("cost", "--forecast", "--messages-per-day", 0, "--long-poll", "5m", JAVA_HOME="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "86,400" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a ledger with --ledger, or add --forecast"),
        (("--forecast",), "--forecast requires --messages-per-day"),
        (("--forecast", "--messages-per-day", "1", "--ledger", "x"), "--ledger applies to a bill only"),
        (("--forecast", "--messages-per-day", "1", "--by", "stage"), "--by applies to a bill only"),
        (("--forecast", "--messages-per-day", "1", "--from", "2026-04-02"), "--from applies to a bill only"),
        (("--forecast", "--messages-per-day", "1", "--to", "2026-04-02"), "--to applies to a bill only"),
        (("--forecast", "--messages-per-day", "1", "--master", "local"), "--master applies to a bill only"),
        (("--forecast", "--messages-per-day", "1", "--format", "csv"), "--format must be table, json or html"),
        (("--forecast", "--messages-per-day", "1", "--ping-interval", "soon"), "--ping-interval must be a time"),
        (
            ("--forecast", "--messages-per-day", "1", "--ping-interval", "31m"),
            "must be a time from 1 second to 30 minutes",
        ),
        (("--ledger", "x", "--outage-hours", "2"), "--outage-hours applies to a forecast only: add --forecast"),
        (("--print-card", "--forecast"), "--forecast cannot be combined with --print-card"),
        (("--print-card", "--zone", "asia-pacific"), "--zone cannot be combined with --print-card"),
        (("--print-card", "--rates", "gold"), "unknown rate card 'gold'"),
        (("--forecast", "--messages-per-day", str(10**30)), "messages_per_day must be 0 to"),
        (
            ("--forecast", "--messages-per-day", str(10**12), "--message-bytes", str(10**12), "--outage-hours", "720"),
            "is not plausible",
        ),
        (("--ledger", "x", "--rates", "gold"), "unknown rate card 'gold'"),
        (("--ledger", "x", "--zone", "moon"), "no zone 'moon'"),
        (("--ledger", "x", "--from", "yesterday"), "--from must be a time in UTC such as"),
        (("--ledger", "x", "--from", "2026-04-02", "--to", "2026-04-01"), "--to must be after --from"),
    ],
)
def test_invalid_options_print_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == USAGE
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_invalid_custom_card_names_the_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\n', encoding="utf-8")
    done = invoke("--ledger", "x", "--rates", file)
    assert done.exit_code == USAGE
    assert f"the rate card {file} lacks the key title" in done.stderr


def test_print_card_prints_an_editable_card(tmp_path: Path) -> None:
    printed = invoke("--rates", "basic", "--print-card")
    assert printed.exit_code == 0, printed.output
    file = tmp_path / "mine.toml"
    file.write_text(printed.stdout.replace('currency = "USD"', 'currency = "EUR"'), encoding="utf-8")
    assert " EUR a month" in invoke("--forecast", "--messages-per-day", "1", "--rates", file).stdout
    assert invoke("--rates", file, "--print-card").stdout == file.read_text(encoding="utf-8")


def test_missing_ledger_is_reported_before_spark_starts(tmp_path: Path) -> None:
    for place, said in ((tmp_path / "nowhere", "does not exist"), (tmp_path, "is not a ledger")):
        done = run("cost", "--ledger", place, "--master", "nonsense")  # Spark would report an error
        assert done.returncode == FAILED
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_page_lists_every_option() -> None:
    command = typer.main.get_command(app).commands["cost"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    named = {*re.findall(r"--[a-z-]+", PAGE.read_text(encoding="utf-8"))}
    assert options - {"--help"} <= named
