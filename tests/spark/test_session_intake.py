"""Streams of entities that require sessions, in virtual time: order, replays, lost locks, and states."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import Any, Final

import pytest

from pairbus.client.errors import InvalidRequestError
from pairbus.client.message import BrokeredMessage
from pairbus.spark.offset import ConsumeOffset
from pairbus.spark.partition import MessagePartition
from pairbus.spark.partition import tasks as group
from tests.faults.fault import Fault, Kind
from tests.faults.world import ORDERS, VISITS, World, run
from tests.spark.scenes import Driver, Others, driving, read
from tests.thoroughness import times

SESSIONS: Final = ("red", "green", "blue")


async def send(others: Others, numbers: Iterable[int], sessions: Iterable[str] = SESSIONS) -> None:
    """Send messages to each session, in turns."""
    sender = await others.factory.create_message_sender(VISITS)
    for number in numbers:
        await sender.send([BrokeredMessage(f"{session} {number}", session_id=session) for session in sessions])
    await sender.close()


def make_visits(world: World) -> Others:
    others = Others(world)
    others.make_anew(VISITS, requires_session=True)
    return others


def of_sessions(rows: Iterable[str]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        session, number = row.split()
        found[session].append(int(number))
    return dict(found)


async def tasks_of(driver: Driver, parts: list[MessagePartition]) -> list[list[str]]:
    return [[message.text() for message in await read(driver.factory, part)] for part in parts]


def test_d1_each_session_is_read_by_one_task_in_order_and_removed() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(20))
        async with driving(world, VISITS, sessions=8, longPoll="1s") as driver:
            rows: list[str] = []
            while len(rows) < 60:
                for found in await tasks_of(driver, await driver.plan()):
                    assert len(of_sessions(found)) == 1
                    rows += found
            assert of_sessions(rows) == {session: [*range(20)] for session in SESSIONS}
            await driver.plan()
            await others.until_empty(VISITS)

    run(scenario)


@pytest.mark.parametrize(("minimum", "tasks"), [(None, 16), (4, 16), (20, 20), (50, 20)])
def test_d1_min_partitions_adds_tasks_until_each_reads_one_session(minimum: int | None, tasks: int) -> None:
    sessions = [f"session-{number}" for number in range(20)]

    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(5), sessions)
        given: dict[str, Any] = {} if minimum is None else {"minPartitions": minimum}
        async with driving(world, VISITS, sessions=20, longPoll="1s", **given) as driver:
            await asyncio.sleep(10)  # until all of them are received
            parts = grouped(await driver.plan(), minimum)
            found = [of_sessions(rows) for rows in await tasks_of(driver, parts)]
            assert len(found) == tasks
            assert sorted(session for one in found for session in one) == sorted(sessions)
            assert all(numbers == [*range(5)] for one in found for numbers in one.values())

    run(scenario)


def grouped(parts: list[MessagePartition], minimum: int | None) -> list[MessagePartition]:
    """Return the tasks of a batch, none of which has several partitions."""
    found = group(parts, minimum)
    assert found == parts
    return parts


@pytest.mark.parametrize("at_once", [1, 2])
def test_d1_sessions_take_turns(at_once: int) -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(5))
        async with driving(world, VISITS, sessions=at_once, longPoll="1s") as driver:
            rows = await driver.until(15)
            assert of_sessions(rows) == {session: [*range(5)] for session in SESSIONS}
            await send(others, range(5, 8))
            assert of_sessions(await driver.until(24)) == {session: [*range(8)] for session in SESSIONS}

    run(scenario)


def test_d1_state_of_a_session_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(2), ["red"])
        session = await others.factory.accept_message_session(VISITS, "red")
        await session.set_state(b"kept")
        await session.close()
        async with driving(world, VISITS, sessions=2, longPoll="1s") as driver:
            assert await driver.until(2) == ["red 0", "red 1"]
            await driver.plan()
            await others.until_empty(VISITS)
        session = await others.factory.accept_message_session(VISITS, "red")
        assert await session.get_state() == b"kept"

    run(scenario)


def test_d1_session_of_a_batch_is_locked_until_its_messages_are_removed() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(3), ["red"])
        async with driving(world, VISITS, sessions=2, longPoll="1s", maxMessagesPerTrigger=2) as driver:
            assert await driver.batch() == ["red 0", "red 1"]
            await asyncio.sleep(300)  # longer than a lock
            with pytest.raises(Exception, match="session"):
                await others.factory.accept_message_session(VISITS, "red")
            assert await driver.batch() == ["red 2"]

    run(scenario)


def test_d1_batch_with_sessions_is_repeated_by_the_next_driver_in_the_same_tasks() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(10))
        async with driving(world, VISITS, sessions=3, longPoll="1s") as first:
            await asyncio.sleep(1)
            parts = await first.plan()
            before = await tasks_of(first, parts)
            offset = first.offset
            await first.die()
        async with driving(world, VISITS, sessions=3, longPoll="1s", known=offset) as second:
            again = second.consumption.partitions(offset)
            assert await tasks_of(second, again) == before
            await send(others, range(10, 12))
            rows = [row for found in before for row in found]
            second.rows = rows
            assert of_sessions(await second.until(36)) == {session: [*range(12)] for session in SESSIONS}
            await second.plan()
            await others.until_empty(VISITS)

    run(scenario)


def test_d1_lost_session_is_received_again_without_loss() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(4))
        async with driving(world, VISITS, sessions=3, longPoll="1s", maxMessagesPerTrigger=6) as driver:
            await driver.batch()
            world.namespace.kill()
            world.namespace.start()
            rows = await driver.until(12)
            assert {session: sorted(set(numbers)) for session, numbers in of_sessions(rows).items()} == {
                session: [*range(4)] for session in SESSIONS
            }
            assert len(rows) == 12
            await driver.plan()
            await others.until_empty(VISITS)

    run(scenario)


def test_d1_available_now_reads_present_messages_of_sessions() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(5))
        async with driving(world, VISITS, sessions=2, until_now=True, maxMessagesPerTrigger=4) as driver:
            await send(others, range(5, 7))
            rows: list[str] = []
            while found := await driver.batch():
                rows += found
            assert of_sessions(rows) == {session: [*range(5)] for session in SESSIONS}
        assert of_sessions(await others.look(VISITS)) == {session: [5, 6] for session in SESSIONS}

    run(scenario)


def test_c14_idle_stream_of_sessions_accepts_once_per_long_poll() -> None:
    async def scenario(world: World) -> None:
        make_visits(world)
        async with driving(world, VISITS, sessions=2, longPoll="60s") as driver:
            for _ in range(4):
                assert await driver.batch() == []
                await asyncio.sleep(60)
            assert 2 * 4 <= driver.consumption.report()["receives"] <= 2 * 6

    run(scenario)


def test_e4_sessions_of_an_entity_without_them_are_rejected() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(InvalidRequestError):
            async with driving(world, ORDERS, sessions=2) as driver:
                await driver.batch()

    run(scenario)


def test_stream_of_sessions_releases_them_when_it_is_closed() -> None:
    async def scenario(world: World) -> None:
        others = make_visits(world)
        await send(others, range(2), ["red"])
        async with driving(world, VISITS, sessions=2, longPoll="1s"):
            await asyncio.sleep(1)
        session = await others.factory.accept_message_session(VISITS, "red", server_wait_time=timedelta(seconds=1))
        assert [message.text() for message in await session.receive(5)] == ["red 0", "red 1"]

    run(scenario)


@pytest.mark.parametrize("seed", range(times(15)))
def test_d1_random_failures_keep_sessions_complete_and_in_order(seed: int) -> None:
    """Drivers are killed at any time, connections are cut, the namespace restarts: nothing is lost or overtaken."""

    async def scenario(world: World) -> None:
        random = Random(seed)  # noqa: S311 (it plans faults)
        others = make_visits(world)
        offset, committed = ConsumeOffset(), ConsumeOffset()
        rows: list[str] = []
        sent = 0
        for _ in range(5):
            count = random.randint(0, 10)
            await send(others, range(sent, sent + count))
            sent += count
            given: dict[str, Any] = {
                "sessions": random.randint(1, 4),
                "maxMessagesPerTrigger": random.choice((1, 5, 20)),
            }
            driver = Driver(world.factory(), VISITS, known=offset, longPoll="2s", **given)
            await driver.start()
            if offset != committed:  # it died during a batch, which is run again
                rows += await driver.read(driver.consumption.partitions(offset))
            for _ in range(random.randint(0, 4)):
                rows += await driver.batch()
                match random.choice(("nothing", "wait", "cut", "restart")):
                    case "wait":
                        await asyncio.sleep(random.choice((1, 70)))
                    case "cut":
                        world.proxy.apply(Fault(kind=Kind.CUT))
                    case "restart":
                        world.namespace.kill()
                        world.namespace.start()
            left = {*await others.look(VISITS)}
            assert {f"{session} {number}" for session in SESSIONS for number in range(sent)} - left <= {*rows}
            offset = driver.offset
            committed = offset if random.random() < 0.5 else committed
            await (driver.die() if random.random() < 0.7 else driver.close())
        async with driving(world, VISITS, known=offset, sessions=3, longPoll="2s") as last:
            rows += await last.read(last.consumption.partitions(offset))
            for _ in range(60):
                rows += await last.batch()
        first_reads = of_sessions(dict.fromkeys(rows))
        assert first_reads == ({session: [*range(sent)] for session in SESSIONS} if sent else {})
        assert await others.look(VISITS) == []

    run(scenario, seed=seed)
