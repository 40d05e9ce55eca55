"""A namespace that is busy is left alone for ten seconds."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Final

import pytest

from pairbus.client.errors import ServerBusyError
from pairbus.client.message import BrokeredMessage
from pairbus.client.receiver import MessageReceiver
from tests.faults.operations import OPERATIONS, BusyFactory, entity_of, limit_s
from tests.faults.world import ORDERS, World, check_error, run

BACKOFF_S: Final = 10.0
TOGETHER_S: Final = 0.02
ASKING: Final = [
    name
    for name in OPERATIONS
    if name not in {"complete", "complete many", "abandon", "defer", "dead letter", "receive"}  # they have their link
]


@pytest.mark.parametrize("name", ASKING)
def test_b2_busy_namespace_is_retried_after_at_least_ten_seconds(name: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.namespace.busy_until_s = world.loop.time() + 25.0
        await world.timed(name, _do(desk, name), limit_s(name))
        assert len(_tries(world)) in {2, 3}

    run(scenario)


@pytest.mark.parametrize("name", ASKING)
def test_b2_application_gets_the_error_of_a_busy_namespace(name: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.namespace.busy_until_s = world.loop.time() + 10_000.0
        with pytest.raises(ServerBusyError) as caught:
            await world.timed(name, _do(desk, name), limit_s(name))
        check_error(caught.value, entity_of(name))
        assert caught.value.condition == "com.microsoft:server-busy"
        assert len(_tries(world)) >= 3

    run(scenario)


def test_b2_every_sender_waits_on_its_own() -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        senders = [await factory.create_message_sender(ORDERS) for _ in range(3)]
        for sender in senders:
            await sender.send(BrokeredMessage())
        world.namespace.busy_until_s = world.loop.time() + 35.0

        async def send(sender_number: int) -> None:
            await asyncio.sleep(sender_number)  # each begins at its own second
            await world.timed("send", senders[sender_number].send(BrokeredMessage()), 60.0)

        await asyncio.gather(*(send(number) for number in range(3)))
        assert len(world.namespace.denied) >= 9

    run(scenario)


@pytest.mark.parametrize("prefetch", [0, 10])
def test_b2_receiver_with_a_detached_link_waits_and_continues(prefetch: int) -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        receiver = await factory.create_message_receiver(ORDERS, prefetch_count=prefetch)
        receiving = asyncio.create_task(_next(receiver))
        await asyncio.sleep(1)
        world.namespace.busy_until_s = world.loop.time() + 35.0
        world.namespace.drop_connections()
        await asyncio.sleep(36)
        assert len(_tries(world)) in {3, 4}
        await sender.send(BrokeredMessage(b"at last"))
        assert (await asyncio.wait_for(receiving, 60)) == b"at last"

    run(scenario)


def test_b2_send_of_several_batches_waits_too() -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        await sender.send(BrokeredMessage())
        world.namespace.busy_until_s = world.loop.time() + 15.0
        await sender.send([BrokeredMessage(bytes(100_000)) for _ in range(10)])
        assert len(_tries(world)) == 2

    run(scenario)


def _tries(world: World) -> list[float]:
    """Return the times of the attempts. Simultaneous ones, such as both links of a request, count once."""
    times = [when_s for when_s, _ in world.namespace.denied]
    tries = [times[0], *(later for sooner, later in pairwise(times) if later - sooner > TOGETHER_S)]
    assert all(later - sooner >= BACKOFF_S for sooner, later in pairwise(tries)), world.namespace.denied
    return tries


async def _next(receiver: MessageReceiver) -> bytes:
    async for message in receiver:
        await receiver.complete(message)
        return bytes(message.body)
    raise AssertionError("there is always a next one")


async def _do(desk: BusyFactory, name: str) -> object:
    return await OPERATIONS[name](desk)
