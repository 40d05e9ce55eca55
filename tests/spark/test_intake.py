"""Consumption of one entity in virtual time: received, planned and abandoned messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pairbus.broker import QueueDescription, Right
from pairbus.client.errors import EntityNotFoundError, MessageLockLostError, UnauthorizedError
from pairbus.client.received_message import ReceivedMessage
from pairbus.spark.intake import LockedReceiver, LockedReceiverSettings
from pairbus.spark.offset import NO_LEFTOVERS, NOTHING, Leftovers, Portion
from pairbus.spark.sequences import SequenceMarks, SequenceRanges
from tests.faults.namespace import KEY
from tests.faults.world import ORDERS, World, run
from tests.spark.scenes import Others, numbered
from tests.waiting import eventually_async

FOREVER_MS = 2**62


class Room:
    """Limits the room, and counts changes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.changes = 0
        self.intake: LockedReceiver | None = None

    def note(self) -> None:
        self.changes += 1
        if self.intake is not None:
            self.intake.make_room()

    def is_there(self) -> bool:
        return self.intake is None or self.intake.waiting < self.most


@asynccontextmanager
async def taking_in(
    world: World,
    path: str = ORDERS,
    *,
    room: int = 1_000,
    at_once: int = 100,
    keeps: bool = True,
    waits: bool = False,
    target: SequenceMarks | None = None,
    held: Portion = NOTHING,
    left: Portion = NOTHING,
) -> AsyncIterator[tuple[LockedReceiver, Room]]:
    where = Room(room)
    settings = LockedReceiverSettings(long_poll=timedelta(minutes=1), at_once=at_once, keeps=keeps, waits=waits)
    intake = LockedReceiver(world.factory(), path, settings, where.note, where.is_there, target)
    where.intake = intake
    intake.resume(held, NO_LEFTOVERS + left)
    await intake.start()
    try:
        yield intake, where
    finally:
        await intake.close()


def numbers_of(intake: LockedReceiver) -> list[int]:
    """Return the numbers of leftovers."""
    return [number for one in intake.left.portions for number in one.numbers]


def portion(*numbers: int, until_ms: int = FOREVER_MS) -> Portion:
    return Portion(numbers=SequenceRanges.of(numbers), until_ms=until_ms)


def numbers(left: Leftovers) -> list[int]:
    return [number for portion in left.portions for number in portion.numbers]


async def free(others: Others, path: str = ORDERS) -> list[str]:
    """Return the messages that are available now, and abandon them."""
    receiver = await others.factory.create_message_receiver(path)
    found = await receiver.receive(1_000, timedelta(0))
    await receiver.abandon(found)
    await receiver.close()
    return sorted((message.text() for message in found), key=int)


def test_received_messages_are_taken_in_order() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with taking_in(world) as (intake, room):
            await others.send(numbered(range(5)))
            await eventually_async(lambda: intake.waiting == 5)
            assert room.changes
            assert list(intake.take(3).numbers) == [1, 2, 3]
            assert intake.waiting == 2
            assert list(intake.take(10).numbers) == [4, 5]
            assert intake.take(10) == NOTHING

    run(scenario)


def test_receiving_stops_when_full() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with taking_in(world, room=4, at_once=2) as (intake, _):
            await asyncio.sleep(100)
            assert intake.waiting == 4
            assert await free(others) == numbered(range(4, 10))
            intake.take(1)
            intake.make_room()
            await eventually_async(lambda: intake.waiting == 5)  # two at a time

    run(scenario)


def test_lost_lock_frees_room() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with taking_in(world, room=4, at_once=4) as (intake, _):
            await eventually_async(lambda: intake.waiting == 4)
            world.namespace.kill()
            world.namespace.start()
            await asyncio.sleep(100)
            assert intake.waiting == 4
            assert len(await free(others)) == 6

    run(scenario)


@pytest.mark.parametrize("sent", [3, 10])
def test_d1_messages_after_the_target_are_not_planned(sent: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(sent)))
        async with taking_in(world, target=SequenceMarks.of([3])) as (intake, _):
            await eventually_async(lambda: intake.waiting == 3)
            assert list(intake.take(5).numbers) == [1, 2, 3]
            await asyncio.sleep(70)
            assert intake.is_drained
            assert intake.waiting == 0

    run(scenario)


def test_d1_messages_after_the_target_are_abandoned() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, target=SequenceMarks.of([3])) as (intake, _):
            await eventually_async(lambda: intake.is_drained)
            intake.take(3)
            assert await free(others) == []
        assert await free(others) == numbered(range(3, 6))  # the messages of a batch stay locked

    run(scenario)


