"""The syphon keeps the messages of a session in order, and finds what others have parked, whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import divert
from pairbus.pairing.pump import InProcessSyphon
from tests.faults.trouble import Trouble
from tests.pairing.pumping import Pumping, look, queues, seconds, unique
from tests.pairing.scenes import heal, spoil
from tests.simulation.pair_world import PairWorld, run
from tests.thoroughness import times


async def _receiver(pumping: Pumping) -> MessageReceiver:
    """Of somebody else who reads the backlog."""
    return await pumping.world.secondary_factory().create_message_receiver(pumping.queues[0])


def _visits(pumping: Pumping, session: str) -> list[str]:
    """What came home of a session, each message once."""
    return unique(
        str(message.message_id) for message in look(pumping.world.primary, "visits") if message.session_id == session
    )


# What is parked.


def test_c15_what_an_earlier_syphon_has_parked_is_found_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 250)
        first = await pumping.started()
        await pumping.until(lambda: all(one.state is MessageState.DEFERRED for one in pumping.left()))
        await first.close()
        world.primary.enable("orders")
        second = await pumping.started()
        assert await pumping.drained() < 10.0
        assert pumping.home("orders") == ids
        await second.close()

    run(scenario)


def test_c15_what_another_one_parks_before_it_dies_is_found_after_four_long_polls() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        receiver = await _receiver(pumping)
        syphon = pumping.syphon(long_poll=seconds(60))
        ids = pumping.put("orders", 3)
        messages = await receiver.receive(3)
        await syphon.start()
        await asyncio.sleep(5)
        await receiver.defer(messages)
        await receiver.close()
        await pumping.drained(242.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_what_lies_parked_between_others_is_found_when_these_have_been_received() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 500)
        receiver = await _receiver(pumping)
        messages = await receiver.receive(500)
        await receiver.defer([message for message in messages if message.sequence_number % 7 == 0])
        await receiver.abandon([message for message in messages if message.sequence_number % 7])
        syphon = await pumping.started()
        await pumping.drained(10.0)
        assert sorted(pumping.home("orders")) == sorted(ids)
        assert syphon.status.syphoned == 500
        await syphon.close()

    run(scenario)


def test_c15_a_parked_message_that_somebody_else_has_is_left_to_them() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 10)
        syphon = await pumping.started()
        await pumping.until(lambda: all(one.state is MessageState.DEFERRED for one in pumping.left()))
        receiver = await _receiver(pumping)
        numbers = [message.sequence_number for message in pumping.left()]
        theirs = await receiver.receive_deferred(numbers[3])
        world.primary.enable("orders")
        await pumping.until(lambda: len(pumping.left()) == 1, 30.0)
        assert pumping.home("orders") == ids[:3] + ids[4:]
        await receiver.abandon(theirs)
        await pumping.drained(40.0)
        assert pumping.home("orders") == [*ids[:3], *ids[4:], ids[3]]
        await syphon.close()

    run(scenario)


# Sessions.


def test_c15_a_session_arrives_in_order_after_its_destination_was_down() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        pumping = Pumping(world)
        syphon = await pumping.started()
        world.primary.disable("visits")
        ids: list[str] = []
        for turn in range(40):
            ids += pumping.put("visits", 10, session_id="a")
            await asyncio.sleep(1)
            if turn == 20:
                world.primary.enable("visits")
        await pumping.drained()
        assert [str(message.message_id) for message in look(world.primary, "visits")] == ids
        await syphon.close()

    run(scenario)


def test_c15_a_session_waits_for_a_message_that_somebody_else_has_locked() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        pumping = Pumping(world)
        a = pumping.put("visits", 3, session_id="a")
        b = pumping.put("visits", 3, session_id="b")
        rest = pumping.put("visits", 3)
        receiver = await _receiver(pumping)
        (theirs,) = await receiver.receive(1)
        syphon = await pumping.started()
        await pumping.until(lambda: _visits(pumping, "b") == b, 5.0)
        assert {*rest} <= {*pumping.home("visits")}
        await asyncio.sleep(30)
        assert _visits(pumping, "a") == []
        await receiver.abandon(theirs)
        await pumping.until(lambda: _visits(pumping, "a") == a, 40.0)
        await syphon.close()

    run(scenario)


def test_c15_a_session_goes_on_when_somebody_else_has_delivered_what_was_before() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        pumping = Pumping(world)
        a = pumping.put("visits", 3, session_id="a")
        receiver = await _receiver(pumping)
        (theirs,) = await receiver.receive(1)
        syphon = await pumping.started()
        await asyncio.sleep(10)
        assert _visits(pumping, "a") == []
        await receiver.complete(theirs)
        await pumping.until(lambda: _visits(pumping, "a") == a[1:], 40.0)
        await syphon.close()

    run(scenario)


def test_c15_a_session_goes_on_after_a_message_that_can_never_be_delivered() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        pumping = Pumping(world)
        a = pumping.put("visits", 3, session_id="a")
        large = BrokeredMessage(bytes(100_000), message_id="large", session_id="a")
        pumping.put_raw(divert(encode_brokered(large), "visits"))
        a += pumping.put("visits", 3, session_id="a")
        broker = world.primary.host.namespace
        broker._limits = replace(broker._limits, message_bytes=50_000)
        syphon = await pumping.started()
        await pumping.drained(5.0)
        assert _visits(pumping, "a") == a
        assert [message.message_id for message in pumping.dead()] == ["large"]
        await syphon.close()

    run(scenario)


def test_c15_in_the_usual_case_nothing_is_looked_at_for_the_order() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits")
        pumping = Pumping(world)
        syphon = await pumping.started()
        broker = world.secondary.host.namespace
        peeks: list[int] = []
        peek = broker.peek

        def watched(address: object, first: int, *rest: object, **options: object) -> object:
            peeks.append(first)
            return peek(address, first, *rest, **options)  # type: ignore[arg-type]

        broker.peek = watched  # type: ignore[method-assign, assignment]
        pumping.put("visits", 1_000, session_id="a")
        await pumping.until(lambda: syphon.status.syphoned == 1_000, 0.9)
        assert peeks == []
        await asyncio.sleep(10)
        assert peeks == [1_001]
        await syphon.close()

    run(scenario)


# Several syphons, and those that die.


def test_c15_two_syphons_at_once_deliver_everything_and_keep_sessions_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", "orders", requires_duplicate_detection=True)
        pumping = Pumping(world, queues=2)
        sent: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        orders: list[str] = []
        syphons = [await pumping.started(max_messages=20), await pumping.started(max_messages=20)]
        for _ in range(20):
            for number, session in enumerate(sent):
                sent[session] += pumping.put("visits", 10, queue=number % 2, session_id=session)
            orders += pumping.put("orders", 10)
            await asyncio.sleep(0.05)
        await pumping.drained()
        for session, ids in sent.items():
            assert _visits(pumping, session) == ids
        assert sorted(pumping.home("orders")) == sorted(orders)
        assert len(pumping.home("visits")) == 600
        assert all(syphon.status.syphoned for syphon in syphons)
        for syphon in syphons:
            await syphon.close()

    run(scenario)


@pytest.mark.parametrize("seed", range(times(24)))
def test_c15_syphons_that_die_at_random_lose_nothing(seed: int) -> None:
    async def scenario(world: PairWorld) -> None:
        random = Random(seed)  # noqa: S311 (it has to be repeatable)
        queues(world.primary, "visits", "orders", requires_duplicate_detection=True)
        queues(world.primary, "loose")
        pumping = Pumping(world, queues=2)
        sessions: dict[str, list[str]] = {"a": [], "b": []}
        orders: list[str] = []
        loose: list[str] = []
        putting = asyncio.create_task(_put_all(pumping, random, sessions, orders, loose))
        syphons = [pumping.syphon(max_messages=random.choice([3, 20, 200])) for _ in range(random.choice([1, 2]))]
        await asyncio.gather(*(syphon.start() for syphon in syphons))
        for _ in range(8):
            await _hurt(world, random)
            await asyncio.sleep(random.choice([0.001, 0.01, 0.1, 1.0, 10.0]) * random.random())
            await _kill(syphons.pop(0))
            await _mend(world)
            syphons.append(await pumping.started(max_messages=random.choice([3, 20, 200])))
        await putting
        await pumping.drained(600.0)
        for session, ids in sessions.items():
            assert _visits(pumping, session) == ids
        assert sorted(pumping.home("orders")) == sorted(orders)
        assert len(pumping.home("visits")) == sum(map(len, sessions.values()))
        assert set(pumping.home("loose")) == set(loose)
        assert pumping.dead() == []
        await asyncio.gather(*(syphon.close() for syphon in syphons))

    run(scenario, seed)


async def _put_all(
    pumping: Pumping, random: Random, sessions: dict[str, list[str]], orders: list[str], loose: list[str]
) -> None:
    for _ in range(30):
        for number, (session, ids) in enumerate(sessions.items()):
            ids.extend(pumping.put("visits", random.randrange(10), queue=number, session_id=session))
        orders += pumping.put("orders", random.randrange(10), queue=random.randrange(2))
        loose += pumping.put("loose", random.randrange(10), queue=random.randrange(2))
        await asyncio.sleep(random.random())


async def _hurt(world: PairWorld, random: Random) -> None:
    match random.randrange(7):
        case 0:
            world.primary.disable(random.choice(["visits", "orders", "loose"]))
        case 1:
            world.primary.trouble_sends("visits", random.choice([*Trouble]))
        case 2:
            await spoil(world.primary, world.primary_road, random.choice(["refuse", "stall", "stall down", "drop"]))
        case 3:
            await spoil(world.secondary, world.secondary_road, random.choice(["refuse", "stall", "stall down", "drop"]))
        case 4:
            world.primary.drop_connections()
            world.secondary.drop_connections()


async def _mend(world: PairWorld) -> None:
    for path in ("visits", "orders", "loose"):
        world.primary.take_sends(path)
        world.primary.enable(path)
    await heal(world.primary, world.primary_road)
    await heal(world.secondary, world.secondary_road)


async def _kill(syphon: InProcessSyphon) -> None:
    """As the end of its process would: nobody hears from it any more."""
    for factory in (syphon._context.primary, syphon._context.secondary):
        line = factory._slot.ready
        if line is not None and line.connection._transport is not None:
            line.connection._transport.abort()
    for reader in syphon._readers:
        reader.is_closing = True
        tasks = [task for task in (reader._reading, *reader._chores._tasks) if task is not None]
        tasks += [channel._task for channel in reader.channels.values() if channel._task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        reader._hand._cargoes.clear()
    await syphon.close()
