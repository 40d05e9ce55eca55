"""Closing a pair in any order, with any pending operation: all of them end."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.errors import BacklogUnavailableError, ClosedError, FactoryFaultedError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.dialect.management import Operation
from tests.faults.trouble import Trouble
from tests.pairing.scenes import VISITS, Scene, backlog_path, begin, letter, paired, until
from tests.simulation.pair_world import PairWorld, run

SOON_S: Final = 0.1
FAREWELL_S: Final = 5.0
"""Maximum time of a close with a peer that does not respond."""


# Sends that wait for the backlog.


@pytest.mark.parametrize("after_s", [0.0, 0.5, 9.0])
@pytest.mark.parametrize("has_sessions", [False, True])
def test_c17_send_waiting_for_a_backlog_queue_raises_at_once_when_the_pair_is_closed(
    after_s: float, has_sessions: bool
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1, preserve_session_order=has_sessions)
        scene.pair.engage()
        sender = await scene.sender()
        world.secondary.disable(backlog_path(0))
        session = "a" if has_sessions else None
        sending = [begin(sender.send(letter(str(number), session_id=session))) for number in range(3)]
        await asyncio.sleep(after_s)
        began_s = scene.now_s
        await scene.factory.close()
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert scene.now_s - began_s < SOON_S
        assert [type(outcome) for outcome in outcomes] == [ClosedError] * 3

    run(scenario)


def test_c17_send_waiting_for_a_pinned_queue_raises_on_close_although_another_works() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2, preserve_session_order=True)
        scene.pair.engage()
        sender = await scene.sender()
        await sender.send(letter("1", session_id="a"))
        (pinned,) = [index for index in range(2) if await scene.queue(index)]
        world.secondary.disable(backlog_path(pinned))
        sending = begin(sender.send(letter("2", session_id="a")))
        await asyncio.sleep(9)
        assert await _closing(scene, scene.factory, sending) < SOON_S
        assert isinstance(sending.exception(), ClosedError)

    run(scenario)


@pytest.mark.parametrize("after_s", [0.5, 9.0])
def test_c17_send_waiting_for_a_backlog_queue_raises_soon_when_the_secondary_is_closed(after_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        secondary = world.secondary_factory()
        scene = await paired(world, count=1, secondary=secondary)
        scene.pair.engage()
        sender = await scene.sender()
        world.secondary.disable(backlog_path(0))
        sending = begin(sender.send(letter()))
        await asyncio.sleep(after_s)
        assert await _closing(scene, secondary, sending) < 10
        assert isinstance(sending.exception(), BacklogUnavailableError)
        with pytest.raises(BacklogUnavailableError):
            await asyncio.wait_for(sender.send(letter()), SOON_S)

    run(scenario)


def test_c17_unconfirmed_send_to_the_backlog_ends_on_close() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1)
        scene.pair.engage()
        sender = await scene.sender()
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)
        sending = begin(sender.send(letter()))
        await asyncio.sleep(1)
        assert await _closing(scene, scene.factory, sending) <= FAREWELL_S
        assert isinstance(sending.exception(), MessagingError)

    run(scenario)


# Sends that wait for the order of sessions.


def test_c20_send_waiting_for_a_held_session_raises_at_once_when_the_pair_is_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(letter("1", session_id="a"))
        scene.pair.release()
        order = scene.pair._order
        assert order is not None
        session = order.track(VISITS, "a")
        await until(lambda: session.mark is not None)
        await sender.send(letter("2", session_id="a"))
        await scene.deliver(0, count=1)
        while session.held is None:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.001)
        sending = begin(sender.send(letter("3", session_id="a")))
        await asyncio.sleep(0.01)
        assert not sending.done()
        assert await _closing(scene, scene.factory, sending) < SOON_S
        assert isinstance(sending.exception(), ClosedError)

    run(scenario)


def test_c20_send_waiting_for_the_first_scan_raises_at_once_when_the_pair_is_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.host.deny = lambda operation, _: "busy" if operation == Operation.PEEK_MESSAGE else None
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        sending = begin(sender.send(letter("1", session_id="a")))
        await asyncio.sleep(3)
        assert not sending.done()
        assert await _closing(scene, scene.factory, sending) < SOON_S
        assert isinstance(sending.exception(), ClosedError)

    run(scenario)


# Unusual orders.


@pytest.mark.parametrize("enable_syphon", [False, True])
@pytest.mark.parametrize("order", ["primary, secondary", "secondary, primary", "both", "twice", "primary", "fault"])
def test_c17_close_in_any_order_leaves_nothing_running(order: str, enable_syphon: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary = world.primary_factory(), world.secondary_factory()
        scene = await paired(
            world,
            factory=primary,
            secondary=secondary,
            enable_syphon=enable_syphon,
            preserve_session_order=True,
        )
        sender = await scene.sender()
        scene.pair.engage()
        await sender.send([letter("1", session_id="a"), letter("2")])
        began_s = scene.now_s
        match order:
            case "primary, secondary":
                await primary.close()
                await secondary.close()
            case "secondary, primary":
                await secondary.close()
                await primary.close()
            case "both":
                await asyncio.gather(primary.close(), secondary.close())
            case "twice":
                await asyncio.gather(primary.close(), primary.close(), secondary.close())
                await primary.close()
                await secondary.close()
            case "primary":
                await primary.close()
            case _:
                primary.fault(RuntimeError("a test wants it"))
        assert scene.now_s - began_s < 1
        with pytest.raises(FactoryFaultedError if order == "fault" else ClosedError):
            await sender.send(letter("3"))
        await asyncio.sleep(30)  # a task that is left running is reported at the end

    run(scenario)


def test_c17_cancelled_wait_for_the_end_of_a_factory_does_not_affect_it() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary = world.primary_factory(), world.secondary_factory()
        scene = await paired(world, factory=primary, secondary=secondary, enable_syphon=True)
        for factory in (primary, secondary):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(factory.ended(), 1)
        await asyncio.sleep(30)
        assert not primary.is_closed
        assert not secondary.is_closed  # a cancelled wait does not count as an end
        await (await scene.sender()).send(letter())
        ended = primary.ended()
        await primary.close()
        await secondary.close()
        await asyncio.wait_for(ended, SOON_S)
        await asyncio.wait_for(secondary.ended(), SOON_S)

    run(scenario)


# Helpers.


async def _closing(scene: Scene, factory: MessagingFactory, sending: asyncio.Task[Any]) -> float:
    """Close a factory, and wait for a send; return how long that took."""
    began_s = scene.now_s
    await factory.close()
    await asyncio.wait((sending,))
    return scene.now_s - began_s


async def _ordered(world: PairWorld) -> Scene:
    world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    return await paired(world, count=1, preserve_session_order=True)
