"""The syphon from start to close, and what it does when a namespace is gone meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.engines import find_engine
from pairbus.pairing.pump import InProcessSyphon
from pairbus.pairing.syphon import TimeToLive
from pairbus.server.amqp.consumer import Consumer
from tests.faults import world as worlds
from tests.faults.namespace import KEY, START_MS
from tests.faults.trouble import Trouble
from tests.pairing.pumping import Pumping, look, queues, seconds, unique
from tests.pairing.scenes import OUTAGES, heal, spoil
from tests.simulation.pair_world import PairWorld, run

HOUR_S = 3_600.0
DAY_S = 86_400.0


# What it costs to wait.


def test_c14_ten_idle_queues_are_asked_40_times_an_hour_and_960_times_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    _wait_for_days(1, monkeypatch)


@pytest.mark.slow
def test_c14_ten_idle_queues_are_asked_28_800_times_in_30_days(monkeypatch: pytest.MonkeyPatch) -> None:
    _wait_for_days(30, monkeypatch)


def _wait_for_days(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_LONGEST_S", (days + 1) * DAY_S)
    asked: list[Consumer] = []
    on_credit = Consumer.on_credit

    def watched(consumer: Consumer) -> None:
        if consumer.link.credit and not consumer.link.drain:
            asked.append(consumer)
        on_credit(consumer)

    monkeypatch.setattr(Consumer, "on_credit", watched)
    peeked: list[MessageReceiver] = []
    peek = MessageReceiver.peek

    def peeking(receiver: MessageReceiver, *arguments: Any) -> Awaitable[list[ReceivedMessage]]:
        peeked.append(receiver)
        return peek(receiver, *arguments)

    monkeypatch.setattr(MessageReceiver, "peek", peeking)

    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world, queues=10)
        syphon = await pumping.started()
        await asyncio.sleep(HOUR_S - 1)
        assert syphon.status.receives == len(asked) == 40
        peeked.clear()  # at the start, once each
        for day in range(days):
            await asyncio.sleep((day + 1) * DAY_S - world.loop.time())
            assert syphon.status.receives == len(asked) == 960 * (day + 1)
            assert len(peeked) == 240 * (day + 1) - 10  # once an hour and queue, and the last hour is not over
        await syphon.close()

    run(scenario)


def test_c14_a_message_that_comes_while_it_waits_is_brought_home_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        await asyncio.sleep(10 * HOUR_S + 1)
        ids = pumping.put("orders", 3)
        assert await pumping.drained() < 1.0
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c14_a_destination_that_nothing_goes_to_is_let_go_of() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world)
        syphon = await pumping.started()
        pumping.put("orders")
        await asyncio.sleep(400)
        pumping.put("others")
        await asyncio.sleep(250)
        assert set(syphon._destinations) == {"others"}
        await asyncio.sleep(400)
        assert not syphon._destinations
        assert syphon._sweeping is None
        ids = pumping.put("orders")
        await pumping.drained(1.0)
        assert pumping.home("orders")[1:] == ids
        await syphon.close()

    run(scenario)


# Start.


def test_c14_the_engine_makes_syphons() -> None:
    assert find_engine("in-process") is InProcessSyphon


def test_c14_a_missing_backlog_queue_is_told_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world, queues=2)
        world.secondary.delete(pumping.queues[1])
        with pytest.raises(EntityNotFoundError):
            await pumping.started()

    run(scenario)


def test_c14_a_key_that_may_not_listen_is_told_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world)
        send = AuthorizationRule(
            name=KEY.name, rights=(Right.SEND,), primary_key=KEY.primary_key, secondary_key=KEY.secondary_key
        )
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([send], now_ms))
        with pytest.raises(UnauthorizedError):
            await pumping.started()

    run(scenario)


@pytest.mark.parametrize("what", OUTAGES)
def test_c14_a_secondary_that_is_away_at_the_start_is_read_when_it_is_back(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        await spoil(world.secondary, world.secondary_road, what)
        syphon = pumping.syphon()
        await world.timed("start", syphon.start(), 11.0)
        await asyncio.sleep(200)
        await heal(world.secondary, world.secondary_road)
        await pumping.drained(40.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


# Outages of the secondary.


@pytest.mark.parametrize("what", OUTAGES)
def test_c15_the_readers_survive_an_outage_of_the_secondary(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", requires_duplicate_detection=True)
        pumping = Pumping(world)
        syphon = await pumping.started()
        ids = pumping.put("orders", 300)
        await asyncio.sleep(0.02)
        await spoil(world.secondary, world.secondary_road, what)
        await asyncio.sleep(1_000)
        await heal(world.secondary, world.secondary_road)
        ids += pumping.put("orders", 3)
        await pumping.drained(200.0)
        assert sorted(pumping.home("orders")) == sorted(ids)
        await syphon.close()

    with caplog.at_level(logging.WARNING, logger="pairbus.pairing"):
        run(scenario)
    assert len([one for one in caplog.records if "is read again" in one.message]) <= 1


def test_c15_an_unexpected_error_is_logged_and_the_reader_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        reader = syphon._readers[0]
        admit = reader._admit

        async def stumble(messages: object) -> Any:
            reader._admit = admit  # type: ignore[method-assign]
            raise RuntimeError("nobody has thought of this")

        reader._admit = stumble  # type: ignore[method-assign]
        ids = pumping.put("orders", 3)
        await pumping.drained(70.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)
    assert any("nobody has thought of this" in str(one.exc_info) for one in caplog.records)


# Locks.


def test_c15_what_takes_longer_than_a_lock_is_kept_by_renewing_it() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        pumping.put("orders", 3)
        world.primary.trouble_sends("orders", Trouble.LOST)
        syphon = pumping.syphon()
        syphon._context.primary.limit_send_attempts(59.0)
        await syphon.start()
        await asyncio.sleep(58)
        world.primary.take_sends("orders")
        await pumping.drained(70.0)
        assert all(message.delivery_count == 0 for message in look(world.primary, "orders"))
        assert pumping.home("orders") == ["0", "1", "2"]
        await syphon.close()

    run(scenario)


def test_c15_what_was_delivered_and_could_not_be_removed_is_not_sent_again() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        deliver = syphon._readers[0].delivered

        def cut_off(cargoes: list[object]) -> None:
            """It goes wrong between the confirmation and the removal."""
            world.secondary_road.refuse()
            deliver(cargoes)  # type: ignore[arg-type]

        syphon._readers[0].delivered = cut_off  # type: ignore[method-assign, assignment]
        ids = pumping.put("orders", 3)
        await asyncio.sleep(200)
        assert len(pumping.left()) == 3
        world.secondary_road.heal()
        await pumping.drained(100.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


# Close.


def test_c15_close_gives_back_what_is_in_hand_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.trouble_sends("orders", Trouble.LOST)
        pumping = Pumping(world)
        ids = pumping.put("orders", 20)
        syphon = await pumping.started()
        await asyncio.sleep(1)
        await world.timed("close", syphon.close(), 15.0)
        await syphon.close()
        world.primary.take_sends("orders")
        other = await pumping.started()
        assert await pumping.drained() < 10.0
        assert sorted(unique(pumping.home("orders"))) == sorted(ids)
        await other.close()

    run(scenario)


def test_c15_close_lets_a_send_under_way_finish() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        ids = pumping.put("orders", 100)
        await pumping.until(lambda: bool(pumping.home("orders")))
        await syphon.close()
        left = [str(message.message_id) for message in pumping.left()]
        assert sorted(pumping.home("orders") + left) == sorted(ids)

    run(scenario)


@pytest.mark.parametrize("which", ["primary", "secondary", "both"])
@pytest.mark.parametrize("what", ["refuse", "stall", "stall up", "stall down", "kill"])
def test_c15_close_does_not_hang_with_a_dead_peer(which: str, what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        pumping.put("orders", 500)
        await asyncio.sleep(0.015)
        for name, namespace, road in (
            ("primary", world.primary, world.primary_road),
            ("secondary", world.secondary, world.secondary_road),
        ):
            if which in {name, "both"}:
                await spoil(namespace, road, what)
        await asyncio.sleep(0.5)
        await world.timed("close", syphon.close(), 25.0)
        await heal(world.primary, world.primary_road)
        await heal(world.secondary, world.secondary_road)

    run(scenario)


# Time to live.


def test_c16_a_time_to_live_is_restored_in_full() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        pumping.put("orders", time_to_live=seconds(100))
        await asyncio.sleep(1_000)
        syphon = await pumping.started()
        await pumping.drained(5.0)
        (found,) = look(world.primary, "orders")
        assert found.time_to_live == seconds(100)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("skew_s", [0.0, -2_000.0, 2_000.0])
@pytest.mark.parametrize("is_parked", [False, True])
def test_c16_what_is_left_of_a_time_to_live_is_told_by_the_clock_of_the_backlog(skew_s: float, is_parked: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        pumping.put("orders", time_to_live=seconds(100))
        pumping.put("orders", time_to_live=seconds(1_000))
        pumping.put("orders")
        await asyncio.sleep(600)
        if is_parked:
            world.primary.disable("orders")
        syphon = await pumping.started(time_to_live=TimeToLive.REMAINING)
        if is_parked:
            await asyncio.sleep(90)
            world.primary.enable("orders")
        await pumping.drained(70.0)
        first, second = look(world.primary, "orders")
        assert first.time_to_live is not None
        home_s = first.enqueued_time.timestamp() - START_MS / 1_000
        assert abs(first.time_to_live.total_seconds() - (1_000 - home_s)) <= 2
        assert second.time_to_live is None
        (dead,) = pumping.dead()
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert "'orders'" in str(dead.dead_letter_error_description)
        assert pumping.dead_letters[0].path == "orders"
        await syphon.close()

    run(scenario, secondary_skew_s=skew_s)


def test_c16_a_scheduled_time_that_has_passed_means_now() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        pumping.put("orders", scheduled_enqueue_time=datetime.fromtimestamp(world.wall_s() + 100, UTC))
        await asyncio.sleep(1_000)
        syphon = await pumping.started()
        await pumping.drained(5.0)
        receiver = await world.primary_factory().create_message_receiver("orders")
        assert len(await receiver.receive(1, seconds(1))) == 1
        await syphon.close()

    run(scenario)
