"""Messages that the syphon sends, settles and keeps locked together."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.endpoint import Endpoint
from pairbus.client.received_message import ReceivedMessage
from pairbus.pairing.syphon import InProcessSyphon
from pairbus.pairing.syphon.destination import DeliveryDestination
from pairbus.pairing.syphon.message import BacklogMessage
from pairbus.pairing.syphon.source import BacklogSource, SettlementReport
from tests.faults.trouble import Trouble
from tests.pairing.syphon_fixture import BACKLOG, SyphonFixture, queues, unique
from tests.pairing.test_syphon_order import kill
from tests.simulation.pair_world import PairWorld, run

_SHORT_LOCK: QueueDescription = QueueDescription(max_delivery_count=2**31 - 1, lock_duration_ms=10_000)


# Sending.


@pytest.mark.parametrize("position", [0, 50, 99])
def test_c15_refused_message_of_a_large_batch_is_found_with_few_sends(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = _sizes_of_sends(monkeypatch)

    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        fixture = SyphonFixture(world)
        good = fixture.put("visits", position, session_id="a")
        bad = fixture.put("visits")  # refused, as it has no session
        good += fixture.put("visits", 99 - position, session_id="a")
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert fixture.delivered("visits") == good
        assert [str(dead.message_id) for dead in fixture.dead()] == bad
        assert (syphon.status.syphoned, syphon.status.dead_lettered) == (99, 1)
        await syphon.close()

    run(scenario)
    assert sizes[0] == 100
    assert len(sizes) <= 20


def test_c15_batch_of_which_all_messages_are_refused_is_dead_lettered_one_by_one() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        fixture = SyphonFixture(world)
        bad = fixture.put("visits", 7)
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert sorted(str(dead.message_id) for dead in fixture.dead()) == bad
        assert sorted(event.message_id for event in fixture.dead_letters) == bad
        await syphon.close()

    run(scenario)


@pytest.mark.parametrize("detects_duplicates", [True, False])
def test_c15_syphon_killed_between_confirmation_and_settlement_repeats_only_what_it_had_delivered(
    detects_duplicates: bool,
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_duplicate_detection=detects_duplicates)
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        confirmed = _cut_before_settlement(syphon)
        ids = fixture.put("visits", 100, session_id="a")
        await fixture.until(lambda: bool(confirmed))
        await kill(syphon)
        ids += fixture.put("visits", 10, session_id="a")
        successor = await fixture.started()
        await fixture.drained(100.0)
        delivered = fixture.delivered("visits")
        assert unique(delivered) == ids
        assert len(delivered) == len(ids) + (0 if detects_duplicates else len(confirmed))
        assert successor.status.syphoned == len(ids)
        await successor.close()

    run(scenario)


def _sizes_of_sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of messages of all sends from now on."""
    sizes: list[int] = []
    send = DeliveryDestination.send

    async def counted(destination: DeliveryDestination, payloads: list[bytes]) -> None:
        sizes.append(len(payloads))
        await send(destination, payloads)

    monkeypatch.setattr(DeliveryDestination, "send", counted)
    return sizes


def _cut_before_settlement(syphon: InProcessSyphon) -> list[BacklogMessage]:
    """Let nothing be settled from now on, as if the process ended just before; return what would be."""
    confirmed: list[BacklogMessage] = []

    def keep(messages: list[BacklogMessage]) -> None:
        confirmed.extend(messages)

    syphon._runners[0].source.complete = keep  # type: ignore[method-assign]
    return confirmed


# Settling.


def test_c14_messages_received_together_are_removed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"orders-{number}" for number in range(10)]
    _delay_sends(monkeypatch, {path: 0.001 * number for number, path in enumerate(paths)})

    async def scenario(world: PairWorld) -> None:
        queues(world.primary, *paths)
        fixture = SyphonFixture(world)
        ids = {path: fixture.put(path) for path in paths}
        syphon = fixture.syphon()
        reports = await _started_with_reports(syphon)
        await fixture.drained(5.0)
        assert {path: fixture.delivered(path) for path in paths} == ids
        assert [len(report.settled) for report in reports] == [10]
        await syphon.close()

    run(scenario)


