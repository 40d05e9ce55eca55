"""The syphon keeps sessions in order, and finds messages that other syphons have parked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import divert
from pairbus.pairing.syphon import InProcessSyphon
from tests.faults.trouble import Trouble
from tests.pairing.scenes import heal, spoil
from tests.pairing.syphon_fixture import SyphonFixture, peek_all, queues, seconds, unique
from tests.simulation.pair_world import PairWorld, run
from tests.thoroughness import times


async def _receiver(fixture: SyphonFixture) -> MessageReceiver:
    """Return another receiver of the backlog."""
    return await fixture.world.secondary_factory().create_message_receiver(fixture.queues[0])


def _visits(fixture: SyphonFixture, session: str) -> list[str]:
    """Return the ids of the delivered messages of a session, without duplicates."""
    return unique(
        str(message.message_id)
        for message in peek_all(fixture.world.primary, "visits")
        if message.session_id == session
    )


# Parked messages.


def test_c15_messages_parked_by_an_earlier_syphon_are_found_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 250)
        first = await fixture.started()
        await fixture.until(lambda: all(one.state is MessageState.DEFERRED for one in fixture.left()))
        await first.close()
        world.primary.enable("orders")
        second = await fixture.started()
        assert await fixture.drained() < 10.0
        assert fixture.delivered("orders") == ids
        await second.close()

    run(scenario)


def test_c15_messages_parked_by_a_killed_syphon_are_found_after_four_long_polls() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        receiver = await _receiver(fixture)
        syphon = fixture.syphon(long_poll=seconds(60))
        ids = fixture.put("orders", 3)
        messages = await receiver.receive(3)
        await syphon.start()
        await asyncio.sleep(5)
        await receiver.defer(messages)
        await receiver.close()
        await fixture.drained(242.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_parked_messages_between_others_are_found_after_those_are_received() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 500)
        receiver = await _receiver(fixture)
        messages = await receiver.receive(500)
        await receiver.defer([message for message in messages if message.sequence_number % 7 == 0])
        await receiver.abandon([message for message in messages if message.sequence_number % 7])
        syphon = await fixture.started()
        await fixture.drained(10.0)
        assert sorted(fixture.delivered("orders")) == sorted(ids)
        assert syphon.status.syphoned == 500
        await syphon.close()

    run(scenario)


def test_c15_parked_message_of_another_receiver_is_left_alone() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 10)
        syphon = await fixture.started()
        await fixture.until(lambda: all(one.state is MessageState.DEFERRED for one in fixture.left()))
        receiver = await _receiver(fixture)
        numbers = [message.sequence_number for message in fixture.left()]
        theirs = await receiver.receive_deferred(numbers[3])
        world.primary.enable("orders")
        await fixture.until(lambda: len(fixture.left()) == 1, 30.0)
        assert fixture.delivered("orders") == ids[:3] + ids[4:]
        await receiver.abandon(theirs)
        await fixture.drained(40.0)
        assert fixture.delivered("orders") == [*ids[:3], *ids[4:], ids[3]]
        await syphon.close()

    run(scenario)


# Sessions.


def test_c15_session_stays_in_order_after_its_destination_was_down() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        world.primary.disable("visits")
        ids: list[str] = []
        for turn in range(40):
            ids += fixture.put("visits", 10, session_id="a")
            await asyncio.sleep(1)
            if turn == 20:
                world.primary.enable("visits")
        await fixture.drained()
        assert [str(message.message_id) for message in peek_all(world.primary, "visits")] == ids
        await syphon.close()

    run(scenario)


def test_c15_session_waits_for_a_message_locked_by_another_receiver() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        fixture = SyphonFixture(world)
        a = fixture.put("visits", 3, session_id="a")
        b = fixture.put("visits", 3, session_id="b")
        rest = fixture.put("visits", 3)
        receiver = await _receiver(fixture)
        (theirs,) = await receiver.receive(1)
        syphon = await fixture.started()
        await fixture.until(lambda: _visits(fixture, "b") == b, 5.0)
        assert {*rest} <= {*fixture.delivered("visits")}
        await asyncio.sleep(30)
        assert _visits(fixture, "a") == []
        await receiver.abandon(theirs)
        await fixture.until(lambda: _visits(fixture, "a") == a, 40.0)
        await syphon.close()

    run(scenario)


def test_c15_session_continues_after_another_receiver_has_delivered_the_earlier_message() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        fixture = SyphonFixture(world)
        a = fixture.put("visits", 3, session_id="a")
        receiver = await _receiver(fixture)
        (theirs,) = await receiver.receive(1)
        syphon = await fixture.started()
        await asyncio.sleep(10)
        assert _visits(fixture, "a") == []
        await receiver.complete(theirs)
        await fixture.until(lambda: _visits(fixture, "a") == a[1:], 40.0)
        await syphon.close()

    run(scenario)


def test_c15_session_continues_after_an_undeliverable_message() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        fixture = SyphonFixture(world)
        a = fixture.put("visits", 3, session_id="a")
        large = BrokeredMessage(bytes(100_000), message_id="large", session_id="a")
        fixture.put_raw(divert(encode_brokered(large), "visits"))
        a += fixture.put("visits", 3, session_id="a")
        broker = world.primary.host.use_namespace()
        broker._limits = replace(broker._limits, message_bytes=50_000)
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert _visits(fixture, "a") == a
        assert [message.message_id for message in fixture.dead()] == ["large"]
        await syphon.close()

    run(scenario)


def test_c15_order_needs_no_peeks_in_the_usual_case() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        broker = world.secondary.host.use_namespace()
        peeks: list[int] = []
        peek = broker.peek

        def watched(address: object, first: int, *rest: object, **options: object) -> object:
            peeks.append(first)
            return peek(address, first, *rest, **options)  # type: ignore[arg-type]

        broker.peek = watched  # type: ignore[method-assign, assignment]
        fixture.put("visits", 1_000, session_id="a")
        await fixture.until(lambda: syphon.status.syphoned == 1_000, 0.9)
        assert peeks == []
        await asyncio.sleep(10)
        assert peeks == [1_001]
        await syphon.close()

    run(scenario)


# Several syphons, and killed ones.


def test_c15_two_concurrent_syphons_deliver_everything_in_session_order() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", "orders", requires_duplicate_detection=True)
        fixture = SyphonFixture(world, queues=2)
        sent: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        orders: list[str] = []
        syphons = [await fixture.started(max_messages=20), await fixture.started(max_messages=20)]
        for _ in range(20):
            for number, session in enumerate(sent):
                sent[session] += fixture.put("visits", 10, queue=number % 2, session_id=session)
            orders += fixture.put("orders", 10)
            await asyncio.sleep(0.05)
        await fixture.drained()
        for session, ids in sent.items():
            assert _visits(fixture, session) == ids
        assert sorted(fixture.delivered("orders")) == sorted(orders)
        assert len(fixture.delivered("visits")) == 600
        assert all(syphon.status.syphoned for syphon in syphons)
        for syphon in syphons:
            await syphon.close()

    run(scenario)


@pytest.mark.parametrize("seed", range(times(24)))
def test_c15_randomly_killed_syphons_lose_nothing(seed: int) -> None:
    async def scenario(world: PairWorld) -> None:
        random = Random(seed)  # noqa: S311 (tests have to be repeatable)
        queues(world.primary, "visits", "orders", requires_duplicate_detection=True)
        queues(world.primary, "loose")
        fixture = SyphonFixture(world, queues=2)
        sessions: dict[str, list[str]] = {"a": [], "b": []}
        orders: list[str] = []
        loose: list[str] = []
        putting = asyncio.create_task(_put_all(fixture, random, sessions, orders, loose))
        syphons = [fixture.syphon(max_messages=random.choice([3, 20, 200])) for _ in range(random.choice([1, 2]))]
        await asyncio.gather(*(syphon.start() for syphon in syphons))
        for _ in range(8):
            await _hurt(world, random)
            await asyncio.sleep(random.choice([0.001, 0.01, 0.1, 1.0, 10.0]) * random.random())
            await kill(syphons.pop(0))
            await _mend(world)
            syphons.append(await fixture.started(max_messages=random.choice([3, 20, 200])))
        await putting
        await fixture.drained(600.0)
        for session, ids in sessions.items():
            assert _visits(fixture, session) == ids
        assert sorted(fixture.delivered("orders")) == sorted(orders)
        assert len(fixture.delivered("visits")) == sum(map(len, sessions.values()))
        assert set(fixture.delivered("loose")) == set(loose)
        assert fixture.dead() == []
        await asyncio.gather(*(syphon.close() for syphon in syphons))

    run(scenario, seed)


async def _put_all(
    fixture: SyphonFixture, random: Random, sessions: dict[str, list[str]], orders: list[str], loose: list[str]
) -> None:
    for _ in range(30):
        for number, (session, ids) in enumerate(sessions.items()):
            ids.extend(fixture.put("visits", random.randrange(10), queue=number, session_id=session))
        orders += fixture.put("orders", random.randrange(10), queue=random.randrange(2))
        loose += fixture.put("loose", random.randrange(10), queue=random.randrange(2))
        await asyncio.sleep(random.random())


async def _hurt(world: PairWorld, random: Random) -> None:
    match random.randrange(7):
        case 0:
            world.primary.disable(random.choice(["visits", "orders", "loose"]))
        case 1:
            world.primary.trouble_sends("visits", random.choice([*Trouble]))
        case 2:
            await spoil(world.primary, world.primary_network, random.choice(["refuse", "stall", "stall down", "drop"]))
        case 3:
            await spoil(
                world.secondary, world.secondary_network, random.choice(["refuse", "stall", "stall down", "drop"])
            )
        case 4:
            world.primary.drop_connections()
            world.secondary.drop_connections()


async def _mend(world: PairWorld) -> None:
    for path in ("visits", "orders", "loose"):
        world.primary.take_sends(path)
        world.primary.enable(path)
    await heal(world.primary, world.primary_network)
    await heal(world.secondary, world.secondary_network)


async def kill(syphon: InProcessSyphon) -> None:
    """End a syphon like a killed process, without any further request."""
    for factory in (syphon._context.primary, syphon._context.secondary):
        line = factory._current.ready
        if line is not None and line.connection._transport is not None:
            line.connection._transport.abort()
    for runner in syphon._runners:
        runner.is_closing = True
        for channel in runner.channels.values():
            channel.is_closing = True
        tasks = [task for task in (runner._running, *runner.source.tasks._tasks) if task is not None]
        tasks += [channel._task for channel in runner.channels.values() if channel._task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        runner.source._locked.clear()
    await syphon.close()
