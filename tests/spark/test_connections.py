"""Connections of a process are kept between tasks, and recreated when their key or process changes."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop, reach, reached
from pairbus.spark.errors import ConnectionReferenceError
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue
from tests.faults.world import World, run
from tests.spark.scenes import NOWHERE


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


def peek(factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
    async def look() -> list[ReceivedMessage]:
        receiver = await factory.create_message_receiver(path)
        try:
            return await receiver.peek(10)
        finally:
            await receiver.close()

    return on_loop(look)


def test_d1_tasks_of_one_process_share_a_connection(namespace: RunningNamespace) -> None:
    reference = ConnectionReference.parse(namespace.connection_string)
    same = ConnectionReference.parse(namespace.connection_string)
    assert factory_of(reference) is factory_of(same)
    queue = make_queue(namespace)
    assert peek(factory_of(reference), queue) == []


def test_closed_connection_is_recreated(namespace: RunningNamespace) -> None:
    reference = ConnectionReference.parse(namespace.connection_string)
    before = factory_of(reference)
    on_loop(before.close)
    after = factory_of(reference)
    assert after is not before
    assert peek(after, make_queue(namespace)) == []


def test_rotated_key_is_used_by_the_next_task(namespace: RunningNamespace, tmp_path: Path) -> None:
    secret = tmp_path / "connection"
    secret.write_text(namespace.connection_string)
    reference = ConnectionReference.parse(f"file:{secret}")
    before = factory_of(reference)
    assert factory_of(reference) is before
    secret.write_text(namespace.connection_string.replace(namespace.key, "bmV3"))
    after = factory_of(reference)
    assert after is not before
    assert before.is_closed
    with pytest.raises(MessagingError):
        peek(after, make_queue(namespace))
    with pytest.raises(ClosedError):
        peek(before, "anything")


def test_e4_missing_secret_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConnectionReferenceError, match="nowhere"):
        factory_of(ConnectionReference.parse(f"file:{tmp_path / 'nowhere'}"))


# Connect timeout.


def test_e4_unreachable_namespace_is_an_error_after_timeout() -> None:
    async def scenario(world: World) -> None:
        world.namespace.kill()
        start_s = world.loop.time()
        with pytest.raises(MessagingTimeoutError, match=r"tried for 10 s; .* 'connectTimeout'"):
            await reach(world.factory(), timedelta(seconds=10))
        assert world.loop.time() - start_s <= 10
        world.namespace.start()

    run(scenario)


def test_e4_unresponsive_namespace_is_an_error() -> None:
    with socket.create_server(("localhost", 0)) as listener:
        silent = NOWHERE.replace(":1;", f":{listener.getsockname()[1]};")
        with pytest.raises(MessagingTimeoutError, match=r"did not answer within 0\.2 s; .* 'connectTimeout'"):
            reached(ConnectionReference.parse(silent), timedelta(seconds=0.2))


def test_namespace_started_in_time_is_reached() -> None:
    async def scenario(world: World) -> None:
        world.namespace.kill()
        reaching = asyncio.create_task(reach(world.factory(), timedelta(seconds=10)))
        await asyncio.sleep(5)
        assert not reaching.done()
        world.namespace.start()
        await reaching

    run(scenario)


def test_namespace_that_rejects_the_key_is_reached(namespace: RunningNamespace) -> None:
    wrong = ConnectionReference.parse(namespace.connection_string.replace(namespace.key, "d3Jvbmc="))
    assert reached(wrong, timedelta(seconds=10)) is factory_of(wrong)


def test_reached_namespace_is_not_checked_again_with_once() -> None:
    short = timedelta(seconds=0.1)
    with running_namespace() as namespace:
        reference = ConnectionReference.parse(namespace.connection_string)
        factory = reached(reference, timedelta(seconds=10), once=True)
    assert reached(reference, short, once=True) is factory
    with pytest.raises(MessagingTimeoutError):
        reached(reference, short)
    with pytest.raises(MessagingTimeoutError):
        reached(ConnectionReference.parse(NOWHERE), short, once=True)


def test_error_on_the_loop_is_raised_in_the_caller() -> None:
    async def fail(what: str) -> None:
        raise ValueError(what)

    with pytest.raises(ValueError, match="this"):
        on_loop(fail, "this")


def test_d1_forked_worker_has_separate_connections(namespace: RunningNamespace) -> None:
    """Spark forks its Python workers from a process that may have connections."""
    queue = make_queue(namespace)
    reference = ConnectionReference.parse(namespace.connection_string)
    assert peek(factory_of(reference), queue) == []
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_work, args=(reference, queue, theirs))
    worker.start()
    try:
        assert ours.poll(20), "the worker does not answer"
        assert ours.recv() == 0
        worker.join(20)
        assert worker.exitcode == 0
    finally:
        worker.kill()
        worker.join()
    assert peek(factory_of(reference), queue) == []


def _work(reference: ConnectionReference, queue: str, answers: Connection) -> None:
    answers.send(len(peek(factory_of(reference), queue)))
