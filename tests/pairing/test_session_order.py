"""The order of sessions: while messages of a session are in the backlog, new ones are diverted, too."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from random import Random
from typing import Any, Final

import pytest

from pairbus.broker import QueueDescription
from pairbus.client.errors import BacklogUnavailableError, InvalidRequestError, MessagingTimeoutError
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.management import Operation
from pairbus.pairing import EntityState
from pairbus.pairing.session_order import SessionOrder
from tests.faults.trouble import Trouble
from tests.pairing.scenes import (
    ORDERS,
    OTHERS,
    VISITS,
    Scene,
    backlog_path,
    begin,
    letter,
    paired,
    seconds,
    took,
    until,
)
from tests.simulation.pair_world import PairWorld, run
from tests.thoroughness import times

SOON_S: Final = 5.0
"""Maximum time until the pair notices that a session has no messages left in the backlog."""


# While an entity has failed over.


def test_c20_messages_of_a_session_go_to_one_queue_for_all_senders() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=5)
        scene.pair.engage()
        senders = [await scene.sender(path) for path in (ORDERS, "Orders", ORDERS, ORDERS)]
        for turn in range(10):
            for number, sender in enumerate(senders):
                await sender.send([visit(f"{number}-{turn}", session) for session in "abc"])
        assert len(await scene.backlog()) == 120
        queues: dict[str, set[int]] = defaultdict(set)
        for index in range(5):
            for message in await scene.queue(index):
                queues[_session(message)].add(index)
        assert all(len(found) == 1 for found in queues.values())

    run(scenario)


def test_c20_every_process_chooses_the_same_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        scenes = [await _ordered(world, count=7, create=not number) for number in range(3)]
        for scene in scenes:
            scene.pair.engage()
            await (await scene.sender()).send(visit("x", "s"))
        assert max([len(await scenes[0].queue(index)) for index in range(7)]) == 3

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "stall", "kill"])
def test_c20_pending_sends_stay_in_order_when_the_primary_fails(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, ping_s=10)
        sender = await scene.sender(VISITS)
        await sender.send(visit("first", "s"))
        await scene.spoil(what)
        sending = [begin(sender.send(visit(f"{number:02}", "s"))) for number in range(20)]
        await asyncio.gather(*sending)
        for number in range(20, 25):
            await sender.send(visit(f"{number:02}", "s"))
        assert await scene.bodies() == [b"%02d" % number for number in range(25)]

    run(scenario)


# After the recovery.


def test_c20_new_messages_of_a_session_are_diverted_until_the_old_ones_are_delivered() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for text in ("1", "2"):
            await sender.send(visit(text, "a"))
        scene.pair.release()
        await sender.send(visit("3", "a"))
        await asyncio.sleep(100)
        await sender.send(visit("4", "a"))
        assert await scene.bodies() == [b"1", b"2", b"3", b"4"]
        assert await scene.delivered(VISITS) == []
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        scene.secondary.seen.clear()
        await sender.send(visit("5", "a"))
        assert scene.secondary.seen == []
        assert await scene.delivered(VISITS) == [b"1", b"2", b"3", b"4", b"5"]

    run(scenario)


def test_c20_partly_delivered_session_is_still_diverted() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for text in ("1", "2", "3"):
            await sender.send(visit(text, "a"))
        scene.pair.release()
        await scene.deliver(0, count=2)
        await asyncio.sleep(30)
        await sender.send(visit("4", "a"))
        assert await scene.bodies() == [b"3", b"4"]
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        await sender.send(visit("5", "a"))
        assert await scene.delivered(VISITS) == [b"1", b"2", b"3", b"4", b"5"]

    run(scenario)


def test_c20_locked_message_in_the_backlog_keeps_its_session_diverted() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(visit("1", "a"))
        scene.pair.release()
        receiver = await world.secondary_factory().create_message_receiver(backlog_path(0))
        (locked,) = await receiver.receive()
        await asyncio.sleep(30)
        await sender.send(visit("2", "a"))
        assert await scene.bodies() == [b"1", b"2"]
        await receiver.defer(locked)
        await asyncio.sleep(30)
        await sender.send(visit("3", "a"))
        assert await scene.bodies() == [b"1", b"2", b"3"]

    run(scenario)


def test_c20_other_sessions_and_messages_without_a_session_go_to_the_primary_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        scene.pair.engage()
        await sender.send(visit("old", "a"))
        scene.pair.release()
        await sender.send(letter("none"))
        await sender.send(visit("b", "b"))
        await other.send(visit("a of others", "a"))
        assert await scene.delivered() == [b"none", b"b"]
        assert await scene.delivered(OTHERS) == [b"a of others"]
        assert await scene.bodies() == [b"old"]

    run(scenario)


def test_c20_list_is_split_between_both_routes() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender()
        scene.pair.engage()
        await sender.send(visit("old", "a"))
        scene.pair.release()
        await sender.send([visit("a1", "a"), visit("b1", "b"), letter("none"), visit("a2", "a")])
        assert await scene.delivered() == [b"b1", b"none"]
        assert await scene.bodies() == [b"old", b"a1", b"a2"]

    run(scenario)


def test_c20_batch_is_not_split() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender()
        scene.pair.engage()
        await sender.send(visit("old", "a"))
        scene.pair.release()
        await sender.send_batch([visit("a1", "a"), visit("b1", "b")])
        await sender.send(visit("b2", "b"))
        assert await scene.delivered() == []
        assert await scene.bodies() == [b"old", b"a1", b"b1", b"b2"]

    run(scenario)


def test_c20_messages_without_a_session_use_all_queues() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=3)
        scene.pair.engage()
        for number in range(30):
            await (await scene.sender()).send(letter(str(number)))
        assert sum([bool(await scene.queue(index)) for index in range(3)]) > 1

    run(scenario)


@pytest.mark.parametrize("pause_s", [0.02, 0.3])
def test_c20_session_with_a_steady_flow_returns_to_the_primary_in_order(pause_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sent: list[bytes] = []

        async def send_on(until_s: float) -> None:
            while scene.now_s < until_s:
                sent.append(b"%05d" % len(sent))
                await sender.send(BrokeredMessage(sent[-1], session_id="busy"))
                await asyncio.sleep(pause_s)

        scene.pair.engage()
        await send_on(scene.now_s + 3)
        scene.pair.release()
        sending = begin(send_on(scene.now_s + 15))
        syphoning = begin(_syphon(scene))
        await sending
        syphoning.cancel()
        await asyncio.gather(syphoning, return_exceptions=True)
        scene.secondary.seen.clear()
        await sender.send(BrokeredMessage(b"last", session_id="busy"))
        assert scene.secondary.seen == []
        assert await scene.delivered(VISITS) == [*sent, b"last"]

    run(scenario)


def test_c20_many_sessions_return_to_the_primary() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for turn in range(2):
            await sender.send([visit(f"{number}-{turn}", f"session {number}") for number in range(120)])
        scene.pair.release()
        await sender.send([visit(f"{number}-2", f"session {number}") for number in range(120)])
        assert len(await scene.backlog()) == 360
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        scene.secondary.seen.clear()
        await sender.send([visit(f"{number}-3", f"session {number}") for number in range(120)])
        assert scene.secondary.seen == []
        in_primary: dict[str, list[bytes]] = defaultdict(list)
        for message in await scene.messages(VISITS):
            in_primary[message.session_id or ""].append(bytes(message.body))
        assert all(found == sorted(found) and len(found) == 4 for found in in_primary.values())

    run(scenario)


def test_c20_second_outage_before_the_end_of_the_first_keeps_the_order() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, ping_s=5)
        sender = await scene.sender(VISITS)
        texts: list[bytes] = []

        async def send(count: int) -> None:
            for _ in range(count):
                texts.append(b"%03d" % len(texts))
                await sender.send(BrokeredMessage(texts[-1], session_id="s"))

        for _ in range(3):
            await send(2)
            world.primary_network.refuse()
            await send(3)
            await scene.heal()
            await until(lambda: scene.state(VISITS) is EntityState.HEALTHY)
            await send(2)
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        await send(1)
        assert [*dict.fromkeys(await scene.delivered(VISITS))] == texts

    run(scenario)


# The first scan of a client.


@pytest.mark.parametrize("count", [1, 4])
def test_c20_restarted_client_scans_the_backlog_first(count: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=count)
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        await sender.send([visit("1", "a"), visit("1", "b")])
        await scene.factory.close()
        again = await _ordered(world, count=count, create=False)
        sender = await again.sender(VISITS)
        await sender.send(visit("2", "a"))
        await sender.send(visit("direct", "c"))
        assert await again.delivered(VISITS) == [b"direct"]
        assert sorted(await again.bodies()) == [b"1", b"1", b"2"]
        await again.deliver_all()
        await asyncio.sleep(SOON_S)
        await sender.send(visit("3", "a"))
        await sender.send(visit("2", "b"))
        in_primary = [(message.session_id, message.body) for message in await again.messages(VISITS)]
        assert [body for session, body in in_primary if session == "a"] == [b"1", b"2", b"3"]
        assert [body for session, body in in_primary if session == "b"] == [b"1", b"2"]

    run(scenario)


def test_c20_sessions_wait_for_the_first_scan_of_a_new_client() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        scene.pair.engage()
        await (await scene.sender(VISITS)).send(visit("1", "a"))
        await scene.factory.close()
        host = world.secondary.host
        host.deny = lambda operation, _: "it is busy" if operation == Operation.PEEK_MESSAGE else None
        again = await _ordered(world, count=2, create=False)
        sender, orders = await again.sender(VISITS), await again.sender()
        waiting = [begin(sender.send(visit("2", "a"))), begin(sender.send(visit("1", "new")))]
        await orders.send(letter("none"))
        await asyncio.sleep(30)
        assert not any(send.done() for send in waiting)
        assert await again.delivered(VISITS) == []
        assert await again.delivered() == [b"none"]
        host.deny = lambda *_: None
        await asyncio.gather(*waiting)
        await again.deliver_all()
        await asyncio.sleep(SOON_S)
        await sender.send(visit("3", "a"))
        in_primary = [(message.session_id, message.body) for message in await again.messages(VISITS)]
        assert [body for session, body in in_primary if session == "a"] == [b"1", b"2", b"3"]

    run(scenario)


# Failing queues.


@pytest.mark.parametrize("trouble", ["disabled", "hanging"])
def test_c20_send_raises_if_the_queue_of_its_session_fails(trouble: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=3, operation_timeout=seconds(20))
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        await sender.send(visit("1", "a"))
        (pinned,) = [index for index in range(3) if await scene.queue(index)]
        path = backlog_path(pinned)
        if trouble == "disabled":
            world.secondary.disable(path)
        else:
            world.secondary.trouble_sends(path, Trouble.LOST)
        with pytest.raises(BacklogUnavailableError) as caught:
            await sender.send(visit("2", "a"))
        assert [*caught.value.causes] == [path]
        await sender.send(visit("1", "b"))  # a session without messages there
        await sender.send(visit("2", "b"))
        if trouble == "disabled":
            world.secondary.enable(path)
        else:
            world.secondary.take_sends(path)
        await asyncio.sleep(60)
        await sender.send(visit("3", "a"))
        assert [(_session(one), one.body) for one in await scene.queue(pinned)] == [("a", b"1"), ("a", b"3")]
        elsewhere = [one for index in range(3) if index != pinned for one in await scene.queue(index)]
        assert [(_session(one), one.body) for one in elsewhere] == [("b", b"1"), ("b", b"2")]

    run(scenario)


def test_c20_session_waits_for_its_queue_until_its_timeout() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=3)
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        await sender.send(visit("1", "a"))
        (pinned,) = [index for index in range(3) if await scene.queue(index)]
        world.secondary.disable(backlog_path(pinned))
        sending = begin(sender.send(visit("2", "a")))
        await asyncio.sleep(10)
        world.secondary.enable(backlog_path(pinned))
        assert await took(_done(sending)) < 20
        assert [one.body for one in await scene.queue(pinned)] == [b"1", b"2"]

    run(scenario)


def test_c20_list_of_sessions_in_several_queues_is_split_and_such_a_batch_rejected() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        await sender.send(visit("1", "a"))
        (pinned,) = [index for index in range(2) if await scene.queue(index)]
        world.secondary.disable(backlog_path(pinned))
        await sender.send(visit("1", "b"))
        world.secondary.enable(backlog_path(pinned))
        await asyncio.sleep(30)
        await sender.send([visit("2", "a"), visit("2", "b"), visit("3", "a")])
        assert [one.body for one in await scene.queue(pinned)] == [b"1", b"2", b"3"]
        assert [one.body for one in await scene.queue(1 - pinned)] == [b"1", b"2"]
        with pytest.raises(InvalidRequestError):
            await sender.send_batch([visit("4", "a"), visit("3", "b")])

    run(scenario)


# Cancelled sends.


@pytest.mark.parametrize("step", range(8))
def test_c20_cancelled_send_keeps_the_order(step: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(visit("1", "a"))
        scene.pair.release()
        victim = begin(sender.send(visit("2", "a")))
        await asyncio.sleep(0.0005 * step)
        victim.cancel()
        await asyncio.gather(victim, return_exceptions=True)
        await sender.send(visit("3", "a"))
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        scene.secondary.seen.clear()
        await sender.send(visit("4", "a"))
        assert scene.secondary.seen == []
        assert [body for body in await scene.delivered(VISITS) if body != b"2"] == [b"1", b"3", b"4"]

    run(scenario)


# Random failures.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(4)))
def test_c20_sessions_arrive_in_order_with_random_failures(seed: int) -> None:
    async def scenario(world: PairWorld) -> None:
        random = Random(seed)  # noqa: S311 (tests have to be repeatable)
        interval_s = random.choice([0.0, 0.0, 4.0])
        scene = await _ordered(world, ping_s=random.choice([1.0, 5.0]), interval_s=interval_s)
        syphoning = begin(_syphon(scene))
        spoiling = begin(_spoil(scene, random))
        sent = await asyncio.gather(*(_send_steadily(scene, session, random.uniform(0.05, 1)) for session in "abc"))
        spoiling.cancel()
        await asyncio.gather(spoiling, return_exceptions=True)
        await scene.heal()
        scene.pair.release()
        await asyncio.sleep(30)
        syphoning.cancel()
        await asyncio.gather(syphoning, return_exceptions=True)
        assert not await scene.backlog()
        in_primary = [(message.session_id, bytes(message.body)) for message in await scene.messages(VISITS)]
        for session, bodies in zip("abc", sent, strict=True):
            assert [*dict.fromkeys(body for one, body in in_primary if one == session)] == bodies

    run(scenario, seed)


async def _send_steadily(scene: Scene, session: str, pause_s: float) -> list[bytes]:
    """Send messages one after the other, and repeat each until it is confirmed."""
    sender = await scene.sender(VISITS)
    sent: list[bytes] = []
    while scene.now_s < 60:
        sent.append(b"%s%04d" % (session.encode(), len(sent)))
        while True:
            with suppress(MessagingTimeoutError):
                await sender.send(BrokeredMessage(sent[-1], message_id=sent[-1].decode(), session_id=session))
                break
        await asyncio.sleep(pause_s)
    return sent


async def _spoil(scene: Scene, random: Random) -> None:
    while True:
        await asyncio.sleep(random.uniform(0, 5))
        what = random.choice(["refuse", "hide", "stall", "stall up", "stall down", "drop", "cut", "engage"])
        match what:
            case "cut":
                scene.world.primary_network.cut()
            case "engage":
                scene.pair.engage(VISITS)
            case _:
                await scene.spoil(what)
        await asyncio.sleep(random.uniform(0, 8))
        if what == "engage":
            scene.pair.release(VISITS)
        else:
            scene.world.primary_network.heal()


# Helpers.


# Unexpected errors.


def test_c20_first_scan_that_fails_unexpectedly_is_logged_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        earlier = await _ordered(world, count=1)
        earlier.pair.engage()
        await (await earlier.sender(VISITS)).send(visit("1", "a"))
        failures: list[RuntimeError] = [RuntimeError("the owner failed")]
        changes: list[int] = []
        scanned: list[bool] = []

        def change(_path: str, more: int) -> None:
            if failures:
                raise failures.pop()
            changes.append(more)

        order = SessionOrder(
            world.secondary_factory(),
            (backlog_path(0),),
            is_healthy=lambda _: True,
            on_change=change,
            on_scanned=lambda: scanned.append(True),
            on_missing=lambda *_: None,
        )
        await order.start()
        assert order.is_scanning
        await asyncio.sleep(SOON_S)
        assert scanned == [True]
        assert order.follows(VISITS, "a")
        await order.close()

    run(scenario)
    (line,) = [record.message for record in caplog.records if "unexpectedly" in record.message]
    assert line == f"scan of a backlog queue failed unexpectedly, retrying entity={backlog_path(0)}"


def visit(text: str, session: str) -> BrokeredMessage:
    return letter(text, session_id=session)


async def _ordered(
    world: PairWorld,
    *,
    count: int = 3,
    ping_s: float = 60.0,
    interval_s: float = 0.0,
    create: bool = True,
    **settings: Any,
) -> Scene:
    if create:
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    return await paired(
        world,
        count=count,
        ping_s=ping_s,
        interval_s=interval_s,
        preserve_session_order=True,
        factory=world.primary_factory(**settings),
    )


def _session(message: ReceivedMessage) -> str:
    return str(message.application_properties["x-ms-sessionid"])


async def _syphon(scene: Scene) -> None:
    """Deliver the backlog repeatedly."""
    while True:
        await scene.deliver_all()
        await asyncio.sleep(0.2)


async def _done(task: asyncio.Task[Any]) -> None:
    await task
