"""The errors of an application when the namespace is unreachable, and their times."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    MessageLockLostError,
    MessageNotFoundError,
    MessagingCommunicationError,
    MessagingTimeoutError,
    SessionLockLostError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from tests.faults.fault import Fault, Kind, Outage, Schedule, Way
from tests.faults.operations import OPERATIONS, RECEIVING, BusyFactory, entity_of, limit_s
from tests.faults.world import OPERATION_S, ORDERS, UNIQUE, World, check_error, run

LONGEST_BACKOFF_S: Final = 10.0
FOR_EVER: Final = 1_000_000.0


def _unreachable(world: World) -> None:
    world.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=FOR_EVER),)))


def _silent(world: World) -> None:
    world.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=FOR_EVER, is_silent=True),)))


def _deaf(world: World) -> None:
    """Drop all bytes to the namespace, on all connections."""
    world.proxy.apply(Fault(kind=Kind.STALL, way=Way.UP))
    world.proxy.misbehave(
        Schedule(faults=tuple(Fault(kind=Kind.STALL, connection=number, after_bytes=0) for number in range(1_000)))
    )


def _dumb(world: World) -> None:
    """Drop all bytes from the namespace, on all connections."""
    world.proxy.apply(Fault(kind=Kind.STALL, way=Way.DOWN))
    world.proxy.misbehave(
        Schedule(
            faults=tuple(
                Fault(kind=Kind.STALL, way=Way.DOWN, connection=number, after_bytes=0) for number in range(1_000)
            )
        )
    )


def _refusing(world: World) -> None:
    """Every connection is accepted and reset."""
    world.proxy.apply(Fault(kind=Kind.CUT))
    world.proxy.misbehave(
        Schedule(faults=tuple(Fault(kind=Kind.REFUSE, connection=number) for number in range(10_000)))
    )


def _hanging_up(world: World) -> None:
    """Every connection is closed when it has just been opened."""
    world.proxy.apply(Fault(kind=Kind.CLOSE))
    world.proxy.misbehave(
        Schedule(
            faults=tuple(
                Fault(kind=Kind.CLOSE, way=Way.DOWN, connection=number, after_bytes=300) for number in range(10_000)
            )
        )
    )


def _hanging(world: World) -> None:
    """Connection attempts are not even answered."""
    world.proxy.apply(Fault(kind=Kind.CUT))
    world.network.hanging.add(("127.0.0.1", world.proxy.port))


TROUBLES: Final[dict[str, Callable[[World], None]]] = {
    "unreachable": _unreachable,
    "silent": _silent,
    "deaf": _deaf,
    "dumb": _dumb,
    "refusing": _refusing,
    "hanging up": _hanging_up,
    "hanging": _hanging,
}

SETTLING: Final = ("complete", "complete many", "abandon", "defer", "dead letter", "cancel scheduled")
DONE_ALREADY: Final = {(name, "dumb") for name in SETTLING}
"""Operations that were executed before their retry, because only the response was lost."""


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_b4_operation_fails_only_after_its_timeout_with_the_last_error(name: str, trouble: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        TROUBLES[trouble](world)
        await asyncio.sleep(0.01)
        try:
            received = await world.timed(name, _do(desk, name), limit_s(name))
        except MessagingTimeoutError as error:
            check_error(error, entity_of(name))
            assert world.durations[-1][1] >= OPERATION_S - LONGEST_BACKOFF_S, "it gave up before its time"
        else:
            assert name in RECEIVING
            assert received == []

    run(scenario)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_b4_operation_survives_an_outage_shorter_than_its_timeout(name: str, trouble: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        TROUBLES[trouble](world)
        await asyncio.sleep(0.01)

        async def heal() -> None:
            await asyncio.sleep(20)
            world.network.hanging.clear()
            world.proxy.heal()
            world.proxy.apply(Fault(kind=Kind.CUT))

        healing = asyncio.create_task(heal())
        try:
            await world.timed(name, _do(desk, name), limit_s(name))
        except (MessageLockLostError, MessageNotFoundError) as error:
            check_error(error, entity_of(name))
            assert (name, trouble) in DONE_ALREADY
        await healing

    run(scenario)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("way", list(Way))
def test_silent_connection_is_replaced(name: str, way: Way) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.proxy.apply(Fault(kind=Kind.STALL, way=way))
        try:
            await world.timed(name, _do(desk, name), limit_s(name))
        except (MessageLockLostError, MessageNotFoundError) as error:
            check_error(error, entity_of(name))
            assert way is Way.DOWN
            assert (name, "dumb") in DONE_ALREADY
        await world.timed("send", desk.sender.send(BrokeredMessage(b"after it")), OPERATION_S)
        assert len(world.proxy.relays) == 2

    run(scenario)


@pytest.mark.parametrize("name", ["send", "receive", "peek"])
def test_new_link_on_a_silent_connection_replaces_it(name: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))
        desk.sender = await desk.factory.create_message_sender(UNIQUE)
        desk.receiver = await desk.factory.create_message_receiver(UNIQUE)
        await world.timed(name, _do(desk, name), limit_s(name))
        assert len(world.proxy.relays) == 2

    run(scenario)


@pytest.mark.parametrize("name", ["send", "send many", "receive", "peek", "schedule", "accept session"])
@pytest.mark.parametrize("trouble", ["unreachable", "silent", "hanging"])
def test_first_operation_fails_in_time(name: str, trouble: str) -> None:
    async def scenario(world: World) -> None:
        TROUBLES[trouble](world)
        await asyncio.sleep(0.01)
        desk = BusyFactory(world, world.factory())
        desk.sender = await desk.factory.create_message_sender(ORDERS)
        desk.receiver = await desk.factory.create_message_receiver(ORDERS)
        with pytest.raises(MessagingTimeoutError) as caught:
            await world.timed(name, _do(desk, name), limit_s(name))
        check_error(caught.value, entity_of(name))

    run(scenario)


def test_unknown_host_is_unreachable() -> None:
    async def scenario(world: World) -> None:
        factory = MessagingFactory.create(Endpoint("nowhere.example", tls=False), None, world.factory().settings)
        world.factories.append(factory)
        sender = await factory.create_message_sender(ORDERS)
        with pytest.raises(MessagingTimeoutError) as caught:
            await world.timed("send", sender.send(BrokeredMessage()), OPERATION_S)
        check_error(caught.value, ORDERS)
        cause = caught.value.__cause__
        assert isinstance(cause, MessagingCommunicationError)
        assert isinstance(cause.__cause__, socket.gaierror)
        assert "nowhere.example" in str(caught.value)

    run(scenario)


def test_a5_session_ends_with_its_connection_and_can_be_accepted_again() -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        session = await desk.accept()
        world.proxy.apply(Fault(kind=Kind.CUT))
        await asyncio.sleep(1)
        with pytest.raises(SessionLockLostError) as caught:
            await session.receive(1)
        assert isinstance(caught.value.__cause__, MessagingCommunicationError)
        assert caught.value.entity == "visits"
        again = await desk.accept()
        assert len(await again.receive(1)) == 1

    run(scenario)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_factory_can_be_closed_while_the_namespace_is_down(trouble: str) -> None:
    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        await desk.prefetching.receive(1)
        TROUBLES[trouble](world)
        await asyncio.sleep(0.01)
        await world.timed("close", desk.factory.close(), OPERATION_S)

    run(scenario)


async def _do(desk: BusyFactory, name: str) -> object:
    return await OPERATIONS[name](desk)
