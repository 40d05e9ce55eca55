"""The in-process syphon: delivered messages, and destinations that are down."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.dialect.transfer import divert
from tests.pairing.scenes import heal, spoil
from tests.pairing.syphon_fixture import SyphonFixture, peek_all, queues, seconds, unique
from tests.simulation.pair_world import PairWorld, run

DAY_S = 86_400.0


# Delivery.


def test_c14_messages_are_delivered_and_removed_from_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world, queues=2)
        first, second = fixture.put("orders", 3), fixture.put("others", 2, queue=1)
        syphon = await fixture.started()
        await fixture.drained()
        later = fixture.put("orders", 2)
        assert await fixture.drained() < 1.0
        assert fixture.delivered("orders") == first + later
        assert fixture.delivered("others") == second
        assert syphon.status.syphoned == 7
        await syphon.close()

    run(scenario)


def test_c14_diverted_properties_are_restored() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        fixture = SyphonFixture(world)
        scheduled = datetime.fromtimestamp(world.wall_s() + 5_000, UTC)
        fixture.put(
            "visits",
            session_id="amber",
            time_to_live=seconds(9_000),
            scheduled_enqueue_time=scheduled,
            application_properties={"colour": "red"},
            correlation_id="c",
        )
        syphon = await fixture.started()
        await fixture.drained()
        (found,) = peek_all(world.primary, "visits")
        assert found.session_id == "amber"
        assert found.time_to_live == seconds(9_000)
        assert found.scheduled_enqueue_time == scheduled
        assert found.state is MessageState.SCHEDULED
        assert found.application_properties == {"colour": "red"}
        assert found.correlation_id == "c"
        assert found.body == found.message_id.encode()  # type: ignore[union-attr]
        await syphon.close()

    run(scenario)


def test_c14_topic_can_be_a_destination() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_topic("news", ["all"])
        fixture = SyphonFixture(world)
        ids = fixture.put("news", 3)
        syphon = await fixture.started()
        await fixture.drained()
        assert fixture.delivered("news/Subscriptions/all") == ids
        await syphon.close()

    run(scenario)


@pytest.mark.slow
def test_c14_many_messages_for_many_destinations_are_drained() -> None:
    async def scenario(world: PairWorld) -> None:
        paths = [f"queue{number}" for number in range(40)]
        queues(world.primary, *paths)
        fixture = SyphonFixture(world, queues=4)
        sent: dict[str, list[str]] = {path: [] for path in paths}
        for turn in range(10):
            for number, path in enumerate(paths):
                sent[path] += fixture.put(path, 25, queue=(turn + number) % 4)
        syphon = await fixture.started()
        await fixture.drained(60.0)
        for path in paths:
            assert sorted(fixture.delivered(path)) == sorted(sent[path])
        assert syphon.status.syphoned == 10_000
        await syphon.close()

    run(scenario)


def test_c14_large_messages_are_split_into_batches() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        payloads = [
            divert(encode_brokered(BrokeredMessage(bytes(100_000), message_id=str(number))), "orders")
            for number in range(20)
        ]
        fixture.put_raw(*payloads)
        syphon = await fixture.started()
        await fixture.drained()
        assert fixture.delivered("orders") == [str(number) for number in range(20)]
        await syphon.close()

    run(scenario)


# Outages.


def test_c15_destination_that_is_down_does_not_delay_the_others() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        late: list[str] = []
        punctual: list[str] = []
        for _ in range(20):
            late += fixture.put("orders", 20)
            punctual += fixture.put("others", 20)
        syphon = await fixture.started()
        await fixture.until(lambda: fixture.delivered("others") == punctual, 5.0)
        await fixture.until(lambda: len(fixture.left()) == len(late))
        assert set(syphon.status.waiting) == {"orders"}
        await asyncio.sleep(100)
        late += fixture.put("orders", 20)
        await asyncio.sleep(100)
        world.primary.enable("orders")
        await fixture.drained(61.0)
        assert fixture.delivered("orders") == late
        assert fixture.changes("orders") == [False, True]
        assert syphon.status.waiting == {}
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "stall", "stall up", "stall down", "hide", "kill"])
def test_c15_backlog_is_not_read_while_the_primary_is_unreachable(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        first = fixture.put("orders", 5)
        await fixture.drained()
        await spoil(world.primary, world.primary_network, what)
        ids = [one for _ in range(500) for path in ("orders", "others") for one in fixture.put(path)]
        await asyncio.sleep(600)
        receives = syphon.status.receives
        assert receives < 8
        assert all(message.state is MessageState.ACTIVE for message in fixture.left())
        assert len(fixture.left()) == 1_000
        assert set(syphon.status.waiting) == {"orders", "others"}
        await heal(world.primary, world.primary_network)
        await fixture.drained(60.0)
        assert sorted(unique(fixture.delivered("orders") + fixture.delivered("others"))) == sorted(first + ids)
        assert syphon.status.waiting == {}
        await syphon.close()

    run(scenario)