def test_d2_tokens_settle_their_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(4)))
        async with taking_in(world) as (intake, _):
            await eventually_async(lambda: intake.waiting == 4)
            held = intake.take(2)
            tokens = intake.tokens(held)
            assert list(tokens) == [1, 2]
            assert intake.tokens(portion(1, 2, until_ms=0)) == {}  # of a deleted queue with this name
            receiver = await others.receiver()
            await receiver.complete(ReceivedMessage(b"", lock_token=tokens[2]))
            assert await others.look() == ["0", "2", "3"]

    run(scenario)


def test_d1_held_messages_are_not_planned_again_and_leftovers_are_removed() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, held=portion(1, 2), left=portion(3)) as (intake, _):
            await eventually_async(lambda: intake.waiting == 3)
            await intake.wait_removed()
            assert intake.left == NO_LEFTOVERS
            assert await others.look() == ["0", "1", "3", "4", "5"]
            assert list(intake.tokens(portion(1, 2))) == [1, 2]  # they are locked by this receiver now
            intake.remove(portion(1, 2))
            await intake.wait_removed()
            assert await others.look() == ["3", "4", "5"]
            assert list(intake.take(10).numbers) == [4, 5, 6]

    run(scenario)


def test_d1_newer_message_with_the_number_of_a_leftover_is_planned() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        old_ms = world.namespace.now_ms() - 60_000
        done = portion(1, 2, 3, until_ms=old_ms)
        async with taking_in(world, held=done, left=done) as (intake, _):
            await eventually_async(lambda: intake.waiting == 3)
            intake.remove(done)
            await intake.wait_removed()
            assert await others.look() == numbered(range(3))
            assert list(intake.take(10).numbers) == [1, 2, 3]

    run(scenario)


@pytest.mark.parametrize("keeps", [True, False])
def test_d2_redelivered_message_of_a_batch_is_planned_only_if_the_sink_settles(keeps: bool) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(["0"])
        async with taking_in(world, keeps=keeps) as (intake, _):
            await eventually_async(lambda: intake.waiting == 1)
            held = intake.take(1)
            token = intake.tokens(held)[1]
            receiver = await others.receiver()
            await receiver.abandon(ReceivedMessage(b"", lock_token=token))
            await asyncio.sleep(1)
            assert intake.waiting == (0 if keeps else 1)
            if keeps:
                assert intake.tokens(held)[1] != token  # locked again
                intake.remove(held)
                await intake.wait_removed()
                assert await others.look() == []

    run(scenario)


@pytest.mark.parametrize("settled", [[], [1], [1, 2, 3], [2, 5], [9, 10], [4, 5, 6, 7], [*range(1, 11)]], ids=str)
def test_d2_settled_messages_do_not_prevent_abandoning_others(settled: list[int]) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(12)))
        async with taking_in(world, keeps=False) as (intake, _):
            await eventually_async(lambda: intake.waiting == 12)
            tokens = intake.tokens(intake.take(10))
            receiver = await others.receiver()
            for number in settled:
                await receiver.complete(ReceivedMessage(b"", lock_token=tokens[number]))
        assert await free(others) == [str(number) for number in range(12) if number + 1 not in settled]

    run(scenario)


def test_d2_redelivered_message_is_abandoned_with_the_others() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, keeps=False) as (intake, _):
            await eventually_async(lambda: intake.waiting == 6)
            tokens = intake.tokens(intake.take(6))
            receiver = await others.receiver()
            await receiver.abandon([ReceivedMessage(b"", lock_token=token) for token in tokens.values()])
            await eventually_async(lambda: intake.waiting == 6)
        assert await free(others) == numbered(range(6))

    run(scenario)


def test_leftovers_that_are_gone_are_forgotten() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(4)))
        receiver = await others.receiver()
        first, second, third, _ = await receiver.receive(4, timedelta(0))
        await receiver.complete(first)
        await receiver.defer(second)
        await receiver.dead_letter(third)
        async with taking_in(world, left=portion(1, 2, 3, 4)) as (intake, _):
            await intake.refresh_leftovers()
            assert numbers(intake.left) == [4]  # locked by another receiver

    run(scenario)


def test_many_leftovers_are_peeked_in_pages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        for start in range(0, 2_500, 500):
            await others.send(numbered(range(start, start + 500)))
        receiver = await others.receiver()
        mine: list[ReceivedMessage] = []
        while len(mine) < 2_500:
            mine += await receiver.receive(2_500 - len(mine), timedelta(seconds=1))
        await receiver.complete(mine[::2])
        async with taking_in(world, left=portion(*range(1, 2_501))) as (intake, _):
            await intake.refresh_leftovers()
            assert numbers(intake.left) == [*range(2, 2_501, 2)]

    run(scenario)


