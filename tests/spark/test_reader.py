"""Readers as Spark's workers call them, without Spark, against a running namespace (D1)."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, EqualTo, GreaterThan, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from pairbus.broker import AuthorizationRule, QueueDescription, Right
from pairbus.client.errors import EntityNotFoundError, InvalidRequestError, MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.depths import Depths
from pairbus.spark.errors import EntityPatternError, OffsetError, SchemaError, SparkOptionError
from pairbus.spark.offset import ConsumeOffset
from pairbus.spark.options import SourceOptions
from pairbus.spark.reader import BrowsingStreamReader, ConsumingStreamReader
from pairbus.spark.schema import MESSAGE_SCHEMA
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue, make_topic
from tests.spark.scenes import NOWHERE, numbered
from tests.waiting import eventually

T = TypeVar("T")
Offset = dict[str, Any]
MOST: Final = ReadMaxRows(10_000)
FEW: Final = ReadMaxRows(3)
WHOLE: Final = StructType([*MESSAGE_SCHEMA, StructField("lock_token", StringType())])


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


class Query:
    """A stream as ``python_streaming_source_runner`` drives it: offsets and partitions are serialized."""

    def __init__(
        self, namespace: RunningNamespace, entities: str, schema: StructType = MESSAGE_SCHEMA, **given: Any
    ) -> None:
        named = {"connection": namespace.connection_string, "entities": entities, "longPoll": "1s"}
        self.source = PairbusDataSource({**named, **{name: str(value) for name, value in given.items()}})
        self.schema = schema
        self.reader = self.make()
        self.offset: Offset = {}

    def make(self) -> DataSourceStreamReader:
        return self.source.streamReader(self.schema)

    def begin(self) -> Query:
        self.offset = carried(self.reader.initialOffset())
        return self

    def plan(self, limit: ReadLimit = MOST) -> list[InputPartition]:
        start = self.offset
        self.offset = carried(self.reader.latestOffset(start, limit))
        return [] if start == self.offset else self.parts(self.reader, start, self.offset)

    @staticmethod
    def parts(reader: DataSourceStreamReader, start: Offset, end: Offset) -> list[InputPartition]:
        return [pickled(one) for one in reader.partitions(start, end)]

    def read(
        self, parts: Iterable[InputPartition], reader: DataSourceStreamReader | None = None
    ) -> list[pa.RecordBatch]:
        """Return the batches of the tasks, each with a separate reader."""
        return [batch for part in parts for batch in pickled(reader or self.reader).read(part)]

    def batch(self, limit: ReadLimit = MOST) -> list[str]:
        return bodies(self.read(self.plan(limit)))

    def restarted(self) -> Query:
        """Restart the query from its checkpoint in another process, without stopping the first one."""
        again = pickled(self)
        again.reader = again.make()
        return again

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reader": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()


def carried(offset: Offset) -> Offset:
    read: Offset = json.loads(json.dumps(offset))
    return read


def pickled(value: T) -> T:
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301 (ours)
    return copied


def bodies(batches: Iterable[pa.RecordBatch]) -> list[str]:
    return [row["body"].decode() for batch in batches for row in batch.to_pylist()]


def collect(rows: list[T], more: Callable[[], list[T]], count: int) -> None:
    """Plan batches until there are this many rows."""

    def are_there() -> bool:
        rows.extend(more())
        return len(rows) >= count

    eventually(are_there)


def send(namespace: RunningNamespace, path: str, texts: Iterable[str], **properties: Any) -> None:
    factory = factory_of(ConnectionReference.parse(namespace.connection_string))

    async def work() -> None:
        sender = await factory.create_message_sender(path)
        await sender.send([BrokeredMessage(text, **properties) for text in texts])
        await sender.close()

    on_loop(work)


def look(namespace: RunningNamespace, path: str) -> list[str]:
    return [message.text() for message in peeked(namespace, path)]


def peeked(namespace: RunningNamespace, path: str) -> list[ReceivedMessage]:
    factory = factory_of(ConnectionReference.parse(namespace.connection_string))

    async def work() -> list[ReceivedMessage]:
        receiver = await factory.create_message_receiver(path)
        found = await receiver.peek(1_000)
        await receiver.close()
        return found

    return on_loop(work)


def take(namespace: RunningNamespace, path: str, count: int, *, settle: bool = True) -> list[str]:
    """Return the messages that another consumer gets now."""
    factory = factory_of(ConnectionReference.parse(namespace.connection_string))

    async def work() -> list[ReceivedMessage]:
        receiver = await factory.create_message_receiver(path)
        found = await receiver.receive(count, timedelta(0))
        await (receiver.complete(found) if settle else receiver.abandon(found))
        await receiver.close()
        return found

    return [message.text() for message in on_loop(work)]


# Streams that consume.


def test_d1_messages_are_read_then_removed(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(10)))
    with Query(namespace, queue, maxMessagesPerTrigger=4).begin() as query:
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(4)
        limit = ReadMaxRows(4)
        assert query.batch(limit) == numbered(range(4))
        assert look(namespace, queue) == numbered(range(10))
        assert query.batch(limit) == numbered(range(4, 8))
        eventually(lambda: look(namespace, queue) == numbered(range(4, 10)))
        assert query.batch(limit) == numbered(range(8, 10))
        assert query.batch(limit) == []
        assert look(namespace, queue) == []


def test_d1_repeated_read_returns_identical_batches(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(20)))
    with Query(namespace, queue, pageSize=3, partitionsPerQueue=2, maxMessagesPerTrigger=10).begin() as query:
        start = query.offset
        parts = query.plan(ReadMaxRows(10))
        before = query.read(parts)
        assert len(parts) == 2
        taken = take(namespace, queue, 20)  # messages received for no batch, if there are any
        send(namespace, queue, ["later"])
        assert query.read(parts) == before
        assert query.read(query.parts(query.reader, start, query.offset)) == before
        with query.restarted() as other:
            assert other.read(other.parts(other.reader, start, query.offset)) == before
        assert not set(taken) & set(bodies(before))
        assert bodies(before) == numbered(range(10))


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_d1_several_partitions_return_the_same_rows_as_one(namespace: RunningNamespace, parts: int) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(17)))
    with Query(namespace, queue, partitionsPerQueue=parts).begin() as query:
        found = query.plan()
        assert len(found) == parts
        assert bodies(query.read(found)) == numbered(range(17))


@pytest.mark.slow
def test_d1_reader_starting_from_a_batch_commits_it(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, lock_duration_ms=5_000)
    send(namespace, queue, numbered(range(6)))
    query = Query(namespace, queue).begin()
    assert query.batch(FEW)
    query.reader.stop()
    with query.restarted() as again:
        rows: list[str] = []
        collect(rows, lambda: again.batch(FEW), 3)
        assert sorted(rows) == numbered(range(3, 6))
        eventually(lambda: not again.batch(FEW) and not look(namespace, queue))


def test_d1_uncommitted_batch_is_read_by_a_new_reader(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(5)))
    query = Query(namespace, queue).begin()
    start = query.offset
    parts = query.plan()
    before = query.read(parts)
    query.reader.stop()
    with query.restarted() as again:
        assert again.read(again.parts(again.reader, start, query.offset)) == before
        assert again.batch() == []


def test_d1_available_now_reads_present_messages_and_ends(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(7)))
    with Query(namespace, queue).begin() as query:
        assert isinstance(query.reader, ConsumingStreamReader)
        query.reader.prepareForTriggerAvailableNow()
        rows = query.batch(FEW)
        send(namespace, queue, ["later"])
        while found := query.batch(FEW):
            rows += found
        assert rows == numbered(range(7))
        assert look(namespace, queue) == ["later"]
        assert take(namespace, queue, 10, settle=False) == ["later"]


def test_d1_read_without_limit_returns_everything(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(50)))
    with Query(namespace, queue, maxMessagesPerTrigger=50).begin() as query:
        rows: list[str] = []
        collect(rows, lambda: query.batch(ReadAllAvailable()), 50)
        assert rows == numbered(range(50))


def test_d1_stream_survives_namespace_restart() -> None:
    with running_namespace() as namespace:
        queue = make_queue(namespace)
        send(namespace, queue, numbered(range(6)))
        with Query(namespace, queue).begin() as query:
            rows = query.batch(FEW)
            namespace.restart()
            send(namespace, queue, ["6"])
            collect(rows, lambda: query.batch(FEW), 7)
            assert sorted(set(rows)) == numbered(range(7))


def test_d1_two_streams_share_a_queue(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    given: dict[str, Any] = {"maxMessagesPerTrigger": 3}
    with Query(namespace, queue, **given).begin() as one, Query(namespace, queue, **given).begin() as other:
        send(namespace, queue, numbered(range(12)))
        rows: list[str] = []
        collect(rows, lambda: [*one.batch(FEW), *other.batch(FEW)], 12)
        assert sorted(rows, key=int) == numbered(range(12))


@pytest.mark.parametrize("kind", ["dead letters", "subscription", "pattern"])
def test_d1_queues_subscriptions_and_dead_letters_are_sources(namespace: RunningNamespace, kind: str) -> None:
    match kind:
        case "dead letters":
            queue = make_queue(namespace)
            send(namespace, queue, ["a", "b"])
            _dead_letter(namespace, queue, 2)
            source = f"{queue}/$DeadLetterQueue"
            places = [source]
        case "subscription":
            topic = make_topic(namespace, "audit", "other")
            send(namespace, topic, ["a", "b"])
            source = f"{topic}/Subscriptions/audit"
            places = [source]
        case _:
            queue = make_queue(namespace)
            second = f"{queue}-2"
            namespace.call(lambda host: host.use_namespace().create_queue(second, QueueDescription(), host.now_ms()))
            send(namespace, queue, ["a"])
            send(namespace, second, ["b"])
            source, places = f"{queue}*", [queue, second]
    with Query(namespace, source, WHOLE).begin() as query:
        rows: list[dict[str, Any]] = []
        collect(rows, lambda: _rows(query.read(query.plan())), 2)
        assert sorted(row["body"] for row in rows) == [b"a", b"b"]
        assert {row["entity"].lower() for row in rows} == {place.lower() for place in places}
        assert query.batch() == []
        assert [look(namespace, place) for place in places] == [[]] * len(places)


def _rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def _dead_letter(namespace: RunningNamespace, path: str, count: int) -> None:
    factory = factory_of(ConnectionReference.parse(namespace.connection_string))

    async def work() -> None:
        receiver = await factory.create_message_receiver(path)
        await receiver.dead_letter(await receiver.receive(count, timedelta(0)), "for a test")
        await receiver.close()

    on_loop(work)


def test_d2_sink_settles_with_lock_tokens(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(3)))
    with Query(namespace, queue, WHOLE, settle="sink").begin() as query:
        start = query.offset
        rows = _rows(query.read(query.plan()))
        assert [row["sequence_number"] for row in rows] == [1, 2, 3]
        assert all(row["lock_token"] for row in rows)
        with query.restarted() as other:
            assert other.parts(other.reader, start, query.offset) == []  # it does not own these locks
        assert query.batch() == []
        assert look(namespace, queue) == numbered(range(3))


def test_c14_report_counts_receives_of_an_idle_stream(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    with Query(namespace, queue).begin() as query:
        reader = query.reader
        assert isinstance(reader, ConsumingStreamReader)
        assert reader.reportLatestOffset() == {"receives": 0, "waiting": 0, "missing": []}
        begun_s = time.monotonic()
        assert [query.batch() for _ in range(3)] == [[], [], []]
        report = reader.reportLatestOffset()
        assert 2 <= report["receives"] <= time.monotonic() - begun_s + 2  # one a second
        assert report["waiting"] == 0


# Streams that browse, and tables.


def test_d1_browsing_stream_reads_and_keeps_messages(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(5)))
    with Query(namespace, queue, mode="browse", startingOffsets=json.dumps({queue: 2})).begin() as query:
        assert isinstance(query.reader, BrowsingStreamReader)
        start = query.offset
        parts = query.plan(FEW)
        before = query.read(parts)
        assert bodies(before) == numbered(range(1, 4))
        with query.restarted() as other:
            assert other.read(other.parts(other.reader, start, query.offset)) == before
            assert other.batch() == ["4"]
        assert take(namespace, queue, 10) == numbered(range(5))  # nothing was locked


def test_d1_browsing_stream_ends_with_available_now(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(5)))
    with Query(namespace, queue, mode="browse").begin() as query:
        reader = query.reader
        assert isinstance(reader, BrowsingStreamReader)
        reader.prepareForTriggerAvailableNow()
        send(namespace, queue, ["later"])
        assert [query.batch(FEW) for _ in range(3)] == [["0", "1", "2"], ["3", "4"], []]


def test_d1_table_has_all_messages(namespace: RunningNamespace) -> None:
    queue, second = make_queue(namespace), make_queue(namespace)
    send(namespace, queue, numbered(range(9)))
    send(namespace, second, ["x"])
    given = {"connection": namespace.connection_string, "paths": json.dumps([queue, second]), "partitionsPerQueue": "3"}
    reader = PairbusDataSource(given).reader(MESSAGE_SCHEMA)
    parts = [pickled(part) for part in reader.partitions()]
    assert len(parts) == 4
    found = [batch for part in parts for batch in pickled(reader).read(part)]
    assert sorted(bodies(found)) == [*numbered(range(9)), "x"]
    assert bodies([batch for part in parts for batch in reader.read(part)]) == bodies(found)
    assert take(namespace, queue, 10, settle=False) == numbered(range(9))


# Errors.


def test_e4_invalid_source_is_rejected_at_start(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    with pytest.raises(SparkOptionError, match="startingOffsets"):
        Query(namespace, queue, mode="browse", startingOffsets='{"other": 5}').begin()
    with pytest.raises(SparkOptionError, match="consumed from its head"):
        Query(namespace, queue, startingOffsets="latest")
    with pytest.raises(SchemaError, match="colour"):
        Query(namespace, queue, StructType([StructField("colour", StringType())]))
    with pytest.raises(EntityPatternError, match="no queue matches"):
        Query(namespace, "nothing-*").begin().plan()
    with Query(namespace, "nothing").begin() as query, pytest.raises(EntityNotFoundError, match="nothing"):
        query.plan()


def nowhere(**given: str) -> PairbusDataSource:
    return PairbusDataSource({"connection": NOWHERE, "connectTimeout": "0.2", "path": "orders", **given})


BODY: Final = StructType([StructField("body", StringType())])
ROWS: Final = [pa.RecordBatch.from_pylist([{"body": "one"}])]


@pytest.mark.parametrize(
    "start",
    [
        lambda: nowhere().reader(MESSAGE_SCHEMA).partitions(),
        lambda: nowhere(path="orders-*").reader(MESSAGE_SCHEMA).partitions(),
        lambda: nowhere(mode="browse").streamReader(MESSAGE_SCHEMA).initialOffset(),
        lambda: nowhere().streamReader(MESSAGE_SCHEMA).latestOffset(ConsumeOffset().to_json(), MOST),
        lambda: nowhere().writer(BODY, overwrite=False),
        lambda: nowhere().streamWriter(BODY, overwrite=False).write(iter(ROWS)),
    ],
    ids=["table", "pattern", "browse", "consume", "write", "write stream"],
)
def test_e4_unreachable_namespace_is_an_error_after_connect_timeout(start: Callable[[], object]) -> None:
    with pytest.raises(MessagingTimeoutError) as raised:
        start()
    assert str(raised.value) == (
        "amqp://localhost:1 cannot be reached: Connection refused; tried for 0.2 s; check that the namespace is running"
        " and that 'connection' has its Endpoint, or raise 'connectTimeout'"
    )


def test_e4_consuming_sessions_is_rejected_with_a_hint(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, requires_session=True)
    with Query(namespace, queue).begin() as query:
        with pytest.raises(InvalidRequestError) as raised:
            eventually(query.plan)
        assert str(raised.value).endswith("use browse, .option('mode', 'browse')")
    with Query(namespace, queue, mode="browse").begin() as query:
        assert query.batch() == []


def test_e4_checkpoint_of_another_mode_is_rejected(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    with Query(namespace, queue).begin() as query:
        with pytest.raises(OffsetError, match="one mode"):
            query.reader.latestOffset({"version": 1, "seen": {queue: 5}}, MOST)
        with pytest.raises(ValueError, match="is not supported"):
            query.reader.latestOffset(query.offset, object())  # type: ignore[arg-type]


def test_table_without_partitions_has_no_rows(namespace: RunningNamespace) -> None:
    """Spark creates such a partition."""
    given = {"connection": namespace.connection_string, "entities": make_queue(namespace)}
    reader = PairbusDataSource(given).reader(MESSAGE_SCHEMA)
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


def test_d1_stream_that_fails_to_start_locks_nothing(namespace: RunningNamespace) -> None:
    """One of its entities does not exist: the messages of the others must not stay locked."""
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(3)))
    query = Query(namespace, f"{queue},zzz").begin()  # the last one in order
    assert isinstance(query.reader, ConsumingStreamReader)
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(MessagingError, match="zzz"):
        query.plan()
    query.reader.stop()
    assert take(namespace, queue, 10, settle=False) == numbered(range(3))


def test_unused_reader_can_be_stopped(namespace: RunningNamespace) -> None:
    Query(namespace, "anything").reader.stop()


def test_reader_is_pickled_without_its_source(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    with Query(namespace, queue).begin() as query:
        query.plan()
        assert pickled(query.reader)._source is None  # type: ignore[attr-defined]


_HANG_UP = """
from pairbus.spark.options import SourceOptions
from pairbus.spark.reader import BrowsingStreamReader
reader = BrowsingStreamReader(None, None)
try:
    try:
        raise {error}
    finally:
        reader.stop()
