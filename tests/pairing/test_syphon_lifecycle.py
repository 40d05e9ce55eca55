"""The life of a syphon from start to close, with outages of both namespaces."""

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
from pairbus.pairing.options import find_engine
from pairbus.pairing.syphon import InProcessSyphon, TimeToLive
from pairbus.pairing.syphon.message import BacklogMessage
from tests.faults import world as worlds
from tests.faults.namespace import KEY, START_MS
from tests.faults.trouble import Trouble
from tests.pairing.scenes import OUTAGES, heal, spoil
from tests.pairing.syphon_fixture import SyphonFixture, peek_all, queues, seconds, unique
from tests.simulation.pair_world import PairWorld, run

HOUR_S = 3_600.0
DAY_S = 86_400.0


# Requests of an idle syphon.


def test_c14_ten_idle_queues_are_polled_40_times_an_hour_and_960_times_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    _wait_for_days(1, monkeypatch)


@pytest.mark.slow
def test_c14_ten_idle_queues_are_polled_28_800_times_in_30_days(monkeypatch: pytest.MonkeyPatch) -> None:
    _wait_for_days(30, monkeypatch)


def _wait_for_days(days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_LONGEST_S", (days + 1) * DAY_S)
    peeked: list[MessageReceiver] = []
    peek = MessageReceiver.peek

    def peeking(receiver: MessageReceiver, *arguments: Any) -> Awaitable[list[ReceivedMessage]]:
        peeked.append(receiver)
        return peek(receiver, *arguments)

    monkeypatch.setattr(MessageReceiver, "peek", peeking)

    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world, queues=10)
        syphon = await fixture.started()
        await asyncio.sleep(HOUR_S - 1)
        assert syphon.status.receives == world.secondary.polls == 40
        peeked.clear()  # one for each queue at the start
        for day in range(days):
            await asyncio.sleep((day + 1) * DAY_S - world.loop.time())
            assert syphon.status.receives == world.secondary.polls == 960 * (day + 1)
            assert len(peeked) == 240 * (day + 1) - 10  # once an hour for each queue; the last hour has not ended
        await syphon.close()

    run(scenario)


def test_c14_message_that_arrives_during_a_poll_is_delivered_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        await asyncio.sleep(10 * HOUR_S + 1)
        ids = fixture.put("orders", 3)
        assert await fixture.drained() < 1.0
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c14_unused_destination_is_closed() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        fixture.put("orders")
        await asyncio.sleep(400)
        fixture.put("others")
        await asyncio.sleep(250)
        assert set(syphon._destinations) == {"others"}
        await asyncio.sleep(400)
        assert not syphon._destinations
        assert syphon._sweeping is not None
        assert syphon._sweeping.done()
        ids = fixture.put("orders")
        await fixture.drained(1.0)
        assert fixture.delivered("orders")[1:] == ids
        await syphon.close()

    run(scenario)


# Start.


def test_c14_engine_creates_syphons() -> None:
    assert find_engine("in-process") is InProcessSyphon


def test_c14_missing_backlog_queue_raises_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world, queues=2)
        world.secondary.delete(fixture.queues[1])
        with pytest.raises(EntityNotFoundError):
            await fixture.started()

    run(scenario)


def test_c14_key_without_listen_raises_at_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world)
        send = AuthorizationRule(
            name=KEY.name, rights=(Right.SEND,), primary_key=KEY.primary_key, secondary_key=KEY.secondary_key
        )
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([send], now_ms))
        with pytest.raises(UnauthorizedError):
            await fixture.started()

    run(scenario)


