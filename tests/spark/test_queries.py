"""Queries as users write them: read from a subscription, stored as a table, written to queues (D1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pairbus.blocking import BrokeredMessage, MessagingFactory, ReceivedMessage
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.session import ensured_session
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue, make_topic
from tests.jobs.processes import kill_session, members

WAIT_S: Final = 240
VARIABLE: Final = "PAIRBUS_TEST_QUERIES"
ROOT: Final = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def connection(namespace: RunningNamespace) -> Iterator[str]:
    """Set the connection string in the environment, before Spark is started."""
    os.environ[VARIABLE] = namespace.connection_string
    yield f"env:{VARIABLE}"
    del os.environ[VARIABLE]


@pytest.fixture(scope="module")
def spark(connection: str) -> Iterator[SparkSession]:
    with ensured_session("local[2]") as session:
        session.dataSource.register(PairbusDataSource)
        yield session


@pytest.fixture(scope="module")
def factory(namespace: RunningNamespace) -> Iterator[MessagingFactory]:
    with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
        yield factory


def send(factory: MessagingFactory, path: str, numbers: range, **properties: Any) -> None:
    with factory.create_message_sender(path) as sender:
        sender.send(
            [
                BrokeredMessage(
                    f"{number}", message_id=f"id-{number}", application_properties={"n": number}, **properties
                )
                for number in numbers
            ]
        )


def look(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    with factory.create_message_receiver(path) as receiver:
        while page := receiver.peek(500, found[-1].sequence_number + 1 if found else 0):
            found += page
    return found


def bodies(factory: MessagingFactory, path: str) -> list[str]:
    return [message.text() for message in look(factory, path)]


def stream(spark: SparkSession, connection: str, entities: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("pairbus").option("connection", connection).option("longPoll", "1s")
    return reader.options(**options).load(entities)


def into(table: Path, rows: DataFrame) -> DataStreamWriter:
    return (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", f"{table}-checkpoint")
        .option("path", str(table))
    )


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(WAIT_S)


def numbers_of(spark: SparkSession, table: Path) -> list[int]:
    rows = spark.read.parquet(str(table)).selectExpr("cast(cast(body as string) as int) as n").collect()
    return sorted(row["n"] for row in rows)


def secrets_below(directory: Path, secret: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_d1_queue_is_moved_to_a_table(
    namespace: RunningNamespace, connection: str, spark: SparkSession, factory: MessagingFactory, tmp_path: Path
) -> None:
    queue, table = make_queue(namespace), tmp_path / "table"
    send(factory, queue, range(50))
    finish(into(table, stream(spark, connection, queue)).trigger(availableNow=True).start())
    assert numbers_of(spark, table) == [*range(50)]
    assert look(factory, queue) == []


@pytest.mark.slow
def test_d1_restarted_query_stores_each_message_once(
    namespace: RunningNamespace,
    connection: str,
    spark: SparkSession,
    factory: MessagingFactory,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic(namespace, "audit", lock_duration_ms=5_000)
    subscription, table = f"{topic}/Subscriptions/audit", tmp_path / "table"
    send(factory, topic, range(500), label="order")
    rows = stream(spark, connection, subscription, maxMessagesPerTrigger=200)
    finish(into(table, rows).trigger(availableNow=True).start())
    assert numbers_of(spark, table) == [*range(500)]
    assert look(factory, subscription) == [], "those of the last batch are removed as well"

    query = into(table, rows).start()  # the same checkpoint, without an end
    try:
        send(factory, topic, range(500, 700))
        while numbers_of(spark, table) != [*range(700)]:
            assert not query.awaitTermination(1), query.exception()
    finally:
        query.stop()
    send(factory, topic, range(700, 750))
    ends_s = time.monotonic() + WAIT_S
    while numbers_of(spark, table) != [*range(750)]:  # messages of the stopped query are locked for a while
        assert time.monotonic() < ends_s
        finish(into(table, rows).trigger(availableNow=True).start())
    assert look(factory, subscription) == []

    kept = spark.read.parquet(str(table)).where("message_id = 'id-7'").collect()[0]
    assert (kept["entity"], kept["label"], kept["application_properties"]) == (subscription, "order", {"n": "7"})
    rows.explain(True)
    spark.read.format("pairbus").option("connection", connection).load(subscription).explain(True)
    said = capfd.readouterr()
    assert "Physical Plan" in said.out
    assert namespace.key not in said.out + said.err
    assert secrets_below(tmp_path, namespace.key) == []


def send_to_all_partitions(factory: MessagingFactory, path: str, numbers: range) -> None:
    """The last of them gets the largest sequence number."""
    for number in numbers:
        send(factory, path, range(number, number + 1), partition_key=f"key {number % 8}")
    highest = look(factory, path)[-1].partition_key
    send(factory, path, range(numbers.stop, numbers.stop + 1), partition_key=highest)


def write_single_number(checkpoint: Path, entity: str, number: int) -> None:
    """Rewrite the last offset of a checkpoint as earlier versions wrote it."""
    last = max(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()), key=lambda at: int(at.name)
    )
    *head, offset = last.read_text().splitlines()
    assert json.loads(offset)["version"] == 2
    last.write_text("\n".join([*head, json.dumps({"version": 1, "seen": {entity: number}})]))
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_d1_partitioned_queue_is_browsed_from_an_earlier_checkpoint_without_loss(
    namespace: RunningNamespace, connection: str, spark: SparkSession, factory: MessagingFactory, tmp_path: Path
) -> None:
    queue, table = make_queue(namespace, partitioned=True), tmp_path / "table"
    rounds = (range(24), range(25, 49), range(50, 74))
    for sent in rounds:
        send_to_all_partitions(factory, queue, sent)
        finish(into(table, stream(spark, connection, queue, mode="browse")).trigger(availableNow=True).start())
        assert numbers_of(spark, table) == [*range(sent.stop + 1)]
        if sent is rounds[1]:
            write_single_number(Path(f"{table}-checkpoint"), queue, look(factory, queue)[-1].sequence_number)


@pytest.mark.slow
def test_d1_table_is_read_and_written_to_entities(
    namespace: RunningNamespace, connection: str, spark: SparkSession, factory: MessagingFactory, tmp_path: Path
) -> None:
    source, copy, *others = (make_queue(namespace) for _ in range(4))
    send(factory, source, range(300), correlation_id="c")
    reader = spark.read.format("pairbus").option("connection", connection).option("partitionsPerQueue", "3")
    rows = reader.load(source)
    assert rows.count() == 300
    assert sorted(int(row["body"]) for row in rows.select("body").collect()) == [*range(300)]
    assert len(look(factory, source)) == 300

    rows.drop("entity").write.format("pairbus").mode("append").option("connection", connection).save(copy)
    assert sorted(bodies(factory, copy), key=int) == [f"{number}" for number in range(300)]
    assert {message.correlation_id for message in look(factory, copy)} == {"c"}

    halves = rows.selectExpr(
        f"if(cast(cast(body as string) as int) % 2 = 0, '{others[0]}', '{others[1]}') as entity", "body", "message_id"
    )
    halves.write.format("pairbus").mode("append").option("connection", connection).save()
    for parity, path in enumerate(others):
        assert sorted(bodies(factory, path), key=int) == [f"{number}" for number in range(parity, 300, 2)]

    # From queue to queue: messages that were read are removed.
    streamed, checkpoint = make_queue(namespace), tmp_path / "checkpoint"
    moved = stream(spark, connection, f"{others[0]},{others[1]}", maxMessagesPerTrigger=100).drop("entity")
    query = (
        moved.writeStream.format("pairbus")
        .option("connection", connection)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(streamed)
    )
    finish(query)
    assert sum(progress.sink.numOutputRows for progress in query.recentProgress) == 300
    assert sorted(bodies(factory, streamed), key=int) == [f"{number}" for number in range(300)]
    assert look(factory, others[0]) == look(factory, others[1]) == []
    assert secrets_below(checkpoint, namespace.key) == []


_KILLED: Final = """
import sys
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.session import spark_session

