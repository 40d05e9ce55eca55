"""Commands that name a file system or a format that the Spark session lacks: an error before the work (E4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.cli.main import app
from pairbus.jobs.lines import FAILED, USAGE
from pairbus.testing import running_namespace
from tests.cli.test_drill import make_backlog
from tests.cli.test_pair import Namespaces
from tests.jobs.ledger.written import life, operation, write, write_events

MISSING: Final = "s3a://bucket/place"
SAID: Final = r"no file system for s3a: add it with --packages org\.apache\.hadoop:hadoop-aws:[\d.]+, .* --conf"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso", queues=["orders"]) as primary, running_namespace("fabrikam") as secondary:
        found = Namespaces(primary, secondary)
        make_backlog(found, "contoso", 1)
        with (
            MessagingFactory.from_connection_string(primary.connection_string) as factory,
            factory.create_message_sender("orders") as sender,
        ):
            sender.send(BrokeredMessage("one"))
        yield found


@pytest.fixture
def places(namespaces: Namespaces, tmp_path: Path) -> dict[str, str]:
    """Return what the arguments of commands name: ledgers, directories, files with connection strings."""
    for side, namespace in (("contoso", namespaces.primary), ("fabrikam", namespaces.secondary)):
        write(tmp_path / side, [operation("2026-03-31T12:00", namespace=side)])
        write_events(tmp_path / side, [life("2026-03-31T12:00", namespace=side)])
        (tmp_path / f"{side}.txt").write_text(namespace.connection_string)
    found = {name: str(tmp_path / name) for name in ("contoso", "fabrikam", "files")}
    return {**found, "first": f"@{tmp_path}/contoso.txt", "second": f"@{tmp_path}/fabrikam.txt", "url": MISSING}


RECONCILE: Final = "reconcile --primary {contoso} --secondary {fabrikam}"
CAPTURE: Final = "capture --source {first} --entity orders --once"


def invoked(spark: SparkSession, command: str, places: dict[str, str]) -> tuple[int, str]:
    """Run a command in this process, whose Spark session it uses."""
    assert spark.version
    done = CliRunner().invoke(app, [word.format(**places) for word in command.split()])
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("reconcile --primary {url} --secondary {fabrikam}", USAGE),
        ("reconcile --primary {contoso} --secondary {url}", USAGE),
        (f"{RECONCILE} --tables {{url}}", USAGE),
        (f"{RECONCILE} --from 2026-03-31 --state {{url}}", USAGE),
        ("cost --ledger {url}", FAILED),
        ("cost --ledger {contoso} --ledger {url}", FAILED),
        (f"{CAPTURE} --to {{url}}", FAILED),
        (f"{CAPTURE} --to {{files}} --checkpoint {{url}}", FAILED),
        ("syphon --primary {first} --secondary {second} --name contoso --checkpoint {url}", FAILED),
    ],
)
def test_e4_missing_file_system_is_named(
    ledger_session: SparkSession, places: dict[str, str], command: str, code: int
) -> None:
    found, said = invoked(ledger_session, command, places)
    assert found == code, said
    assert re.search(SAID, said), said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("abfss://a@b.dfs.core.windows.net/x", r"no file system for abfss: .*hadoop:hadoop-azure:[\d.]+,"),
        ("floppy://a/x", r"no file system for floppy: add it with --packages a package with it"),
    ],
)
def test_e4_package_of_a_missing_file_system_is_named(
    ledger_session: SparkSession, places: dict[str, str], url: str, reason: str
) -> None:
    found, said = invoked(ledger_session, f"{CAPTURE} --to {{url}}", {**places, "url": url})
    assert found == FAILED
    assert re.search(reason, said), said


@pytest.mark.parametrize(
    ("format_", "reason"),
    [
        ("delta", r"no format 'delta': use parquet, or add it with --packages io\.delta:delta-spark_2\.13:VERSION,"),
        ("avro", r"no format 'avro': .* --packages org\.apache\.spark:spark-avro_2\.13:4[\d.]+,"),
        ("parket", r"no format 'parket': .* a package with it"),
        ("iceberg", r"tables in the format iceberg belong to a catalog"),
    ],
)
def test_e4_missing_format_is_named(
    ledger_session: SparkSession, places: dict[str, str], format_: str, reason: str
) -> None:
    command = f"{RECONCILE} --tables {{files}} --table-format {format_}"
    found, said = invoked(ledger_session, command, places)
    assert found == USAGE, said
    assert re.search(reason, said), said
    assert not Path(places["files"]).exists()


def test_d4_tables_are_written_in_another_format_of_the_session(
    ledger_session: SparkSession, places: dict[str, str]
) -> None:
    invoked(ledger_session, f"{RECONCILE} --tables {{files}} --table-format ORC", places)
    assert ledger_session.read.orc(f"{places['files']}/totals").count() == 1
