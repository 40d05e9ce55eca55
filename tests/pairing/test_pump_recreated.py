"""A backlog queue that is made anew counts from one again: what was known by its number is known no more."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.endpoint import Endpoint
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.pump.cargo import Cargo
from pairbus.pairing.pump.hand import Hand
from tests.pairing.pumping import BACKLOG, Pumping, queues
from tests.pairing.scenes import VISITS, Scene, letter, paired, until
from tests.simulation.pair_world import PairWorld, run

_DESCRIPTION: Final = QueueDescription(
    max_delivery_count=2**31 - 1, lock_duration_ms=60_000, dead_letter_on_expiration=True
)


# What was delivered, and not removed.


@pytest.mark.parametrize("again", [1, 3, 5])
def test_e1_messages_of_a_queue_that_was_made_anew_are_delivered_though_their_numbers_were(again: int) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        syphon = await pumping.started()
        await _cut_when_delivered(world, pumping)
        assert pumping.home("orders") == ids
        assert len(pumping.left()) == 3
        _make_anew(world)
        ids += pumping.put("orders", again)
        world.secondary_road.heal()
        await pumping.drained()
        assert pumping.home("orders") == ids
        assert pumping.dead() == []
        await syphon.close()

    run(scenario)


def test_e1_so_is_one_that_has_the_id_of_the_old_one_too() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders")
        syphon = await pumping.started()
        await _cut_when_delivered(world, pumping)
        _make_anew(world)
        pumping._count = 0  # the application sends the same once more
        assert pumping.put("orders") == ids
        world.secondary_road.heal()
        await pumping.drained()
        assert pumping.home("orders") == [*ids, *ids]
        await syphon.close()

    run(scenario)


def test_c15_in_the_same_queue_what_was_delivered_is_not_delivered_again() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        syphon = await pumping.started()
        await _cut_when_delivered(world, pumping)
        ids += pumping.put("orders", 3)
        world.secondary_road.heal()
        await pumping.drained()
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


# What was in hand, or parked.


def test_e1_what_was_in_hand_of_the_old_queue_keeps_nothing_of_the_new_one_back() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        world.primary.disable("orders")
        pumping.put("orders", 3)
        syphon = await pumping.started()
        await asyncio.sleep(30)  # they are parked
        _make_anew(world)
        ids = pumping.put("orders", 5, session_id="a")
        world.primary.enable("orders")
        await pumping.drained()
        assert pumping.home("orders")[-5:] == ids
        await syphon.close()

    run(scenario)


def test_c14_a_syphon_reads_on_when_its_queue_was_made_anew_while_it_was_idle() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3, session_id="a")
        syphon = await pumping.started()
        await pumping.drained()
        _make_anew(world)
        ids += pumping.put("orders", 5, session_id="a")
        await pumping.drained()
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_what_another_syphon_has_parked_in_the_new_queue_is_brought_home_when_that_is_gone() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 10)
        syphon = await pumping.started()
        await pumping.drained()
        world.secondary_road.refuse()
        _make_anew(world)
        ids += pumping.put("orders")
        async with await _other(world) as other:
            await other.defer(await other.receive())
        world.secondary_road.heal()
        ids += pumping.put("orders", 1)
        await pumping.drained(4_000)
        assert sorted(pumping.home("orders")) == sorted(ids)
        await syphon.close()

    run(scenario)


def test_c15_a_session_waits_for_what_another_has_of_it_in_the_new_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 10, session_id="a")
        syphon = await pumping.started()
        await pumping.drained()
        world.secondary_road.refuse()
        _make_anew(world)
        ids += pumping.put("orders", 1, session_id="a")
        async with await _other(world) as other:
            (locked,) = await other.receive()
            world.secondary_road.heal()
            ids += pumping.put("orders", 1, session_id="a")
            await asyncio.sleep(30)
            await other.abandon(locked)
        await pumping.drained()
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


# Sessions that are kept in order.


@pytest.mark.parametrize("earlier", [1, 5])
@pytest.mark.parametrize("later", [1, 3])
def test_c20_a_session_in_a_queue_that_was_made_anew_is_not_let_go_before_it_is_home(earlier: int, later: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for number in range(earlier):
            await sender.send(letter(f"old {number}", session_id="a"))
        scene.pair.release()
        await asyncio.sleep(3)  # they are looked at
        await scene.bring_home(0)
        await until(lambda: not scene.pair._order._stragglers)  # type: ignore[union-attr]
        _make_anew(world)
        await asyncio.sleep(5)
        scene.pair.engage()
        for number in range(later):
            await sender.send(letter(f"new {number}", session_id="a"))
        scene.pair.release()
        await asyncio.sleep(10)
        await sender.send(letter("last", session_id="a"))
        await scene.bring_home(0)
        home = [bytes(message.body).decode() for message in await scene.messages(VISITS)]
        assert home[earlier:] == [*(f"new {number}" for number in range(later)), "last"]

    run(scenario)


# Helpers.


async def _cut_when_delivered(world: PairWorld, pumping: Pumping) -> None:
    """Have the secondary go away when messages have been delivered, and before they can be removed."""
    complete = Hand.complete

    def cut(hand: Hand, cargoes: list[Cargo]) -> None:
        world.secondary_road.refuse()
        complete(hand, cargoes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hand, "complete", cut)
        await pumping.until(lambda: bool(pumping.home("orders")))
        await asyncio.sleep(200)


def _make_anew(world: PairWorld) -> None:
    """As an operator does, or a secondary that comes back with an empty disk."""
    world.secondary.delete(BACKLOG)
    world.secondary.create_queue(BACKLOG, _DESCRIPTION)


async def _other(world: PairWorld) -> MessageReceiver:
    """The hand of another syphon, on a way of its own."""
    factory = world.factory_at(Endpoint(world.secondary.name, world.secondary.port, tls=False))
    return await factory.create_message_receiver(BACKLOG)


async def _ordered(world: PairWorld) -> Scene:
    world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    return await paired(world, count=1, preserve_session_order=True)
