"""Messages that their destination does not accept: retried later, or dead-lettered."""

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
from pairbus.pairing.syphon.delivery import DELIVERY_RULES, RetryDecision, retry_decision
from tests.faults.trouble import Trouble
from tests.pairing.syphon_fixture import SyphonFixture, queues
from tests.simulation.pair_world import PairWorld, run

ALL_ERRORS = [
    kind for kind in vars(pairbus.client.errors).values() if isinstance(kind, type) and issubclass(kind, MessagingError)
]


# The delivery rules.


@pytest.mark.parametrize("kind", [kind for kind in ALL_ERRORS if kind.transient])
def test_c15_transient_errors_are_retried(kind: type[MessagingError]) -> None:
    assert retry_decision(kind("it may pass")) is RetryDecision.LATER


@pytest.mark.parametrize(
    ("kind", "decision"),
    [
        (QuotaExceededError, RetryDecision.LATER),
        (EntityDisabledError, RetryDecision.LATER),
        (UnauthorizedError, RetryDecision.LATER),
        (ClosedError, RetryDecision.LATER),
        (FactoryFaultedError, RetryDecision.LATER),
        (EntityNotFoundError, RetryDecision.NEVER),
        (MessageSizeExceededError, RetryDecision.NEVER),
        (InvalidMessageError, RetryDecision.NEVER),
        (InvalidRequestError, RetryDecision.NEVER),
        (PreconditionFailedError, RetryDecision.NEVER),
        (MessagingError, RetryDecision.NEVER),
    ],
)
def test_c15_most_specific_class_decides(kind: type[MessagingError], decision: RetryDecision) -> None:
    assert retry_decision(kind("no")) is decision


def test_c15_error_marked_as_transient_is_retried() -> None:
    assert retry_decision(EntityNotFoundError("not yet", is_transient=True)) is RetryDecision.LATER


def test_c15_delivery_rules_are_immutable() -> None:
    with pytest.raises(TypeError):
        DELIVERY_RULES[MessagingError] = RetryDecision.LATER  # type: ignore[index]


# Dead letters.


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
def test_c15_undeliverable_message_is_dead_lettered_with_reason_path_and_error(
    payload: bytes, reason: str, path: str | None
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders")
        fixture.put_raw(payload)
        ids += fixture.put("orders")
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert fixture.delivered("orders") == ids
        (dead,) = fixture.dead()
        (event,) = fixture.dead_letters
        assert dead.message_id == event.message_id == "bad"
        assert dead.dead_letter_reason == event.reason
        assert dead.dead_letter_error_description == event.description
        assert event.reason == reason or not reason
        assert event.path == path or reason == ""
        assert event.backlog_queue == fixture.queues[0]
        shown = "".join(one if one.isprintable() else " " for one in event.path or "")
        assert shown[:500] in event.description
        assert syphon.status.dead_lettered == 1
        assert syphon.status.syphoned == 2
        await syphon.close()

    run(scenario)


def test_c15_rejected_message_does_not_affect_the_others_of_its_batch() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "visits", requires_session=True)
        fixture = SyphonFixture(world)
        good = fixture.put("visits", 5, session_id="a")
        bad = fixture.put("visits", 2)  # rejected, as they have no session
        good += fixture.put("visits", 5, session_id="a")
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert fixture.delivered("visits") == good
        assert [str(dead.message_id) for dead in fixture.dead()] == bad
        assert all("visits" in event.description for event in fixture.dead_letters)
        await syphon.close()

    run(scenario)


def test_c15_message_too_large_for_its_destination_is_dead_lettered() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 2)
        big = encode_brokered(BrokeredMessage(bytes(100_000), message_id="big"))
        fixture.put_raw(divert(big, "orders"))
        ids += fixture.put("orders", 2)
        broker = world.primary.host.use_namespace()
        broker._limits = replace(broker._limits, message_bytes=50_000)
        syphon = await fixture.started()
        await fixture.drained(5.0)
        assert fixture.delivered("orders") == ids
        (event,) = fixture.dead_letters
        assert event.reason == "PairbusMessageSizeExceeded"
        assert event.path == "orders"
        await syphon.close()

    run(scenario)