def _delay_sends(monkeypatch: pytest.MonkeyPatch, delays_s: dict[str, float]) -> None:
    send = DeliveryDestination.send

    async def delayed(destination: DeliveryDestination, payloads: list[bytes]) -> None:
        await asyncio.sleep(delays_s[destination.path])
        await send(destination, payloads)

    monkeypatch.setattr(DeliveryDestination, "send", delayed)


def test_c15_delivered_message_does_not_wait_for_undelivered_ones_to_be_removed() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "stuck")
        world.primary.trouble_sends("stuck", Trouble.LOST)
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        stuck = fixture.put("stuck", 2)
        syphon = await fixture.started()
        await fixture.until(lambda: [str(one.message_id) for one in fixture.left()] == stuck, 1.0)
        assert fixture.delivered("orders") == ids
        world.primary.take_sends("stuck")
        await fixture.drained(30.0)
        await syphon.close()

    run(scenario)


async def _started_with_reports(syphon: InProcessSyphon) -> list[SettlementReport]:
    """Start a syphon; return the reports of its first queue's settlements."""
    reports: list[SettlementReport] = []
    await syphon.start()
    settler = syphon._runners[0].source._settler
    report = settler._report

    def noted(settlement: SettlementReport) -> None:
        reports.append(settlement)
        report(settlement)

    settler._report = noted
    return reports


# Locks.


def test_c15_lost_lock_does_not_end_the_renewal_of_those_acquired_with_it() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world, queues=0)
        world.secondary.create_queue(BACKLOG, _SHORT_LOCK)
        fixture.queues = (BACKLOG,)
        ids = fixture.put("orders", 5)
        world.primary.trouble_sends("orders", Trouble.LOST)
        syphon = fixture.syphon()
        syphon._context.primary.limit_send_attempts(50.0)
        await syphon.start()
        source = syphon._runners[0].source
        await fixture.until(lambda: source.fresh == 5)
        await _remove_elsewhere(world, source, ids[2])
        await asyncio.sleep(40.0)
        assert [(one.message_id, one.delivery_count) for one in fixture.left()] == [
            (one, 0) for one in ids if one != ids[2]
        ]
        world.primary.take_sends("orders")
        await fixture.drained(60.0)
        assert fixture.delivered("orders") == [one for one in ids if one != ids[2]]
        await syphon.close()

    run(scenario)


async def _remove_elsewhere(world: PairWorld, source: BacklogSource, message_id: str) -> None:
    """Settle a message with its lock, which its owner does not notice."""
    (locked,) = (one.message for one in source._locked.values() if one.message.message_id == message_id)
    copy = pickle.loads(pickle.dumps(locked))  # noqa: S301 (our own bytes)
    factory = world.factory_at(Endpoint(world.secondary.name, world.secondary.port, tls=False))
    receiver = await factory.create_message_receiver(BACKLOG)
    await receiver.complete(copy)
    await receiver.close()


@pytest.mark.parametrize(("size", "most"), [(100, 50), (20_000, 10)])
def test_c14_fewer_large_messages_are_locked_at_a_time(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pairbus.pairing.syphon.source._MAX_LOCKED_BYTES", 10 * 21_000)
    counts: list[int] = []
    receive = BacklogSource.receive

    async def counted(source: BacklogSource, count: int, long_poll: timedelta) -> list[ReceivedMessage]:
        messages = await receive(source, count, long_poll)
        counts.append(len(messages))
        return messages

    monkeypatch.setattr(BacklogSource, "receive", counted)

    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 200, label="x" * size)
        syphon = await fixture.started(max_messages=50)
        await fixture.drained(5.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)
    assert counts[0] == 50  # the sizes are not known yet
    assert max(counts[1:]) == most
