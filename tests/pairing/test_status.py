"""The status of a pair: states, times and counts, as values and in the text format of Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pairbus.client.errors import (
    BacklogUnavailableError,
    EntityDisabledError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingTimeoutError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.pairing import (
    BacklogQueueStatus,
    DeliveryGuarantee,
    DestinationGuarantee,
    EntityState,
    NamespacePair,
    PairedEntityStatus,
    PairStatus,
    SendAvailabilityPairedNamespaceOptions,
    SyphonStatus,
)
from tests.simulation.pair_world import PairWorld, run

QUEUE: Final = "contoso/x-servicebus-transfer/0"
SOON: Final = {"operation_timeout": timedelta(seconds=20)}


async def paired(world: PairWorld, count: int = 1, **given: Any) -> tuple[MessagingFactory, NamespacePair]:
    world.primary.create_queue("orders")
    world.primary.create_queue("letters")
    primary = world.primary_factory(**SOON)
    options = SendAvailabilityPairedNamespaceOptions(
        world.secondary_manager(), world.secondary_factory(**SOON), count, **{"failover_interval": timedelta(), **given}
    )
    return primary, await primary.pair_namespace(options)


def state_of(pair: NamespacePair, path: str) -> EntityState:
    return entity_of(pair, path).state


def entity_of(pair: NamespacePair, path: str) -> PairedEntityStatus:
    [found] = [entity for entity in pair.status().entities if entity.path == path]
    return found


# Values


def test_c19_new_pair_has_only_the_endpoints_in_its_status() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, 2)
        status = pair.status()
        assert status.primary == str(primary.endpoint)
        assert status.primary.startswith("amqp://contoso.example:")
        assert status.secondary.startswith("amqp://fabrikam.example:")
        assert status.entities == ()
        assert status.syphon is None
        assert (status.diverted, status.pings) == (0, 0)
        assert [(one.path, one.is_used, one.cause, one.diverted) for one in status.backlog_queues] == [
            ("contoso/x-servicebus-transfer/0", True, None, 0),
            ("contoso/x-servicebus-transfer/1", True, None, 0),
        ]
        assert "contoso.example" in repr(pair)
        assert "fabrikam.example" in repr(pair)

    run(scenario)


def test_c19_status_has_the_state_of_each_entity() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        orders, letters = [await primary.create_message_sender(path) for path in ("orders", "letters")]
        await orders.send(BrokeredMessage())
        await letters.send(BrokeredMessage())
        assert [(one.path, one.state) for one in pair.status().entities] == [
            ("orders", EntityState.HEALTHY),
            ("letters", EntityState.HEALTHY),
        ]
        world.primary.disable("orders")
        await orders.send(BrokeredMessage())
        await letters.send(BrokeredMessage())
        assert state_of(pair, "orders") is EntityState.FAILED_OVER
        assert state_of(pair, "letters") is EntityState.HEALTHY
        assert isinstance(entity_of(pair, "orders").cause, EntityDisabledError)
        assert entity_of(pair, "letters").cause is None

    run(scenario)


def test_c19_status_shows_all_states_of_an_entity() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(
            world, failover_interval=timedelta(seconds=10), ping_interval=timedelta(seconds=30)
        )
        sender = await primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert state_of(pair, "orders") is EntityState.HEALTHY
        world.primary_network.refuse()
        sending = asyncio.create_task(sender.send(BrokeredMessage()))
        await asyncio.sleep(5)
        assert state_of(pair, "orders") is EntityState.FAILING
        assert isinstance(entity_of(pair, "orders").cause, MessagingCommunicationError)
        await asyncio.sleep(6)
        await sending
        assert state_of(pair, "orders") is EntityState.FAILED_OVER
        world.primary_network.heal()
        await asyncio.sleep(31)
        assert state_of(pair, "orders") is EntityState.HEALTHY
        assert entity_of(pair, "orders").cause is None
        pair.engage("orders")
        assert state_of(pair, "orders") is EntityState.HELD_OVER

    run(scenario)


def test_c19_since_is_the_time_of_the_last_change() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        began = datetime.now(UTC)
        await primary.create_message_sender("orders")
        first = entity_of(pair, "orders").since
        assert began <= first <= datetime.now(UTC)
        pair.engage("orders")
        engaged = entity_of(pair, "orders").since
        assert first <= engaged <= datetime.now(UTC)
        pair.engage("orders")
        assert entity_of(pair, "orders").since == engaged
        pair.release("orders")
        assert entity_of(pair, "orders").since > engaged
        assert entity_of(pair, "orders").since.tzinfo is UTC

    run(scenario)


def test_c19_diverted_messages_are_counted_by_entity_and_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, 3)
        orders, letters = [await primary.create_message_sender(path) for path in ("orders", "letters")]
        await orders.send([BrokeredMessage() for _ in range(9)])
        pair.engage()
        await orders.send(BrokeredMessage())
        await orders.send([BrokeredMessage() for _ in range(4)])
        await orders.send_batch([BrokeredMessage() for _ in range(2)])
        await letters.send(BrokeredMessage())
        status = pair.status()
        assert {one.path: one.diverted for one in status.entities} == {"orders": 7, "letters": 1}
        assert sum(one.diverted for one in status.backlog_queues) == status.diverted == 8
        there = {one.path: world.secondary.info(one.path).ready_count for one in status.backlog_queues}
        assert {one.path: one.diverted for one in status.backlog_queues} == there

    run(scenario)


def test_c19_failures_and_pings_are_counted() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, ping_interval=timedelta(seconds=10))
        sender = await primary.create_message_sender("orders")
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        assert entity_of(pair, "orders").failures == 1
        assert entity_of(pair, "orders").pings == 0
        await asyncio.sleep(35)
        assert entity_of(pair, "orders").pings == 3
        world.primary.enable("orders")
        await asyncio.sleep(100)
        assert entity_of(pair, "orders").pings == pair.status().pings == 4
        assert entity_of(pair, "orders").failures == 1

    run(scenario)


def test_c19_depth_counts_messages_of_all_senders() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, 2)
        assert await pair.backlog_depth() == {QUEUE: 0, "contoso/x-servicebus-transfer/1": 0}
        other = await world.secondary_factory().create_message_sender(QUEUE)
        await other.send([BrokeredMessage() for _ in range(3)])
        pair.engage()
        await (await primary.create_message_sender("orders")).send(BrokeredMessage())
        assert sum((await pair.backlog_depth()).values()) == 4

    run(scenario)


@pytest.mark.parametrize("how", ["scheduled", "locked", "deferred"])
def test_c19_depth_counts_messages_in_every_state(how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        secondary = world.secondary_factory()
        sender = await secondary.create_message_sender(QUEUE)
        if how == "scheduled":
            await sender.schedule(BrokeredMessage(), datetime.fromtimestamp(world.wall_s() + 1_000, UTC))
        else:
            await sender.send(BrokeredMessage())
            receiver = await secondary.create_message_receiver(QUEUE)
            [message] = await receiver.receive(1)
            if how == "deferred":
                await receiver.defer(message)
        assert await pair.backlog_depth() == {QUEUE: 1}

    run(scenario)


def test_c19_depth_excludes_dead_letters() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        secondary = world.secondary_factory()
        await (await secondary.create_message_sender(QUEUE)).send(BrokeredMessage())
        receiver = await secondary.create_message_receiver(QUEUE)
        [message] = await receiver.receive(1)
        await receiver.dead_letter(message, "no use", "nobody wants it")
        assert await pair.backlog_depth() == {QUEUE: 0}

    run(scenario)


def test_c19_depth_of_many_queues_limits_concurrent_connections() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world, 150)
        max_open = 0

        async def watch() -> None:
            nonlocal max_open
            while True:
                max_open = max(max_open, len(world.secondary_network.open_relays))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        depth = await pair.backlog_depth()
        watching.cancel()
        await asyncio.wait((watching,))
        assert len(depth) == 150
        assert max_open <= 50

    run(scenario)


def test_c19_depth_raises_for_a_deleted_backlog_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world, 2)
        world.secondary.delete(QUEUE)
        with pytest.raises(EntityNotFoundError, match=QUEUE):
            await pair.backlog_depth()

    run(scenario)


def test_c19_status_has_the_cause_of_a_backlog_queue_out_of_rotation() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        sender = await primary.create_message_sender("orders")
        pair.engage()
        world.secondary.disable(QUEUE)
        with pytest.raises(BacklogUnavailableError):
            await sender.send(BrokeredMessage())
        [queue] = pair.status().backlog_queues
        assert not queue.is_used
        assert isinstance(queue.cause, EntityDisabledError)
        world.secondary.enable(QUEUE)
        await sender.send(BrokeredMessage())
        [queue] = pair.status().backlog_queues
        assert (queue.is_used, queue.cause, queue.diverted) == (True, None, 1)

    run(scenario)


def test_c19_status_is_an_immutable_snapshot() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        before = pair.status()
        pair.engage("orders")
        assert before.entities[0].state is EntityState.HEALTHY
        changing: Any = before
        with pytest.raises(FrozenInstanceError):
            changing.primary = "another"

    run(scenario)


def test_c19_spellings_of_a_path_are_one_entity() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        for path in ("orders", "Orders", "/ORDERS/"):
            await primary.create_message_sender(path)
        pair.engage("oRDERS")
        [entity] = pair.status().entities
        assert (entity.path, entity.state) == ("orders", EntityState.HELD_OVER)

    run(scenario)


def test_c19_status_is_available_after_close() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        await primary.close()
        assert [one.path for one in pair.status().entities] == ["orders"]
        assert parsed(pair.status())

    run(scenario)


def test_c19_metrics_of_a_working_pair_can_be_parsed() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, 2, ping_interval=timedelta(seconds=10))
        sender = await primary.create_message_sender("orders")
        world.primary.disable("orders")
        await sender.send([BrokeredMessage() for _ in range(3)])
        await asyncio.sleep(25)
        samples = samples_of(pair.status())
        assert samples["pairbus_pair_entity_state", "orders", "failed over"] == 1
        assert samples["pairbus_pair_entity_state", "orders", "healthy"] == 0
        assert samples["pairbus_pair_diverted_total", "orders"] == 3
        assert samples["pairbus_pair_pings_total", "orders"] == 2
        assert samples["pairbus_pair_failures_total", "orders"] == 1
        assert samples["pairbus_pair_backlog_queue_used", QUEUE] == 1
        assert samples["pairbus_pair_entity_since_seconds", "orders"] == entity_of(pair, "orders").since.timestamp()

    run(scenario)


# Text format


def parsed(status: PairStatus) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(status.metrics())}


def samples_of(status: PairStatus) -> dict[tuple[str, ...], float]:
    """Return the values of the samples by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parsed(status).values()
        for sample in family.samples
    }