def test_c15_resubmitted_dead_letter_is_delivered_once_its_destination_exists() -> None:
    async def scenario(world: PairWorld) -> None:
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        syphon = await fixture.started()
        await fixture.until(lambda: len(fixture.dead()) == 3, 5.0)
        queues(world.primary, "orders")
        factory = world.secondary_factory()
        receiver = await factory.create_message_receiver(f"{fixture.queues[0]}/$DeadLetterQueue")
        sender = await factory.create_message_sender(fixture.queues[0])
        for message in await receiver.receive(10):
            await sender.send(message)
            await receiver.complete(message)
        await fixture.drained(5.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


# Retries.


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
def test_c15_temporarily_rejected_message_waits_in_the_backlog(
    trouble: Callable[[PairWorld], None],
) -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "others")
        trouble(world)
        fixture = SyphonFixture(world)
        late = fixture.put("orders", 30)
        punctual = fixture.put("others", 30)
        syphon = await fixture.started()
        await fixture.until(lambda: fixture.delivered("others") == punctual, 20.0)
        await asyncio.sleep(120)
        assert [str(message.message_id) for message in fixture.left()] == late
        more = fixture.put("others", 30) + fixture.put("others", 30)
        await fixture.until(lambda: fixture.delivered("others") == punctual + more, 20.0)
        assert all(message.state is MessageState.DEFERRED for message in fixture.left())
        assert set(syphon.status.waiting) == {"orders"}
        _cure(world)
        await fixture.drained(70.0)
        assert fixture.delivered("orders") == late
        assert fixture.changes("orders") == [False, True]
        assert fixture.dead() == []
        await syphon.close()

    run(scenario)


def test_c15_busy_destination_is_retried_after_ten_seconds() -> None:
    async def scenario(world: PairWorld) -> None:
        _busy(world)
        fixture = SyphonFixture(world)
        fixture.put("orders", 5)
        syphon = await fixture.started()
        await asyncio.sleep(300)
        tries = [at_s for at_s, _ in world.primary.denied]
        assert len(tries) > 4
        assert min(later - sooner for sooner, later in pairwise(tries)) >= 10.0
        await syphon.close()

    run(scenario)


def test_c15_full_destination_gets_the_rest_when_it_has_room() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        usage = world.primary.host.use_namespace()._catalogue.queue(Address("orders")).usage
        usage.size_bytes += 2**30  # other messages fill the queue
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 20)
        syphon = await fixture.started()
        await fixture.until(lambda: isinstance(syphon.status.waiting.get("orders"), QuotaExceededError), 10.0)
        usage.size_bytes -= 2**30
        await fixture.drained(30.0)
        assert fixture.delivered("orders") == ids
        assert fixture.dead() == []
        await syphon.close()

    run(scenario)


def test_c15_key_without_send_is_retried() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        ids = fixture.put("orders", 3)
        key = world.primary.host.use_namespace()
        listen = AuthorizationRule(name="root", rights=(Right.LISTEN,), primary_key="first", secondary_key="second")
        everything = AuthorizationRule(
            name="root",
            rights=(Right.MANAGE, Right.SEND, Right.LISTEN),
            primary_key="first",
            secondary_key="second",
        )
        key.set_authorization_rules([listen], world.primary.now_ms())
        syphon = await fixture.started()
        await fixture.until(lambda: isinstance(syphon.status.waiting.get("orders"), UnauthorizedError), 10.0)
        key.set_authorization_rules([everything], world.primary.now_ms())
        await fixture.drained(70.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)


def test_c15_held_destination_is_not_tried() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders", "others")
        fixture = SyphonFixture(world)
        fixture.held.add("orders")
        late, punctual = fixture.put("orders", 10), fixture.put("others", 10)
        syphon = await fixture.started()
        await fixture.until(lambda: fixture.delivered("others") == punctual, 5.0)
        await asyncio.sleep(200)
        assert fixture.delivered("orders") == []
        assert set(syphon.status.waiting) == {"orders"}
        fixture.held.clear()
        assert await fixture.drained() <= 6.0
        assert fixture.delivered("orders") == late
        assert fixture.changes("orders") == [False, True]
        await syphon.close()

    run(scenario)


def test_c15_messages_held_because_the_primary_is_unreachable_are_not_parked() -> None:
    async def scenario(world: PairWorld) -> None:
        queues(world.primary, "orders")
        fixture = SyphonFixture(world)
        syphon = await fixture.started()
        world.primary_network.refuse()
        fixture.held.add("orders")
        ids = fixture.put("orders", 300)
        await asyncio.sleep(300)
        assert all(message.state is MessageState.ACTIVE for message in fixture.left())
        world.primary_network.heal()
        await asyncio.sleep(60)
        assert fixture.delivered("orders") == []
        fixture.held.clear()
        await fixture.drained(30.0)
        assert fixture.delivered("orders") == ids
        await syphon.close()

    run(scenario)
