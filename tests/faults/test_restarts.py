"""Receivers and senders that outlive the namespace, its connections and its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Final

import pytest

from pairbus.client.errors import MessageLockLostError, MessagingError, MessagingTimeoutError
from pairbus.client.message import BrokeredMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.settings import ReceiveMode
from tests.faults.fault import Fault, Kind, Schedule, Way
from tests.faults.world import OPERATION_S, ORDERS, UNIQUE, World, run
from tests.waiting import eventually_async

DAY_S: Final = 86_400
GIVEN_UP_S: Final = 800.0
"""By then the namespace, too, has noticed that a connection is dead, to which it may have given a message before."""


class Collector:
    """Receives by a plain loop, as an application would, and completes."""

    def __init__(self, receiver: MessageReceiver) -> None:
        self.bodies: list[str] = []
        self.lost = 0
        self._receiver = receiver
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for message in self._receiver:
            self.bodies.append(message.text())
            if self._receiver.receive_mode is ReceiveMode.PEEK_LOCK:
                try:
                    await self._receiver.complete(message)
                except (MessageLockLostError, MessagingTimeoutError):
                    self.lost += 1

    async def stop(self) -> None:
        await self._receiver.close()
        await self._task


@pytest.mark.parametrize("prefetch", [0, 1, 20])
@pytest.mark.parametrize("how", ["stop", "kill", "cut", "silence"])
def test_b4_receiver_continues_after_an_outage(how: str, prefetch: int) -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        collector = Collector(await factory.create_message_receiver(ORDERS, prefetch_count=prefetch))
        await sender.send([BrokeredMessage("before")])
        await eventually_async(lambda: collector.bodies == ["before"])
        for number in range(3):
            await _go_away(world, how)
            await world.timed("send", sender.send(BrokeredMessage(f"{number}")), OPERATION_S)
            await asyncio.sleep(GIVEN_UP_S)
            assert f"{number}" in collector.bodies
        await collector.stop()

    run(scenario)


async def _go_away(world: World, how: str) -> None:
    if how == "stop":
        await world.namespace.stop()
        await asyncio.sleep(20)
        world.namespace.start()
    elif how == "kill":
        world.namespace.kill()
        await asyncio.sleep(20)
        world.namespace.start()
    elif how == "cut":
        world.proxy.apply(Fault(kind=Kind.CUT))
    else:
        world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))


@pytest.mark.parametrize("prefetch", [0, 10])
def test_receiver_that_waits_on_a_dead_connection_gets_the_next_message(prefetch: int) -> None:
    async def scenario(world: World) -> None:
        receiving, sending = world.factory(), world.factory()
        collector = Collector(await receiving.create_message_receiver(ORDERS, prefetch_count=prefetch))
        await asyncio.sleep(1)
        world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))
        sender = await sending.create_message_sender(ORDERS)
        await sender.send(BrokeredMessage("for whoever is there"))
        await asyncio.sleep(GIVEN_UP_S)
        assert collector.bodies == ["for whoever is there"]
        await collector.stop()

    run(scenario)


@pytest.mark.parametrize("prefetch", [0, 10])
def test_namespace_that_disconnects_at_once_is_retried_with_pauses(prefetch: int) -> None:
    async def scenario(world: World) -> None:
        # Long enough for a receiver to be attached, and no longer.
        world.proxy.misbehave(
            Schedule(faults=tuple(Fault(kind=Kind.CLOSE, connection=n, after_s=0.05) for n in range(100_000)))
        )
        factory = world.factory()
        receiver = await factory.create_message_receiver(ORDERS, prefetch_count=prefetch)
        try:
            await world.timed("receive", receiver.receive(1, timedelta(seconds=5)), 5 + OPERATION_S)
        except MessagingError as error:
            assert error.entity == ORDERS  # noqa: PT017 (or it may have come to nothing)
        assert len(world.proxy.relays) <= 40

    run(scenario)


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("after_bytes", range(0, 1_400, 100))
def test_e2_send_whose_confirmation_was_lost_is_sent_again_under_the_same_id(size: int, after_bytes: int) -> None:
    async def scenario(world: World) -> None:
        factory, other = world.factory(), world.factory()
        sender = await factory.create_message_sender(UNIQUE)
        world.proxy.misbehave(
            Schedule(faults=(Fault(kind=Kind.CUT, way=Way.DOWN, after_bytes=after_bytes),))  # somewhere on the way
        )
        messages = [BrokeredMessage(bytes(20_000)) for _ in range(size)]
        await world.timed("send", sender.send(messages if size > 1 else messages[0]), OPERATION_S)
        receiver = await other.create_message_receiver(UNIQUE, ReceiveMode.RECEIVE_AND_DELETE)
        received = [message async for message in _all(receiver)]
        assert sorted(received) == sorted(str(message.message_id) for message in messages)

    run(scenario)


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.STALL, Kind.TRUNCATE])
@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
@pytest.mark.parametrize("after_bytes", range(0, 60, 6))
def test_a3_completed_message_is_not_redelivered_after_a_lost_connection(
    after_bytes: int, way: Way, kind: Kind
) -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        await sender.send(BrokeredMessage())
        receiver = await factory.create_message_receiver(ORDERS)
        message = (await receiver.receive(1))[0]
        lane = world.proxy.relays[0].up if way is Way.UP else world.proxy.relays[0].down
        lane.expect([Fault(kind=kind, way=way, after_bytes=lane.passed_bytes + after_bytes)])
        try:
            await world.timed("complete", receiver.complete(message), OPERATION_S)
        except MessageLockLostError:
            assert way is Way.DOWN  # it was completed, and the answer was lost
        lane.heal()
        assert await receiver.receive(1, timedelta(seconds=GIVEN_UP_S)) == []

    run(scenario)


@pytest.mark.parametrize("prefetch", [0, 10])
@pytest.mark.parametrize("after_bytes", range(400, 1_600, 120))
def test_received_and_deleted_messages_survive_the_loss_of_their_link(prefetch: int, after_bytes: int) -> None:
    """Once it has reached the client: what is lost on the way is lost, which that mode accepts."""

    async def scenario(world: World) -> None:
        sending, receiving = world.factory(), world.factory()
        sender = await sending.create_message_sender(ORDERS)
        sent = [BrokeredMessage(b"x", message_id=f"{number}") for number in range(10)]
        await sender.send(sent)
        world.proxy.misbehave(Schedule(faults=(Fault(kind=Kind.CUT, way=Way.DOWN, after_bytes=after_bytes),)))
        receiver = await receiving.create_message_receiver(
            ORDERS, ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=prefetch
        )
        received = [message async for message in _all(receiver)]
        assert len(set(received)) == len(received)

    run(scenario)


@pytest.mark.slow
def test_day_with_short_tokens_and_a_bad_network_needs_no_restart() -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        factory._credentials._time_to_live = timedelta(minutes=5)  # type: ignore[union-attr]
        sender = await factory.create_message_sender(ORDERS)
        collector = Collector(await factory.create_message_receiver(ORDERS, prefetch_count=5))
        kinds = (Kind.CUT, Kind.CLOSE, Kind.HALF_CLOSE, Kind.STALL, None, None)
        for number, hour_s in zip(count(), range(0, DAY_S, 600), strict=False):
            kind = kinds[number % len(kinds)]
            if kind is not None:
                world.proxy.apply(Fault(kind=kind, way=(Way.UP, Way.DOWN, Way.BOTH)[number % 3]))
            await world.timed("send", sender.send(BrokeredMessage(f"{number}")), OPERATION_S)
            await asyncio.sleep(max(0.0, hour_s + 600 - world.loop.time()))
        await asyncio.sleep(GIVEN_UP_S)
        assert set(collector.bodies) == {f"{number}" for number in range(DAY_S // 600)}
        await collector.stop()

    run(scenario)


def test_lock_is_kept_through_an_outage() -> None:
    async def scenario(world: World) -> None:
        factory = world.factory()
        sender = await factory.create_message_sender(ORDERS)
        await sender.send(BrokeredMessage("slow"))
        receiver = await factory.create_message_receiver(ORDERS, max_auto_lock_renewal=timedelta(minutes=30))
        message = (await receiver.receive(1))[0]
        for _ in range(10):
            world.proxy.apply(Fault(kind=Kind.CUT))
            await asyncio.sleep(100)
        await receiver.complete(message)
        assert await receiver.receive(1, timedelta(seconds=5)) == []

    run(scenario)


async def _all(receiver: MessageReceiver) -> AsyncIterator[str]:
    while received := await receiver.receive(100, timedelta(seconds=30)):
        for message in received:
            yield str(message.message_id)