@pytest.mark.parametrize("what", OUTAGES)
def test_c14_secondary_unreachable_at_the_start_is_read_later(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        await spoil(world.secondary, world.secondary_network, what)
        syphon = fixture.syphon()
        await world.timed("start", syphon.start(), 11.0)
        await asyncio.sleep(200)
        await heal(world.secondary, world.secondary_network)
        await fixture.drained(40.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


# Outages of the secondary.


@pytest.mark.parametrize("what", OUTAGES)
def test_c15_runners_survive_an_outage_of_the_secondary(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", requires_duplicate_detection=True)
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        ids = fixture.put("orders", 300)
        await asyncio.sleep(0.02)
        await spoil(world.secondary, world.secondary_network, what)
        await asyncio.sleep(1_000)
        await heal(world.secondary, world.secondary_network)
        ids += fixture.put("orders", 3)
        await fixture.drained(200.0)
        assert sorted(fixture.delivered("orders")) == sorted(ids)
        await syphon.close()

    with caplog.at_level(logging.WARNING, logger="pairbus.pairing"):
        run(scenario)
    assert len([one for one in caplog.records if "receive failed" in one.message]) == 1


def test_c15_unexpected_error_is_logged_and_the_runner_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        reader = syphon._runners[0]
        admit = reader._admit

        async def stumble(received: object) -> Any:
            reader._admit = admit  # type: ignore[method-assign]
            raise RuntimeError("nobody has thought of this")

        reader._admit = stumble  # type: ignore[method-assign]
        ids = fixture.put("orders", 3)
        await fixture.drained(70.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)
    assert any("nobody has thought of this" in str(one.exc_info) for one in caplog.records)


# Locks.


def test_c15_locks_are_renewed_during_a_long_delivery() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        fixture.put("orders", 3)
        world.primary.trouble_sends("orders", Trouble.LOST)
        syphon = fixture.syphon()
        syphon._context.primary.limit_send_attempts(59.0)
        await syphon.start()
        await asyncio.sleep(58)
        world.primary.take_sends("orders")
        await fixture.drained(70.0)
        assert all(message.delivery_count == 0 for message in peek_all(world.primary, "orders"))
        assert fixture.delivered("orders") == ["0", "1", "2"]
        await syphon.close()

    run(scenario)


def test_c15_delivered_message_that_was_not_removed_is_not_sent_again() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        source = syphon._runners[0].source
        complete = source.complete

        def cut_off(messages: list[BacklogMessage]) -> None:
            """Fail between the confirmation and the removal."""
            world.secondary_network.refuse()
            complete(messages)

        source.complete = cut_off  # type: ignore[method-assign]
        ids = fixture.put("orders", 3)
        await asyncio.sleep(200)
        assert len(fixture.left()) == 3
        world.secondary_network.heal()
        await fixture.drained(100.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


# Close.


def test_c15_close_gives_locked_messages_back_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        world.primary.trouble_sends("orders", Trouble.LOST)
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 20)
        syphon = await fixture.started()
        await asyncio.sleep(1)
        await world.timed("close", syphon.close(), 15.0)
        await syphon.close()
        world.primary.take_sends("orders")
        other = await fixture.started()
        assert await fixture.drained() < 10.0
        assert sorted(unique(fixture.delivered("orders"))) == sorted(ids)
        await other.close()

    run(scenario)


def test_c15_close_lets_a_pending_send_finish() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        ids = fixture.put("orders", 100)
        await fixture.until(lambda: bool(fixture.delivered("orders")))
        await syphon.close()
        left = [str(message.message_id) for message in fixture.left()]
        assert sorted(fixture.delivered("orders") + left) == sorted(ids)

    run(scenario)


@pytest.mark.parametrize("which", ["primary", "secondary", "both"])
@pytest.mark.parametrize("what", ["refuse", "stall", "stall up", "stall down", "kill"])
def test_c15_close_does_not_hang_with_a_dead_peer(which: str, what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        fixture.put("orders", 500)
        await asyncio.sleep(0.015)
        for name, namespace, network in (
            ("primary", world.primary, world.primary_network),
            ("secondary", world.secondary, world.secondary_network),
        ):
            if which in {name, "both"}:
                await spoil(namespace, network, what)
        await asyncio.sleep(0.5)
        await world.timed("close", syphon.close(), 25.0)
        await heal(world.primary, world.primary_network)
        await heal(world.secondary, world.secondary_network)

    run(scenario)


# Time to live.


def test_c16_time_to_live_is_restored_in_full() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        fixture.put("orders", time_to_live=seconds(100))
        await asyncio.sleep(1_000)
        syphon = await fixture.started()
        await fixture.drained(5.0)
        (found,) = peek_all(world.primary, "orders")
        assert found.time_to_live == seconds(100)
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("skew_s", [0.0, -2_000.0, 2_000.0])
@pytest.mark.parametrize("is_parked", [False, True])
def test_c16_remaining_time_to_live_uses_the_clock_of_the_backlog(skew_s: float, is_parked: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        fixture.put("orders", time_to_live=seconds(100))
        fixture.put("orders", time_to_live=seconds(1_000))
        fixture.put("orders")
        await asyncio.sleep(600)
        if is_parked:
            world.primary.disable("orders")
        syphon = await fixture.started(time_to_live=TimeToLive.REMAINING)
        if is_parked:
            await asyncio.sleep(90)
            world.primary.enable("orders")
        await fixture.drained(70.0)
        first, second = peek_all(world.primary, "orders")
        assert first.time_to_live is not None
        home_s = first.enqueued_time.timestamp() - START_MS / 1_000
        assert abs(first.time_to_live.total_seconds() - (1_000 - home_s)) <= 2
        assert second.time_to_live is None
        (dead,) = fixture.dead()
        assert dead.dead_letter_reason == "TTLExpiredException"
        assert "'orders'" in str(dead.dead_letter_error_description)
        assert fixture.dead_letters[0].path == "orders"
        await syphon.close()

    run(scenario, secondary_skew_s=skew_s)


def test_c16_scheduled_time_in_the_past_means_now() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        fixture.put("orders", scheduled_enqueue_time=datetime.fromtimestamp(world.wall_s() + 100, UTC))
        await asyncio.sleep(1_000)
        syphon = await fixture.started()
        await fixture.drained(5.0)
        receiver = await world.primary_factory().create_message_receiver("orders")
        assert len(await receiver.receive(1, seconds(1))) == 1
        await syphon.close()

    run(scenario)