entity, table = sys.argv[1:]
spark = spark_session("local[2]")
spark.dataSource.register(PairbusDataSource)
rows = (
    spark.readStream.format("pairbus").option("connection", "env:{variable}").option("maxMessagesPerTrigger", "100")
    .load(entity)
)
query = rows.writeStream.format("parquet").option("path", table).option("checkpointLocation", table + "-checkpoint")
running = query.start()
seen = -1
while not running.awaitTermination(0.05):
    for progress in running.recentProgress:
        if progress.batchId > seen:
            seen = progress.batchId
            print("batch", seen, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_e1_killed_query_stores_each_message_once(
    namespace: RunningNamespace, connection: str, spark: SparkSession, factory: MessagingFactory, tmp_path: Path
) -> None:
    topic = make_topic(namespace, "audit", lock_duration_ms=10_000)
    subscription, table = f"{topic}/Subscriptions/audit", tmp_path / "table"
    program = tmp_path / "program.py"
    program.write_text(_KILLED.format(variable=VARIABLE))
    for turn, batches in enumerate((2, 5)):
        send(factory, topic, range(turn * 1_000, (turn + 1) * 1_000))  # more batches than it may commit
        process = subprocess.Popen(
            [sys.executable, program, subscription, table],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        with process:
            try:
                assert process.stdout is not None
                for _, line in zip(range(batches), process.stdout, strict=False):
                    assert line.startswith("batch ")
            finally:
                kill_session(process.pid)
        assert not members(process.pid)
    finish(into(table, stream(spark, connection, subscription)).trigger(availableNow=True).start())
    assert numbers_of(spark, table) == [*range(2_000)]
    assert look(factory, subscription) == []
    assert secrets_below(tmp_path, namespace.key) == []
