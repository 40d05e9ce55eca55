"""One entity that a stream consumes, in virtual time: what waits, what is held, and what is given back."""

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
from pairbus.spark.intake import Intake, IntakeSettings
from pairbus.spark.offset import NO_LEFTOVERS, NOTHING, Leftovers, Portion
from pairbus.spark.sequence_marks import SequenceMarks
from pairbus.spark.sequence_ranges import SequenceRanges
from tests.faults.namespace import KEY
from tests.faults.recorder import eventually
from tests.faults.world import ORDERS, World, run
from tests.spark.scenes import Others, numbered

FOREVER_MS = 2**62


class Room:
    """Whether there is room for more, and how often something has changed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.changes = 0
        self.intake: Intake | None = None

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
    target: SequenceMarks | None = None,
    held: Portion = NOTHING,
    left: Portion = NOTHING,
) -> AsyncIterator[tuple[Intake, Room]]:
    where = Room(room)
    settings = IntakeSettings(long_poll=timedelta(minutes=1), at_once=at_once, keeps=keeps)
    intake = Intake(world.factory(), path, settings, where.note, where.is_there, target)
    where.intake = intake
    intake.resume(held, NO_LEFTOVERS + left)
    await intake.start()
    try:
        yield intake, where
    finally:
        await intake.close()


def numbers_of(intake: Intake) -> list[int]:
    """What is left of it."""
    return [number for one in intake.left.portions for number in one.numbers]


def portion(*numbers: int, until_ms: int = FOREVER_MS) -> Portion:
    return Portion(numbers=SequenceRanges.of(numbers), until_ms=until_ms)


def numbers(left: Leftovers) -> list[int]:
    return [number for portion in left.portions for number in portion.numbers]


async def free(others: Others, path: str = ORDERS) -> list[str]:
    """What anybody could receive at this moment; it is given back."""
    receiver = await others.factory.create_message_receiver(path)
    found = await receiver.receive(1_000, timedelta(0))
    await receiver.abandon(found)
    await receiver.close()
    return sorted((message.text() for message in found), key=int)


def test_what_comes_waits_in_order_until_it_is_taken() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with taking_in(world) as (intake, room):
            await others.send(numbered(range(5)))
            await eventually(lambda: intake.waiting == 5)
            assert room.changes
            assert list(intake.take(3).numbers) == [1, 2, 3]
            assert intake.waiting == 2
            assert list(intake.take(10).numbers) == [4, 5]
            assert intake.take(10) == NOTHING

    run(scenario)


def test_no_more_is_received_than_there_is_room_for() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with taking_in(world, room=4, at_once=2) as (intake, _):
            await asyncio.sleep(100)
            assert intake.waiting == 4
            assert await free(others) == numbered(range(4, 10))
            intake.take(1)
            intake.make_room()
            await eventually(lambda: intake.waiting == 5)  # two at a time

    run(scenario)


def test_room_that_a_lost_lock_leaves_is_used_again() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with taking_in(world, room=4, at_once=4) as (intake, _):
            await eventually(lambda: intake.waiting == 4)
            world.namespace.kill()
            world.namespace.start()
            await asyncio.sleep(100)
            assert intake.waiting == 4
            assert len(await free(others)) == 6

    run(scenario)


@pytest.mark.parametrize("sent", [3, 10])
def test_d1_until_a_number_nothing_behind_it_is_planned(sent: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(sent)))
        async with taking_in(world, target=SequenceMarks.of([3])) as (intake, _):
            await eventually(lambda: intake.waiting == 3)
            assert list(intake.take(5).numbers) == [1, 2, 3]
            await asyncio.sleep(70)
            assert intake.is_drained
            assert intake.waiting == 0

    run(scenario)


def test_d1_what_was_received_beyond_the_end_is_given_back() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, target=SequenceMarks.of([3])) as (intake, _):
            await eventually(lambda: intake.is_drained)
            intake.take(3)
            assert await free(others) == []
        assert await free(others) == numbered(range(3, 6))  # and what a batch holds stays locked

    run(scenario)


def test_d2_tokens_settle_what_they_stand_for() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(4)))
        async with taking_in(world) as (intake, _):
            await eventually(lambda: intake.waiting == 4)
            held = intake.take(2)
            tokens = intake.tokens(held)
            assert list(tokens) == [1, 2]
            assert intake.tokens(portion(1, 2, until_ms=0)) == {}  # of another queue with this name
            receiver = await others.receiver()
            await receiver.complete(ReceivedMessage(b"", lock_token=tokens[2]))
            assert await others.look() == ["0", "2", "3"]

    run(scenario)


def test_d1_what_a_checkpoint_holds_is_not_planned_again_and_what_it_has_done_is_removed() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, held=portion(1, 2), left=portion(3)) as (intake, _):
            await eventually(lambda: intake.waiting == 3)
            await intake.removed()
            assert intake.left == NO_LEFTOVERS
            assert await others.look() == ["0", "1", "3", "4", "5"]
            assert list(intake.tokens(portion(1, 2))) == [1, 2]  # their locks are ours by now
            intake.remove(portion(1, 2))
            await intake.removed()
            assert await others.look() == ["3", "4", "5"]
            assert list(intake.take(10).numbers) == [4, 5, 6]

    run(scenario)


def test_d1_what_has_the_number_of_something_done_and_is_newer_is_planned() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        old_ms = world.namespace.now_ms() - 60_000
        done = portion(1, 2, 3, until_ms=old_ms)
        async with taking_in(world, held=done, left=done) as (intake, _):
            await eventually(lambda: intake.waiting == 3)
            intake.remove(done)
            await intake.removed()
            assert await others.look() == numbered(range(3))
            assert list(intake.take(10).numbers) == [1, 2, 3]

    run(scenario)


@pytest.mark.parametrize("keeps", [True, False])
def test_d2_what_comes_again_while_a_batch_holds_it_is_planned_again_only_if_the_sink_settles(keeps: bool) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(["0"])
        async with taking_in(world, keeps=keeps) as (intake, _):
            await eventually(lambda: intake.waiting == 1)
            held = intake.take(1)
            token = intake.tokens(held)[1]
            receiver = await others.receiver()
            await receiver.abandon(ReceivedMessage(b"", lock_token=token))
            await asyncio.sleep(1)
            assert intake.waiting == (0 if keeps else 1)
            if keeps:
                assert intake.tokens(held)[1] != token  # it is locked for us anew
                intake.remove(held)
                await intake.removed()
                assert await others.look() == []

    run(scenario)


@pytest.mark.parametrize("settled", [[], [1], [1, 2, 3], [2, 5], [9, 10], [4, 5, 6, 7], [*range(1, 11)]], ids=str)
def test_d2_what_the_sink_has_settled_keeps_nothing_else_from_being_given_back(settled: list[int]) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(12)))
        async with taking_in(world, keeps=False) as (intake, _):
            await eventually(lambda: intake.waiting == 12)
            tokens = intake.tokens(intake.take(10))
            receiver = await others.receiver()
            for number in settled:
                await receiver.complete(ReceivedMessage(b"", lock_token=tokens[number]))
        assert await free(others) == [str(number) for number in range(12) if number + 1 not in settled]

    run(scenario)


def test_d2_what_the_sink_gave_back_and_came_again_is_given_back_with_the_rest() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with taking_in(world, keeps=False) as (intake, _):
            await eventually(lambda: intake.waiting == 6)
            tokens = intake.tokens(intake.take(6))
            receiver = await others.receiver()
            await receiver.abandon([ReceivedMessage(b"", lock_token=token) for token in tokens.values()])
            await eventually(lambda: intake.waiting == 6)
        assert await free(others) == numbered(range(6))

    run(scenario)


def test_what_is_left_and_not_there_any_more_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(4)))
        receiver = await others.receiver()
        first, second, third, _ = await receiver.receive(4, timedelta(0))
        await receiver.complete(first)
        await receiver.defer(second)
        await receiver.dead_letter(third)
        async with taking_in(world, left=portion(1, 2, 3, 4)) as (intake, _):
            await intake.look_for_left()
            assert numbers(intake.left) == [4]  # which another has locked

    run(scenario)


def test_many_that_are_left_are_looked_for_in_pages() -> None:
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
            await intake.look_for_left()
            assert numbers(intake.left) == [*range(2, 2_501, 2)]

    run(scenario)


def test_locks_are_kept_as_long_as_it_runs_and_no_longer() -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=10_000))
        others = Others(world)
        await others.send(numbered(range(4)), "brief")
        async with taking_in(world, "brief") as (intake, _):
            await eventually(lambda: intake.waiting == 4)
            intake.take(2)
            for _ in range(10):
                await asyncio.sleep(60)
                assert await free(others, "brief") == []
        assert await free(others, "brief") == ["2", "3"]
        await asyncio.sleep(11)
        assert await free(others, "brief") == numbered(range(4))

    run(scenario)


@pytest.mark.parametrize(("skew_s", "wasted"), [(-900.0, 0), (-50.0, 0), (0.0, 0), (50.0, 2), (900.0, 2)])
def test_locks_are_kept_on_a_machine_whose_clock_is_wrong(skew_s: float, wasted: int) -> None:
    """One that is behind takes locks for longer than they are, until it has lost one."""

    async def scenario(world: World) -> None:
        world.namespace.skew_s = skew_s
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=15_000))
        others = Others(world)
        await others.send(numbered(range(4)), "brief")
        await asyncio.sleep(100)  # they are no news when they are received
        async with taking_in(world, "brief") as (intake, _):
            await eventually(lambda: intake.waiting == 4)
            await asyncio.sleep(600)
            receiver = await others.receiver("brief")
            counts = [message.delivery_count for message in await receiver.peek(4)]
            assert len(counts) == 4
            assert max(counts) <= 1  # a clock that is behind is found out by a lock that is lost

    run(scenario)


def test_e4_what_does_not_pass_by_itself_ends_it_and_is_told() -> None:
    async def scenario(world: World) -> None:
        async with taking_in(world, "nothing") as (intake, room):
            await eventually(lambda: intake.error is not None)
            assert isinstance(intake.error, EntityNotFoundError)
            assert room.changes

    run(scenario)


def test_an_outage_is_waited_for_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with taking_in(world) as (intake, _):
            await asyncio.sleep(1)
            world.namespace.kill()
            await asyncio.sleep(600)
            world.namespace.start()
            await others.send(["0"])
            await eventually(lambda: intake.waiting == 1)
            assert intake.error is None

    with caplog.at_level("WARNING", "pairbus.spark"):
        run(scenario)
    assert len([one for one in caplog.records if one.name == "pairbus.spark.intake"]) <= 1


def test_a_claim_on_a_message_that_is_not_locked_any_more_is_no_error() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        async with taking_in(world) as (intake, _):
            await eventually(lambda: intake.waiting == 3)
            held = intake.take(3)
            token = intake.tokens(held)[2]
            receiver = await others.receiver()
            await receiver.complete(ReceivedMessage(b"", lock_token=token))
            with pytest.raises(MessageLockLostError):
                await receiver.complete(ReceivedMessage(b"", lock_token=token))
            intake.remove(held)
            await intake.removed()
            assert await others.look() == []
            assert numbers(intake.left) == [2]  # for all that is known it may come again
            await intake.look_for_left()
            assert intake.left == NO_LEFTOVERS

    run(scenario)


def test_to_close_twice_or_before_anything_came_is_fine() -> None:
    async def scenario(world: World) -> None:
        async with taking_in(world) as (intake, _):
            await intake.close()
        settings: dict[str, Any] = {"long_poll": timedelta(minutes=1), "at_once": 1, "keeps": True}
        idle = Intake(world.factory(), ORDERS, IntakeSettings(**settings), lambda: None, lambda: True)
        await idle.close()

    run(scenario)


def test_e4_a_key_that_may_not_listen_is_told() -> None:
    async def scenario(world: World) -> None:
        key = replace(KEY, rights=(Right.SEND,))
        world.namespace.call(lambda namespace, now_ms: namespace.set_authorization_rules([key], now_ms))
        async with taking_in(world) as (intake, _):
            await eventually(lambda: intake.error is not None)
            assert isinstance(intake.error, UnauthorizedError)

    run(scenario)
