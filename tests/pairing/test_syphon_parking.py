"""Parked messages of a backlog queue, and how they are fetched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.pairing.syphon import TimeToLive
from pairbus.pairing.syphon.message import BacklogMessage
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run


def _are_parked(fixture: SyphonFixture) -> bool:
    return all(message.state is MessageState.DEFERRED for message in fixture.left())


def test_c15_parked_message_delivered_but_not_removed_is_removed_later() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        syphon = await fixture.started()
        await fixture.until(lambda: _are_parked(fixture))
        source = syphon._runners[0].source
        complete = source.complete

        def cut_off(messages: list[BacklogMessage]) -> None:
            """Fail between the confirmation and the removal."""
            world.secondary_network.refuse()
            complete(messages)

        source.complete = cut_off  # type: ignore[method-assign]
        world.primary.enable("orders")
        await fixture.until(lambda: bool(fixture.delivered("orders")), 100.0)
        source.complete = complete  # type: ignore[method-assign]
        await asyncio.sleep(200)
        assert len(fixture.left()) == 3
        world.secondary_network.heal()
        await fixture.drained(100.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_undeliverable_parked_message_is_dead_lettered() -> None:
    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world)
        fixture.put_raw(encode_brokered(BrokeredMessage(b"x", message_id="bad")))
        receiver = await world.secondary_factory().create_message_receiver(fixture.queues[0])
        await receiver.defer(await receiver.receive(1))
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert [message.message_id for message in fixture.dead()] == ["bad"]
        await syphon.close()

    run(scenario)


def test_c15_retries_of_a_parked_message_do_not_use_up_its_deliveries() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        syphon = await fixture.started()
        await asyncio.sleep(3_600)
        assert [message.delivery_count for message in fixture.left()] == [0, 0, 0]
        world.primary.enable("orders")
        await fixture.drained(70.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_abandoned_parked_message_stays_parked() -> None:
    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world)
        fixture.put("orders")
        receiver = await world.secondary_factory().create_message_receiver(fixture.queues[0])
        (message,) = await receiver.receive(1)
        await receiver.defer(message)
        await receiver.abandon(await receiver.receive_deferred(message.sequence_number))
        (left,) = fixture.left()
        assert left.state is MessageState.DEFERRED
        assert left.delivery_count == 1

    run(scenario)


@pytest.mark.slow
def test_c15_messages_for_held_destinations_are_parked_slowly() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        fixture.held.add("orders")
        ids = fixture.put("orders", 5_000)
        syphon = await fixture.started()
        await asyncio.sleep(5)
        assert sum(message.state is MessageState.DEFERRED for message in fixture.left()) < 2_500
        fixture.held.clear()
        await fixture.drained(60.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_partitioned_backlog_queue_is_drained() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "visits")
        fixture = SyphonFixture(world)
        world.secondary.delete(fixture.queues[0])
        world.secondary.create_queue(fixture.queues[0], QueueDescription(partitioned=True, max_delivery_count=2_000))
        ids = fixture.put("orders", 100)
        receiver = await world.secondary_factory().create_message_receiver(fixture.queues[0])
        await receiver.defer(await receiver.receive(30))
        syphon = await fixture.started()
        visits = fixture.put("visits", 50, session_id="a")
        await fixture.drained(20.0)
        assert sorted(fixture.delivered("orders")) == sorted(ids)
        assert sorted(fixture.delivered("visits")) == sorted(visits)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("pause_s", [10.0, 100.0])
def test_c15_syphon_resumes_as_soon_as_another_connection_reaches_the_primary(pause_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        world.primary_network.refuse()
        fixture.put("orders")
        await asyncio.sleep(pause_s)
        assert syphon._health.is_away
        world.primary_network.heal()
        sender = await syphon._context.primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert await fixture.drained() < 1.0
        await syphon.close()

    run(scenario)


def test_c15_unexpected_delivery_error_is_logged_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started(time_to_live=TimeToLive.REMAINING)
        source = syphon._runners[0].source
        age = source.age

        def stumble(message: BacklogMessage) -> Any:
            source.age = age  # type: ignore[method-assign]
            raise RuntimeError("nobody has thought of this")

        source.age = stumble  # type: ignore[method-assign]
        ids = fixture.put("orders", 3)
        await fixture.drained(10.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)
    assert any("nobody has thought of this" in str(one.exc_info) for one in caplog.records)