except BaseException:
    raise BrokenPipeError  # Spark's program tells a driver of it that has hung up
"""


@pytest.mark.parametrize(
    ("error", "is_reported"), [("EOFError", False), ("SystemExit(143)", False), ("ValueError", True)]
)
def test_closed_connection_of_spark_prints_no_traceback(error: str, is_reported: bool) -> None:
    script = _HANG_UP.format(error=error)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == is_reported
    assert bool(done.stderr) == is_reported


# Options of a connector.


def test_d1_columns_are_those_of_the_options(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(3)))
    given = {"connection": namespace.connection_string, "path": queue}
    source = PairbusDataSource({**given, "columns": "body, entity", "includeHeaders": "TRUE"})
    assert source.schema().names == ["body", "entity", "headers"]
    reader = source.reader(source.schema())
    assert bodies(batch for part in reader.partitions() for batch in reader.read(part)) == numbered(range(3))
    with pytest.raises(SchemaError, match="messages have no column 'colour'; available: entity"):
        PairbusDataSource({**given, "columns": "colour"}).schema()


def test_d1_many_small_entities_share_tasks(namespace: RunningNamespace) -> None:
    queues = [make_queue(namespace) for _ in range(40)]
    for queue in queues:
        send(namespace, queue, [queue])
    source = PairbusDataSource({"connection": namespace.connection_string, "path": ",".join(queues)})
    reader = pickled(source.reader(source.schema()))
    parts = reader.partitions()
    assert len(parts) == 16
    assert bodies(batch for part in parts for batch in pickled(reader).read(pickled(part))) == sorted(queues)


def test_d1_filters_are_taken_whether_spark_pushes_them_or_not(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(10)))
    source = PairbusDataSource({"connection": namespace.connection_string, "path": queue})
    reader = source.reader(source.schema())
    # Spark compares the two to reject readers with filters while pushdown is disabled.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    taken, left = GreaterThan(("sequence_number",), 8), EqualTo(("body",), b"x")
    assert [*reader.pushFilters([taken, left])] == [left]
    assert bodies(batch for part in reader.partitions() for batch in pickled(reader).read(part)) == ["8", "9"]


@pytest.mark.parametrize("mode", ["consume", "browse"])
def test_c19_depth_is_reported_at_an_interval(namespace: RunningNamespace, mode: str) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(7)))
    with Query(namespace, queue, mode=mode, metricsInterval="1h").begin() as query:
        query.batch()
        found = query.reader.reportLatestOffset() or {}
        assert {name: found[name] for name in ("depth", "scheduled", "dead_lettered")} == {
            "depth": 7,
            "scheduled": 0,
            "dead_lettered": 0,
        }
        send(namespace, queue, ["8"])
        assert (query.reader.reportLatestOffset() or {})["depth"] == 7, "each read is billed"


def read_depths(namespace: RunningNamespace, *paths: str, connection_string: str | None = None) -> dict[str, int]:
    connection = ConnectionReference.parse(connection_string or namespace.connection_string)
    return on_loop(Depths(connection, paths, timedelta(hours=1)).read, factory_of(connection))


def defer(namespace: RunningNamespace, path: str, count: int) -> None:
    factory = factory_of(ConnectionReference.parse(namespace.connection_string))

    async def work() -> None:
        receiver = await factory.create_message_receiver(path)
        left = count
        while left:
            found = await receiver.receive(left, timedelta(seconds=5))
            await receiver.defer(found)
            left -= len(found)
        await receiver.close()

    on_loop(work)


def test_c19_deferred_messages_are_counted_as_parked(namespace: RunningNamespace) -> None:
    queues = [make_queue(namespace) for _ in range(2)]
    for queue in queues:
        send(namespace, queue, numbered(range(150)))
        defer(namespace, queue, 120)
    found = read_depths(namespace, *queues)
    assert (found["parked"], found["depth"]) == (240, 300)


def test_c19_parked_messages_are_counted_among_the_first_1000(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, numbered(range(1_100)))
    defer(namespace, queue, 1_050)
    assert read_depths(namespace, queue)["parked"] == 1_000


def test_c19_age_is_that_of_the_oldest_active_message(namespace: RunningNamespace) -> None:
    queue, younger = make_queue(namespace), make_queue(namespace)
    assert read_depths(namespace, queue)["oldest_age_s"] == 0
    send(namespace, queue, ["parked", "oldest"])
    defer(namespace, queue, 1)
    [oldest] = [message for message in peeked(namespace, queue) if message.state is MessageState.ACTIVE]
    eventually(lambda: time.time() - oldest.enqueued_time.timestamp() >= 2)
    send(namespace, younger, ["younger"])
    assert read_depths(namespace, younger, queue)["oldest_age_s"] >= 2
    assert take(namespace, queue, 1) == ["oldest"]
    assert read_depths(namespace, queue) == {
        "depth": 1,
        "scheduled": 0,
        "dead_lettered": 0,
        "parked": 1,
        "oldest_age_s": 0,
    }


def test_c19_age_covers_partitions_behind_many_messages(namespace: RunningNamespace) -> None:
    queue = make_queue(namespace, partitioned=True)
    send(namespace, queue, ["one"])  # one partition, and the messages below all of them
    [first] = peeked(namespace, queue)
    eventually(lambda: time.time() - first.enqueued_time.timestamp() >= 2)
    for number in range(16):
        send(namespace, queue, numbered(range(150)), partition_key=f"key {number}")
    assert read_depths(namespace, queue)["oldest_age_s"] >= 2


def test_c19_unreadable_depth_is_logged(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pairbus.spark"):
        assert read_depths(namespace, "nothing") == {}
    assert "depths not read" in caplog.text


def test_c19_counts_are_reported_though_peeks_fail(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(namespace)
    send(namespace, queue, ["one"])
    connection = ConnectionReference.parse(namespace.connection_string)
    depths = Depths(connection, [queue], timedelta(hours=1))

    async def work() -> dict[str, int]:
        factory = MessagingFactory.from_connection_string(namespace.connection_string)
        await factory.close()
        return await depths.read(factory)

    with caplog.at_level("INFO", logger="pairbus.spark"):
        assert on_loop(work) == {"depth": 1, "scheduled": 0, "dead_lettered": 0}
    assert "depths not read" in caplog.text


def test_c19_key_without_manage_reads_what_peeks_show(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    rule = AuthorizationRule(name="listener", rights=(Right.LISTEN,), primary_key="one", secondary_key="two")
    queue = make_queue(namespace, authorization_rules=(rule,))
    send(namespace, queue, ["one"])
    endpoint = namespace.connection_string.partition(";SharedAccessKeyName=")[0]
    key = f"SharedAccessKeyName={rule.name};SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true"
    found = read_depths(namespace, queue, connection_string=f"{endpoint};{key}")
    assert found.keys() == {"parked", "oldest_age_s"}
    assert caplog.text.count("the key has no Manage claim") == 1


@pytest.mark.parametrize("sub_queue", ["$DeadLetterQueue", "$Transfer/$DeadLetterQueue"])
def test_c19_depth_of_a_sub_queue(namespace: RunningNamespace, sub_queue: str) -> None:
    topic = make_topic(namespace, "audit")
    path = f"{topic}/Subscriptions/audit/{sub_queue}"
    assert read_depths(namespace, path) == {
        "depth": 0,
        "scheduled": 0,
        "dead_lettered": 0,
        "parked": 0,
        "oldest_age_s": 0,
    }


def test_timeout_and_retries_are_those_of_the_options(namespace: RunningNamespace) -> None:
    given = {"connection": namespace.connection_string, "path": "orders"}
    usual = SourceOptions.from_options(given).connection
    options = SourceOptions.from_options({**given, "operationTimeout": "2.5", "maxRetries": "1"})
    settings = factory_of(options.connection).settings
    assert settings.operation_timeout == timedelta(seconds=2.5)
    assert settings.retry_policy.maximum_retries == 1
    assert factory_of(usual) is not factory_of(options.connection)
    assert factory_of(usual).settings.operation_timeout == timedelta(minutes=1)
    assert str(options.connection) == str(usual)
