"""A re-created backlog queue counts from 1 again, so that known sequence numbers are not valid any more."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.endpoint import Endpoint
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.syphon.message import BacklogMessage
from pairbus.pairing.syphon.source import BacklogSource
from tests.pairing.scenes import VISITS, Scene, letter, paired, until
from tests.pairing.syphon_fixture import BACKLOG, SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run

_DESCRIPTION: Final = QueueDescription(
    max_delivery_count=2**31 - 1, lock_duration_ms=60_000, dead_letter_on_expiration=True
)


# Messages that were delivered and not removed.


@pytest.mark.parametrize("again", [1, 3, 5])
def test_e1_messages_of_a_recreated_queue_are_delivered_despite_known_numbers(again: int) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        syphon = await fixture.started()
        await _cut_when_delivered(world, fixture)
        assert fixture.delivered("orders") == ids
        assert len(fixture.left()) == 3
        _make_anew(world)
        ids += fixture.put("orders", again)
        world.secondary_network.heal()
        await fixture.drained()
        assert fixture.delivered("orders") == ids
        assert fixture.dead() == []
        await syphon.close()

    run(scenario)


def test_e1_message_of_a_recreated_queue_with_a_known_id_is_delivered() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders")
        syphon = await fixture.started()
        await _cut_when_delivered(world, fixture)
        _make_anew(world)
        fixture._count = 0  # the application sends the same messages again
        assert fixture.put("orders") == ids
        world.secondary_network.heal()
        await fixture.drained()
        assert fixture.delivered("orders") == [*ids, *ids]
        await syphon.close()

    run(scenario)


def test_c15_delivered_message_of_the_same_queue_is_not_delivered_again() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        syphon = await fixture.started()
        await _cut_when_delivered(world, fixture)
        ids += fixture.put("orders", 3)
        world.secondary_network.heal()
        await fixture.drained()
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


# Locked and parked messages.


def test_e1_locked_messages_of_the_old_queue_do_not_block_the_recreated_one() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        world.primary.disable("orders")
        fixture.put("orders", 3)
        syphon = await fixture.started()
        await asyncio.sleep(30)  # they are parked
        _make_anew(world)
        ids = fixture.put("orders", 5, session_id="a")
        world.primary.enable("orders")
        await fixture.drained()
        assert fixture.delivered("orders")[-5:] == ids
        await syphon.close()

    run(scenario)


def test_c14_idle_syphon_continues_with_a_recreated_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3, session_id="a")
        syphon = await fixture.started()
        await fixture.drained()
        _make_anew(world)
        ids += fixture.put("orders", 5, session_id="a")
        await fixture.drained()
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_messages_parked_by_another_syphon_in_a_recreated_queue_are_delivered_after_its_end() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 10)
        syphon = await fixture.started()
        await fixture.drained()
        world.secondary_network.refuse()
        _make_anew(world)
        ids += fixture.put("orders")
        async with await _other(world) as other:
            await other.defer(await other.receive())
        world.secondary_network.heal()
        ids += fixture.put("orders", 1)
        await fixture.drained(4_000)
        assert sorted(fixture.delivered("orders")) == sorted(ids)
        await syphon.close()

    run(scenario)


def test_c15_session_waits_for_another_receiver_in_a_recreated_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 10, session_id="a")
        syphon = await fixture.started()
        await fixture.drained()
        world.secondary_network.refuse()
        _make_anew(world)
        ids += fixture.put("orders", 1, session_id="a")
        async with await _other(world) as other:
            (locked,) = await other.receive()
            world.secondary_network.heal()
            ids += fixture.put("orders", 1, session_id="a")
            await asyncio.sleep(30)
            await other.abandon(locked)
        await fixture.drained()
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


# Order of sessions.


@pytest.mark.parametrize("earlier", [1, 5])
@pytest.mark.parametrize("later", [1, 3])
def test_c20_session_in_a_recreated_queue_is_not_released_before_its_delivery(earlier: int, later: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for number in range(earlier):
            await sender.send(letter(f"old {number}", session_id="a"))
        scene.pair.release()
        await asyncio.sleep(3)  # until they are scanned
        await scene.deliver(0)
        await until(lambda: not scene.pair._order._sessions)  # type: ignore[union-attr]
        _make_anew(world)
        await asyncio.sleep(5)
        scene.pair.engage()
        for number in range(later):
            await sender.send(letter(f"new {number}", session_id="a"))
        scene.pair.release()
        await asyncio.sleep(10)
        await sender.send(letter("last", session_id="a"))
        await scene.deliver(0)
        in_primary = [bytes(message.body).decode() for message in await scene.messages(VISITS)]
        assert in_primary[earlier:] == [*(f"new {number}" for number in range(later)), "last"]

    run(scenario)


# Helpers.


async def _cut_when_delivered(world: PairWorld, fixture: SyphonFixture) -> None:
    """Make the secondary unreachable after messages are delivered, and before they can be removed."""
    complete = BacklogSource.complete

    def cut(source: BacklogSource, messages: list[BacklogMessage]) -> None:
        world.secondary_network.refuse()
        complete(source, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BacklogSource, "complete", cut)
        await fixture.until(lambda: bool(fixture.delivered("orders")))
        await asyncio.sleep(200)


def _make_anew(world: PairWorld) -> None:
    """Re-create the queue, like an operator or a secondary that restarts with an empty disk."""
    world.secondary.delete(BACKLOG)
    world.secondary.create_queue(BACKLOG, _DESCRIPTION)


async def _other(world: PairWorld) -> MessageReceiver:
    """Return the receiver of another syphon, with its own connection."""
    factory = world.factory_at(Endpoint(world.secondary.name, world.secondary.port, tls=False))
    return await factory.create_message_receiver(BACKLOG)


async def _ordered(world: PairWorld) -> Scene:
    world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    return await paired(world, count=1, preserve_session_order=True)
