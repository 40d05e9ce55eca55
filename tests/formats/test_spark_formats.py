"""Jobs on Spark continue from the checkpoints of earlier versions: nothing is lost, and nothing is delivered twice."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pairbus import EntityStatus
from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.cli.main import app
from pairbus.jobs.capture.command import DONE, CaptureCommand
from pairbus.jobs.capture.config import CaptureConfig
from pairbus.jobs.ledger.tables import read_lives, read_operations
from pairbus.jobs.lines import LineReporter
from pairbus.jobs.reconcile import reconcile
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.ledger import LIVES, OPERATIONS
from pairbus.spark.connections import ConnectionReference
from pairbus.testing import RunningNamespace, running_namespace
from tests.formats.capture_fixture import BOOK, FILES
from tests.formats.entity_status import set_status
from tests.formats.fixture import Fixture
from tests.formats.namespace_content import expect, message_values, peek_all
from tests.formats.pair_fixture import CHECKPOINT, LEDGERS, context
from tests.formats.streams_fixture import CHECKPOINTS, Rows, start
from tests.formats.test_formats import of_each
from tests.jobs.capture.entities import depth, send, sent
from tests.jobs.capture.messages import ids
from tests.jobs.sent_messages import Strings
from tests.server.ledger_rows import rows_of

LIMIT_S: Final = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture(scope="module")
def spark(ledger_session: SparkSession) -> SparkSession:
    return ledger_session


def connection_file(namespace: RunningNamespace, directory: Path) -> Path:
    """Write the connection string into a file, where every process of Spark finds it."""
    path = directory / f"{namespace.name}.connection"
    path.write_text(namespace.connection_string, encoding="utf-8")
    return path


# Streams.


@of_each("streams")
def test_d1_streams_go_on_from_their_checkpoints(fixture: Fixture, spark: SparkSession, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    name, streams = fixture.manifest["name"], fixture.manifest["streams"]
    with running_namespace(name, data=tmp_path / name) as namespace:
        connection = connection_file(namespace, tmp_path)
        assert run(spark, connection, streams, tmp_path) == {name: one["left"] for name, one in streams.items()}
        with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
            consumed = [one["entities"].split(",") for one in streams.values() if one["mode"] == "consume"]
            assert not [path for paths in consumed for path in paths if depth(factory, path)]
            expected = {name: [send_one(factory, one["entities"])] for name, one in streams.items()}
        assert run(spark, connection, streams, tmp_path) == expected, "the second start"


def run(spark: SparkSession, connection: Path, streams: dict[str, Any], directory: Path) -> dict[str, Rows]:
    """Run all streams until they have read what is there, and return what that was."""
    read: dict[str, Rows] = {name: [] for name in streams}
    queries = [
        start(
            spark,
            connection,
            {"mode": stream["mode"], "entities": stream["entities"]},
            directory / CHECKPOINTS / name,
            lambda _, rows, name=name: read[name].extend(rows),  # type: ignore[misc]
            once=True,
        )
        for name, stream in streams.items()
    ]
    for query in queries:
        assert query.awaitTermination(LIMIT_S)
    return {name: sorted(rows) for name, rows in read.items()}


def send_one(factory: MessagingFactory, entities: str) -> list[str]:
    """Send a message to the first of some entities, and return the row that it must become."""
    path = entities.split(",", maxsplit=1)[0]
    with factory.create_message_sender(path) as sender:
        sender.send(BrokeredMessage("body of one more", message_id="one-more"))
    return [path, "one-more", "body of one more"]


# A capture.


@of_each("capture")
def test_d5_capture_goes_on_with_its_unfinished_windows(fixture: Fixture, spark: SparkSession, tmp_path: Path) -> None:
    fixture.unpack(tmp_path)
    name, entities, captured = (fixture.manifest[key] for key in ("name", "entities", "captured"))
    with (
        running_namespace(name, data=tmp_path / name) as namespace,
        MessagingFactory.from_connection_string(namespace.connection_string) as factory,
    ):
        move(tmp_path / BOOK, fixture.manifest["source"], f"localhost:{namespace.port}")
        connection = connection_file(namespace, tmp_path)
        capture(connection, entities, tmp_path / FILES)
        assert ids(tmp_path / FILES) == captured
        assert [depth(factory, path) for path in entities] == [0] * len(entities)
        send(factory, entities[0], range(1_000, 1_005))
        capture(connection, entities, tmp_path / FILES)
        assert ids(tmp_path / FILES) == sorted([*captured, *sent(entities[0], range(1_000, 1_005))])


def move(book: Path, before: str, after: str) -> None:
    """Give the namespace its new address: each server of a test has a port of its own."""
    text = book.read_text("utf-8")
    assert text.count(f'"{before}"') == 1
    book.write_text(text.replace(f'"{before}"', f'"{after}"'), encoding="utf-8")


def capture(connection: Path, entities: list[str], to: Path) -> None:
    source = ConnectionReference.parse(f"file:{connection}")
    order = CaptureConfig(source=source, entities=tuple(entities), to=to, master="local[2]", once=True)
    reported = io.StringIO()
    ending = CaptureCommand(order, LineReporter(as_json=True, file=reported)).run(Event())
    assert ending.code == DONE, reported.getvalue()


# A pair.


@of_each("pair")
def test_d2_syphon_goes_on_from_its_checkpoint_and_the_ledgers_prove_it(
    fixture: Fixture, spark: SparkSession, tmp_path: Path
) -> None:
    fixture.unpack(tmp_path)
    manifest, ledgers = fixture.manifest, [tmp_path / name for name in LEDGERS]
    expect_readable(spark, ledgers)
    names = manifest["primary"], manifest["secondary"]
    for turn in ("the first start", "the second start"):
        with (
            running_namespace(names[0], data=tmp_path / names[0], ledger=ledgers[0], ledger_lives=True) as primary,
            running_namespace(names[1], data=tmp_path / names[1], ledger=ledgers[1], ledger_lives=True) as secondary,
        ):
            asyncio.run(set_status(primary.connection_string, manifest["down"], EntityStatus.ACTIVE))
            asyncio.run(syphon(spark, primary, secondary, manifest, tmp_path))
        assert not [path for ledger in ledgers for path in (ledger / "open").iterdir()], turn
    count = sum(map(len, manifest["home"].values()))
    expect_proof(spark, ledgers, count)
    reported = invoke("cost", "--ledger", ledgers[0], "--ledger", ledgers[1], "--rates", "standard", "--format", "json")
    assert reported.exit_code == 0, reported.output
    assert json.loads(reported.stdout)["diverted_messages"] == count


def expect_readable(spark: SparkSession, ledgers: list[Path]) -> None:
    """The tables are read as they were left, with journals that are still open."""
    assert [path for ledger in ledgers for path in (ledger / "open").iterdir()]
    for table, read in ((LIVES, read_lives), (OPERATIONS, read_operations)):
        assert read(spark, ledgers).count() == sum(len(rows_of(ledger, table)) for ledger in ledgers)


def expect_proof(spark: SparkSession, ledgers: list[Path], count: int) -> None:
    """The ledgers, which two versions have written now, prove that each diverted message is home, once."""
    primary, secondary = (read_lives(spark, ledger) for ledger in ledgers)
    found = reconcile(primary, secondary)
    try:
        totals = found.totals.groupBy().sum("diverted", "syphoned", "missing", "duplicated").collect()
    finally:
        found.release()
    assert [tuple(row) for row in totals] == [(count, count, 0, 0)]


async def syphon(
    spark: SparkSession,
    primary: RunningNamespace,
    secondary: RunningNamespace,
    manifest: Mapping[str, Any],
    directory: Path,
) -> None:
    """Bring home what there is, and check that each message is there once, as it was sent."""
    settings = SparkSyphonSettings(
        session=spark,
        checkpoint=directory / CHECKPOINT,
        primary=f"file:{connection_file(primary, directory)}",
        secondary=f"file:{connection_file(secondary, directory)}",
    )
    strings = Strings(primary=primary.connection_string, secondary=secondary.connection_string)
    async with strings.factories() as (home, away):
        running = SparkSyphon(context(home, away, tuple(manifest["backlog"])), settings)
        try:
            await running.drain()
        finally:
            await running.close()
        for path, messages in manifest["home"].items():
            expect(messages, [message_values(message, path) for message in await peek_all(home, path)], path)
        for path in manifest["backlog"]:
            assert await peek_all(away, path) == []


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])
