"""Failover of an entity: which errors count, when it engages, and what happens to waiting sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from pairbus.broker import STANDARD, AuthorizationRule, BrokerError, QueueDescription, Right
from pairbus.client.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.sender import MessageSender
from pairbus.client.settings import NO_RETRY
from pairbus.pairing import FAILURE_RULES, EntityState, FailureVerdict
from tests.faults.fault import Fault, Kind, Way
from tests.faults.trouble import Trouble
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    OTHERS,
    OUTAGES,
    Scene,
    begin,
    letter,
    letters,
    paired,
    seconds,
    set_limits,
    texts,
    took,
    until,
)
from tests.simulation.pair_world import PairWorld, run

MOMENT_S: Final = 0.1
LONG: Final = {"operation_timeout": seconds(300)}

Send = Callable[[MessageSender], Any]
KINDS: Final[Mapping[str, Send]] = {
    "a message": lambda sender: sender.send(letter("0")),
    "a list": lambda sender: sender.send(letters(3)),
    "a batch": lambda sender: sender.send_batch(letters(3)),
}


# C6: errors that count.


@pytest.mark.parametrize("is_known", [True, False], ids=["connected", "new"])
@pytest.mark.parametrize("what", OUTAGES)
def test_c6_unreachable_primary_diverts_the_first_message(what: str, is_known: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        if is_known:
            await sender.send(letter("first"))
        await scene.spoil(what)
        assert await took(sender.send(letter("lost"))) < ATTEMPT_S + MOMENT_S
        assert scene.state() is EntityState.FAILED_OVER
        assert isinstance(scene.entity().cause, MessagingCommunicationError | MessagingTimeoutError)
        assert await scene.bodies() == [b"lost"]

    run(scenario)


def test_c6_connection_reset_during_a_send_counts_although_the_next_would_work() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.primary_network.apply(Fault(kind=Kind.STALL, way=Way.UP))
        sending = begin(sender.send(letter("lost")))
        await asyncio.sleep(1)
        world.primary_network.cut()
        assert await took(_done(sending)) < MOMENT_S
        assert await scene.bodies() == [b"lost"]
        assert await scene.delivered() == [b"first"]

    run(scenario)


def test_c6_cleanly_closed_connection_counts() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        world.primary.trouble_sends(ORDERS, Trouble.LOST)
        sending = begin(sender.send(letter("lost")))
        await asyncio.sleep(1)
        world.primary_network.apply(Fault(kind=Kind.CLOSE))
        assert await took(_done(sending)) < MOMENT_S
        assert await scene.bodies() == [b"lost"]

    run(scenario)


@pytest.mark.parametrize("trouble", [Trouble.LOST, Trouble.UNCONFIRMED])
def test_c6_missing_response_within_the_attempt_timeout_counts(trouble: Trouble) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        await sender.send(letter("first"))
        world.primary.trouble_sends(ORDERS, trouble)
        assert ATTEMPT_S <= await took(sender.send(letter("hanging"))) < ATTEMPT_S + MOMENT_S
        await other.send(letter("fine"))
        assert scene.state() is EntityState.FAILED_OVER
        assert scene.state(OTHERS) is EntityState.HEALTHY
        assert await scene.bodies() == [b"hanging"]
        accepted = [b"hanging"] if trouble is Trouble.UNCONFIRMED else []  # unknown to the sender: at least once
        assert await scene.delivered() == [b"first", *accepted]

    run(scenario)


@pytest.mark.parametrize("attempt_s", [0.5, 20.0])
def test_c6_attempt_timeout_is_an_option(attempt_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, attempt_timeout=seconds(attempt_s))
        sender = await scene.sender()
        world.primary.trouble_sends(ORDERS, Trouble.LOST)
        assert attempt_s <= await took(sender.send(letter())) < attempt_s + MOMENT_S

    run(scenario)


@pytest.mark.parametrize("is_known", [True, False], ids=["connected", "new"])
def test_c6_disabled_entity_counts(is_known: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        if is_known:
            await sender.send(letter("first"))
        world.primary.disable(ORDERS)
        assert await took(sender.send(letter("lost"))) < MOMENT_S
        assert isinstance(scene.entity().cause, EntityDisabledError)
        assert await scene.bodies() == [b"lost"]

    run(scenario)


def test_c6_full_entity_counts() -> None:
    async def scenario(world: PairWorld) -> None:
        set_limits(world.primary, replace(STANDARD, entity_megabytes=()))
        world.primary.create_queue(ORDERS, QueueDescription(max_size_megabytes=1))
        scene = await paired(world)
        sender = await scene.sender()
        for _ in range(5):
            await sender.send(BrokeredMessage(bytes(200_000)))
        scene.events.clear()
        assert await took(sender.send(BrokeredMessage(bytes(200_000)))) < MOMENT_S
        assert scene.state() is EntityState.FAILED_OVER
        assert len(await scene.backlog()) == 1

    run(scenario)


def test_c6_transient_error_counts_if_it_is_the_last_of_a_send() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, factory=world.primary_factory(operation_timeout=seconds(20)))
        sender = await scene.sender()
        _break_down(world)
        began_s = scene.now_s
        await sender.send(letter("lost"))
        assert 10 < scene.now_s - began_s < 20 + MOMENT_S
        assert scene.entity().failures == 1
        assert await scene.bodies() == [b"lost"]

    run(scenario)


def test_c6_transient_error_that_passes_does_not_count() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender = await scene.sender()
        mend = _break_down(world)
        sending = begin(sender.send(letter("late")))
        await asyncio.sleep(10)
        mend()
        await sending
        assert not scene.changes
        assert await scene.delivered() == [b"late"]

    run(scenario)


def test_c6_sends_with_a_zero_interval_never_raise_lose_or_duplicate() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        senders = [await scene.sender() for _ in range(5)]
        await senders[0].send(letter("first"))
        world.primary_network.refuse()
        work = [sender.send(letter(f"{number}-{turn}")) for number, sender in enumerate(senders) for turn in range(20)]
        await asyncio.gather(*work, *(sender.send(letters(10)) for sender in senders))
        expected = [b"%d-%d" % (number, turn) for number in range(5) for turn in range(20)] + 5 * texts(10)
        assert sorted(await scene.bodies()) == sorted(expected)
        assert await scene.delivered() == [b"first"]

    run(scenario)


# C6: the failover interval.


@pytest.mark.parametrize("what", ["refuse", "hide"])
def test_c6_failover_engages_at_the_end_of_the_interval(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60, factory=world.primary_factory(**LONG))
        sender = await scene.sender()
        await sender.send(letter("first"))
        await asyncio.sleep(7)
        await scene.spoil(what)
        sending = begin(sender.send(letter("lost")))
        await sending
        (failing_s, *failing), (over_s, *over) = scene.changes
        assert (failing, over) == ([ORDERS, EntityState.FAILING], [ORDERS, EntityState.FAILED_OVER])
        assert over_s - failing_s == pytest.approx(60)
        assert scene.now_s - over_s < MOMENT_S
        assert await scene.bodies() == [b"lost"]

    run(scenario)


def test_c6_interval_runs_without_further_attempts() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60, factory=world.primary_factory(operation_timeout=seconds(2)))
        sender = await scene.sender()
        world.primary_network.refuse()
        with pytest.raises(MessagingTimeoutError):
            await sender.send(letter("raised"))
        await asyncio.sleep(56)
        assert scene.state() is EntityState.FAILING
        await asyncio.sleep(4)
        assert scene.state() is EntityState.FAILED_OVER
        assert await took(sender.send(letter("diverted"))) < MOMENT_S
        assert await scene.bodies() == [b"diverted"]

    run(scenario)


def test_c6_hanging_attempt_counts_from_its_timeout() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=30, factory=world.primary_factory(**LONG))
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.primary_network.stall()
        assert await took(sender.send(letter("lost"))) == pytest.approx(ATTEMPT_S + 30, abs=MOMENT_S)

    run(scenario)


def test_c6_success_stops_the_timer() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60, factory=world.primary_factory(**LONG))
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.primary_network.refuse()
        sending = begin(sender.send(letter("late")))
        await asyncio.sleep(50)
        await scene.heal()
        await sending
        assert [state for _, _, state in scene.changes] == [EntityState.FAILING, EntityState.HEALTHY]
        await asyncio.sleep(100)
        assert scene.state() is EntityState.HEALTHY
        world.primary_network.refuse()  # the next failure restarts the timer
        began_s = scene.now_s
        await sender.send(letter("lost"))
        assert scene.now_s - began_s == pytest.approx(60, abs=MOMENT_S)
        assert await scene.bodies() == [b"lost"]

    run(scenario)


def test_c6_success_of_another_sender_stops_the_timer() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60)
        sender, other = await scene.sender(), await scene.sender("Orders")
        await sender.send(letter("first"))
        world.primary_network.cut()
        world.primary_network.refuse()
        sending = begin(sender.send(letter("a")))
        await asyncio.sleep(1)
        assert scene.state() is EntityState.FAILING
        await scene.heal()
        await other.send(letter("b"))
        assert scene.state() is EntityState.HEALTHY
        await sending

    run(scenario)


def test_c6_late_confirmation_does_not_undo_a_failover() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=3, factory=world.primary_factory(**LONG))
        sender = await scene.sender()
        await sender.send(letter("first"))
        world.primary.trouble_sends(ORDERS, Trouble.LOST)
        hanging = begin(sender.send(letter("hanging")))
        await asyncio.sleep(7.9)
        world.primary.take_sends(ORDERS)
        world.primary_network.stall(Way.DOWN)
        late = begin(sender.send(letter("late")))
        await asyncio.sleep(0.2)
        assert scene.state() is EntityState.FAILED_OVER
        world.primary_network.heal()
        await asyncio.gather(hanging, late)
        await asyncio.sleep(1)
        assert scene.state() is EntityState.FAILED_OVER
        assert {b"hanging", b"late"} == {*await scene.bodies()}

    run(scenario)


def test_c6_failover_is_per_entity() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        world.primary.disable(ORDERS)
        for number in range(5):
            await asyncio.gather(sender.send(letter(f"diverted {number}")), other.send(letter(str(number))))
        assert {path for _, path, _ in scene.changes} == {ORDERS}
        assert scene.state(OTHERS) is EntityState.HEALTHY
        assert await scene.delivered(OTHERS) == texts(5)
        assert len(await scene.bodies()) == 5

    run(scenario)


def test_c6_unused_entity_stays_healthy_although_the_primary_is_down() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        world.primary_network.refuse()
        await sender.send(letter())
        assert scene.state(OTHERS) is EntityState.HEALTHY
        await other.send(letter())
        assert scene.state(OTHERS) is EntityState.FAILED_OVER

    run(scenario)


def test_c6_working_entity_is_not_diverted_because_another_hangs() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender(OTHERS)
        await sender.send(letter("first"))
        await other.send(letter("first"))
        world.primary.trouble_sends(ORDERS, Trouble.LOST)
        hanging = begin(sender.send(letter("hanging")))
        await asyncio.sleep(ATTEMPT_S - 1.0)
        await other.send(letter("fine"))
        await hanging
        assert scene.state(OTHERS) is EntityState.HEALTHY
        assert await scene.bodies() == [b"hanging"]

    run(scenario)


def test_c6_factory_without_retries_diverts() -> None:
    async def scenario(world: PairWorld) -> None:
        for is_known in (True, False):
            scene = await paired(world, factory=world.primary_factory(retry_policy=NO_RETRY))
            sender = await scene.sender()
            if is_known:
                await sender.send(letter("first"))
            world.primary_network.refuse()
            await sender.send(letter("lost"))
            await sender.send(letters(3))
            assert scene.state() is EntityState.FAILED_OVER
            await scene.heal()
        assert len(await scene.bodies()) == 8

    run(scenario)


# C7: errors that do not count.


def test_c7_busy_primary_is_retried_after_10_seconds() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        senders = [await scene.sender() for _ in range(3)]
        world.primary.trouble_sends(ORDERS, Trouble.BUSY)
        sending = [begin(sender.send(letter(str(number)))) for number, sender in enumerate(senders)]
        await asyncio.sleep(25)
        world.primary.take_sends(ORDERS)
        await asyncio.gather(*sending)
        times_s = [at_s for at_s, _ in world.primary.denied]
        assert len(times_s) == 9  # each of three at once, and twice more, ten seconds apart
        assert all(later - earlier >= 10 for earlier, later in zip(times_s, times_s[3:], strict=False))
        assert not scene.changes
        assert sorted(await scene.delivered()) == texts(3)
        assert not await scene.backlog()

    run(scenario)


def test_c7_primary_that_stays_busy_raises_and_never_fails_over() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, factory=world.primary_factory(operation_timeout=seconds(30)))
        sender = await scene.sender()
        world.primary.busy_until_s = 1_000.0
        began_s = scene.now_s
        with pytest.raises(ServerBusyError):
            await sender.send(letter())
        assert scene.now_s - began_s <= 30
        assert not scene.changes
        assert not await scene.backlog()

    run(scenario)


@pytest.mark.parametrize("is_failing", [False, True])
def test_c7_wrong_key_raises_at_once(is_failing: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60)
        rule = AuthorizationRule(name="root", rights=(Right.LISTEN,), primary_key="other", secondary_key="others")
        sender = await scene.sender()
        if is_failing:
            world.primary_network.refuse()
            sending = begin(sender.send(letter()))
            await asyncio.sleep(1)
            sending.cancel()
            await scene.heal()
        world.primary.call(lambda namespace, now_ms: namespace.set_authorization_rules([rule], now_ms))
        await _raises_at_once(scene, sender.send(letter()), UnauthorizedError, failing=is_failing)

    run(scenario)


def test_c7_missing_entity_raises_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, gone = await scene.sender("nowhere"), await scene.sender()
        await _raises_at_once(scene, sender.send(letter()), EntityNotFoundError)
        await gone.send(letter())
        world.primary.delete(ORDERS)
        await _raises_at_once(scene, gone.send(letter()), EntityNotFoundError)
        await _raises_at_once(scene, gone.send(letter()), EntityNotFoundError)

    run(scenario)


def test_c7_message_errors_raise_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("visits", QueueDescription(requires_session=True))
        scene = await paired(world)
        sender, visits = await scene.sender(), await scene.sender("visits")
        await _raises_at_once(scene, sender.send(BrokeredMessage(bytes(300_000))), MessageSizeExceededError)
        await _raises_at_once(scene, sender.send(BrokeredMessage(b"", label=7)), InvalidMessageError)  # type: ignore[arg-type]
        await _raises_at_once(scene, sender.send(BrokeredMessage(message_id="m" * 200)), InvalidMessageError)
        await _raises_at_once(scene, visits.send(letter()), InvalidRequestError)
        await _raises_at_once(scene, visits.send(letters(3)), InvalidRequestError)

    run(scenario)


def test_c7_custom_rules_can_count_busy() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, failure_rules={**FAILURE_RULES, ServerBusyError: FailureVerdict.COUNTS})
        sender = await scene.sender()
        world.primary.trouble_sends(ORDERS, Trouble.BUSY)
        assert await took(sender.send(letter("busy"))) < MOMENT_S
        assert await scene.bodies() == [b"busy"]

    run(scenario)


def test_c7_custom_rules_can_count_a_missing_entity() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, failure_rules={**FAILURE_RULES, EntityNotFoundError: FailureVerdict.COUNTS})
        sender = await scene.sender("not yet")
        await sender.send(letter("early"))
        assert scene.state("not yet") is EntityState.FAILED_OVER
        assert await scene.bodies() == [b"early"]

    run(scenario)


def test_c7_custom_rules_can_ignore_outages() -> None:
    async def scenario(world: PairWorld) -> None:
        rules = {MessagingError: FailureVerdict.IGNORED, EntityDisabledError: FailureVerdict.COUNTS}
        scene = await paired(world, failure_rules=rules, factory=world.primary_factory(operation_timeout=seconds(20)))
        sender = await scene.sender()
        world.primary_network.refuse()
        with pytest.raises(MessagingTimeoutError):
            await sender.send(letter("lost"))
        assert not scene.changes
        await scene.heal()
        world.primary.disable(ORDERS)
        await sender.send(letter("diverted"))
        assert await scene.bodies() == [b"diverted"]

    run(scenario)


# C8: waiting sends.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["refuse", "stall", "stall down", "disable"])
def test_c8_failing_send_is_retried_until_its_timeout_and_raises_before_failover(what: str, kind: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=60, factory=world.primary_factory(operation_timeout=seconds(20)))
        sender = await scene.sender()
        if what == "disable":
            world.primary.disable(ORDERS)
        else:
            await scene.spoil(what)
        began_s = scene.now_s
        with pytest.raises(MessagingError) as caught:
            await KINDS[kind](sender)
        assert isinstance(caught.value, EntityDisabledError if what == "disable" else MessagingTimeoutError)
        assert caught.value.entity == ORDERS
        assert 10 < scene.now_s - began_s <= 20 + MOMENT_S
        assert scene.entity().failures >= 2
        assert scene.state() is EntityState.FAILING
        assert not await scene.backlog()

    run(scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["refuse", "hide", "stall", "drop", "disable", "hang"])
def test_c8_waiting_send_is_diverted_at_once_when_failover_engages(what: str, kind: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=31, factory=world.primary_factory(**LONG))
        sender, second = await scene.sender(), await scene.sender()
        await sender.send(letter("first"))
        match what:
            case "disable":
                world.primary.disable(ORDERS)
            case "hang":
                world.primary.trouble_sends(ORDERS, Trouble.LOST)
            case _:
                await scene.spoil(what)
        sending = [begin(KINDS[kind](sender)), begin(KINDS[kind](second))]
        for _ in range(8):  # some wait for a retry, some for a link, some for a response
            await asyncio.sleep(4.3)
            sending += [begin(KINDS[kind](sender)), begin(KINDS[kind](second))]
        await until(lambda: scene.state() is EntityState.FAILED_OVER)
        await until(lambda: all(task.done() for task in sending), within_s=MOMENT_S)
        await asyncio.gather(*sending)
        each = 1 if kind == "a message" else 3
        assert sorted(await scene.bodies()) == sorted(len(sending) * texts(each))

    run(scenario)


def test_c8_send_in_its_busy_pause_is_diverted_when_failover_engages() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        sender, other = await scene.sender(), await scene.sender()
        world.primary.trouble_sends(ORDERS, Trouble.BUSY)
        sending = begin(sender.send(letter("busy")))
        await asyncio.sleep(2)
        world.primary_network.refuse()
        await asyncio.sleep(1)
        await other.send(letter("other"))
        assert await took(_done(sending)) < MOMENT_S
        assert sorted(await scene.bodies()) == [b"busy", b"other"]

    run(scenario)


def test_c8_send_near_its_timeout_is_diverted_when_failover_engages() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, interval_s=19, factory=world.primary_factory(operation_timeout=seconds(20)))
        sender = await scene.sender()
        world.primary_network.refuse()
        world.secondary_network.stall()
        sending = begin(sender.send(letter("late")))
        await asyncio.sleep(21)
        world.secondary_network.heal()
        await sending
        assert await scene.bodies() == [b"late"]

    run(scenario)


# Helpers.


async def _done(task: asyncio.Task[Any]) -> None:
    await task


async def _raises_at_once(scene: Scene, work: Any, error: type[MessagingError], *, failing: bool = False) -> None:
    began_s = scene.now_s
    with pytest.raises(error):
        await work
    assert scene.now_s - began_s < MOMENT_S
    assert [state for _, _, state in scene.changes] == ([EntityState.FAILING] if failing else [])
    assert not await scene.backlog()


def _break_down(world: PairWorld) -> Callable[[], None]:
    """Let the primary fail with an internal error for every message; return the function that ends that."""
    broker = world.primary.host.use_namespace()
    send = broker.send

    def fail(*_: object) -> list[int | None]:
        raise BrokerError("the test wants this", ORDERS)

    broker.send = fail  # type: ignore[method-assign, assignment]

    def mend() -> None:
        broker.send = send  # type: ignore[method-assign]

    return mend
