"""A peer that talks nonsense: the client gives the connection up and goes on, and nothing of its inside comes out."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

import pytest

from pairbus.client.errors import MessagingError
from pairbus.client.message import BrokeredMessage
from tests.faults.fault import Fault, Kind, Schedule, Way
from tests.faults.operations import OPERATIONS, BusyFactory, limit_s
from tests.faults.world import OPERATION_S, World, run

QUICK: Final = range(40)
HUNDREDS: Final = range(10, 20)


def _corrupted(seed: int) -> None:
    random = Random(seed)  # noqa: S311 (which bytes, and what is done)
    faults = tuple(
        Fault(kind=Kind.CORRUPT, way=Way.DOWN, connection=connection, after_bytes=random.randrange(3_000))
        for connection in range(6)
        for _ in range(random.choice((1, 2)))
    )
    names = random.choices(list(OPERATIONS), k=8)

    async def scenario(world: World) -> None:
        desk = await BusyFactory.open(world)
        world.proxy.misbehave(Schedule(faults=faults))
        world.proxy.apply(Fault(kind=Kind.CORRUPT, way=Way.DOWN))
        for name in names:
            try:
                await world.timed(name, _do(desk, name), limit_s(name))
            except MessagingError:
                await asyncio.sleep(random.uniform(0, 1))
        world.proxy.heal()
        world.proxy.apply(Fault(kind=Kind.CUT))
        await asyncio.sleep(1)
        await world.timed("send", desk.sender.send(BrokeredMessage(b"well again")), OPERATION_S)

    try:
        run(scenario, seed=seed)
    except BaseException as error:
        error.add_note(f"seed {seed}: {names}, {faults!r}")
        raise


@pytest.mark.parametrize("seed", QUICK)
def test_e3_invalid_data_from_a_namespace_raises_a_messaging_error(seed: int) -> None:
    _corrupted(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", HUNDREDS)
def test_e3_more_invalid_data_from_a_namespace_raises_a_messaging_error(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        _corrupted(seed)


async def _do(desk: BusyFactory, name: str) -> object:
    return await OPERATIONS[name](desk)
