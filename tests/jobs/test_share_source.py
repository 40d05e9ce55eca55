"""The source of the syphon's query, on a real server and without Spark: it waits, and leaves the messages to tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pairbus import MessagingFactory, NamespaceManager, QueueDescription, ReceivedMessage
from pairbus.jobs.syphon.share_source import (
    EpochPlanner,
    ShareOffset,
    ShareOptions,
    ShareReader,
    start_planner,
)
from pairbus.spark.connections import ConnectionReference
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue
from tests.jobs.sent_messages import send_raw

LONG_POLL: Final = timedelta(minutes=15)
START: Final = ShareOffset(epoch=7)
MESSAGE: Final = b"\x00Su\xa0\x01x"


@pytest.fixture(scope="module")
def secondary() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Backlog queues, and what plans epochs of them."""

    factory: MessagingFactory
    planner: EpochPlanner
    queues: tuple[str, ...]

    async def send(self, queue: str, count: int = 1) -> None:
        await send_raw(self.factory, queue, [MESSAGE] * count)

    async def receive(self, queue: str, count: int = 1) -> list[ReceivedMessage]:
        """Receive and complete messages, as a task does."""
        async with await self.factory.create_message_receiver(queue) as receiver:
            found = await receiver.receive(count, timedelta(seconds=10))
            await receiver.complete(found)
            return found

    async def defer(self, queue: str) -> None:
        async with await self.factory.create_message_receiver(queue) as receiver:
            await receiver.defer(await receiver.receive(1, timedelta(seconds=10)))

    async def plan_until(self, *queues: str) -> None:
        """Plan until an epoch has these queues: a plan without an epoch is returned while nothing happens."""
        while (end := await self.planner.plan(START)) == START:
            pass
        assert end == ShareOffset(epoch=8, queues=queues)


def options(secondary: RunningNamespace, *queues: str, max_messages: int = 100) -> ShareOptions:
    return ShareOptions(
        connection=ConnectionReference.parse(secondary.connection_string),
        queues=queues,
        long_poll=LONG_POLL,
        max_messages=max_messages,
    )


@asynccontextmanager
async def scene(
    secondary: RunningNamespace, *messages: int, once: bool = False, missing: str | None = None
) -> AsyncIterator[Scene]:
    queues = [make_queue(secondary) for _ in messages]
    async with MessagingFactory.from_connection_string(secondary.connection_string) as factory:
        for queue, count in zip(queues, messages, strict=True):
            if count:
                await send_raw(factory, queue, [MESSAGE] * count)
        all_queues = (*queues, missing) if missing else (*queues,)
        planner = await start_planner(factory, options(secondary, *all_queues), once=once)
        try:
            yield Scene(factory=factory, planner=planner, queues=all_queues)
        finally:
            await planner.close()


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 100))


def test_c14_idle_queue_has_one_receive_in_a_long_poll_that_outlives_the_epochs(secondary: RunningNamespace) -> None:
    async def scenario() -> None:
        async with scene(secondary, 0, 0, 0) as at:
            assert await at.planner.plan(START) == START
            await at.send(at.queues[1])
            await at.plan_until(at.queues[1])
            assert at.planner.report() == {"receives": 3, "missing": []}
            await at.receive(at.queues[1])
            assert await at.planner.plan(START) == START
            assert at.planner.report()["receives"] == 4, "only the queue of the epoch is waited for again"

    play(scenario())


def test_d2_epoch_has_the_queues_with_messages_and_leaves_these_to_the_tasks(secondary: RunningNamespace) -> None:
    async def scenario() -> None:
        async with scene(secondary, 2, 0) as at:
            await at.plan_until(at.queues[0])
            assert len(await at.receive(at.queues[0], 2)) == 2
            assert await at.planner.plan(START) == START

    play(scenario())


def test_d2_queue_whose_messages_were_not_all_delivered_is_in_the_next_epoch(secondary: RunningNamespace) -> None:
    async def scenario() -> None:
        async with scene(secondary, 2) as at:
            await at.plan_until(at.queues[0])
            assert len(await at.receive(at.queues[0])) == 1
            await at.plan_until(at.queues[0])

    play(scenario())


def test_c15_missing_queue_is_reported_and_read_once_it_exists(secondary: RunningNamespace) -> None:
    missing = "contoso-missing"

    async def scenario() -> None:
        async with (
            scene(secondary, 0, missing=missing) as at,
            NamespaceManager.from_connection_string(secondary.connection_string) as manager,
        ):
            while at.planner.report()["missing"] != [missing]:
                assert await at.planner.plan(START) == START
            await at.send(at.queues[0])
            await at.plan_until(at.queues[0])
            await at.receive(at.queues[0])
            await manager.create_queue(QueueDescription(missing))
            await at.send(missing)
            await at.plan_until(missing)
            assert at.planner.report()["missing"] == []

    play(scenario())


def test_d2_once_plans_epochs_until_the_messages_of_the_start_are_gone_or_parked(secondary: RunningNamespace) -> None:
    async def scenario() -> None:
        async with scene(secondary, 3, 0, 1, once=True) as at:
            first, _, third = at.queues
            await at.plan_until(first, third)
            await at.receive(first, 2)
            await at.receive(third)
            await at.send(third)  # it was not there at the start
            await at.plan_until(first)
            await at.defer(first)
            assert await at.planner.plan(START) == START
            assert at.planner.report()["receives"] == 0

    play(scenario())


def test_d2_epoch_divides_its_messages_among_its_queues(secondary: RunningNamespace) -> None:
    reader = ShareReader(options(secondary, "a", "b", "c", max_messages=100))
    start, end = START.to_json(), START.next(["a", "c"]).to_json()
    found = [row for part in reader.partitions(start, end) for one in reader.read(part) for row in one.to_pylist()]
    assert found == [{"queue": "a", "messages": 50}, {"queue": "c", "messages": 50}]
    assert reader.partitions(start, start) == []


def test_d2_offset_of_an_earlier_version_is_an_epoch_without_queues(secondary: RunningNamespace) -> None:
    reader = ShareReader(options(secondary, "a"))
    earlier = {"version": 1, "batch": 3, "held": {"a": {"numbers": "1..5", "until": 1}}, "left": {}}
    assert reader.partitions(reader.initialOffset(), earlier) == []
    assert ShareOffset.from_json(earlier) == ShareOffset(epoch=3)


def test_d2_reader_plans_with_a_connection_of_its_own(secondary: RunningNamespace) -> None:
    queue = make_queue(secondary)
    reader = ShareReader(options(secondary, queue))
    assert reader.reportLatestOffset() == {"receives": 0, "missing": []}
    start = reader.initialOffset()
    try:
        assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert reader.reportLatestOffset() == {"receives": 1, "missing": []}
    finally:
        reader.stop()
