"""A6: batched operations: a transaction does all that it says, or nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.broker.address import Address
from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    EntityNotFoundError,
    InvalidMessageError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageSizeExceededError,
    QuotaExceededError,
    SessionRequiredError,
)
from pairbus.broker.limits import RELAXED
from pairbus.broker.operations import Operation, Send, Settle
from pairbus.broker.settlement import Disposition, Verdict
from pairbus.store import MemoryStore, StoreFullError
from tests.broker.broker import NOBODY, Broker, blob, dead, letter, reason, text, texts, transfers

MEGABYTE = 1024 * 1024
QUEUE = Address.of("queue")
OTHER = Address.of("other")
NOWHERE = Address.of("nowhere")


def transact(broker: Broker, *operations: Operation) -> list[list[int | None]]:
    return broker.namespace.transact(operations, broker.now_ms)


def lock(broker: Broker, address: Address) -> bytes:
    token = broker.one(address).lock_token
    assert token is not None
    return token


def test_a6_a_transaction_sends_and_settles_together() -> None:
    broker = Broker()
    broker.queue()
    broker.queue("other")
    broker.send(QUEUE, "a", "b", "c")
    complete, abandon, bury = (lock(broker, QUEUE) for _ in range(3))
    answers = transact(
        broker,
        Settle(QUEUE, complete),
        Send(OTHER, [letter("x"), letter("y")]),
        Settle(QUEUE, abandon, Verdict(disposition=Disposition.ABANDON)),
        Send(QUEUE, [letter("z")]),
        Settle(QUEUE, bury, Verdict(disposition=Disposition.DEAD_LETTER, reason="r")),
    )
    assert answers == [[], [1, 2], [], [4], []]
    assert broker.take(OTHER) == ["x", "y"]
    assert broker.take(QUEUE) == ["b", "z"]
    assert broker.take(dead(QUEUE)) == ["c"]


def test_a6_an_empty_transaction_does_nothing() -> None:
    assert transact(Broker()) == []


def test_a6_a_transaction_is_durable_as_a_whole() -> None:
    broker = Broker()
    broker.queue()
    broker.send(QUEUE, "a")
    broker.commit()
    transact(broker, Settle(QUEUE, lock(broker, QUEUE)), Send(QUEUE, [letter("b")]))
    broker.crash()
    assert texts(broker.peek(QUEUE)) == ["a"]
    transact(broker, Settle(QUEUE, lock(broker, QUEUE)), Send(QUEUE, [letter("b")]))
    broker.restart()
    assert texts(broker.peek(QUEUE)) == ["b"]


def large() -> Broker:
    """A namespace with every way to go wrong."""
    broker = Broker(RELAXED)
    broker.queue(requires_duplicate_detection=True)
    broker.queue("other")
    broker.queue("full", max_size_megabytes=1)
    broker.send(Address.of("full"), blob(MEGABYTE))
    broker.queue("disabled", status=EntityStatus.SEND_DISABLED)
    broker.queue("sessions", requires_session=True)
    broker.queue("small", max_message_bytes=10)
    broker.topic()
    broker.subscription()
    broker.send(OTHER, "locked", "buried")
    broker.dead_letter(OTHER, broker.receive(OTHER)[1])
    broker.wait(60_000)  # the lock has ended
    return broker


BAD: dict[str, tuple[Callable[[Broker], Operation], type[BrokerError]]] = {
    "no such entity": (lambda _: Send(NOWHERE, [letter("x")]), EntityNotFoundError),
    "disabled": (lambda _: Send(Address.of("disabled"), [letter("x")]), EntityDisabledError),
    "full": (lambda _: Send(Address.of("full"), [letter("x")]), QuotaExceededError),
    "too large": (lambda _: Send(Address.of("small"), [blob(11)]), MessageSizeExceededError),
    "batch too large": (lambda _: Send(OTHER, 2 * [blob(60 * MEGABYTE)]), MessageSizeExceededError),
    "no session id": (lambda _: Send(Address.of("sessions"), [letter("x")]), SessionRequiredError),
    "bad id": (lambda _: Send(OTHER, [letter("x", message_id="m" * 129)]), InvalidMessageError),
    "a subscription": (lambda _: Send(Address.of("topic", "sub"), [letter("x")]), InvalidOperationError),
    "dead letters": (lambda _: Send(dead(OTHER), [letter("x")]), InvalidOperationError),
    "via nothing": (lambda _: Send(OTHER, [letter("x")], via=NOWHERE), EntityNotFoundError),
    "via a topic": (lambda _: Send(OTHER, [letter("x")], via=Address.of("topic")), InvalidOperationError),
    "no lock": (lambda _: Settle(OTHER, NOBODY), LockLostError),
    "no queue": (lambda _: Settle(NOWHERE, NOBODY), EntityNotFoundError),
    "dead-letter twice": (
        lambda broker: Settle(dead(OTHER), lock(broker, dead(OTHER)), Verdict(disposition=Disposition.DEAD_LETTER)),
        InvalidOperationError,
    ),
    "too many": (lambda _: Send(OTHER, [letter("x")] * 10_000), InvalidRequestError),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a6_one_bad_member_and_nothing_happens(bad: str, first: bool) -> None:
    broker = large()
    make, expected = BAD[bad]
    wrong = make(broker)
    good: list[Operation] = [Send(QUEUE, [letter("good", message_id="m")]), Settle(OTHER, lock(broker, OTHER))]
    before = broker.namespace.queues(broker.now_ms)
    with pytest.raises(expected):
        transact(broker, *([wrong, *good] if first else [*good, wrong]))
    assert broker.namespace.queues(broker.now_ms) == before
    transact(broker, *good)  # the lock still holds, and the id is not known
    assert texts(broker.peek(QUEUE)) == ["good"]


def test_a6_a_transaction_settles_a_message_once() -> None:
    broker = Broker()
    broker.queue()
    broker.send(QUEUE, "x")
    token = lock(broker, QUEUE)
    with pytest.raises(LockLostError):
        transact(broker, Settle(QUEUE, token, Verdict(disposition=Disposition.ABANDON)), Settle(QUEUE, token))
    broker.namespace.settle(QUEUE, token, broker.now_ms)


def test_a6_the_members_of_a_transaction_share_the_room_of_an_entity() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    half = blob(MEGABYTE // 2)
    with pytest.raises(QuotaExceededError):
        transact(broker, Send(queue, [half]), Send(queue, [half]), Send(queue, [blob(1)]))
    assert broker.info(queue).size_bytes == 0
    transact(broker, Send(queue, [half]), Send(queue, [half]))
    assert broker.info(queue).size_bytes == MEGABYTE


def test_a6_what_a_transaction_settles_makes_no_room_for_what_it_sends() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE))
    token = lock(broker, queue)
    with pytest.raises(QuotaExceededError):
        transact(broker, Settle(queue, token), Send(queue, [blob(1)]))
    broker.namespace.settle(queue, token, broker.now_ms)


def test_a6_a_transaction_that_the_store_has_no_room_for_changes_nothing() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "x")
    broker.commit()
    token = lock(broker, QUEUE)
    store.max_bytes = 1_000_000
    with pytest.raises(StoreFullError):
        transact(broker, Settle(QUEUE, token), Send(QUEUE, [letter("y")]))
    transact(broker, Settle(QUEUE, token))
    assert broker.info(QUEUE).message_count == 0


# Sending via another entity


def test_a6_a_message_sent_via_an_entity_arrives_at_its_destination() -> None:
    broker = Broker()
    via, target = broker.queue("via"), broker.queue("target")
    transact(broker, Send(target, [letter("x")], via=via))
    assert broker.take(target) == ["x"]
    assert broker.info(via).message_count == 0


@pytest.mark.parametrize(
    ("obstacle", "expected"),
    [
        ("missing", "DestinationNotFound"),
        ("disabled", "DestinationDisabled"),
        ("full", "DestinationQuotaExceeded"),
    ],
)
def test_a6_what_cannot_be_transferred_lies_among_the_failed_transfers(obstacle: str, expected: str) -> None:
    broker = Broker(RELAXED)
    via = broker.queue("via")
    target = Address.of("target")
    if obstacle != "missing":
        status = EntityStatus.DISABLED if obstacle == "disabled" else EntityStatus.ACTIVE
        broker.queue("target", max_size_megabytes=1, status=status)
    if obstacle == "full":
        broker.send(target, blob(MEGABYTE))
    transact(broker, Send(target, [letter("x")], via=via))
    assert (broker.info(via).transfer_dead_letter_count, broker.info(via).dead_letter_count) == (1, 0)
    broker.restart()
    (failed,) = broker.receive(transfers(via))
    assert (text(failed), reason(failed)) == ("x", expected)


def test_a6_failed_transfers_are_settled_but_not_dead_lettered_again() -> None:
    broker = Broker()
    via = broker.queue("via")
    transact(broker, Send(NOWHERE, [letter("x")], via=via))
    delivery = broker.one(transfers(via))
    with pytest.raises(InvalidOperationError):
        broker.dead_letter(transfers(via), delivery)
    broker.complete(transfers(via), delivery)
    assert (broker.info(via).message_count, broker.info(via).size_bytes) == (0, 0)