def entity(path: str = "orders", state: EntityState = EntityState.HEALTHY, **given: Any) -> PairedEntityStatus:
    values = {"since": datetime.now(UTC), "cause": None, "failures": 0, "diverted": 0, "pings": 0, **given}
    return PairedEntityStatus(path=path, state=state, **values)


def status_of(
    entities: Iterable[PairedEntityStatus] = (),
    queues: Iterable[BacklogQueueStatus] = (),
    syphon: SyphonStatus | None = None,
) -> PairStatus:
    return PairStatus(
        primary="sb://contoso.example",
        secondary="sb://fabrikam.example",
        entities=tuple(entities),
        backlog_queues=tuple(queues),
        syphon=syphon,
    )


SYPHON: Final = SyphonStatus(
    engine="in-process",
    receives=40,
    syphoned=12_345,
    dead_lettered=2,
    waiting={"orders": MessagingTimeoutError("silence"), "letters": EntityDisabledError("off")},
    guarantees={
        "orders": DestinationGuarantee(guarantee=DeliveryGuarantee.EXACTLY_ONCE, window=timedelta(minutes=10)),
        "letters": DestinationGuarantee(guarantee=DeliveryGuarantee.AT_LEAST_ONCE),
    },
)


def test_c19_each_metric_has_a_type_and_help() -> None:
    families = parsed(status_of([entity()], syphon=SYPHON))
    assert {name: family.type for name, family in families.items()} == {
        "pairbus_pair_entity_state": "gauge",
        "pairbus_pair_entity_since_seconds": "gauge",
        "pairbus_pair_failures": "counter",
        "pairbus_pair_diverted": "counter",
        "pairbus_pair_pings": "counter",
        "pairbus_pair_backlog_queue_used": "gauge",
        "pairbus_pair_backlog_queue_recreated": "counter",
        "pairbus_syphon_receives": "counter",
        "pairbus_syphon_messages": "counter",
        "pairbus_syphon_dead_lettered": "counter",
        "pairbus_syphon_waiting": "gauge",
        "pairbus_syphon_exactly_once": "gauge",
    }
    assert all(family.documentation for family in families.values())


