"""The order of sessions with concurrent operations: regression tests for messages that overtook others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.broker.errors import QuotaExceededError
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import BacklogUnavailableError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.dialect.management import Operation
from pairbus.dialect.transfer import SESSION_ID
from pairbus.pairing import session_order
from pairbus.pairing.session_order import BackloggedSession, SessionOrder
from pairbus.pairing.syphon.runner import QueueRunner
from tests.faults.trouble import Trouble
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    VISITS,
    Scene,
    backlog_path,
    begin,
    heal,
    letter,
    paired,
    seconds,
    spoil,
    until,
)
from tests.pairing.syphon_fixture import SyphonFixture
from tests.simulation.pair_world import PairWorld, run

SOON_S: Final = 5.0
"""Maximum time until the pair notices that a session has no messages left in the backlog."""


# A session is not released while messages of it are being diverted.


def test_c20_steady_lists_of_two_sessions_stay_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        for session in "ab":
            await sender.send(_visit("000", session))
        scene.pair.release()
        syphoning = begin(_syphon(scene))
        for number in range(1, 121):
            await sender.send([_visit(f"{number:03}", session) for session in "ba"])
            await asyncio.sleep(0.05)
        await asyncio.sleep(SOON_S)
        await _end(syphoning)
        for session in "ab":
            assert await _delivered(scene, session) == [f"{number:03}" for number in range(121)]
        assert not _order(scene)._sessions

    run(scenario)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_c20_message_diverted_during_the_scan_of_a_held_session_keeps_it_diverted(
    is_under_way: bool,
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender, order = await scene.sender(VISITS), _order(scene)
        await _hold(scene)
        scan = order._scan
        sending: list[asyncio.Task[None]] = []

        async def scan_before_a_send(index: int) -> Any:
            if sending:
                return await scan(index)
            await scene.deliver(0)
            found = await scan(index)
            scene.pair.engage()  # diverted sends do not wait for held sessions
            sending.append(begin(sender.send(_visit("3", "a"))))
            await asyncio.sleep(0)
            if not is_under_way:
                await sending[0]
            scene.pair.release()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(order, "_scan", scan_before_a_send)
            await until(lambda: sending and sending[0].done())
        await sender.send(_visit("4", "a"))
        await asyncio.sleep(SOON_S)
        await scene.deliver_all()
        assert await _delivered(scene, "a") == ["1", "2", "3", "4"]

    run(scenario)


def test_c20_wait_for_one_session_includes_another_held_meanwhile() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        order, loop = _order(scene), asyncio.get_running_loop()
        first, second = order.track(VISITS, "a"), order.track(VISITS, "b")
        second.held = loop.create_future()
        waiting = begin(order.wait_until_released(VISITS, ["a", "b"]))
        await asyncio.sleep(0.01)
        first.held = loop.create_future()
        _go_on(second)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        _go_on(first)
        await waiting

    run(scenario)


def test_c20_session_of_a_later_group_of_a_list_is_not_released_early() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)  # so that its group delays the other one
        sending = begin(sender.send([_visit("2", session) for session in sessions]))
        await asyncio.sleep(0.5)
        await scene.deliver(1)
        await asyncio.sleep(3)
        world.secondary.take_sends(backlog_path(0))
        await sending
        await sender.send(_visit("3", sessions[1]))
        await scene.deliver_all()
        assert await _delivered(scene, sessions[1]) == ["1", "2", "3"]

    run(scenario)


# A list of one session goes to one queue, and its batches stay in order.


def test_c20_rest_of_a_list_follows_its_confirmed_part() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        _refuse_batch(world, 1)
        await sender.send([_half_batch(number) for number in range(8)])
        lengths = [len(await scene.queue(index)) for index in range(2)]
        assert sorted(lengths) == [0, 8]
        assert [message.message_id for message in await scene.backlog()] == [str(number) for number in range(8)]
        scene.pair.release()
        await sender.send(_visit("last", "a"))
        await scene.deliver_all()
        assert await _delivered(scene, "a") == [*(str(number) for number in range(8)), "last"]

    run(scenario)


def test_c20_batches_of_a_session_do_not_overtake_each_other() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, interval_s=60)
        sender = await scene.sender(VISITS)
        await sender.send(_visit("first", "a"))
        _refuse_batch(world, 1, is_primary=True)
        await sender.send([_half_batch(number) for number in range(8)])
        assert await _delivered(scene, "a") == ["first", *(str(number) for number in range(8))]
        assert await scene.backlog() == []

    run(scenario)


def test_c20_list_half_confirmed_before_the_primary_fails_stays_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        await sender.send(_visit("first", "a"))
        enough = len(scene.primary.seen) + 4

        def end() -> None:
            if len(scene.primary.seen) >= enough:
                world.primary_network.refuse()

        scene.primary.on_seen = end
        await sender.send([_half_batch(number) for number in range(8)])
        await sender.send(_visit("last", "a"))
        await scene.heal()
        scene.pair.release()
        await scene.deliver_all()
        in_primary = [*dict.fromkeys(await _delivered(scene, "a"))]  # unconfirmed messages were sent again
        assert in_primary == ["first", *(str(number) for number in range(8)), "last"]

    run(scenario)


# An unreadable queue does not affect the others.


def test_c20_unreadable_queue_does_not_keep_sessions_of_others_diverted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        _deny_peeks(world, 0)
        await scene.deliver(1)
        await asyncio.sleep(300)
        scene.secondary.seen.clear()
        await sender.send(_visit("2", sessions[1]))
        assert scene.secondary.seen == []
        await sender.send(_visit("2", sessions[0]))
        assert await _delivered(scene, sessions[0]) == []
        _allow_peeks(world)
        await scene.deliver(0)
        await asyncio.sleep(60)  # the scan that waits for a busy namespace ends first
        await sender.send(_visit("3", sessions[0]))
        assert await _delivered(scene, sessions[0]) == ["1", "2", "3"]

    with caplog.at_level(logging.WARNING, "pairbus.pairing.session_order"):
        run(scenario)
    assert [record.levelno for record in caplog.records if "scan of a backlog queue failed" in record.message] == [
        logging.WARNING
    ]


def test_c20_deleted_queue_does_not_keep_sessions_of_others_diverted() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        world.secondary.delete(backlog_path(0))
        await scene.deliver(1)
        await asyncio.sleep(60)
        await sender.send(_visit("2", sessions[1]))
        assert await _delivered(scene, sessions[1]) == ["1", "2"]

    run(scenario)


def test_c20_unexpected_error_does_not_end_the_scans() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(_visit("1", "a"))
        scene.pair.release()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_order, "_key_of", _stumble)
            await asyncio.sleep(10)
        await scene.deliver_all()
        await asyncio.sleep(SOON_S)
        await sender.send(_visit("2", "a"))
        assert await _delivered(scene, "a") == ["1", "2"]

    run(scenario)


# After a start, sends wait until the queue of a session is known.


@pytest.mark.parametrize("unread", [0, 1])
def test_c20_session_waits_until_the_whole_backlog_is_scanned(unread: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sessions = await _one_in_each(scene)
        await scene.factory.close()
        _deny_peeks(world, unread)
        again = await _ordered(world, count=2, create=False)
        sender, orders = await again.sender(VISITS), await again.sender()
        sending = [begin(sender.send(_visit("2", session))) for session in (*sessions, "new")]
        await orders.send(letter("without a session"))
        await asyncio.sleep(10)
        assert not sending[unread].done()
        assert not sending[2].done()
        _allow_peeks(world)
        await asyncio.gather(*sending)
        for index, session in enumerate(sessions):
            ours = [one for one in await again.queue(index) if one.application_properties[SESSION_ID] == session]
            assert [one.message_id for one in ours] == ["1", "2"]
        await again.deliver_all()
        await asyncio.sleep(SOON_S)
        await sender.send(_visit("3", "new"))
        assert await _delivered(again, "new") == ["2", "3"]

    run(scenario)


def test_c20_timeout_of_the_wait_for_a_scan_names_the_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        await (await _ordered(world, count=3)).factory.close()
        _deny_peeks(world, 0)
        again = await _ordered(world, count=3, create=False, operation_timeout=seconds(30))
        sender, began_s = await again.sender(VISITS), again.now_s
        with pytest.raises(MessagingTimeoutError) as caught:
            await sender.send(_visit("1", "a"))
        assert again.now_s - began_s <= 30.1
        named = [index for index in range(3) if backlog_path(index) in str(caught.value)]
        assert named == [0]  # the others have been scanned meanwhile
        assert caught.value.entity == VISITS
        _allow_peeks(world)

    run(scenario)


@pytest.mark.parametrize("is_before", [True, False])
def test_c20_deleted_queue_counts_as_scanned_and_empty(is_before: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        await scene.factory.close()
        if is_before:
            world.secondary.delete(backlog_path(0))  # it is created again
        else:
            _deny_peeks(world, 0)
        again = await _ordered(world, count=2, create=False)
        world.secondary.delete(backlog_path(0))
        _allow_peeks(world)
        sender = await again.sender(VISITS)
        await asyncio.sleep(30)
        await sender.send(_visit("1", "a"))
        assert await _delivered(again, "a") == ["1"]

    run(scenario)


# Stuck sessions do not delay the release of others.


@pytest.mark.parametrize("stuck", [1, 99, 100, 199, 200])
def test_c20_stuck_sessions_do_not_keep_others_diverted(stuck: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        orders, sender = await scene.sender(ORDERS), await scene.sender(VISITS)
        scene.pair.engage()
        await orders.send([letter(f"{number}", session_id=f"stuck {number}") for number in range(stuck)])
        await sender.send(letter("1", session_id="live", application_properties={"live": True}))
        scene.pair.release()
        await asyncio.sleep(3)
        await scene.deliver_marked("live")
        await asyncio.sleep(60)
        await sender.send(_visit("2", "live"))
        assert await _delivered(scene, "live") == ["1", "2"]
        assert len(await scene.backlog()) == stuck

    run(scenario)


@pytest.mark.parametrize("stuck", [5, 110])
def test_c20_steady_session_returns_to_the_primary_beside_stuck_ones(stuck: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        orders, sender = await scene.sender(ORDERS), await scene.sender(VISITS)
        scene.pair.engage()
        await orders.send([letter(f"{number}", session_id=f"stuck {number}") for number in range(stuck)])
        await sender.send(_busy(0))
        scene.pair.release()
        syphoning = begin(_syphon_marked(scene))
        for number in range(1, 400):
            await sender.send(_busy(number))
            await asyncio.sleep(0.02)
        scene.secondary.seen.clear()
        await sender.send(_busy(400))
        assert scene.secondary.seen == []
        await _end(syphoning)
        assert await _delivered(scene, "live") == [str(number) for number in range(401)]

    run(scenario)


# The syphon: a message that is received again is held before those behind it are delivered.


def test_c15_returned_message_is_delivered_before_those_that_waited_for_it() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(VISITS)
        fixture = SyphonFixture(world)
        other = await _insider(world).create_message_receiver(backlog_path(0))
        ids = fixture.put(VISITS, session_id="a")
        (locked,) = await other.receive(1)  # another syphon has locked the first
        gate = asyncio.Event()
        gate.set()
        with _slow_readers(gate):
            syphon = await fixture.started()
            await asyncio.sleep(1)
            gate.clear()
            ids += fixture.put(VISITS, session_id="a")  # it waits for the first, and is parked
            await asyncio.sleep(0.5)
            fixture.put(ORDERS, 250)  # their scan takes a while
            await other.receive(250, seconds(1))
            await other.abandon(locked)
            ids += fixture.put(VISITS, session_id="b")
            gate.set()
            await fixture.until(lambda: len(fixture.delivered(VISITS)) == 3)
            assert [one for one in fixture.delivered(VISITS) if one in ids[:2]] == ids[:2]
            await other.close()
            await syphon.close()

    run(scenario)


# Many concurrent sends.


@pytest.mark.parametrize("preserve_session_order", [False, True])
@pytest.mark.parametrize("what", ["stall", "stall down"])
def test_c8_many_concurrent_sends_end_in_time_while_the_secondary_hangs(
    what: str, preserve_session_order: bool
) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = world.primary_factory(operation_timeout=seconds(20))
        scene = await paired(world, factory=primary, preserve_session_order=preserve_session_order)
        scene.pair.engage()
        sender = await scene.sender()
        await spoil(world.secondary, world.secondary_network, what)
        began_s = scene.now_s
        sending = [begin(sender.send(letter(str(number), session_id=f"{number % 3}"))) for number in range(30)]
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert scene.now_s - began_s <= 20 + 4 * ATTEMPT_S
        assert {type(outcome) for outcome in outcomes} == {BacklogUnavailableError}
        await heal(world.secondary, world.secondary_network)

    run(scenario)


# Sends wait for a held session until their timeout.


@pytest.mark.parametrize("outage", ["stall", "refuse", "deny"])
def test_c8_send_waits_for_a_held_session_until_its_timeout(outage: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1, operation_timeout=seconds(10))
        sender = await scene.sender(VISITS)
        await _hold(scene)
        match outage:
            case "stall":
                world.secondary_network.stall()
            case "refuse":
                world.secondary_network.refuse()
            case _:
                _deny_peeks(world, 0)
        began_s = scene.now_s
        if outage == "deny":
            await sender.send(_visit("2", "a"))
            assert scene.now_s - began_s < 3
        else:
            with pytest.raises(BacklogUnavailableError):
                await sender.send(_visit("2", "a"))
            assert scene.now_s - began_s <= 10 + 2 * ATTEMPT_S + 0.1
        world.secondary_network.cut()
        world.secondary_network.heal()

    run(scenario)


# Helpers.


async def _ordered(
    world: PairWorld, *, count: int = 3, interval_s: float = 0.0, create: bool = True, **settings: Any
) -> Scene:
    if create:
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
    factory = world.primary_factory(**settings)
    return await paired(world, count=count, interval_s=interval_s, preserve_session_order=True, factory=factory)


def _order(scene: Scene) -> SessionOrder:
    assert scene.pair._order is not None
    return scene.pair._order


def _visit(text: str, session: str) -> BrokeredMessage:
    return letter(text, session_id=session)


def _half_batch(number: int) -> BrokeredMessage:
    """Return a message of which two fit into a batch."""
    return BrokeredMessage(bytes(100_000), message_id=str(number), session_id="a")


def _busy(number: int) -> BrokeredMessage:
    return letter(str(number), session_id="live", application_properties={"live": True})


async def _delivered(scene: Scene, session: str) -> list[str]:
    """Return the ids of the delivered messages of a session, in order."""
    return [str(message.message_id) for message in await scene.messages(VISITS) if message.session_id == session]


async def _one_in_each(scene: Scene) -> tuple[str, str]:
    """Divert messages of two sessions to separate queues; return the sessions in the order of the queues."""
    secondary = scene.world.secondary
    scene.pair.engage()
    sender = await scene.sender(VISITS)
    await sender.send(_visit("1", "a"))
    (first,) = [index for index in range(2) if await scene.queue(index)]
    secondary.disable(backlog_path(first))
    await sender.send(_visit("1", "b"))
    secondary.enable(backlog_path(first))
    scene.pair._backlog.worked(first)
    return ("a", "b") if first == 0 else ("b", "a")


async def _hold(scene: Scene) -> BackloggedSession:
    """Bring about that session 'a' is held: its first message is delivered, and another was diverted meanwhile."""
    sender = await scene.sender(VISITS)
    scene.pair.engage()
    await sender.send(_visit("1", "a"))
    scene.pair.release()
    session = _order(scene).track(VISITS, "a")
    await until(lambda: session.mark is not None)
    await sender.send(_visit("2", "a"))
    await scene.deliver(0, count=1)
    while session.held is None:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.001)
    return session


def _go_on(session: BackloggedSession) -> None:
    assert session.held is not None
    session.held.set_result(None)
    session.held = None


def _refuse_batch(world: PairWorld, which: int, *, is_primary: bool = False) -> None:
    """Let a namespace reject one batch, counted from now, and accept the others."""
    broker = (world.primary if is_primary else world.secondary).host.use_namespace()
    send, batches = broker.send, [0]

    def sometimes(address: Any, messages: Any, now_ms: int) -> Any:
        batches[0] += 1
        if batches[0] == which + 1:
            raise QuotaExceededError("the queue is full")
        return send(address, messages, now_ms)

    broker.send = sometimes  # type: ignore[method-assign]


def _deny_peeks(world: PairWorld, index: int) -> None:
    def deny(operation: str, address: Address | None) -> str | None:
        return "it is busy" if operation == Operation.PEEK_MESSAGE and str(address) == backlog_path(index) else None

    world.secondary.host.deny = deny


def _allow_peeks(world: PairWorld) -> None:
    world.secondary.host.deny = lambda *_: None


def _insider(world: PairWorld) -> MessagingFactory:
    """Return a client that connects to the secondary directly."""
    return world.factory_at(Endpoint(world.secondary.name, world.secondary.port, tls=False))


@contextmanager
def _slow_readers(gate: asyncio.Event) -> Iterator[None]:
    """Make runners wait between two receives, like those without room."""
    turn = QueueRunner._turn

    async def slow(reader: QueueRunner) -> None:
        await gate.wait()
        await turn(reader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueueRunner, "_turn", slow)
        yield


def _stumble(*_: object, **__: object) -> None:
    raise LookupError("a test wants it")


async def _syphon(scene: Scene) -> None:
    while True:
        await scene.deliver_all()
        await asyncio.sleep(0.2)


async def _syphon_marked(scene: Scene) -> None:
    while True:
        await scene.deliver_marked("live")
        await asyncio.sleep(0.2)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
