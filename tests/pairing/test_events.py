"""What happens to a pair, told to those who watch it: by a call, or one after the other in a loop."""

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
        into.append(event)  # noqa: PERF401 (they are looked at while it goes on)


# What is told


def test_c19_a_failover_its_pings_and_its_end_are_told_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, ping_interval=timedelta(seconds=10))
        told: list[PairEvent] = []
        pair.subscribe(told.append)
        sender = await primary.create_message_sender("orders")
        await sender.send(BrokeredMessage())
        assert told == []
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        await asyncio.sleep(15)
        world.primary.enable("orders")
        await asyncio.sleep(100)
        assert [type(one) for one in told] == [EntityChanged, PingSent, PingSent, EntityChanged]
        assert changes(told) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HEALTHY)]
        first, in_vain, answered, last = told
        assert isinstance(first, EntityChanged)
        assert isinstance(first.cause, EntityDisabledError)
        assert isinstance(in_vain, PingSent)
        assert isinstance(in_vain.cause, EntityDisabledError)
        assert isinstance(answered, PingSent)
        assert (answered.path, answered.cause) == ("orders", None)
        assert isinstance(last, EntityChanged)
        assert last.cause is None

    run(scenario)


def test_c19_each_step_of_a_failover_with_an_interval_is_told() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, failover_interval=timedelta(seconds=10))
        told: list[PairEvent] = []
        pair.subscribe(told.append)
        world.primary_road.refuse()
        await (await primary.create_message_sender("orders")).send(BrokeredMessage())
        assert changes(told) == [
            ("orders", HEALTHY, EntityState.FAILING),
            ("orders", EntityState.FAILING, FAILED_OVER),
        ]
        assert all(isinstance(one.cause, MessagingCommunicationError) for one in told if isinstance(one, EntityChanged))

    run(scenario)


def test_c19_a_switch_by_hand_is_told_once() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        told: list[PairEvent] = []
        pair.subscribe(told.append)
        for _ in range(2):
            pair.engage()
        for _ in range(2):
            pair.release()
        assert changes(told) == [("orders", HEALTHY, HELD_OVER), ("orders", HELD_OVER, HEALTHY)]

    run(scenario)


def test_c19_a_backlog_queue_that_goes_and_comes_back_is_told() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        sender = await primary.create_message_sender("orders")
        pair.engage()
        told: list[PairEvent] = []
        pair.subscribe(told.append)
        world.secondary.disable(QUEUE)
        with pytest.raises(BacklogUnavailableError):
            await sender.send(BrokeredMessage())
        world.secondary.enable(QUEUE)
        await sender.send(BrokeredMessage())
        out, back = [one for one in told if isinstance(one, BacklogQueueChanged)]
        assert (out.path, out.is_used, type(out.cause)) == (QUEUE, False, EntityDisabledError)
        assert (back.path, back.is_used, back.cause) == (QUEUE, True, None)

    run(scenario)


def test_c19_an_event_says_when_and_cannot_be_changed() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        told: list[PairEvent] = []
        pair.subscribe(told.append)
        before = datetime.now(UTC)
        pair.engage("orders")
        [event] = told
        assert before <= event.at <= datetime.now(UTC)
        changing: Any = event
        with pytest.raises(FrozenInstanceError):
            changing.at = before

    run(scenario)


def test_c19_the_status_agrees_with_an_event_when_it_is_told() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        await primary.create_message_sender("orders")
        seen = []
        pair.subscribe(lambda _event: seen.append(pair.status().entities[0].state))
        pair.engage("orders")
        pair.release("orders")
        assert seen == [HELD_OVER, HEALTHY]

    run(scenario)


# By a call


def event(number: int = 0) -> PairEvent:
    return PairEvent(at=datetime.fromtimestamp(number, UTC))


def test_c19_every_listener_is_called_at_once_with_every_event() -> None:
    listeners = Listeners()
    first: list[PairEvent] = []
    second: list[PairEvent] = []
    listeners.add(first.append)
    listeners.tell(event(1))
    listeners.add(second.append)
    listeners.tell(event(2))
    assert (first, second) == ([event(1), event(2)], [event(2)])


def test_c19_nobody_need_listen() -> None:
    Listeners().tell(event())


def test_c19_a_listener_is_called_until_it_is_removed() -> None:
    listeners = Listeners()
    told: list[PairEvent] = []
    remove = listeners.add(told.append)
    listeners.tell(event(1))
    remove()
    listeners.tell(event(2))
    remove()  # twice is fine
    assert told == [event(1)]


def test_c19_one_that_is_added_twice_is_called_twice_and_removed_once() -> None:
    listeners = Listeners()
    told: list[PairEvent] = []
    remove = listeners.add(told.append)
    listeners.add(told.append)
    listeners.tell(event(1))
    remove()
    remove()
    listeners.tell(event(2))
    assert told == [event(1), event(1), event(2)]


