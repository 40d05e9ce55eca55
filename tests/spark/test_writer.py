"""Writes to a running namespace, with the writer objects that Spark calls, and with Spark itself (D1)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pairbus.blocking import MessagingFactory
from pairbus.broker import EntityStatus
from pairbus.client.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidMessageError,
    MessageSizeExceededError,
    MessagingError,
)
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.paths import split_entity_path
from pairbus.server.messages import address_of, delivered_payload
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.errors import SchemaError, SparkOptionError
from pairbus.spark.options import SinkOptions
from pairbus.spark.schema import arrow_schema
from pairbus.spark.session import ensured_session
from pairbus.spark.sink import MessageStreamWriter, MessageWriteError, MessageWriter, SentMessages
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue, make_topic
from tests.waiting import eventually

BODY: Final = StructType([StructField("body", StringType())])
ROUTED: Final = StructType([StructField("entity", StringType()), *BODY])
WRITERS: Final = (MessageWriter, MessageStreamWriter)
Writer = MessageWriter | MessageStreamWriter


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


def options(namespace: RunningNamespace, entity: str | None = None, **rest: Any) -> SinkOptions:
    given = {"connection": namespace.connection_string, **rest}
    return SinkOptions.from_options(given if entity is None else {**given, "entity": entity})


def batches(schema: StructType, rows: list[dict[str, Any]], size: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=arrow_schema(schema))


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"body": f"{number}", **more} for number in range(count)]


def look(namespace: RunningNamespace, path: str) -> list[ReceivedMessage]:
    """Return all messages of an entity, in order of arrival."""
    entity = split_entity_path(path)
    assert entity is not None
    address = address_of(entity)

    def page(first: int) -> list[ReceivedMessage]:
        return namespace.call(
            lambda host: [
                ReceivedMessage(delivered_payload(one))
                for one in host.use_namespace().peek(address, first, 1_000, host.now_ms())
            ]
        )

    found: list[ReceivedMessage] = []
    while messages := page(found[-1].sequence_number + 1 if found else 0):
        found += messages
    return found


def bodies(namespace: RunningNamespace, path: str) -> list[str]:
    return [message.text() for message in look(namespace, path)]


def again(writer: Writer) -> Writer:
    """Return the writer as the next attempt of a task gets it."""
    copied: Writer = pickle.loads(pickle.dumps(writer))  # noqa: S301 (ours)
    return copied


# Sent messages.


@pytest.mark.parametrize("kind", WRITERS)
def test_d1_rows_arrive_in_order_and_are_confirmed_before_the_task_ends(
    namespace: RunningNamespace, kind: type[Writer]
) -> None:
    queue = make_queue(namespace)
    writer = kind(options(namespace, queue), BODY)
    assert writer.write(batches(BODY, numbered(2_345))) == SentMessages(counts={queue: 2_345})
    assert bodies(namespace, queue) == [f"{number}" for number in range(2_345)]


def test_d1_rows_are_sent_to_their_entities_in_order(namespace: RunningNamespace) -> None:
    paths = [make_queue(namespace) for _ in range(20)] + [make_topic(namespace, "all")]
    rows = [{"entity": paths[number * 7 % len(paths)], "body": f"{number}"} for number in range(3_000)]
    sent = MessageWriter(options(namespace), ROUTED).write(batches(ROUTED, rows))
    assert sum(sent.counts.values()) == 3_000
    for path in paths:
        place = path if path.startswith("queue") else f"{path}/Subscriptions/all"
        assert bodies(namespace, place) == [row["body"] for row in rows if row["entity"] == path]


def test_task_without_rows_does_not_connect() -> None:
    nowhere = "Endpoint=sb://localhost:1;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    sink = SinkOptions.from_options({"connection": nowhere, "entity": "orders"})
    assert MessageWriter(sink, BODY).write(iter(())) == SentMessages(counts={})
    assert MessageWriter(sink, BODY).write(batches(BODY, []) or iter(())).counts == {}


def test_payloads_are_written_as_read(namespace: RunningNamespace) -> None:
    first, second = make_queue(namespace), make_queue(namespace)
    MessageWriter(options(namespace, first), BODY).write(batches(BODY, numbered(10)))
    schema = StructType([StructField("entity", StringType()), StructField("payload", BinaryType())])
    found = namespace.call(
        lambda host: [
            delivered_payload(one)
            for one in host.use_namespace().peek(address_of(split_entity_path(first)), 0, 10, host.now_ms())  # type: ignore[arg-type]
        ]
    )
    rows = [{"entity": second, "payload": payload} for payload in found]
    MessageWriter(options(namespace), schema).write(batches(schema, rows))
    assert bodies(namespace, second) == [f"{number}" for number in range(10)]
    assert [one.message_id for one in look(namespace, second)] == [one.message_id for one in look(namespace, first)]


def test_large_messages_are_sent_one_by_one(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    rows = [{"body": f"{number}".ljust(200_000)} for number in range(30)]
    assert MessageWriter(options(namespace, queue), BODY).write(batches(BODY, rows)).counts == {queue: 30}
    assert [body.strip() for body in bodies(namespace, queue)] == [f"{number}" for number in range(30)]


def test_batch_size_is_limited(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    writer = MessageWriter(options(namespace, queue, batchSize="1"), BODY)
    assert writer.write(batches(BODY, numbered(20))).counts == {queue: 20}
    times = [message.enqueued_time for message in look(namespace, queue)]
    assert times == sorted(times)


# Retried tasks.


@pytest.mark.parametrize("kind", WRITERS)
def test_e2_retried_task_sends_no_duplicates(namespace: RunningNamespace, kind: type[Writer]) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)
    writer = kind(options(namespace, queue), BODY)
    rows = [*numbered(500), *numbered(500)]  # two equal rows are two messages

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from batches(BODY, rows[:700])
        raise ConnectionAbortedError("the task is lost here")

    with pytest.raises(ConnectionAbortedError):
        again(writer).write(interrupted())
    again(writer).write(batches(BODY, rows[::-1]))  # in another order, as after a shuffle
    again(writer).write(batches(BODY, rows))
    assert sorted(bodies(namespace, queue)) == sorted(row["body"] for row in rows)


def test_e2_second_write_of_the_same_rows_is_not_a_duplicate(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)
    for _ in range(2):
        MessageWriter(options(namespace, queue), BODY).write(batches(BODY, numbered(100)))
    assert len(bodies(namespace, queue)) == 200


def test_e2_write_with_a_prefix_can_be_repeated(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)
    for name in ("monday", "monday", "tuesday"):
        MessageWriter(options(namespace, queue, messageIdPrefix=name), BODY).write(batches(BODY, numbered(100)))
    assert bodies(namespace, queue) == [f"{number}" for number in range(100)] * 2
    assert {str(message.message_id).split("-")[0] for message in look(namespace, queue)} == {"monday", "tuesday"}


def test_e1_lost_connections_lose_no_message(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)

    def with_cuts() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(BODY, numbered(3_000), 300)):
            if number % 3 == 1:
                namespace.kill_connections()
            yield batch

    assert MessageWriter(options(namespace, queue), BODY).write(with_cuts()).counts == {queue: 3_000}
    assert bodies(namespace, queue) == [f"{number}" for number in range(3_000)]


# Errors.


def refused(namespace: RunningNamespace, rows: list[dict[str, Any]]) -> MessageWriteError:
    with pytest.raises(MessageWriteError) as caught:
        MessageWriter(options(namespace), ROUTED).write(batches(ROUTED, rows))
    return caught.value


def to(path: str, count: int) -> list[dict[str, Any]]:
    return numbered(count, entity=path)


@pytest.mark.parametrize(
    ("description", "body", "cause"),
    [
        (None, "x", EntityNotFoundError),
        ({"status": EntityStatus.DISABLED}, "x", EntityDisabledError),
        ({"status": EntityStatus.SEND_DISABLED}, "x", EntityDisabledError),
        ({}, "x" * 300_000, MessageSizeExceededError),
        ({"requires_session": True}, "x", MessagingError),
    ],
)
def test_e4_rejected_send_fails_the_task_with_the_reason(
    namespace: RunningNamespace, description: dict[str, Any] | None, body: str, cause: type[MessagingError]
) -> None:
    good = make_queue(namespace)
    bad = "nowhere" if description is None else make_queue(namespace, **description)
    error = refused(namespace, [*to(good, 600), {"entity": bad, "body": body}])
    assert isinstance(error.causes[bad], cause)
    assert f"'{bad}'" in str(error)
    assert error.sent[good] == len(bodies(namespace, good)) >= 500
    assert namespace.key not in str(error)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"entity": None, "body": "x"}, "its entity is null"),
        ({"entity": "a/$management", "body": "x"}, "its entity is"),
    ],
)
def test_e4_invalid_row_is_reported_by_its_number(
    namespace: RunningNamespace, row: dict[str, Any], reason: str
) -> None:
    queue = make_queue(namespace)
    with pytest.raises(InvalidMessageError, match=rf"row 1,202 of partition 0 .*{reason}"):
        MessageWriter(options(namespace), ROUTED).write(batches(ROUTED, [*to(queue, 1_201), row]))


def test_wrong_key_is_an_error(namespace: RunningNamespace) -> None:
    wrong = namespace.connection_string.replace(namespace.key, "d3Jvbmc=")
    with pytest.raises(MessageWriteError, match="Send"):
        MessageWriter(replace(options(namespace, "orders"), connection=ConnectionReference.parse(wrong)), BODY).write(
            batches(BODY, numbered(1))
        )


@pytest.mark.parametrize("kind", WRITERS)
def test_invalid_write_is_rejected_before_any_task(namespace: RunningNamespace, kind: type[Writer]) -> None:
    with pytest.raises(SchemaError, match="set the option 'entity', or add a column"):
        kind(options(namespace), BODY)
    with pytest.raises(SchemaError, match="did you mean 'body'"):
        kind(options(namespace, "orders"), StructType([StructField("bodi", StringType())]))
    with pytest.raises(SparkOptionError, match="append"):
        kind(options(namespace, "orders"), BODY, overwrite=True)


def test_writer_shows_no_secret(namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUS", namespace.connection_string)
    writer = MessageWriter(SinkOptions.from_options({"connection": "env:BUS", "entity": "orders"}), BODY)
    assert namespace.key.encode() not in pickle.dumps(writer)
    plain = MessageWriter(options(namespace, "orders"), BODY)
    assert namespace.key not in repr(plain._task)


# With Spark.


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    with ensured_session("local[2,3]", config=small) as session:  # where a task may fail twice
        session.dataSource.register(PairbusDataSource)
        yield session


def losing(connection: Path, queue: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step before the writer in the same task, which fails the first time after some rows have arrived."""

    def lose(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            with MessagingFactory.from_connection_string(connection.read_text()) as factory:
                receiver = factory.create_message_receiver(queue)
                mine = str(task.partitionId())
                eventually(lambda: mine in [message.label for message in receiver.peek(1_000)])
            raise RuntimeError("the task is lost here")

    return lose


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d1_table_write_survives_lost_tasks(namespace: RunningNamespace, spark: SparkSession, tmp_path: Path) -> None:
    secret = tmp_path / "connection"
    secret.write_text(namespace.connection_string)
    queue = make_queue(namespace, requires_duplicate_detection=True)
    numbers = spark.range(0, 900, numPartitions=3).selectExpr(
        "rpad(cast(id % 100 as string), 1000, ' ') as body", "named_struct('number', id) as application_properties"
    )
    shuffled = numbers.repartition(2).selectExpr("*", "cast(spark_partition_id() as string) as label")
    lossy = shuffled.mapInArrow(losing(secret, queue), shuffled.schema)
    sink = lossy.write.format("pairbus").mode("append").option("connection", f"file:{secret}").option("batchSize", 100)
    sink.save(queue)
    messages = look(namespace, queue)
    assert sorted(message.application_properties["number"] for message in messages) == [*range(900)]
    assert all(int(message.text()) == message.application_properties["number"] % 100 for message in messages)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d1_repeated_stream_batch_sends_no_duplicates(
    namespace: RunningNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        rows = spark.readStream.schema("value string").text(str(source)).selectExpr("value as body")
        query = (
            rows.writeStream.format("pairbus")
            .option("connection", namespace.connection_string)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(queue)
        )
        assert query.awaitTermination(240)

    for name in ("one", "two"):  # the same content in two batches
        (source / name).write_text("a\nb\nb")
        run()
    assert sorted(bodies(namespace, queue)) == ["a", "a", "b", "b", "b", "b"]
    for committed in (checkpoint / "commits").glob("*1*"):  # as if it had been killed before the commit
        committed.unlink()
    (source / "three").write_text("c")
    run()
    assert sorted(bodies(namespace, queue)) == ["a", "a", "b", "b", "b", "b", "c"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e4_write_error_is_shown_by_spark(namespace: RunningNamespace, spark: SparkSession) -> None:
    rows = spark.sql("select 'x' as body, 1 as amount")
    sink = rows.write.format("pairbus").mode("append").option("connection", namespace.connection_string)
    with pytest.raises(Exception, match="messages have no column 'amount'"):
        sink.save("orders")
    rows = spark.sql("select 'x' as body")
    sink = rows.write.format("pairbus").mode("append").option("connection", namespace.connection_string)
    with pytest.raises(Exception, match=r"not all messages of the task were sent: .*'nowhere'") as caught:
        sink.save("nowhere")
    assert namespace.key not in str(caught.value)
