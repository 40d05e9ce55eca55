"""The syphon in the process: what it brings home, what it leaves for later, what it buries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.dialect.transfer import divert
from tests.pairing.pumping import Pumping, look, queues, seconds, unique
from tests.pairing.scenes import heal, spoil
from tests.simulation.pair_world import PairWorld, run

DAY_S = 86_400.0


# What comes home.


def test_c14_messages_go_to_their_destinations_and_leave_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world, queues=2)
        first, second = pumping.put("orders", 3), pumping.put("others", 2, queue=1)
        syphon = await pumping.started()
        await pumping.drained()
        later = pumping.put("orders", 2)
        assert await pumping.drained() < 1.0
        assert pumping.home("orders") == first + later
        assert pumping.home("others") == second
        assert syphon.status.syphoned == 7
        await syphon.close()

    run(scenario)


def test_c14_what_was_aliased_is_restored() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        pumping = Pumping(world)
        scheduled = datetime.fromtimestamp(world.wall_s() + 5_000, UTC)
        pumping.put(
            "visits",
            session_id="amber",
            time_to_live=seconds(9_000),
            scheduled_enqueue_time=scheduled,
            application_properties={"colour": "red"},
            correlation_id="c",
        )
        syphon = await pumping.started()
        await pumping.drained()
        (found,) = look(world.primary, "visits")
        assert found.session_id == "amber"
        assert found.time_to_live == seconds(9_000)
        assert found.scheduled_enqueue_time == scheduled
        assert found.state is MessageState.SCHEDULED
        assert found.application_properties == {"colour": "red"}
        assert found.correlation_id == "c"
        assert found.body == found.message_id.encode()  # type: ignore[union-attr]
        await syphon.close()

    run(scenario)


def test_c14_a_topic_is_a_destination_too() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_topic("news", ["all"])
        pumping = Pumping(world)
        ids = pumping.put("news", 3)
        syphon = await pumping.started()
        await pumping.drained()
        assert pumping.home("news/Subscriptions/all") == ids
        await syphon.close()

    run(scenario)


@pytest.mark.slow
def test_c14_many_messages_for_many_destinations_are_drained() -> None:
    async def scenario(world: PairWorld) -> None:
        paths = [f"queue{number}" for number in range(40)]
        queues(world.primary, *paths)
        pumping = Pumping(world, queues=4)
        sent: dict[str, list[str]] = {path: [] for path in paths}
        for turn in range(10):
            for number, path in enumerate(paths):
                sent[path] += pumping.put(path, 25, queue=(turn + number) % 4)
        syphon = await pumping.started()
        await pumping.drained(60.0)
        for path in paths:
            assert sorted(pumping.home(path)) == sorted(sent[path])
        assert syphon.status.syphoned == 10_000
        await syphon.close()

    run(scenario)


def test_c14_large_messages_go_in_as_many_batches_as_they_need() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        payloads = [
            divert(encode_brokered(BrokeredMessage(bytes(100_000), message_id=str(number))), "orders")
            for number in range(20)
        ]
        pumping.put_raw(*payloads)
        syphon = await pumping.started()
        await pumping.drained()
        assert pumping.home("orders") == [str(number) for number in range(20)]
        await syphon.close()

    run(scenario)


# What is down.


def test_c15_a_destination_that_is_down_is_skipped_without_holding_up_the_others() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        world.primary.disable("orders")
        pumping = Pumping(world)
        late: list[str] = []
        punctual: list[str] = []
        for _ in range(20):
            late += pumping.put("orders", 20)
            punctual += pumping.put("others", 20)
        syphon = await pumping.started()
        await pumping.until(lambda: pumping.home("others") == punctual, 5.0)
        await pumping.until(lambda: len(pumping.left()) == len(late))
        assert set(syphon.status.waiting) == {"orders"}
        await asyncio.sleep(100)
        late += pumping.put("orders", 20)
        await asyncio.sleep(100)
        world.primary.enable("orders")
        await pumping.drained(61.0)
        assert pumping.home("orders") == late
        assert pumping.changes("orders") == [False, True]
        assert syphon.status.waiting == {}
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "stall", "stall up", "stall down", "hide", "kill"])
def test_c15_while_the_primary_is_away_the_backlog_is_left_alone(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world)
        syphon = await pumping.started()
        first = pumping.put("orders", 5)
        await pumping.drained()
        await spoil(world.primary, world.primary_road, what)
        ids = [one for _ in range(500) for path in ("orders", "others") for one in pumping.put(path)]
        await asyncio.sleep(600)
        receives = syphon.status.receives
        assert receives < 8
        assert all(message.state is MessageState.ACTIVE for message in pumping.left())
        assert len(pumping.left()) == 1_000
        assert set(syphon.status.waiting) == {"orders", "others"}
        await heal(world.primary, world.primary_road)
        await pumping.drained(60.0)
        assert sorted(unique(pumping.home("orders") + pumping.home("others"))) == sorted(first + ids)
        assert syphon.status.waiting == {}
        await syphon.close()

    run(scenario)