def test_c19_listeners_may_come_and_go_while_they_are_told() -> None:
    listeners = Listeners()
    told: list[str] = []

    def once(_event: PairEvent) -> None:
        told.append("once")
        remove()
        listeners.add(lambda _: told.append("new"))

    remove = listeners.add(once)
    listeners.add(lambda _: told.append("other"))
    listeners.tell(event(1))
    assert told == ["once", "other"]
    listeners.tell(event(2))
    assert told == ["once", "other", "other", "new"]


@pytest.mark.parametrize("wrong", [None, "print", 5], ids=repr)
def test_e3_what_cannot_be_called_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a listener is called with each event"):
        Listeners().add(wrong)


def test_c19_a_listener_that_raises_is_logged_and_does_the_others_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_event: PairEvent) -> None:
        raise ValueError("of the listener")

    listeners = Listeners()
    told: list[PairEvent] = []
    listeners.add(broken)
    listeners.add(told.append)
    with caplog.at_level(logging.ERROR):
        listeners.tell(event(1))
        listeners.tell(event(2))
    assert told == [event(1), event(2)]
    assert len(caplog.records) == 2
    assert "of the listener" in str(caplog.records[0].exc_info)


def test_c19_a_listener_that_raises_does_the_pair_no_harm() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world, ping_interval=timedelta(seconds=10))

        def broken(_event: PairEvent) -> None:
            raise ValueError("of the listener")

        told: list[PairEvent] = []
        pair.subscribe(broken)
        pair.subscribe(told.append)
        sender = await primary.create_message_sender("orders")
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        world.primary.enable("orders")
        await asyncio.sleep(15)
        assert changes(told) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HEALTHY)]
        await sender.send(BrokeredMessage())
        assert world.primary.info("orders").ready_count == 1

    run(scenario)


def test_c21_a_listener_may_switch() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        sender = await primary.create_message_sender("orders")
        told: list[PairEvent] = []

        def hold(happened: PairEvent) -> None:
            told.append(happened)
            if isinstance(happened, EntityChanged) and happened.state is FAILED_OVER:
                pair.engage("orders")

        pair.subscribe(hold)
        world.primary.disable("orders")
        await sender.send(BrokeredMessage())
        assert changes(told) == [("orders", HEALTHY, FAILED_OVER), ("orders", FAILED_OVER, HELD_OVER)]
        world.primary.enable("orders")
        await asyncio.sleep(200)
        assert not [one for one in told if isinstance(one, PingSent)]
        assert world.secondary.info(QUEUE).ready_count == 1

    run(scenario)


# In a loop


def test_c19_events_can_be_waited_for_in_a_loop() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        told: list[PairEvent] = []
        collecting = asyncio.create_task(collect(pair.events(), told))
        await asyncio.sleep(1)
        pair.engage("orders")
        await asyncio.sleep(1)
        assert changes(told) == [("orders", HEALTHY, HELD_OVER)]
        pair.release("orders")
        await primary.close()
        await asyncio.wait_for(collecting, 1)
        assert changes(told) == [("orders", HEALTHY, HELD_OVER), ("orders", HELD_OVER, HEALTHY)]

    run(scenario)


def test_c19_the_events_are_those_since_they_were_asked_for() -> None:
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
def test_c19_the_loop_ends_with_the_factory(how: str) -> None:
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
            await collect(pair.events(), [])  # and there is nothing to wait for afterwards

    run(scenario)


def test_c19_who_leaves_the_loop_is_forgotten() -> None:
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


def test_c19_who_is_cancelled_in_the_loop_leaves_nothing_behind() -> None:
    async def scenario(world: PairWorld) -> None:
        _, pair = await paired(world)
        told: list[PairEvent] = []
        collecting = asyncio.create_task(collect(pair.events(), told))
        await asyncio.sleep(1)
        collecting.cancel()
        await asyncio.wait((collecting,))
        pair.engage("orders")
        await asyncio.sleep(1)
        assert told == []

    run(scenario)


def test_c19_each_of_several_loops_gets_every_event() -> None:
    async def scenario(world: PairWorld) -> None:
        primary, pair = await paired(world)
        told: list[list[PairEvent]] = [[], [], []]
        collecting = [asyncio.create_task(collect(pair.events(), into)) for into in told]
        await asyncio.sleep(1)
        pair.engage("orders")
        pair.release("orders")
        await primary.close()
        await asyncio.gather(*collecting)
        assert told[0] == told[1] == told[2]
        assert len(told[0]) == 2

    run(scenario)


def test_c19_who_is_slow_holds_up_nobody_and_gets_the_latest() -> None:
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
