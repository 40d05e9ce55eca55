"""A capture from real queues and subscriptions into files: once, until it is stopped, and after it was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from pairbus.blocking import MessagingFactory
from pairbus.jobs.capture.command import DONE, CaptureCommand, run_capture
from pairbus.jobs.capture.limits import LEAST_BYTES, WindowLimits
from pairbus.jobs.capture.order import CaptureOrder
from pairbus.jobs.ending import FAILED, WAITING, Ending
from pairbus.jobs.lines import Line, LineTeller
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.session import ensured_session
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue, make_topic
from tests.jobs.capture.entities import LIMIT_S, book, count, depth, eventually, send, sent
from tests.jobs.capture.messages import files, ids

VARIABLE: Final = "PAIRBUS_TEST_CAPTURE"
LOCK: Final = 5_000
SHORT: Final = WindowLimits(length=timedelta(seconds=2))


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def connection(namespace: RunningNamespace) -> Iterator[ConnectionReference]:
    """In the environment, before Spark is started."""
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
def order(connection: ConnectionReference, spark: SparkSession, tmp_path: Path) -> CaptureOrder:
    return CaptureOrder(source=connection, entities=(), to=tmp_path / "files", max_messages=500)


class Told(LineTeller):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.lines: list[Line] = []

    def tell(self, line: Line) -> None:
        self.lines.append(line)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [dict(line.facts) for line in self.lines if line.event == event]


def once(order: CaptureOrder) -> tuple[Ending, Told]:
    told = Told()
    return run_capture(replace(order, once=True), told), told


@contextmanager
def running(order: CaptureOrder) -> Iterator[Told]:
    """One that is stopped at the end of the block, as an operator does it."""
    told, stopped = Told(), Event()
    endings: list[Ending] = []
    thread = Thread(target=lambda: endings.append(CaptureCommand(order, told).run(stopped)))
    thread.start()
    try:
        yield told
    finally:
        stopped.set()
        thread.join(LIMIT_S)
    assert endings == [Ending(code=DONE)]


# Once


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_a_queue_and_a_subscription_are_captured_once(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory, spark: SparkSession
) -> None:
    queue, topic = make_queue(namespace), make_topic(namespace, "audit")
    subscription = f"{topic}/Subscriptions/audit"
    send(factory, queue, range(1_200))
    send(factory, topic, range(30))
    both = replace(order, entities=(queue, subscription))
    everything = sorted(sent(queue, range(1_200)) + sent(topic, range(30)))
    for expected in (1_230, 0):  # the second time there is nothing new
        ending, told = once(both)
        assert ending == Ending(code=DONE)
        assert sum(line["messages"] for line in told.of("file")) == expected
        assert ids(order.to) == everything
        rows = spark.read.parquet(str(order.to)).select("message_id", "source", "entity").collect()
        assert sorted(row.message_id for row in rows) == everything
        assert {(row.source, row.entity) for row in rows} == {(queue, queue), (subscription, subscription)}
    assert (depth(factory, queue), depth(factory, subscription)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", [False, True])
def test_d5_what_is_kept_is_captured_once_and_stays(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory, partitioned: bool
) -> None:
    queue = make_queue(namespace, partitioned=partitioned)
    keeping = replace(order, entities=(queue,), keep=True)
    for start in (0, 700):
        send(factory, queue, range(start, start + 700))
        assert once(keeping)[0] == Ending(code=DONE)
    assert ids(order.to) == sorted(sent(queue, range(1_400)))
    assert depth(factory, queue) == 1_400


@pytest.mark.slow
def test_what_somebody_has_locked_is_told_with_code_3(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace, lock_duration_ms=4 * LOCK)
    send(factory, queue, range(10))
    with factory.create_message_receiver(queue, max_auto_lock_renewal=timedelta(minutes=5)) as receiver:
        locked = receiver.receive(4)
        ending, told = once(replace(order, entities=(queue,)))
        assert ending.code == WAITING
        assert told.of("waiting") == [{"entity": queue, "messages": len(locked)}]
        assert count(order.to) == 10 - len(locked)
        receiver.abandon(locked)
    assert once(replace(order, entities=(queue,)))[0] == Ending(code=DONE)
    assert ids(order.to) == sorted(sent(queue, range(10)))


@pytest.mark.slow
@pytest.mark.parametrize("is_once", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nowhere", "could not be found"),
        ("topic", "is a topic: capture one of its subscriptions, "),
        ("sessions", "what requires sessions can be copied, with --keep"),
    ],
)
def test_what_cannot_be_read_is_told_with_code_1(
    order: CaptureOrder, namespace: RunningNamespace, is_once: bool, kind: str, said: str
) -> None:
    entities = {
        "nowhere": "nowhere",
        "topic": make_topic(namespace, "audit"),
        "sessions": make_queue(namespace, requires_session=True),
    }
    told = Told()
    ending = run_capture(replace(order, entities=(entities[kind],), once=is_once), told)
    assert ending.code == FAILED
    assert ending.reason is not None
    assert entities[kind] in ending.reason
    assert said in ending.reason
    assert not told.of("spark"), "before Spark is started, which takes seconds"


@pytest.mark.slow
def test_d5_no_file_is_larger_than_the_window(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue, random = make_queue(namespace), Random(3)  # noqa: S311 (the same each time)
    send(factory, queue, range(2_500), lambda: random.randbytes(1_000))
    assert once(replace(order, entities=(queue,), limits=WindowLimits(size_bytes=LEAST_BYTES)))[0].code == DONE
    sizes = [path.stat().st_size for path in files(order.to)]
    assert len(sizes) in range(3, 6)
    assert max(sizes) <= LEAST_BYTES
    assert ids(order.to) == sorted(sent(queue, range(2_500)))


# Until it is stopped


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d5_windows_close_by_time_while_it_runs_and_when_it_is_stopped(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace)
    with running(replace(order, entities=(queue,), limits=SHORT)) as told:
        for start in range(0, 900, 300):
            send(factory, queue, range(start, start + 300))
            eventually(lambda start=start: count(order.to) == start + 300)  # type: ignore[misc]
        eventually(lambda: len(told.of("file")) >= 3)
    send(factory, queue, range(900, 1_000))
    with running(replace(order, entities=(queue,), limits=WindowLimits(length=timedelta(hours=1)))):
        eventually(lambda: sum(window.messages for window in book(order.to).windows) == 100)
        assert count(order.to) == 900
    assert ids(order.to) == sorted(sent(queue, range(1_000)))
    assert depth(factory, queue) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e1_a_query_that_fails_begins_again(
    order: CaptureOrder, namespace: RunningNamespace, factory: MessagingFactory
) -> None:
    queue = make_queue(namespace, lock_duration_ms=LOCK)
    pieces = order.to / "_capture" / "pieces"
    with running(replace(order, entities=(queue,), limits=SHORT)) as told:
        send(factory, queue, range(10))
        eventually(lambda: sum(line["messages"] for line in told.of("file")) == 10)  # told when all is tidied up
        pieces.rmdir()
        pieces.touch()  # nothing can be written there
        send(factory, queue, range(10, 20))
        eventually(lambda: len(told.of("retry")) > 0)
        pieces.unlink()
        eventually(lambda: count(order.to) == 20)
    assert ids(order.to) == sorted(sent(queue, range(20)))
    assert depth(factory, queue) == 0
