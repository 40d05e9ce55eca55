"""The names of backlog queues, which all processes of a pair agree on."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import encode_brokered
from pairbus.dialect.paths import backlog_path
from pairbus.dialect.transfer import divert
from pairbus.pairing import NamespacePair, SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.backlog import ensure_backlog_queues
from pairbus.pairing.primary_names import find_primary_names, names_by_address
from tests.faults.namespace import VirtualNamespace
from tests.pairing.scenes import ORDERS, letter, seconds, until
from tests.simulation.pair_world import PRIMARY, NetworkPath, PairWorld, run

HERE: Final = "127.0.0.1"
"""An address without the name of its namespace."""


def test_c5_backlog_queues_have_the_announced_name_of_the_primary() -> None:
    async def scenario(world: PairWorld) -> None:
        assert _by_address(world) != PRIMARY
        pair = await _paired(world)
        assert pair.primary_name == PRIMARY == "contoso"
        assert _queues(pair) == [backlog_path("contoso", 0), backlog_path("contoso", 1)]

    run(scenario)


def test_c5_given_name_wins_over_the_announced_one() -> None:
    async def scenario(world: PairWorld) -> None:
        pair = await _paired(world, primary_name="main")
        assert pair.primary_name == "main"
        assert await _paths(world) == [backlog_path("main", 0), backlog_path("main", 1)]

    run(scenario)


@pytest.mark.parametrize("outage", ["refuse", "stall"])
def test_c5_name_is_the_same_before_and_during_an_outage_of_the_primary(outage: str) -> None:
    async def scenario(world: PairWorld) -> None:
        assert (await _paired(world)).primary_name == PRIMARY
        getattr(world.primary_network, outage)()
        assert (await _paired(world)).primary_name == PRIMARY
        world.primary_network.cut()
        world.primary_network.heal()
        assert (await _paired(world)).primary_name == PRIMARY
        assert {path.partition("/")[0] for path in await _backlog(world)} == {PRIMARY}

    run(scenario)


@pytest.mark.parametrize("outage", ["refuse", "stall"])
def test_c5_name_of_a_pair_started_in_an_outage_stays(outage: str) -> None:
    async def scenario(world: PairWorld) -> None:
        getattr(world.primary_network, outage)()
        assert (await _paired(world)).primary_name == _by_address(world)
        world.primary_network.cut()
        world.primary_network.heal()
        assert (await _paired(world)).primary_name == _by_address(world)

    run(scenario)


def test_c5_queues_named_by_address_by_an_earlier_version_are_still_used() -> None:
    async def scenario(world: PairWorld) -> None:
        await ensure_backlog_queues(world.secondary_manager(), _by_address(world), 2)
        assert (await _paired(world)).primary_name == _by_address(world)
        assert {path.partition("/")[0] for path in await _backlog(world)} == {_by_address(world)}

    run(scenario)


def test_c5_recorded_names_of_two_primaries_at_one_address_are_ignored() -> None:
    async def scenario(world: PairWorld) -> None:
        await _paired(world)
        await world.secondary_manager().create_queue(f"{_by_address(world)}/x-pairbus-name/adatum")
        world.primary_network.refuse()
        assert (await _paired(world)).primary_name == _by_address(world)

    run(scenario)


def test_c5_queues_named_by_another_spelling_of_localhost_are_used() -> None:
    async def scenario(world: PairWorld) -> None:
        old = f"{HERE}-{world.primary_network.port}"
        await ensure_backlog_queues(world.secondary_manager(), old, 3)
        world.primary_network.refuse()
        assert (await _paired(world)).primary_name == old

    run(scenario)


# The syphon.


def test_c15_backlogs_of_the_old_and_the_new_name_are_drained() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        for name in (_by_address(world), PRIMARY):
            await ensure_backlog_queues(world.secondary_manager(), name, 3)
        await _leave(world, backlog_path(_by_address(world), 2), "old")
        await _leave(world, backlog_path(PRIMARY, 1), "new")
        await _leave(world, backlog_path(PRIMARY, 2), "beyond the count of this pair")
        pair = await _paired(world, enable_syphon=True)
        assert pair.primary_name == PRIMARY
        await asyncio.sleep(60)
        assert world.primary.info(ORDERS).ready_count == 2

    run(scenario)


@pytest.mark.parametrize("outage", ["refuse", "stall"])
def test_c15_syphon_started_in_an_outage_drains_the_queues_of_the_announced_name(outage: str) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        await ensure_backlog_queues(world.secondary_manager(), PRIMARY, 2)  # by a process that uses another address
        await _leave(world, backlog_path(PRIMARY, 1), "from another address")
        getattr(world.primary_network, outage)()
        pair = await _paired(world, enable_syphon=True)
        assert pair.primary_name == _by_address(world)
        await _leave(world, backlog_path(pair.primary_name, 0), "from here")
        await asyncio.sleep(60)
        world.primary_network.cut()
        world.primary_network.heal()
        await until(lambda: world.primary.info(ORDERS).ready_count == 2)

    run(scenario)


def test_c15_only_the_given_name_is_drained() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(ORDERS)
        await ensure_backlog_queues(world.secondary_manager(), _by_address(world), 1)
        await _leave(world, backlog_path(_by_address(world), 0), "somebody else's")
        await _paired(world, enable_syphon=True, primary_name="main")
        await asyncio.sleep(600)
        assert world.primary.info(ORDERS).ready_count == 0

    run(scenario)


# Announced names.


def test_server_with_the_default_name_announces_none() -> None:
    async def scenario(world: PairWorld) -> None:
        namespace = VirtualNamespace(world._named, "pairbus")
        network = NetworkPath(world._named, namespace)
        world.add(namespace, network)
        await network.start()
        factory = world.factory_at(Endpoint(HERE, network.port, tls=False))
        assert await factory.announced_name() is None
        names = await find_primary_names(factory, world.secondary_manager())
        assert (names.names, names.is_final) == (names_by_address(factory.endpoint), True)

    run(scenario)


def test_azure_host_gives_the_name_without_a_request() -> None:
    async def scenario(world: PairWorld) -> None:
        factory = world.factory_at(Endpoint("adatum.servicebus.windows.net"))
        names = await find_primary_names(factory, world.secondary_manager())
        assert (names.names, names.is_final) == (("adatum",), True)

    run(scenario)


# The scene.


def _primary(world: PairWorld) -> MessagingFactory:
    return world.factory_at(Endpoint(HERE, world.primary_network.port, tls=False))


def _by_address(world: PairWorld) -> str:
    return f"localhost-{world.primary_network.port}"


async def _paired(world: PairWorld, **options: Any) -> NamespacePair:
    """Pair in the same way as another process."""
    return await _primary(world).pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            world.secondary_manager(), world.secondary_factory(), 2, seconds(0), ping_interval=seconds(5), **options
        )
    )


def _queues(pair: NamespacePair) -> list[str]:
    return [queue.path for queue in pair.status().backlog_queues]


async def _paths(world: PairWorld) -> list[str]:
    return [queue.path for queue in await world.secondary_manager().get_queues()]


async def _backlog(world: PairWorld) -> list[str]:
    return [path for path in await _paths(world) if "x-servicebus-transfer" in path]


async def _leave(world: PairWorld, path: str, text: str) -> None:
    """Put a diverted message into a backlog queue."""
    link = EntityLink(world.secondary_factory(), path)
    await link.send(SendBatch([divert(encode_brokered(letter(text)), ORDERS)]))
    await link.close()
