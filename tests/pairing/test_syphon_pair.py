"""A syphon and the senders of a pair in one process, with the same factories."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.client.message import BrokeredMessage
from pairbus.pairing.syphon import InProcessSyphon, SyphonContext, SyphonSettings
from tests.pairing.scenes import ORDERS, OTHERS, OUTAGES, Scene, backlog_path, paired
from tests.simulation.pair_world import PairWorld, run


def _syphon(scene: Scene, count: int) -> InProcessSyphon:
    return InProcessSyphon(
        SyphonContext(
            primary=scene.factory,
            secondary=scene.pair._backlog.factory,
            backlog_queues=tuple(backlog_path(index) for index in range(count)),
            settings=SyphonSettings(),
            is_held=scene.pair._is_diverting,
            publish=scene.pair._listeners.publish,
        )
    )


@pytest.mark.parametrize("what", OUTAGES)
def test_c15_whole_backlog_is_delivered_after_an_outage(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=30.0)
        syphon = _syphon(scene, 3)
        await syphon.start()
        senders = [await scene.sender(path) for path in (ORDERS, OTHERS)]
        sent: list[bytes] = []

        async def send(times: int) -> None:
            for _ in range(times):
                for sender in senders:
                    sent.append(f"{len(sent)}".encode())
                    await sender.send(BrokeredMessage(sent[-1]))
                await asyncio.sleep(1)

        await send(10)
        await scene.spoil(what)
        await send(100)
        assert all(message.application_properties.get("x-ms-path") is not None for message in await scene.backlog())
        await scene.heal()
        await send(100)
        await asyncio.sleep(60)
        assert await scene.backlog() == []
        assert {*await scene.delivered(ORDERS), *await scene.delivered(OTHERS)} == {*sent}
        assert syphon.status.waiting == {}
        assert syphon.status.dead_lettered == 0
        await syphon.close()

    run(scenario)


def test_c15_syphon_can_be_closed_after_its_factories() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        syphon = _syphon(scene, 3)
        await syphon.start()
        await asyncio.sleep(10)
        await scene.factory.close()
        await scene.pair._backlog.factory.close()
        await world.timed("close", syphon.close(), 10.0)

    run(scenario)
