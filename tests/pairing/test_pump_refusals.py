"""What the syphon does with messages that are not taken: later, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

import pairbus.client.errors
from pairbus.broker import Address, AuthorizationRule, Right
from pairbus.client.errors import (
    ClosedError,
    EntityDisabledError,
    EntityNotFoundError,
    FactoryFaultedError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingError,
    PreconditionFailedError,
    QuotaExceededError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.dialect.transfer import PATH, SCHEDULED_ENQUEUE_TIME, SESSION_ID, TIME_TO_LIVE, divert
from pairbus.pairing.homecoming.delivery_rules import DELIVERY_RULES, Fate, fate_of
from tests.faults.trouble import Trouble
from tests.pairing.pumping import Pumping, queues
from tests.simulation.pair_world import PairWorld, run

ALL_ERRORS = [
    kind for kind in vars(pairbus.client.errors).values() if isinstance(kind, type) and issubclass(kind, MessagingError)
]


# The table.


@pytest.mark.parametrize("kind", [kind for kind in ALL_ERRORS if kind.transient])
def test_c15_what_passes_is_tried_again(kind: type[MessagingError]) -> None:
    assert fate_of(kind("it may pass")) is Fate.LATER


@pytest.mark.parametrize(
    ("kind", "fate"),
    [
        (QuotaExceededError, Fate.LATER),
        (EntityDisabledError, Fate.LATER),
        (UnauthorizedError, Fate.LATER),
        (ClosedError, Fate.LATER),
        (FactoryFaultedError, Fate.LATER),
        (EntityNotFoundError, Fate.NEVER),
        (MessageSizeExceededError, Fate.NEVER),
        (InvalidMessageError, Fate.NEVER),
        (InvalidRequestError, Fate.NEVER),
        (PreconditionFailedError, Fate.NEVER),
        (MessagingError, Fate.NEVER),
    ],
)
def test_c15_the_most_specific_class_decides(kind: type[MessagingError], fate: Fate) -> None:
    assert fate_of(kind("no")) is fate


def test_c15_an_error_that_is_told_to_be_transient_is_tried_again() -> None:
    assert fate_of(EntityNotFoundError("not yet", is_transient=True)) is Fate.LATER


def test_c15_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DELIVERY_RULES[MessagingError] = Fate.LATER  # type: ignore[index]


# Never.


def _raw(**properties: object) -> bytes:
    return encode_brokered(BrokeredMessage(b"x", message_id="bad", application_properties=properties))


@pytest.mark.parametrize(
    ("payload", "reason", "path"),
    [
        (_raw(colour="red"), "PairbusNoDestination", None),
        (_raw(**{PATH: 7}), "PairbusNoDestination", None),
        (_raw(**{PATH: ""}), "PairbusNoDestination", None),
        (_raw(**{PATH: "orders", SESSION_ID: 7}), "PairbusUnreadable", "orders"),
        (_raw(**{PATH: "orders", TIME_TO_LIVE: "long"}), "PairbusUnreadable", "orders"),
        (_raw(**{PATH: "orders", SCHEDULED_ENQUEUE_TIME: "soon"}), "PairbusUnreadable", "orders"),
        (_raw(**{PATH: "a//b"}), "PairbusInvalidDestination", "a//b"),
        (_raw(**{PATH: "/"}), "PairbusInvalidDestination", "/"),
        (_raw(**{PATH: "$cbs"}), "PairbusInvalidDestination", "$cbs"),
        (_raw(**{PATH: "orders/$management"}), "PairbusInvalidDestination", "orders/$management"),
        (_raw(**{PATH: "orders/$DeadLetterQueue"}), "PairbusInvalidDestination", "orders/$DeadLetterQueue"),
        (_raw(**{PATH: "news/Subscriptions/all"}), "PairbusInvalidDestination", "news/Subscriptions/all"),
        (divert(encode_brokered(BrokeredMessage(b"x", message_id="bad")), "gone"), "PairbusEntityNotFound", "gone"),
        (divert(encode_brokered(BrokeredMessage(b"x", message_id="bad")), "q" * 3_000), "", "q" * 3_000),
        (divert(encode_brokered(BrokeredMessage(b"x", message_id="bad")), "what?*\\\x00\ud7ff"), "", None),
    ],
)
def test_c15_what_can_never_be_delivered_is_dead_lettered_with_reason_path_and_error(
    payload: bytes, reason: str, path: str | None
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders")
        pumping.put_raw(payload)
        ids += pumping.put("orders")
        syphon = await pumping.started()
        await pumping.drained(5.0)
        assert pumping.home("orders") == ids
        (dead,) = pumping.dead()
        (event,) = pumping.dead_letters
        assert dead.message_id == event.message_id == "bad"
        assert dead.dead_letter_reason == event.reason
        assert dead.dead_letter_error_description == event.description
        assert event.reason == reason or not reason
        assert event.path == path or reason == ""
        assert event.backlog_queue == pumping.queues[0]
        shown = "".join(one if one.isprintable() else " " for one in event.path or "")
        assert shown[:500] in event.description
        assert syphon.status.dead_lettered == 1
        assert syphon.status.syphoned == 2
        await syphon.close()

    run(scenario)


def test_c15_one_message_of_a_batch_that_is_refused_does_not_take_the_others_with_it() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        pumping = Pumping(world)
        good = pumping.put("visits", 5, session_id="a")
        bad = pumping.put("visits", 2)  # nobody takes them without a session
        good += pumping.put("visits", 5, session_id="a")
        syphon = await pumping.started()
        await pumping.drained(5.0)
        assert pumping.home("visits") == good
        assert [str(dead.message_id) for dead in pumping.dead()] == bad
        assert all("visits" in event.description for event in pumping.dead_letters)
        await syphon.close()

    run(scenario)


def test_c15_a_message_too_large_for_its_destination_is_dead_lettered() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 2)
        big = encode_brokered(BrokeredMessage(bytes(100_000), message_id="big"))
        pumping.put_raw(divert(big, "orders"))
        ids += pumping.put("orders", 2)
        broker = world.primary.host.namespace
        broker._limits = replace(broker._limits, message_bytes=50_000)
        syphon = await pumping.started()
        await pumping.drained(5.0)
        assert pumping.home("orders") == ids
        (event,) = pumping.dead_letters
        assert event.reason == "PairbusMessageSizeExceeded"
        assert event.path == "orders"
        await syphon.close()

    run(scenario)


def test_c15_a_dead_letter_that_is_put_back_is_delivered_when_its_destination_is_there() -> None:
    async def scenario(world: PairWorld) -> None:
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        syphon = await pumping.started()
        await pumping.until(lambda: len(pumping.dead()) == 3, 5.0)
        queues(world.primary, "orders")
        factory = world.secondary_factory()
        receiver = await factory.create_message_receiver(f"{pumping.queues[0]}/$DeadLetterQueue")
        sender = await factory.create_message_sender(pumping.queues[0])
        for message in await receiver.receive(10):
            await sender.send(message)
            await receiver.complete(message)
        await pumping.drained(5.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


# Later.


def _disable(world: PairWorld) -> None:
    queues(world.primary, "orders")
    world.primary.disable("orders")


def _busy(world: PairWorld) -> None:
    queues(world.primary, "orders")
    world.primary.trouble_sends("orders", Trouble.BUSY)


def _lost(world: PairWorld) -> None:
    queues(world.primary, "orders")
    world.primary.trouble_sends("orders", Trouble.LOST)


def _unconfirmed(world: PairWorld) -> None:
    queues(world.primary, "orders", requires_duplicate_detection=True)
    world.primary.trouble_sends("orders", Trouble.UNCONFIRMED)


def _cure(world: PairWorld) -> None:
    world.primary.take_sends("orders")
    world.primary.enable("orders")


@pytest.mark.parametrize("trouble", [_disable, _busy, _lost, _unconfirmed])
def test_c15_what_its_destination_does_not_take_now_waits_in_the_backlog(
    trouble: Callable[[PairWorld], None],
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "others")
        trouble(world)
        pumping = Pumping(world)
        late = pumping.put("orders", 30)
        punctual = pumping.put("others", 30)
        syphon = await pumping.started()
        await pumping.until(lambda: pumping.home("others") == punctual, 20.0)
        await asyncio.sleep(120)
        assert [str(message.message_id) for message in pumping.left()] == late
        more = pumping.put("others", 30) + pumping.put("others", 30)
        await pumping.until(lambda: pumping.home("others") == punctual + more, 20.0)
        assert all(message.state is MessageState.DEFERRED for message in pumping.left())
        assert set(syphon.status.waiting) == {"orders"}
        _cure(world)
        await pumping.drained(70.0)
        assert pumping.home("orders") == late
        assert pumping.changes("orders") == [False, True]
        assert pumping.dead() == []
        await syphon.close()

    run(scenario)


def test_c15_a_destination_that_is_busy_is_left_alone_for_ten_seconds() -> None:
    async def scenario(world: PairWorld) -> None:
        _busy(world)
        pumping = Pumping(world)
        pumping.put("orders", 5)
        syphon = await pumping.started()
        await asyncio.sleep(300)
        tries = [at_s for at_s, _ in world.primary.denied]
        assert len(tries) > 4
        assert min(later - sooner for sooner, later in pairwise(tries)) >= 10.0
        await syphon.close()

    run(scenario)


def test_c15_a_destination_that_is_full_gets_the_rest_when_there_is_room() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        usage = world.primary.host.namespace._catalogue.queue(Address("orders")).usage
        usage.size_bytes += 2**30  # somebody has left that much in it
        pumping = Pumping(world)
        ids = pumping.put("orders", 20)
        syphon = await pumping.started()
        await pumping.until(lambda: isinstance(syphon.status.waiting.get("orders"), QuotaExceededError), 10.0)
        usage.size_bytes -= 2**30
        await pumping.drained(30.0)
        assert pumping.home("orders") == ids
        assert pumping.dead() == []
        await syphon.close()

    run(scenario)


def test_c15_a_key_that_may_not_send_is_no_reason_to_give_up() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        ids = pumping.put("orders", 3)
        key = world.primary.host.namespace
        listen = AuthorizationRule(name="root", rights=(Right.LISTEN,), primary_key="first", secondary_key="second")
        everything = AuthorizationRule(
            name="root",
            rights=(Right.MANAGE, Right.SEND, Right.LISTEN),
            primary_key="first",
            secondary_key="second",
        )
        key.set_authorization_rules([listen], world.primary.now_ms())
        syphon = await pumping.started()
        await pumping.until(lambda: isinstance(syphon.status.waiting.get("orders"), UnauthorizedError), 10.0)
        key.set_authorization_rules([everything], world.primary.now_ms())
        await pumping.drained(70.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_what_the_pair_holds_is_not_tried() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        pumping = Pumping(world)
        pumping.held.add("orders")
        late, punctual = pumping.put("orders", 10), pumping.put("others", 10)
        syphon = await pumping.started()
        await pumping.until(lambda: pumping.home("others") == punctual, 5.0)
        await asyncio.sleep(200)
        assert pumping.home("orders") == []
        assert set(syphon.status.waiting) == {"orders"}
        pumping.held.clear()
        assert await pumping.drained() <= 6.0
        assert pumping.home("orders") == late
        assert pumping.changes("orders") == [False, True]
        await syphon.close()

    run(scenario)


def test_c15_what_is_held_because_the_primary_is_away_is_not_parked() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        pumping = Pumping(world)
        syphon = await pumping.started()
        world.primary_road.refuse()
        pumping.held.add("orders")
        ids = pumping.put("orders", 300)
        await asyncio.sleep(300)
        assert all(message.state is MessageState.ACTIVE for message in pumping.left())
        world.primary_road.heal()
        await asyncio.sleep(60)
        assert pumping.home("orders") == []
        pumping.held.clear()
        await pumping.drained(30.0)
        assert pumping.home("orders") == ids
        await syphon.close()

    run(scenario)
