"""Captures from real queues and subscriptions: once, until stopped, and after a kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Final

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from pairbus.blocking import BrokeredMessage, MessagingFactory, ReceivedMessage
from pairbus.client.errors import MessagingTimeoutError
from pairbus.client.received_message import MessageState
from pairbus.jobs.capture import command
from pairbus.jobs.capture.command import DONE, CaptureCommand, CaptureSnapshot, run_capture
from pairbus.jobs.capture.config import LEAST_BYTES, CaptureConfig, WindowLimits
from pairbus.jobs.lines import FAILED, WAITING, CommandResult, LineReporter, ReportLine
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.session import ensured_session
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue, make_topic
from tests.jobs.capture.entities import LIMIT_S, book, count, depth, send, sent
from tests.jobs.capture.messages import files, ids
from tests.spark.scenes import NOWHERE
from tests.waiting import eventually

VARIABLE: Final = "PAIRBUS_TEST_CAPTURE"
LOCK: Final = 5_000
SHORT: Final = WindowLimits(length=timedelta(seconds=2))


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def connection(namespace: RunningNamespace) -> Iterator[ConnectionReference]:
    """Set the connection string in the environment, before Spark is started."""
    os.environ[VARIABLE] = namespace.connection_string
    yield ConnectionReference.parse(f"env:{VARIABLE}")
    del os.environ[VARIABLE]


@pytest.fixture(scope="module")
def spark(connection: ConnectionReference) -> Iterator[SparkSession]:
    with ensured_session("local[2]") as session:
        yield session


@pytest.fixture(scope="module")
def factory(namespace: RunningNamespace) -> Iterator[MessagingFactory]:
    with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
        yield factory


@pytest.fixture
def config(connection: ConnectionReference, spark: SparkSession, tmp_path: Path) -> CaptureConfig:
    return CaptureConfig(source=connection, entities=(), to=tmp_path / "files", max_messages=500)


class Reported(LineReporter):
    """Collects report lines."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.lines: list[ReportLine] = []

    def report(self, line: ReportLine) -> None:
        self.lines.append(line)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [dict(line.facts) for line in self.lines if line.event == event]


def once(config: CaptureConfig) -> tuple[CommandResult, Reported]:
    reported = Reported()
    return run_capture(replace(config, once=True), reported), reported


@contextmanager
def running(config: CaptureConfig) -> Iterator[Reported]:
    """Run a capture, and stop it with a signal at the end of the block."""
    reported, stopped = Reported(), Event()
    endings: list[CommandResult] = []
    thread = Thread(target=lambda: endings.append(CaptureCommand(config, reported).run(stopped)))
    thread.start()
    try:
        yield reported
    finally:
        stopped.set()
        thread.join(LIMIT_S)
    assert endings == [CommandResult(code=DONE)]


# To a URL


