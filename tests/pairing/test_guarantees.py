"""A syphon reports for each destination whether it stores messages exactly once or at least once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pairbus.broker import Right, TopicDescription
from pairbus.client.factory import MessagingFactory
from pairbus.client.token_provider import PlainCredentials
from pairbus.dialect.paths import DRILL
from pairbus.pairing import DeliveryGuarantee, DestinationGuarantee
from pairbus.pairing.guarantee import NOT_LOOKED_UP
from pairbus.pairing.syphon.guarantees import GuaranteeLookup
from tests.faults.namespace import KEY
from tests.pairing.scenes import allow
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run

AT_LEAST_ONCE = DestinationGuarantee(guarantee=DeliveryGuarantee.AT_LEAST_ONCE)
EXACTLY_ONCE = DestinationGuarantee(guarantee=DeliveryGuarantee.EXACTLY_ONCE, window=timedelta(minutes=10))


async def at_once() -> None:
    """Return at once: the primary is reachable."""


# The status of a syphon.


def test_c15_guarantee_follows_from_duplicate_detection() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "letters", "unused")
        queues(world.primary, "orders", requires_duplicate_detection=True, duplicate_window_ms=3_600_000)
        world.primary.create_topic("news", ["all"])
        world.primary.create_topic("alerts", ["all"], TopicDescription(requires_duplicate_detection=True))
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        assert syphon.status.guarantees == {}
        for path in ("letters", "orders", "news", "alerts"):
            fixture.put(path, 3)
        await fixture.drained()
        await asyncio.sleep(1)
        assert syphon.status.guarantees == {
            "letters": AT_LEAST_ONCE,
            "orders": DestinationGuarantee(guarantee=DeliveryGuarantee.EXACTLY_ONCE, window=timedelta(hours=1)),
            "news": AT_LEAST_ONCE,
            "alerts": EXACTLY_ONCE,
        }
        await syphon.close()
        assert len(syphon.status.guarantees) == 4

    run(scenario)


def test_c15_key_without_manage_delivers_and_gives_the_reason() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", requires_duplicate_detection=True)
        allow(world.primary, Right.SEND, name=KEY.name)
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        ids = fixture.put("orders", 3)
        await fixture.drained()
        await asyncio.sleep(1)
        [(path, found)] = syphon.status.guarantees.items()
        assert (path, str(found)) == ("orders", "at least once (not known, the key lacks Manage)")
        assert found.facts == {
            "guarantee": "at least once",
            "window_seconds": None,
            "reason": "not known, the key lacks Manage",
        }
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_destination_without_a_delivery_has_no_guarantee() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.disable("orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        fixture.put("orders", 1)
        await asyncio.sleep(60)
        assert {*syphon.status.waiting} == {"orders"}
        assert syphon.status.guarantees == {}
        world.primary.enable("orders")
        await fixture.drained()
        await asyncio.sleep(1)
        assert syphon.status.guarantees == {"orders": AT_LEAST_ONCE}
        await syphon.close()

    run(scenario)


# The lookup.


def test_c15_lookup_that_fails_is_retried_later() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", requires_duplicate_detection=True)
        lookup = GuaranteeLookup(world.primary_factory(), at_once)
        world.primary.busy_until_s = world.loop.time() + 25
        lookup.note_delivery("orders")
        assert lookup.found == {"orders": NOT_LOOKED_UP}
        await lookup.settle()
        assert lookup.found["orders"].guarantee is DeliveryGuarantee.AT_LEAST_ONCE
        assert "busy" in str(lookup.found["orders"].reason)
        await asyncio.sleep(60)
        assert lookup.found == {"orders": EXACTLY_ONCE}
        await lookup.close()

    run(scenario)


def test_c15_lookup_waits_until_the_primary_is_reachable() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        is_reachable = asyncio.Event()

        async def reachable() -> None:
            await is_reachable.wait()

        lookup = GuaranteeLookup(world.primary_factory(), reachable)
        lookup.note_delivery("orders")
        await lookup.settle()
        assert lookup.found == {"orders": NOT_LOOKED_UP}
        assert not world.primary_network.relays
        is_reachable.set()
        await lookup.settle()
        assert lookup.found == {"orders": AT_LEAST_ONCE}
        await lookup.close()

    run(scenario)


def test_c15_deleted_destination_is_looked_up_once() -> None:
    async def scenario(world: PairWorld) -> None:
        lookup = GuaranteeLookup(world.primary_factory(), at_once)
        lookup.note_delivery("orders")
        await lookup.settle()
        assert "could not be found" in str(lookup.found["orders"].reason)
        queues(world.primary, "orders")
        await asyncio.sleep(3_600)
        assert "could not be found" in str(lookup.found["orders"].reason)
        await lookup.close()

    run(scenario)


def test_c15_spellings_of_a_path_are_one_destination() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        lookup = GuaranteeLookup(world.primary_factory(), at_once)
        for path in ("Orders", "orders", "/ORDERS/"):
            lookup.note_delivery(path)
        await lookup.settle()
        assert lookup.found == {"Orders": AT_LEAST_ONCE}
        await lookup.close()

    run(scenario)


def test_c15_drills_and_deliveries_after_close_are_ignored() -> None:
    async def scenario(world: PairWorld) -> None:
        lookup = GuaranteeLookup(world.primary_factory(), at_once)
        lookup.note_delivery(f"{DRILL}/1")
        await lookup.close()
        lookup.note_delivery("orders")
        await lookup.settle()
        assert lookup.found == {}

    run(scenario)


def test_c15_user_name_and_password_count_as_a_key_without_manage() -> None:
    async def scenario(world: PairWorld) -> None:
        factory = MessagingFactory.create(world.primary_network.endpoint, PlainCredentials("user", "password"))
        lookup = GuaranteeLookup(factory, at_once)
        lookup.note_delivery("orders")
        await lookup.settle()
        assert lookup.found["orders"].reason == "not known, the key lacks Manage"
        await lookup.close()
        await factory.close()

    run(scenario)


# Text.


@pytest.mark.parametrize(
    ("guarantee", "text"),
    [
        (AT_LEAST_ONCE, "at least once"),
        (EXACTLY_ONCE, "exactly once while an outage is shorter than 0:10:00"),
        (NOT_LOOKED_UP, "at least once (not known, it has not been looked up yet)"),
    ],
)
def test_c15_guarantee_has_its_condition_in_its_text(guarantee: DestinationGuarantee, text: str) -> None:
    assert str(guarantee) == text