@pytest.mark.parametrize("state", EntityState, ids=lambda state: state.name)
def test_c19_state_metric_is_1_for_one_state_and_0_for_the_others(state: EntityState) -> None:
    samples = parsed(status_of([entity(state=state)]))["pairbus_pair_entity_state"].samples
    assert {sample.labels["state"] for sample in samples} == {one.value for one in EntityState}
    assert [sample.labels["state"] for sample in samples if sample.value == 1] == [state.value]
    assert sum(sample.value for sample in samples) == 1


def test_c19_metrics_have_the_counts_of_a_syphon() -> None:
    samples = samples_of(status_of(syphon=SYPHON))
    assert samples["pairbus_syphon_receives_total",] == 40
    assert samples["pairbus_syphon_messages_total",] == 12_345
    assert samples["pairbus_syphon_dead_lettered_total",] == 2
    assert samples["pairbus_syphon_waiting", "orders"] == samples["pairbus_syphon_waiting", "letters"] == 1
    assert samples["pairbus_syphon_exactly_once", "orders"] == 1
    assert samples["pairbus_syphon_exactly_once", "letters"] == 0


def test_c19_metrics_without_a_syphon_have_no_syphon_counts() -> None:
    assert not [name for name in parsed(status_of([entity()])) if name.startswith("pairbus_syphon")]


