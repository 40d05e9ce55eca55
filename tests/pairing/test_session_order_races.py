"""Sessions that stay in order though much happens at a time: what overtook others once does so no more."""

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
from pairbus.pairing.pump.backlog_reader import BacklogReader
from pairbus.pairing.session_order import SessionOrder, Straggler
from tests.faults.trouble import Trouble
from tests.pairing.pumping import Pumping
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
from tests.simulation.pair_world import PairWorld, run

SOON_S: Final = 5.0
"""Within which it is found out that a session has nothing in the backlog any more."""


# A session is not let go while something of it is on its way to the backlog.


def test_c20_lists_of_two_sessions_that_are_sent_all_the_time_stay_in_order() -> None:
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
            assert await _home(scene, session) == [f"{number:03}" for number in range(121)]
        assert not _order(scene)._stragglers

    run(scenario)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_c20_what_is_diverted_while_its_session_is_held_and_looked_for_keeps_it_in_the_backlog(
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
            await scene.bring_home(0)
            found = await scan(index)
            scene.pair.engage()  # who is diverted does not ask whether the session is held
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
        await scene.bring_all_home()
        assert await _home(scene, "a") == ["1", "2", "3", "4"]

    run(scenario)


def test_c20_whoever_waits_for_one_session_waits_for_another_that_is_held_meanwhile() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        order, loop = _order(scene), asyncio.get_running_loop()
        first, second = order.straggler(VISITS, "a"), order.straggler(VISITS, "b")
        second.held = loop.create_future()
        waiting = begin(order.admitted(VISITS, ["a", "b"]))
        await asyncio.sleep(0.01)
        first.held = loop.create_future()
        _go_on(second)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        _go_on(first)
        await waiting

    run(scenario)


def test_c20_a_session_whose_turn_comes_later_in_a_list_is_not_let_go_before() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        world.secondary.trouble_sends(backlog_path(0), Trouble.LOST)  # so that its group keeps the other waiting
        sending = begin(sender.send([_visit("2", session) for session in sessions]))
        await asyncio.sleep(0.5)
        await scene.bring_home(1)
        await asyncio.sleep(3)
        world.secondary.take_sends(backlog_path(0))
        await sending
        await sender.send(_visit("3", sessions[1]))
        await scene.bring_all_home()
        assert await _home(scene, sessions[1]) == ["1", "2", "3"]

    run(scenario)


# A list of one session is not spread over several queues, and none of its batches overtakes another.


def test_c20_where_a_part_of_a_list_is_the_rest_goes_too() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        scene.pair.engage()
        sender = await scene.sender(VISITS)
        _refuse_batch(world, 1)
        await sender.send([_parcel(number) for number in range(8)])
        lengths = [len(await scene.queue(index)) for index in range(2)]
        assert sorted(lengths) == [0, 8]
        assert [message.message_id for message in await scene.backlog()] == [str(number) for number in range(8)]
        scene.pair.release()
        await sender.send(_visit("last", "a"))
        await scene.bring_all_home()
        assert await _home(scene, "a") == [*(str(number) for number in range(8)), "last"]

    run(scenario)


def test_c20_no_batch_of_a_session_overtakes_another_on_the_way_to_the_primary() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, interval_s=60)
        sender = await scene.sender(VISITS)
        await sender.send(_visit("first", "a"))
        _refuse_batch(world, 1, is_primary=True)
        await sender.send([_parcel(number) for number in range(8)])
        assert await _home(scene, "a") == ["first", *(str(number) for number in range(8))]
        assert await scene.backlog() == []

    run(scenario)


def test_c20_a_list_that_comes_home_by_half_before_the_primary_goes_stays_in_order() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world)
        sender = await scene.sender(VISITS)
        await sender.send(_visit("first", "a"))
        enough = len(scene.primary.seen) + 4

        def end() -> None:
            if len(scene.primary.seen) >= enough:
                world.primary_road.refuse()

        scene.primary.on_seen = end
        await sender.send([_parcel(number) for number in range(8)])
        await sender.send(_visit("last", "a"))
        await scene.heal()
        scene.pair.release()
        await scene.bring_all_home()
        home = [*dict.fromkeys(await _home(scene, "a"))]  # what was not confirmed was sent again
        assert home == ["first", *(str(number) for number in range(8)), "last"]

    run(scenario)


