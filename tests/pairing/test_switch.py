"""Manual failover: engaged and released for one entity or for all, in any state of the primary."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from pairbus.client.errors import ClosedError
from pairbus.pairing import EntityChanged, EntityState
from tests.faults.trouble import Trouble
from tests.pairing.scenes import ORDERS, OTHERS, begin, letter, letters, paired, took, until
from tests.simulation.pair_world import PairWorld, run

MOMENT_S: Final = 0.1


def test_c21_one_entity_is_engaged_and_released() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        scene.pair.engage(ORDERS)
        assert scene.state() is EntityState.HELD_OVER
        await asyncio.gather(sender.send(letter("diverted")), other.send(letter("direct")))
        scene.pair.release(ORDERS)
        assert scene.state() is EntityState.HEALTHY
        await sender.send(letter("home"))
        assert await scene.bodies() == [b"diverted"]
        assert (await scene.delivered(), await scene.delivered(OTHERS)) == ([b"home"], [b"direct"])
        events = [event for event in scene.events if isinstance(event, EntityChanged)]
        assert [(event.path, event.before, event.state) for event in events] == [
            (ORDERS, EntityState.HEALTHY, EntityState.HELD_OVER),
            (ORDERS, EntityState.HELD_OVER, EntityState.HEALTHY),
        ]

    run(scenario)


def test_c21_all_entities_are_engaged_including_unused_ones() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        known = await scene.sender()
        scene.pair.engage()
        new = await scene.sender(OTHERS)
        await asyncio.gather(known.send(letter("known")), new.send(letter("new")))
        assert scene.primary.seen == []
        assert sorted(await scene.bodies()) == [b"known", b"new"]
        scene.pair.release()
        await asyncio.gather(known.send(letter("known")), new.send(letter("new")))
        assert len(scene.primary.seen) == 2

    run(scenario)


def test_c21_entity_can_be_engaged_before_its_first_use() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage("/ORDERS/")
        await (await scene.sender()).send(letter("diverted"))
        assert scene.primary.seen == []
        assert await scene.bodies() == [b"diverted"]
        assert len(scene.pair.status().entities) == 1

    run(scenario)


def test_c21_single_entity_can_be_released_while_all_are_engaged() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage()
        scene.pair.release(ORDERS)
        await (await scene.sender()).send(letter("direct"))
        await (await scene.sender(OTHERS)).send(letter("diverted"))
        assert (await scene.delivered(), await scene.bodies()) == ([b"direct"], [b"diverted"])

    run(scenario)


def test_c21_held_over_entity_is_not_pinged_and_stays_held() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=1)
        sender = await scene.sender()
        scene.pair.engage()
        await sender.send(letter())
        await asyncio.sleep(3_600)
        assert scene.primary.seen == []
        assert scene.entity().pings == 0
        assert scene.state() is EntityState.HELD_OVER
        world.primary_network.refuse()
        await sender.send(letter())
        await scene.heal()
        await asyncio.sleep(3_600)
        assert scene.primary.seen == []
        assert scene.state() is EntityState.HELD_OVER

    run(scenario)


def test_c21_failed_over_entity_can_be_held_and_is_not_pinged_any_more() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=10)
        sender = await scene.sender()
        world.primary_network.refuse()
        await sender.send(letter())
        await asyncio.sleep(15)
        scene.pair.engage(ORDERS)
        await scene.heal()
        await asyncio.sleep(600)
        assert scene.primary.seen == []
        assert scene.entity().pings == 1
        scene.pair.release(ORDERS)
        await sender.send(letter("home"))
        assert await scene.delivered() == [b"home"]

    run(scenario)


def test_c21_failed_over_entity_can_be_released() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=1_000)
        sender = await scene.sender()
        world.primary_network.refuse()
        await sender.send(letter())
        await scene.heal()
        scene.pair.release()
        await sender.send(letter("home"))
        assert await scene.delivered() == [b"home"]
        await asyncio.sleep(3_000)
        assert not scene.primary.pings

    run(scenario)


def test_c21_entity_released_too_early_fails_over_again() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        world.primary_network.refuse()
        await sender.send(letter("1"))
        scene.pair.release()
        assert scene.state() is EntityState.HEALTHY
        await sender.send(letter("2"))
        assert scene.state() is EntityState.FAILED_OVER
        assert sorted(await scene.bodies()) == [b"1", b"2"]

    run(scenario)


def test_c21_manual_switch_ends_the_failover_interval() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=30)
        sender = await scene.sender()
        world.primary_network.refuse()
        sending = begin(sender.send(letter()))
        await asyncio.sleep(10)
        assert scene.state() is EntityState.FAILING
        scene.pair.engage()
        await sending
        await asyncio.sleep(60)
        assert scene.state() is EntityState.HELD_OVER
        scene.pair.release()
        await asyncio.sleep(60)
        assert scene.state() is EntityState.HEALTHY

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "stall", "hang", "busy"])
def test_c21_waiting_sends_are_diverted_by_engage(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=3_600)
        sender, other = await scene.sender(), await scene.sender()
        await sender.send(letter("first"))
        match what:
            case "hang":
                world.primary.trouble_sends(ORDERS, Trouble.LOST)
            case "busy":
                world.primary.trouble_sends(ORDERS, Trouble.BUSY)
            case _:
                await scene.spoil(what)
        sending = [
            begin(sender.send(letter("a"))),
            begin(sender.send(letters(3))),
            begin(other.send_batch(letters(3))),
        ]
        await asyncio.sleep(7)
        late = [begin(sender.send(letter("b"))), begin(other.send(letter("c")))]
        await asyncio.sleep(1)
        scene.pair.engage()
        assert await took(_all(sending + late)) < MOMENT_S
        assert len(await scene.backlog()) == 9

    run(scenario)


def test_c21_repeated_switch_changes_nothing() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        for _ in range(3):
            scene.pair.engage()
            scene.pair.engage(ORDERS)
        await sender.send(letter("diverted"))
        for _ in range(3):
            scene.pair.release(ORDERS)
            scene.pair.release()
        await sender.send(letter("home"))
        assert [state for _, _, state in scene.changes] == [EntityState.HELD_OVER, EntityState.HEALTHY]

    run(scenario)


def test_c21_switching_back_and_forth_under_load_loses_nothing() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60)
        sender = await scene.sender()
        sent: list[str] = []

        async def send_on() -> None:
            while True:
                sent.append(f"{len(sent)}")
                await sender.send(letter(sent[-1]))
                await asyncio.sleep(0.0037)

        sending = [begin(send_on()) for _ in range(3)]
        for turn in range(50):
            (scene.pair.engage, scene.pair.release)[turn % 2]()
            await asyncio.sleep(0.0101)
        await until(lambda: len(sent) > 60)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await asyncio.sleep(1)
        found = {body.decode() for body in [*await scene.bodies(), *await scene.delivered()]}
        assert len({*sent} - found) <= 3  # the cancelled sends
        assert scene.primary.bodies
        assert scene.secondary.bodies

    run(scenario)


def test_c21_switch_of_a_closed_factory_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        await scene.factory.close()
        with pytest.raises(ClosedError):
            scene.pair.engage()
        with pytest.raises(ClosedError):
            scene.pair.release(ORDERS)

    run(scenario)


@pytest.mark.parametrize("path", [1, b"orders", ["orders"]])
def test_c21_path_of_another_type_is_rejected(path: Any) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(TypeError):
            scene.pair.engage(path)

    run(scenario)


async def _all(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks)
