"""What lies parked in a backlog queue, and whoever asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.pairing.pump.cargo import Cargo
from tests.pairing.pumping import Pumping, queues
from tests.simulation.pair_world import PairWorld, run


def _are_parked(pumping: Pumping) -> bool:
    return all(message.state is MessageState.DEFERRED for message in pumping.left())


def test_c15_what_was_parked_and_delivered_and_could_not_be_removed_is_removed_later() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        syphon = await pumping.started()
        await pumping.until(lambda: _are_parked(pumping))
        reader = syphon._readers[0]
        deliver = reader.delivered

        def cut_off(cargoes: list[Cargo]) -> None:
            """It goes wrong between the confirmation and the removal."""
            world.secondary_road.refuse()
            deliver(cargoes)

        reader.delivered = cut_off  # type: ignore[method-assign]
        world.primary.enable("orders")
        await pumping.until(lambda: bool(pumping.home("orders")), 100.0)
        reader.delivered = deliver  # type: ignore[method-assign]
        await asyncio.sleep(200)
        assert len(pumping.left()) == 3
        world.secondary_road.heal()
        await pumping.drained(100.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_what_was_parked_and_can_go_nowhere_is_dead_lettered() -> None:
    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world)
        pumping.put_raw(encode_brokered(BrokeredMessage(b"x", message_id="bad")))
        receiver = await world.secondary_factory().create_message_receiver(pumping.queues[0])
        await receiver.defer(await receiver.receive(1))
        syphon = await pumping.started()
        await pumping.drained(5.0)
        assert [message.message_id for message in pumping.dead()] == ["bad"]
        await syphon.close()

    run(scenario)


def test_c15_a_trial_of_what_is_parked_does_not_use_up_its_deliveries() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        syphon = await pumping.started()
        await asyncio.sleep(3_600)
        assert [message.delivery_count for message in pumping.left()] == [0, 0, 0]
        world.primary.enable("orders")
        await pumping.drained(70.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_an_abandoned_message_that_was_parked_stays_parked() -> None:
    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world)
        pumping.put("orders")
        receiver = await world.secondary_factory().create_message_receiver(pumping.queues[0])
        (message,) = await receiver.receive(1)
        await receiver.defer(message)
        await receiver.abandon(await receiver.receive_deferred(message.sequence_number))
        (left,) = pumping.left()
        assert left.state is MessageState.DEFERRED
        assert left.delivery_count == 1

    run(scenario)


@pytest.mark.slow
def test_c15_there_is_no_hurry_to_park_what_the_pair_holds() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world)
        pumping.held.add("orders")
        ids = pumping.put("orders", 5_000)
        syphon = await pumping.started()
        await asyncio.sleep(5)
        assert sum(message.state is MessageState.DEFERRED for message in pumping.left()) < 2_500
        pumping.held.clear()
        await pumping.drained(60.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_a_backlog_queue_in_partitions_is_read_too() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "visits")
        pumping = Pumping(world)
        world.secondary.delete(pumping.queues[0])
        world.secondary.create_queue(pumping.queues[0], QueueDescription(partitioned=True, max_delivery_count=2_000))
        ids = pumping.put("orders", 100)
        receiver = await world.secondary_factory().create_message_receiver(pumping.queues[0])
        await receiver.defer(await receiver.receive(30))
        syphon = await pumping.started()
        visits = pumping.put("visits", 50, session_id="a")
        await pumping.drained(20.0)
        assert sorted(pumping.home("orders")) == sorted(ids)
        assert sorted(pumping.home("visits")) == sorted(visits)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("pause_s", [10.0, 100.0])
def test_c15_the_syphon_goes_on_as_soon_as_somebody_else_reaches_the_primary(pause_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        world.primary_road.refuse()
        pumping.put("orders")
        await asyncio.sleep(pause_s)
        assert syphon._contact.is_away
        world.primary_road.heal()
        sender = await syphon._context.primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert await pumping.drained() < 1.0
        await syphon.close()

    run(scenario)


def test_c15_an_unexpected_error_of_a_delivery_is_logged_and_it_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        reader = syphon._readers[0]
        restored = reader.restored

        def stumble(cargo: Cargo) -> Any:
            reader.restored = restored  # type: ignore[method-assign]
            raise RuntimeError("nobody has thought of this")

        reader.restored = stumble  # type: ignore[method-assign]
        ids = pumping.put("orders", 3)
        await pumping.drained(10.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)
    assert any("nobody has thought of this" in str(one.exc_info) for one in caplog.records)