def test_c19_metrics_show_a_queue_out_of_rotation() -> None:
    used = BacklogQueueStatus(path="a", is_used=True, cause=None, diverted=0)
    out = replace(used, path="b", is_used=False, cause=MessagingTimeoutError("silence"))
    samples = samples_of(status_of(queues=[used, out]))
    assert samples["pairbus_pair_backlog_queue_used", "a"] == 1
    assert samples["pairbus_pair_backlog_queue_used", "b"] == 0


def test_c19_large_counts_and_exact_times_are_not_rounded() -> None:
    since = datetime(2026, 11, 15, 12, 30, 45, 678_901, UTC)
    samples = samples_of(status_of([entity(diverted=2**53 - 1, pings=123_456_789, since=since)]))
    assert samples["pairbus_pair_diverted_total", "orders"] == 2**53 - 1
    assert samples["pairbus_pair_pings_total", "orders"] == 123_456_789
    assert samples["pairbus_pair_entity_since_seconds", "orders"] == since.timestamp()


NAMES: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=30)


@given(st.lists(NAMES, unique=True, max_size=5))
@example(["two\nlines", 'with "quotes"', "back\\slash", "back\\nslash", "a,b={c}"])
def test_e3_metrics_with_any_entity_name_can_be_parsed(names: list[str]) -> None:
    waiting = {name: MessagingTimeoutError("silence") for name in names}
    status = status_of([entity(name) for name in names], syphon=replace(SYPHON, waiting=waiting))
    for family in ("pairbus_pair_diverted", "pairbus_syphon_waiting"):
        assert [sample.labels["entity"] for sample in parsed(status)[family].samples] == names


def test_c19_totals_are_the_sums_of_the_entities() -> None:
    status = status_of([entity("a", diverted=2, pings=5), entity("b", diverted=3, pings=1)])
    assert (status.diverted, status.pings) == (5, 6)