def rows_in(spark: SparkSession, url: str) -> list[tuple[str, str]]:
    rows = spark.read.parquet(url).selectExpr("source", "cast(body as string) as text").collect()
    return sorted((row["source"], row["text"]) for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("keep", [True, False])
def test_d5_partitioned_and_scheduled_messages_are_written_to_a_url_once(
    namespace: RunningNamespace,
    config: CaptureConfig,
    spark: SparkSession,
    factory: MessagingFactory,
    tmp_path: Path,
    keep: bool,
) -> None:
    queue, url = make_queue(namespace, partitioned=True), (tmp_path / "store").as_uri()
    with factory.create_message_sender(queue) as sender:
        sender.send([BrokeredMessage(f"{number:02}", partition_key=f"key {number % 8}") for number in range(40)])
        sender.schedule(BrokeredMessage("40"), datetime.now(UTC) + timedelta(seconds=2))
    captured = replace(config, entities=(queue,), url=url, keep=keep, max_messages=15)
    first, reported = once(captured)
    eventually(lambda: all(message.state is MessageState.ACTIVE for message in peeked(factory, queue)))
    second, reported_again = once(captured)
    assert (first.code, second.code) == (DONE, DONE)
    assert rows_in(spark, url) == [(queue, f"{number:02}") for number in range(41)]
    written = [*reported.of("file"), *reported_again.of("file")]
    assert sum(line["messages"] for line in written) == 41
    assert all(line["bytes"] > 0 for line in written)
    found = pyarrow.dataset.dataset(tmp_path / "store", format="parquet", partitioning="hive").to_table()
    assert found.num_rows == 41, "what Spark keeps for itself is invisible to other readers"
    assert depth(factory, queue) == (41 if keep else 0)


def peeked(factory: MessagingFactory, queue: str) -> list[ReceivedMessage]:
    with factory.create_message_receiver(queue) as receiver:
        return receiver.peek(100)


def windows_in(store: Path) -> set[str]:
    return {path.name for path in store.glob("day=*/hour=*/window=*")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("length", [timedelta(minutes=5), timedelta(seconds=1)])
def test_d5_repeated_batch_replaces_its_files(
    namespace: RunningNamespace,
    config: CaptureConfig,
    spark: SparkSession,
    factory: MessagingFactory,
    tmp_path: Path,
    length: timedelta,
) -> None:
    """As after a kill between the write of a batch and its commit, with the same windows or others."""
    queue, store = make_queue(namespace), tmp_path / "store"
    with factory.create_message_sender(queue) as sender:
        sender.send([BrokeredMessage(f"{number}") for number in range(5)])
    captured = replace(config, entities=(queue,), url=store.as_uri(), keep=True)
    assert once(captured)[0].code == DONE
    before = {*store.rglob("*.parquet")}
    for commit in (store / "_capture" / "checkpoint" / "commits").iterdir():
        commit.unlink()
    with factory.create_message_sender(queue) as sender:
        sender.send([BrokeredMessage("5")])
    assert once(replace(captured, limits=WindowLimits(length=length)))[0].code == DONE
    after = {*store.rglob("*.parquet")}
    assert rows_in(spark, store.as_uri()) == [(queue, f"{number}") for number in range(6)]
    assert not before & after, "the batch was written again"
    assert len({path.parent for path in after}) == 2
    assert {path.parent.parent.name for path in before} < {path.parent.parent.name for path in after}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_messages_reach_a_url_before_their_window_ends_and_are_removed_at_stop(
    namespace: RunningNamespace, config: CaptureConfig, spark: SparkSession, factory: MessagingFactory, tmp_path: Path
) -> None:
    queue, store = make_queue(namespace), tmp_path / "store"
    long = WindowLimits(length=timedelta(hours=1))
    with running(replace(config, entities=(queue,), url=store.as_uri(), limits=long, max_messages=50)) as reported:
        for start in range(0, 200, 100):
            with factory.create_message_sender(queue) as sender:
                sender.send([BrokeredMessage(f"{number:03}") for number in range(start, start + 100)])
            eventually(lambda start=start: messages_of(reported) == start + 100)  # type: ignore[misc]
    assert depth(factory, queue) == 0
    assert rows_in(spark, store.as_uri()) == [(queue, f"{number:03}") for number in range(200)]
    assert len(reported.of("file")) >= 4
    assert len(windows_in(store)) in (1, 2), "an hour may have ended meanwhile"
    for line in reported.of("file"):
        begin, end = (datetime.fromisoformat(line[name]) for name in ("window_start", "window_end"))
        assert end - begin == timedelta(hours=1)
        assert f"/window={begin:%Y%m%dT%H%M%SZ}/batch=" in line["path"]


def messages_of(reported: Reported) -> int:
    return sum(line["messages"] for line in reported.of("file"))


# Once


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_queue_and_subscription_are_captured_once(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory, spark: SparkSession
) -> None:
    queue, topic = make_queue(namespace), make_topic(namespace, "audit")
    subscription = f"{topic}/Subscriptions/audit"
    send(factory, queue, range(1_200))
    send(factory, topic, range(30))
    both = replace(config, entities=(queue, subscription))
    everything = sorted(sent(queue, range(1_200)) + sent(topic, range(30)))
    for expected in (1_230, 0):  # the second run finds nothing new
        ending, reported = once(both)
        assert ending == CommandResult(code=DONE)
        assert sum(line["messages"] for line in reported.of("file")) == expected
        assert ids(config.to) == everything
        rows = spark.read.parquet(str(config.to)).select("message_id", "source", "entity").collect()
        assert sorted(row.message_id for row in rows) == everything
        assert {(row.source, row.entity) for row in rows} == {(queue, queue), (subscription, subscription)}
    assert (depth(factory, queue), depth(factory, subscription)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", [False, True])
def test_d5_kept_messages_are_captured_once_and_stay(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory, partitioned: bool
) -> None:
    queue = make_queue(namespace, partitioned=partitioned)
    keeping = replace(config, entities=(queue,), keep=True)
    for start in (0, 700):
        send(factory, queue, range(start, start + 700))
        assert once(keeping)[0] == CommandResult(code=DONE)
    assert ids(config.to) == sorted(sent(queue, range(1_400)))
    assert depth(factory, queue) == 1_400


@pytest.mark.slow
def test_locked_messages_are_reported_with_code_3(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace, lock_duration_ms=4 * LOCK)
    send(factory, queue, range(10))
    with factory.create_message_receiver(queue, max_auto_lock_renewal=timedelta(minutes=5)) as receiver:
        locked = receiver.receive(4)
        ending, reported = once(replace(config, entities=(queue,)))
        assert ending.code == WAITING
        assert reported.of("waiting") == [{"entity": queue, "messages": len(locked)}]
        assert count(config.to) == 10 - len(locked)
        receiver.abandon(locked)
    assert once(replace(config, entities=(queue,)))[0] == CommandResult(code=DONE)
    assert ids(config.to) == sorted(sent(queue, range(10)))


def test_e4_unreachable_namespace_is_an_error_after_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CONNECT_TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(
        MessagingTimeoutError, match=r"tried for 0\.2 s; check that the namespace of --source is running"
    ):
        asyncio.run(CaptureSnapshot.take(NOWHERE, ["orders"], keep=False))


@pytest.mark.slow
@pytest.mark.parametrize("is_once", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nowhere", "could not be found"),
        ("topic", "is a topic; capture one of its subscriptions, "),
        ("sessions", "an entity that requires sessions can be copied with --keep"),
    ],
)
def test_unreadable_entity_is_reported_with_code_1(
    config: CaptureConfig, namespace: RunningNamespace, is_once: bool, kind: str, said: str
) -> None:
    entities = {
        "nowhere": "nowhere",
        "topic": make_topic(namespace, "audit"),
        "sessions": make_queue(namespace, requires_session=True),
    }
    reported = Reported()
    ending = run_capture(replace(config, entities=(entities[kind],), once=is_once), reported)
    assert ending.code == FAILED
    assert ending.reason is not None
    assert entities[kind] in ending.reason
    assert said in ending.reason
    assert not reported.of("spark"), "before Spark is started, which takes seconds"


@pytest.mark.slow
def test_d5_no_file_is_larger_than_the_window(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue, random = make_queue(namespace), Random(3)  # noqa: S311 (the same each time)
    send(factory, queue, range(2_500), lambda: random.randbytes(1_000))
    assert once(replace(config, entities=(queue,), limits=WindowLimits(size_bytes=LEAST_BYTES)))[0].code == DONE
    sizes = [path.stat().st_size for path in files(config.to)]
    assert len(sizes) in range(3, 6)
    assert max(sizes) <= LEAST_BYTES
    assert ids(config.to) == sorted(sent(queue, range(2_500)))


# Until stopped


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_windows_close_by_time_and_at_stop(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace)
    with running(replace(config, entities=(queue,), limits=SHORT)) as reported:
        for start in range(0, 900, 300):
            send(factory, queue, range(start, start + 300))
            eventually(lambda start=start: count(config.to) == start + 300)  # type: ignore[misc]
        eventually(lambda: len(reported.of("file")) >= 3)
    send(factory, queue, range(900, 1_000))
    with running(replace(config, entities=(queue,), limits=WindowLimits(length=timedelta(hours=1)))):
        eventually(lambda: sum(window.messages for window in book(config.to).windows) == 100)
        assert count(config.to) == 900
    assert ids(config.to) == sorted(sent(queue, range(1_000)))
    assert depth(factory, queue) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e1_failed_query_is_restarted(
    config: CaptureConfig, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace, lock_duration_ms=LOCK)
    pieces = config.to / "_capture" / "pieces"
    with running(replace(config, entities=(queue,), limits=SHORT)) as reported:
        send(factory, queue, range(10))
        eventually(lambda: sum(line["messages"] for line in reported.of("file")) == 10)  # reported after the cleanup
        pieces.rmdir()
        pieces.touch()  # nothing can be written there
        send(factory, queue, range(10, 20))
        eventually(lambda: len(reported.of("retry")) > 0)
        pieces.unlink()
        eventually(lambda: count(config.to) == 20)
    assert ids(config.to) == sorted(sent(queue, range(20)))
    assert depth(factory, queue) == 0