# A queue that cannot be looked at is a matter of its own.


def test_c20_a_queue_that_cannot_be_looked_at_keeps_no_session_of_another_in_the_backlog(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        _deny_looks(world, 0)
        await scene.bring_home(1)
        await asyncio.sleep(300)
        scene.secondary.seen.clear()
        await sender.send(_visit("2", sessions[1]))
        assert scene.secondary.seen == []
        await sender.send(_visit("2", sessions[0]))
        assert await _home(scene, sessions[0]) == []
        _allow_looks(world)
        await scene.bring_home(0)
        await asyncio.sleep(60)  # the look that waits for a busy namespace ends first
        await sender.send(_visit("3", sessions[0]))
        assert await _home(scene, sessions[0]) == ["1", "2", "3"]

    with caplog.at_level(logging.WARNING, "pairbus.pairing.session_order"):
        run(scenario)
    assert [record.levelno for record in caplog.records if "cannot be looked" in record.message] == [logging.WARNING]


def test_c20_a_queue_that_is_gone_keeps_no_session_of_another_in_the_backlog() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sender = await scene.sender(VISITS)
        sessions = await _one_in_each(scene)
        scene.pair.release()
        world.secondary.delete(backlog_path(0))
        await scene.bring_home(1)
        await asyncio.sleep(60)
        await sender.send(_visit("2", sessions[1]))
        assert await _home(scene, sessions[1]) == ["1", "2"]

    run(scenario)


def test_c20_what_is_wrong_beyond_any_error_of_messaging_does_not_end_the_watch() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(_visit("1", "a"))
        scene.pair.release()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_order, "_key_of", _stumble)
            await asyncio.sleep(10)
        await scene.bring_all_home()
        await asyncio.sleep(SOON_S)
        await sender.send(_visit("2", "a"))
        assert await _home(scene, "a") == ["1", "2"]

    run(scenario)


# After a start, nobody guesses where the messages of a session are.


