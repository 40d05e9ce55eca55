"""Closing a pair, in whatever order and whatever is under way: nobody is left waiting."""

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
"""What closing may take beside a peer that does not answer."""


# Who waits for the backlog.


@pytest.mark.parametrize("after_s", [0.0, 0.5, 9.0])
@pytest.mark.parametrize("has_sessions", [False, True])
def test_c17_who_waits_for_a_backlog_queue_is_told_at_once_that_the_pair_is_closed(
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


def test_c17_who_waits_for_a_pinned_queue_is_told_so_too_though_another_works() -> None:
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
def test_c17_who_waits_for_a_backlog_queue_is_told_soon_that_the_secondary_is_closed(after_s: float) -> None:
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


def test_c17_who_has_no_answer_of_the_backlog_yet_is_not_left_waiting() -> None:
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


# Who waits for the order of sessions.


def test_c20_who_waits_for_a_held_session_is_told_at_once_that_the_pair_is_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(letter("1", session_id="a"))
        scene.pair.release()
        order = scene.pair._order
        assert order is not None
        straggler = order.straggler(VISITS, "a")
        await until(lambda: straggler.mark is not None)
        await sender.send(letter("2", session_id="a"))
        await scene.bring_home(0, count=1)
        while straggler.held is None:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.001)
        sending = begin(sender.send(letter("3", session_id="a")))
        await asyncio.sleep(0.01)
        assert not sending.done()
        assert await _closing(scene, scene.factory, sending) < SOON_S
        assert isinstance(sending.exception(), ClosedError)

    run(scenario)


def test_c20_who_waits_for_the_first_look_is_told_at_once_that_the_pair_is_closed() -> None:
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


# Odd orders.


@pytest.mark.parametrize("enable_syphon", [False, True])
@pytest.mark.parametrize("order", ["primary, secondary", "secondary, primary", "both", "twice", "primary", "fault"])
def test_c17_nothing_is_left_in_whatever_order_they_are_closed(order: str, enable_syphon: bool) -> None:
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
        await asyncio.sleep(30)  # what is left would be seen at the end

    run(scenario)


def test_c17_who_stops_waiting_for_the_end_of_a_factory_does_not_hinder_it() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, secondary = world.primary_factory(), world.secondary_factory()
        scene = await paired(world, factory=primary, secondary=secondary, enable_syphon=True)
        for factory in (primary, secondary):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(factory.ended(), 1)
        await asyncio.sleep(30)
        assert not primary.is_closed
        assert not secondary.is_closed  # nobody takes that for an end
        await (await scene.sender()).send(letter())
        ended = primary.ended()
        await primary.close()
        await secondary.close()
        await asyncio.wait_for(ended, SOON_S)
        await asyncio.wait_for(secondary.ended(), SOON_S)

    run(scenario)


# Helpers.


async def _closing(scene: Scene, factory: MessagingFactory, sending: asyncio.Task[Any]) -> float:
    """Close it, and wait for a send; how long that took."""
    began_s = scene.now_s
    await factory.close()
    await asyncio.wait((sending,))
    return scene.now_s - began_s


async def _ordered(world: PairWorld) -> Scene:
    world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    return await paired(world, count=1, preserve_session_order=True)