def test_locks_are_renewed_until_close() -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=10_000))
        others = Others(world)
        await others.send(numbered(range(4)), "brief")
        async with taking_in(world, "brief") as (intake, _):
            await eventually_async(lambda: intake.waiting == 4)
            intake.take(2)
            for _ in range(10):
                await asyncio.sleep(60)
                assert await free(others, "brief") == []
        assert await free(others, "brief") == ["2", "3"]
        await asyncio.sleep(11)
        assert await free(others, "brief") == numbered(range(4))

    run(scenario)


@pytest.mark.parametrize(("skew_s", "wasted"), [(-900.0, 0), (-50.0, 0), (0.0, 0), (50.0, 2), (900.0, 2)])
def test_locks_are_renewed_with_a_wrong_clock(skew_s: float, wasted: int) -> None:
    """A clock that is behind overestimates locks, until one is lost."""

    async def scenario(world: World) -> None:
        world.namespace.skew_s = skew_s
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=15_000))
        others = Others(world)
        await others.send(numbered(range(4)), "brief")
        await asyncio.sleep(100)  # enqueued long before they are received
        async with taking_in(world, "brief") as (intake, _):
            await eventually_async(lambda: intake.waiting == 4)
            await asyncio.sleep(600)
            receiver = await others.receiver("brief")
            counts = [message.delivery_count for message in await receiver.peek(4)]
            assert len(counts) == 4
            assert max(counts) <= 1  # a lost lock reveals that the clock is behind

    run(scenario)


def test_e4_permanent_error_stops_the_receiver() -> None:
    async def scenario(world: World) -> None:
        async with taking_in(world, "nothing") as (intake, room):
            await eventually_async(lambda: intake.error is not None)
            assert isinstance(intake.error, EntityNotFoundError)
            assert room.changes

    run(scenario)


def test_missing_entity_is_awaited_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with taking_in(world, waits=True, keeps=False) as (intake, _):
            await others.send(["0"])
            await eventually_async(lambda: intake.waiting == 1)
            for turn in range(2):
                world.namespace.delete(ORDERS)
                await eventually_async(lambda: intake.is_missing)
                await asyncio.sleep(600)
                assert intake.receives < 10
                world.namespace.create_queue(ORDERS)
                await asyncio.sleep(31)
                assert not intake.is_missing  # though nothing has come
                before = intake.waiting
                await others.send([str(turn)])
                await eventually_async(lambda: intake.waiting > before)  # noqa: B023
            assert intake.error is None

    with caplog.at_level("WARNING", "pairbus.spark"):
        run(scenario)
    assert len([one for one in caplog.records if one.name == "pairbus.spark.intake"]) == 2


def test_outage_is_retried_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with taking_in(world) as (intake, _):
            await asyncio.sleep(1)
            world.namespace.kill()
            await asyncio.sleep(600)
            world.namespace.start()
            await others.send(["0"])
            await eventually_async(lambda: intake.waiting == 1)
            assert intake.error is None

    with caplog.at_level("WARNING", "pairbus.spark"):
        run(scenario)
    assert len([one for one in caplog.records if one.name == "pairbus.spark.intake"]) <= 1


def test_removing_a_message_settled_elsewhere_is_no_error() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        async with taking_in(world) as (intake, _):
            await eventually_async(lambda: intake.waiting == 3)
            held = intake.take(3)
            token = intake.tokens(held)[2]
            receiver = await others.receiver()
            await receiver.complete(ReceivedMessage(b"", lock_token=token))
            with pytest.raises(MessageLockLostError):
                await receiver.complete(ReceivedMessage(b"", lock_token=token))
            intake.remove(held)
            await intake.wait_removed()
            assert await others.look() == []
            assert numbers(intake.left) == [2]  # it may be delivered again
            await intake.refresh_leftovers()
            assert intake.left == NO_LEFTOVERS

    run(scenario)


def test_close_is_idempotent() -> None:
    async def scenario(world: World) -> None:
        async with taking_in(world) as (intake, _):
            await intake.close()
        settings: dict[str, Any] = {"long_poll": timedelta(minutes=1), "at_once": 1, "keeps": True}
        idle = LockedReceiver(world.factory(), ORDERS, LockedReceiverSettings(**settings), lambda: None, lambda: True)
        await idle.close()

    run(scenario)


def test_e4_key_without_listen_is_rejected() -> None:
    async def scenario(world: World) -> None:
        key = replace(KEY, rights=(Right.SEND,))
        world.namespace.call(lambda namespace, now_ms: namespace.set_authorization_rules([key], now_ms))
        async with taking_in(world) as (intake, _):
            await eventually_async(lambda: intake.error is not None)
            assert isinstance(intake.error, UnauthorizedError)

    run(scenario)
