"""Events of a pair, for listeners and for event streams."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from pairbus.client.errors import BacklogUnavailableError, EntityDisabledError, MessagingCommunicationError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.pairing import (
    BacklogQueueChanged,
    EntityChanged,
    EntityState,
    NamespacePair,
    PairEvent,
    PingSent,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.pairing.events import Listeners
from tests.simulation.pair_world import PairWorld, run

QUEUE: Final = "contoso/x-servicebus-transfer/0"
SOON: Final = {"operation_timeout": timedelta(seconds=20)}
HEALTHY: Final = EntityState.HEALTHY
FAILED_OVER: Final = EntityState.FAILED_OVER
HELD_OVER: Final = EntityState.HELD_OVER


async def paired(world: PairWorld, **given: Any) -> tuple[MessagingFactory, NamespacePair]:
    world.primary.create_queue("orders")
    primary = world.primary_factory(**SOON)
    options = SendAvailabilityPairedNamespaceOptions(
        world.secondary_manager(), world.secondary_factory(**SOON), 1, **{"failover_interval": timedelta(), **given}
    )
    return primary, await primary.pair_namespace(options)


def changes(events: list[PairEvent]) -> list[tuple[str, EntityState, EntityState]]:
    return [(one.path, one.before, one.state) for one in events if isinstance(one, EntityChanged)]


async def collect(events: AsyncIterator[PairEvent], into: list[PairEvent]) -> None:
    async for event in events:
        into.append(event)  # noqa: PERF401 (the list is read meanwhile)


# Events


def test_c19_failover_pings_and_recovery_are_reported_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, ping_interval=timedelta(seconds=10))
        reported: list[PairEvent] = []
        pair.subscribe(reported.append)
        sender = await primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert reported == []
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        await asyncio.sleep(15)
        world.primary.enable("orders")
        await asyncio.sleep(100)
        assert [type(one) for one in reported] == [EntityChanged, PingSent, PingSent, EntityChanged]
        assert changes(reported) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HEALTHY)]
        first, failed, succeeded, last = reported
        assert isinstance(first, EntityChanged)
        assert isinstance(first.cause, EntityDisabledError)
        assert isinstance(failed, PingSent)
        assert isinstance(failed.cause, EntityDisabledError)
        assert isinstance(succeeded, PingSent)
        assert (succeeded.path, succeeded.cause) == ("orders", None)
        assert isinstance(last, EntityChanged)
        assert last.cause is None

    run(scenario)


def test_c19_each_state_of_a_failover_with_an_interval_is_reported() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, failover_interval=timedelta(seconds=10))
        reported: list[PairEvent] = []
        pair.subscribe(reported.append)
        world.primary_network.refuse()
        await (await primary.create_message_sender("orders")).send(BrokeredMessage())
        assert changes(reported) == [
            ("orders", HEALTHY, EntityState.FAILING),
            ("orders", EntityState.FAILING, FAILED_OVER),
        ]
        assert all(
            isinstance(one.cause, MessagingCommunicationError) for one in reported if isinstance(one, EntityChanged)
        )

    run(scenario)


def test_c19_manual_switch_is_reported_once() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        reported: list[PairEvent] = []
        pair.subscribe(reported.append)
        for _ in range(2):
            pair.engage()
        for _ in range(2):
            pair.release()
        assert changes(reported) == [("orders", HEALTHY, HELD_OVER), ("orders", HELD_OVER, HEALTHY)]

    run(scenario)


def test_c19_backlog_queue_leaving_and_rejoining_the_rotation_is_reported() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        sender = await primary.create_message_sender("orders")
        pair.engage()
        reported: list[PairEvent] = []
        pair.subscribe(reported.append)
        world.secondary.disable(QUEUE)
        with pytest.raises(BacklogUnavailableError):
            await sender.send(BrokeredMessage())
        world.secondary.enable(QUEUE)
        await sender.send(BrokeredMessage())
        out, back = [one for one in reported if isinstance(one, BacklogQueueChanged)]
        assert (out.path, out.is_used, type(out.cause)) == (QUEUE, False, EntityDisabledError)
        assert (back.path, back.is_used, back.cause) == (QUEUE, True, None)

    run(scenario)


def test_c19_event_has_a_time_and_is_immutable() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        reported: list[PairEvent] = []
        pair.subscribe(reported.append)
        before = datetime.now(UTC)
        pair.engage("orders")
        [event] = reported
        assert before <= event.at <= datetime.now(UTC)
        changing: Any = event
        with pytest.raises(FrozenInstanceError):
            changing.at = before

    run(scenario)


def test_c19_status_agrees_with_an_event_while_listeners_are_called() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        seen = []
        pair.subscribe(lambda _event: seen.append(pair.status().entities[0].state))
        pair.engage("orders")
        pair.release("orders")
        assert seen == [HELD_OVER, HEALTHY]

    run(scenario)


# Listeners


def event(number: int = 0) -> PairEvent:
    return PairEvent(at=datetime.fromtimestamp(number, UTC))


def test_c19_every_listener_is_called_synchronously_with_every_event() -> None:
    listeners = Listeners()
    first: list[PairEvent] = []
    second: list[PairEvent] = []
    listeners.add(first.append)
    listeners.publish(event(1))
    listeners.add(second.append)
    listeners.publish(event(2))
    assert (first, second) == ([event(1), event(2)], [event(2)])


def test_c19_event_without_listeners_is_ignored() -> None:
    Listeners().publish(event())


def test_c19_listener_is_called_until_it_is_removed() -> None:
    listeners = Listeners()
    reported: list[PairEvent] = []
    remove = listeners.add(reported.append)
    listeners.publish(event(1))
    remove()
    listeners.publish(event(2))
    remove()  # idempotent
    assert reported == [event(1)]


def test_c19_listener_added_twice_is_called_twice_and_removed_once() -> None:
    listeners = Listeners()
    reported: list[PairEvent] = []
    remove = listeners.add(reported.append)
    listeners.add(reported.append)
    listeners.publish(event(1))
    remove()
    remove()
    listeners.publish(event(2))
    assert reported == [event(1), event(1), event(2)]


def test_c19_listeners_may_be_added_and_removed_during_an_event() -> None:
    listeners = Listeners()
    reported: list[str] = []

    def once(_event: PairEvent) -> None:
        reported.append("once")
        remove()
        listeners.add(lambda _: reported.append("new"))

    remove = listeners.add(once)
    listeners.add(lambda _: reported.append("other"))
    listeners.publish(event(1))
    assert reported == ["once", "other"]
    listeners.publish(event(2))
    assert reported == ["once", "other", "other", "new"]


@pytest.mark.parametrize("wrong", [None, "print", 5], ids=repr)
def test_e3_listener_that_is_not_callable_is_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a listener must be callable"):
        Listeners().add(wrong)


def test_c19_error_of_a_listener_is_logged_and_does_not_affect_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_event: PairEvent) -> None:
        raise ValueError("of the listener")

    listeners = Listeners()
    reported: list[PairEvent] = []
    listeners.add(broken)
    listeners.add(reported.append)
    with caplog.at_level(logging.ERROR):
        listeners.publish(event(1))
        listeners.publish(event(2))
    assert reported == [event(1), event(2)]
    assert len(caplog.records) == 2
    assert "of the listener" in str(caplog.records[0].exc_info)


def test_c19_error_of_a_listener_does_not_affect_the_pair() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, ping_interval=timedelta(seconds=10))

        def broken(_event: PairEvent) -> None:
            raise ValueError("of the listener")

        reported: list[PairEvent] = []
        pair.subscribe(broken)
        pair.subscribe(reported.append)
        sender = await primary.create_message_sender("orders")
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        world.primary.enable("orders")
        await asyncio.sleep(15)
        assert changes(reported) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HEALTHY)]
        await sender.send(BrokeredMessage())
        assert world.primary.info("orders").ready_count == 1

    run(scenario)


def test_c21_listener_may_switch_the_pair() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        sender = await primary.create_message_sender("orders")
        reported: list[PairEvent] = []

        def hold(happened: PairEvent) -> None:
            reported.append(happened)
            if isinstance(happened, EntityChanged) and happened.state is FAILED_OVER:
                pair.engage("orders")

        pair.subscribe(hold)
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        assert changes(reported) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HELD_OVER)]
        world.primary.enable("orders")
        await asyncio.sleep(200)
        assert not [one for one in reported if isinstance(one, PingSent)]
        assert world.secondary.info(QUEUE).ready_count == 1

    run(scenario)


# Event streams


def test_c19_event_stream_yields_events_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        reported: list[PairEvent] = []
        collecting = asyncio.create_task(collect(pair.events(), reported))
        await asyncio.sleep(1)
        pair.engage("orders")
        await asyncio.sleep(1)
        assert changes(reported) == [("orders", HEALTHY, HELD_OVER)]
        pair.release("orders")
        await primary.close()
        await asyncio.wait_for(collecting, 1)
        assert changes(reported) == [("orders", HEALTHY, HELD_OVER), ("orders", HELD_OVER, HEALTHY)]

    run(scenario)


def test_c19_event_stream_starts_at_its_creation() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        pair.engage("orders")
        events = pair.events()
        pair.release("orders")
        async with asyncio.timeout(1):
            happened = await anext(events)
        assert changes([happened]) == [("orders", HELD_OVER, HEALTHY)]

    run(scenario)


@pytest.mark.parametrize("how", ["closed", "faulted"])
def test_c19_event_stream_ends_with_the_factory(how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        collecting = [asyncio.create_task(collect(pair.events(), [])) for _ in range(3)]
        await asyncio.sleep(1)
        if how == "closed":
            await primary.close()
        else:
            primary.fault(ValueError("the test wants that"))
        async with asyncio.timeout(1):
            await asyncio.gather(*collecting)
            await collect(pair.events(), [])  # a new stream ends at once

    run(scenario)


def test_c19_abandoned_event_stream_is_unsubscribed() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        before = len(pair._listeners._listeners)
        waiting = asyncio.create_task(first_of(pair.events()))
        await asyncio.sleep(1)
        pair.engage("orders")
        assert changes([await waiting]) == [("orders", HEALTHY, HELD_OVER)]
        del waiting
        gc.collect()
        assert len(pair._listeners._listeners) == before

    run(scenario)


async def first_of(events: AsyncIterator[PairEvent]) -> PairEvent:
    async for happened in events:
        return happened
    raise AssertionError("nothing has happened")


def test_c19_cancelled_event_stream_is_unsubscribed() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        reported: list[PairEvent] = []
        collecting = asyncio.create_task(collect(pair.events(), reported))
        await asyncio.sleep(1)
        collecting.cancel()
        await asyncio.wait((collecting,))
        pair.engage("orders")
        await asyncio.sleep(1)
        assert reported == []

    run(scenario)


def test_c19_each_event_stream_gets_every_event() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        reported: list[list[PairEvent]] = [[], [], []]
        collecting = [asyncio.create_task(collect(pair.events(), into)) for into in reported]
        await asyncio.sleep(1)
        pair.engage("orders")
        pair.release("orders")
        await primary.close()
        await asyncio.gather(*collecting)
        assert reported[0] == reported[1] == reported[2]
        assert len(reported[0]) == 2

    run(scenario)


def test_c19_slow_event_stream_blocks_nothing_and_gets_the_latest_events() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        events = pair.events()
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(1)
        fast: list[PairEvent] = []
        pair.subscribe(fast.append)
        pair.engage("orders")
        await first
        for _ in range(6_000):
            pair.release("orders")
            pair.engage("orders")
        await (await primary.create_message_sender("orders")).send(BrokeredMessage())
        late: list[PairEvent] = []
        collecting = asyncio.create_task(collect(events, late))
        await asyncio.sleep(1)
        assert len(fast) == 12_001
        assert late == fast[-10_000:]
        await primary.close()
        async with asyncio.timeout(1):
            await collecting

    run(scenario)