@pytest.mark.parametrize("unread", [0, 1])
def test_c20_a_session_waits_until_all_of_the_backlog_has_been_looked_through(unread: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        sessions = await _one_in_each(scene)
        await scene.factory.close()
        _deny_looks(world, unread)
        again = await _ordered(world, count=2, create=False)
        sender, orders = await again.sender(VISITS), await again.sender()
        sending = [begin(sender.send(_visit("2", session))) for session in (*sessions, "new")]
        await orders.send(letter("without a session"))
        await asyncio.sleep(10)
        assert not sending[unread].done()
        assert not sending[2].done()
        _allow_looks(world)
        await asyncio.gather(*sending)
        for index, session in enumerate(sessions):
            ours = [one for one in await again.queue(index) if one.application_properties[SESSION_ID] == session]
            assert [one.message_id for one in ours] == ["1", "2"]
        await again.bring_all_home()
        await asyncio.sleep(SOON_S)
        await sender.send(_visit("3", "new"))
        assert await _home(again, "new") == ["2", "3"]

    run(scenario)


def test_c20_a_session_that_waits_for_that_is_told_which_queue_it_is_in_its_time() -> None:
    async def scenario(world: PairWorld) -> None:
        await (await _ordered(world, count=3)).factory.close()
        _deny_looks(world, 0)
        again = await _ordered(world, count=3, create=False, operation_timeout=seconds(30))
        sender, began_s = await again.sender(VISITS), again.now_s
        with pytest.raises(MessagingTimeoutError) as caught:
            await sender.send(_visit("1", "a"))
        assert again.now_s - began_s <= 30.1
        told = [index for index in range(3) if backlog_path(index) in str(caught.value)]
        assert told == [0]  # the others have been looked at meanwhile
        assert caught.value.entity == VISITS
        _allow_looks(world)

    run(scenario)


@pytest.mark.parametrize("is_before", [True, False])
def test_c20_a_queue_that_is_gone_holds_nothing_and_nobody_waits_for_it(is_before: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=2)
        await scene.factory.close()
        if is_before:
            world.secondary.delete(backlog_path(0))  # it is made anew
        else:
            _deny_looks(world, 0)
        again = await _ordered(world, count=2, create=False)
        world.secondary.delete(backlog_path(0))
        _allow_looks(world)
        sender = await again.sender(VISITS)
        await asyncio.sleep(30)
        await sender.send(_visit("1", "a"))
        assert await _home(again, "a") == ["1"]

    run(scenario)


# Sessions that are stuck keep no other from being looked for.


@pytest.mark.parametrize("stuck", [1, 99, 100, 199, 200])
def test_c20_sessions_that_are_stuck_keep_no_other_one_in_the_backlog(stuck: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1)
        orders, sender = await scene.sender(ORDERS), await scene.sender(VISITS)
        scene.pair.engage()
        await orders.send([letter(f"{number}", session_id=f"stuck {number}") for number in range(stuck)])
        await sender.send(letter("1", session_id="live", application_properties={"live": True}))
        scene.pair.release()
        await asyncio.sleep(3)
        await scene.bring_marked_home("live")
        await asyncio.sleep(60)
        await sender.send(_visit("2", "live"))
        assert await _home(scene, "live") == ["1", "2"]
        assert len(await scene.backlog()) == stuck

    run(scenario)


@pytest.mark.parametrize("stuck", [5, 110])
def test_c20_a_session_that_is_sent_to_all_the_time_gets_over_beside_some_that_are_stuck(stuck: int) -> None:
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
        assert await _home(scene, "live") == [str(number) for number in range(401)]

    run(scenario)


# The syphon: what has come is at hand before what stands behind it goes.


def test_c15_a_message_that_comes_back_is_delivered_before_those_that_have_waited_for_it() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(VISITS)
        pumping = Pumping(world)
        other = await _insider(world).create_message_receiver(backlog_path(0))
        ids = pumping.put(VISITS, session_id="a")
        (locked,) = await other.receive(1)  # another syphon has the first
        gate = asyncio.Event()
        gate.set()
        with _slow_readers(gate):
            syphon = await pumping.started()
            await asyncio.sleep(1)
            gate.clear()
            ids += pumping.put(VISITS, session_id="a")  # it waits for the first, and is parked
            await asyncio.sleep(0.5)
            pumping.put(ORDERS, 250)  # these take long to look through
            await other.receive(250, seconds(1))
            await other.abandon(locked)
            ids += pumping.put(VISITS, session_id="b")
            gate.set()
            await pumping.until(lambda: len(pumping.home(VISITS)) == 3)
            assert [one for one in pumping.home(VISITS) if one in ids[:2]] == ids[:2]
            await other.close()
            await syphon.close()

    run(scenario)


# Many at once.


@pytest.mark.parametrize("preserve_session_order", [False, True])
@pytest.mark.parametrize("what", ["stall", "stall down"])
def test_c8_many_sends_at_once_end_in_time_though_the_secondary_hangs(what: str, preserve_session_order: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        primary = world.primary_factory(operation_timeout=seconds(20))
        scene = await paired(world, factory=primary, preserve_session_order=preserve_session_order)
        scene.pair.engage()
        sender = await scene.sender()
        await spoil(world.secondary, world.secondary_road, what)
        began_s = scene.now_s
        sending = [begin(sender.send(letter(str(number), session_id=f"{number % 3}"))) for number in range(30)]
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert scene.now_s - began_s <= 20 + 4 * ATTEMPT_S
        assert {type(outcome) for outcome in outcomes} == {BacklogUnavailableError}
        await heal(world.secondary, world.secondary_road)

    run(scenario)


# Nobody waits for a session that is held longer than he may.


@pytest.mark.parametrize("outage", ["stall", "refuse", "deny"])
def test_c8_a_send_does_not_wait_for_a_held_session_longer_than_it_may(outage: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _ordered(world, count=1, operation_timeout=seconds(10))
        sender = await scene.sender(VISITS)
        await _hold(scene)
        match outage:
            case "stall":
                world.secondary_road.stall()
            case "refuse":
                world.secondary_road.refuse()
            case _:
                _deny_looks(world, 0)
        began_s = scene.now_s
        if outage == "deny":
            await sender.send(_visit("2", "a"))
            assert scene.now_s - began_s < 3
        else:
            with pytest.raises(BacklogUnavailableError):
                await sender.send(_visit("2", "a"))
            assert scene.now_s - began_s <= 10 + 2 * ATTEMPT_S + 0.1
        world.secondary_road.cut()
        world.secondary_road.heal()

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


def _parcel(number: int) -> BrokeredMessage:
    """One of which two fit into a batch."""
    return BrokeredMessage(bytes(100_000), message_id=str(number), session_id="a")


def _busy(number: int) -> BrokeredMessage:
    return letter(str(number), session_id="live", application_properties={"live": True})


async def _home(scene: Scene, session: str) -> list[str]:
    """The ids of what lies at home of a session, in order."""
    return [str(message.message_id) for message in await scene.messages(VISITS) if message.session_id == session]


async def _one_in_each(scene: Scene) -> tuple[str, str]:
    """Divert messages of two sessions, so that each has a queue of its own; the sessions in the order of the queues."""
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


async def _hold(scene: Scene) -> Straggler:
    """Have session 'a' held: what was there is brought home, and another message has come meanwhile."""
    sender = await scene.sender(VISITS)
    scene.pair.engage()
    await sender.send(_visit("1", "a"))
    scene.pair.release()
    straggler = _order(scene).straggler(VISITS, "a")
    await until(lambda: straggler.mark is not None)
    await sender.send(_visit("2", "a"))
    await scene.bring_home(0, count=1)
    while straggler.held is None:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0.001)
    return straggler


def _go_on(straggler: Straggler) -> None:
    assert straggler.held is not None
    straggler.held.set_result(None)
    straggler.held = None


def _refuse_batch(world: PairWorld, which: int, *, is_primary: bool = False) -> None:
    """Let a namespace refuse one batch, counted from now, and take the others."""
    broker = (world.primary if is_primary else world.secondary).host.namespace
    send, came = broker.send, [0]

    def sometimes(address: Any, messages: Any, now_ms: int) -> Any:
        came[0] += 1
        if came[0] == which + 1:
            raise QuotaExceededError("the queue is full")
        return send(address, messages, now_ms)

    broker.send = sometimes  # type: ignore[method-assign]


def _deny_looks(world: PairWorld, index: int) -> None:
    def deny(operation: str, address: Address | None) -> str | None:
        return "it is busy" if operation == Operation.PEEK_MESSAGE and str(address) == backlog_path(index) else None

    world.secondary.host.deny = deny


def _allow_looks(world: PairWorld) -> None:
    world.secondary.host.deny = lambda *_: None


def _insider(world: PairWorld) -> MessagingFactory:
    """A client of the secondary that needs no road."""
    return world.factory_at(Endpoint(world.secondary.name, world.secondary.port, tls=False))


@contextmanager
def _slow_readers(gate: asyncio.Event) -> Iterator[None]:
    """Have readers wait between two receives, as those do that have no room."""
    turn = BacklogReader._turn

    async def slow(reader: BacklogReader) -> None:
        await gate.wait()
        await turn(reader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BacklogReader, "_turn", slow)
        yield


def _stumble(*_: object, **__: object) -> None:
    raise LookupError("a test wants it")


async def _syphon(scene: Scene) -> None:
    while True:
        await scene.bring_all_home()
        await asyncio.sleep(0.2)


async def _syphon_marked(scene: Scene) -> None:
    while True:
        await scene.bring_marked_home("live")
        await asyncio.sleep(0.2)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
