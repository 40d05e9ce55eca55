"""A6: batched operations: a transaction is executed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.broker import SettlementKind, SettlementRequest
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
from pairbus.broker.message import Address
from pairbus.broker.transaction import SendOperation, SettleOperation, TransactionOperation
from pairbus.store import MemoryStore, StoreFullError
from tests.broker.broker import UNKNOWN_TOKEN, Broker, blob, dead, letter, reason, text, texts, transfers

MEGABYTE = 1024 * 1024
QUEUE = Address.of("queue")
OTHER = Address.of("other")
NOWHERE = Address.of("nowhere")


def transact(broker: Broker, *operations: TransactionOperation) -> list[list[int | None]]:
    return broker.namespace.transact(operations, broker.now_ms)


def lock(broker: Broker, address: Address) -> bytes:
    token = broker.one(address).lock_token
    assert token is not None
    return token


def test_a6_transaction_sends_and_settles_together() -> None:
    broker = Broker()
    broker.queue()
    broker.queue("other")
    broker.send(QUEUE, "a", "b", "c")
    complete, abandon, bury = (lock(broker, QUEUE) for _ in range(3))
    answers = transact(
        broker,
        SettleOperation(QUEUE, complete),
        SendOperation(OTHER, [letter("x"), letter("y")]),
        SettleOperation(QUEUE, abandon, SettlementRequest(disposition=SettlementKind.ABANDON)),
        SendOperation(QUEUE, [letter("z")]),
        SettleOperation(QUEUE, bury, SettlementRequest(disposition=SettlementKind.DEAD_LETTER, reason="r")),
    )
    assert answers == [[], [1, 2], [], [4], []]
    assert broker.take(OTHER) == ["x", "y"]
    assert broker.take(QUEUE) == ["b", "z"]
    assert broker.take(dead(QUEUE)) == ["c"]


def test_a6_empty_transaction_does_nothing() -> None:
    assert transact(Broker()) == []


def test_a6_transaction_is_durable_as_a_whole() -> None:
    broker = Broker()
    broker.queue()
    broker.send(QUEUE, "a")
    broker.commit()
    transact(broker, SettleOperation(QUEUE, lock(broker, QUEUE)), SendOperation(QUEUE, [letter("b")]))
    broker.crash()
    assert texts(broker.peek(QUEUE)) == ["a"]
    transact(broker, SettleOperation(QUEUE, lock(broker, QUEUE)), SendOperation(QUEUE, [letter("b")]))
    broker.restart()
    assert texts(broker.peek(QUEUE)) == ["b"]


def large() -> Broker:
    """Return a namespace with all kinds of errors to provoke."""
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
    broker.wait(60_000)  # the lock has expired
    return broker


BAD: dict[str, tuple[Callable[[Broker], TransactionOperation], type[BrokerError]]] = {
    "no such entity": (lambda _: SendOperation(NOWHERE, [letter("x")]), EntityNotFoundError),
    "disabled": (lambda _: SendOperation(Address.of("disabled"), [letter("x")]), EntityDisabledError),
    "full": (lambda _: SendOperation(Address.of("full"), [letter("x")]), QuotaExceededError),
    "too large": (lambda _: SendOperation(Address.of("small"), [blob(11)]), MessageSizeExceededError),
    "batch too large": (lambda _: SendOperation(OTHER, 2 * [blob(60 * MEGABYTE)]), MessageSizeExceededError),
    "no session id": (lambda _: SendOperation(Address.of("sessions"), [letter("x")]), SessionRequiredError),
    "bad id": (lambda _: SendOperation(OTHER, [letter("x", message_id="m" * 129)]), InvalidMessageError),
    "a subscription": (lambda _: SendOperation(Address.of("topic", "sub"), [letter("x")]), InvalidOperationError),
    "dead letters": (lambda _: SendOperation(dead(OTHER), [letter("x")]), InvalidOperationError),
    "via nothing": (lambda _: SendOperation(OTHER, [letter("x")], via=NOWHERE), EntityNotFoundError),
    "via a topic": (lambda _: SendOperation(OTHER, [letter("x")], via=Address.of("topic")), InvalidOperationError),
    "no lock": (lambda _: SettleOperation(OTHER, UNKNOWN_TOKEN), LockLostError),
    "no queue": (lambda _: SettleOperation(NOWHERE, UNKNOWN_TOKEN), EntityNotFoundError),
    "dead-letter twice": (
        lambda broker: SettleOperation(
            dead(OTHER), lock(broker, dead(OTHER)), SettlementRequest(disposition=SettlementKind.DEAD_LETTER)
        ),
        InvalidOperationError,
    ),
    "too many": (lambda _: SendOperation(OTHER, [letter("x")] * 10_000), InvalidRequestError),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a6_one_invalid_operation_fails_the_whole_transaction(bad: str, first: bool) -> None:
    broker = large()
    make, expected = BAD[bad]
    wrong = make(broker)
    good: list[TransactionOperation] = [
        SendOperation(QUEUE, [letter("good", message_id="m")]),
        SettleOperation(OTHER, lock(broker, OTHER)),
    ]
    before = broker.namespace.queues(broker.now_ms)
    with pytest.raises(expected):
        transact(broker, *([wrong, *good] if first else [*good, wrong]))
    assert broker.namespace.queues(broker.now_ms) == before
    transact(broker, *good)  # the lock is still valid, and the id is unknown
    assert texts(broker.peek(QUEUE)) == ["good"]


def test_a6_transaction_that_settles_a_message_twice_is_refused() -> None:
    broker = Broker()
    broker.queue()
    broker.send(QUEUE, "x")
    token = lock(broker, QUEUE)
    with pytest.raises(LockLostError):
        transact(
            broker,
            SettleOperation(QUEUE, token, SettlementRequest(disposition=SettlementKind.ABANDON)),
            SettleOperation(QUEUE, token),
        )
    broker.namespace.settle(QUEUE, token, broker.now_ms)


def test_a6_operations_of_a_transaction_share_the_quota_of_an_entity() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    half = blob(MEGABYTE // 2)
    with pytest.raises(QuotaExceededError):
        transact(broker, SendOperation(queue, [half]), SendOperation(queue, [half]), SendOperation(queue, [blob(1)]))
    assert broker.info(queue).size_bytes == 0
    transact(broker, SendOperation(queue, [half]), SendOperation(queue, [half]))
    assert broker.info(queue).size_bytes == MEGABYTE


def test_a6_settlements_of_a_transaction_free_no_space_for_its_sends() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE))
    token = lock(broker, queue)
    with pytest.raises(QuotaExceededError):
        transact(broker, SettleOperation(queue, token), SendOperation(queue, [blob(1)]))
    broker.namespace.settle(queue, token, broker.now_ms)


def test_a6_transaction_without_space_in_the_store_changes_nothing() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    broker.queue()
    broker.send(QUEUE, "x")
    broker.commit()
    token = lock(broker, QUEUE)
    store.max_bytes = 1_000_000
    with pytest.raises(StoreFullError):
        transact(broker, SettleOperation(QUEUE, token), SendOperation(QUEUE, [letter("y")]))
    transact(broker, SettleOperation(QUEUE, token))
    assert broker.info(QUEUE).message_count == 0


# Sending via another entity


def test_a6_message_sent_via_an_entity_arrives_at_its_destination() -> None:
    broker = Broker()
    via, target = broker.queue("via"), broker.queue("target")
    transact(broker, SendOperation(target, [letter("x")], via=via))
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
def test_a6_message_that_cannot_be_transferred_is_in_the_transfer_dead_letter_queue(
    obstacle: str, expected: str
) -> None:
    broker = Broker(RELAXED)
    via = broker.queue("via")
    target = Address.of("target")
    if obstacle != "missing":
        status = EntityStatus.DISABLED if obstacle == "disabled" else EntityStatus.ACTIVE
        broker.queue("target", max_size_megabytes=1, status=status)
    if obstacle == "full":
        broker.send(target, blob(MEGABYTE))
    transact(broker, SendOperation(target, [letter("x")], via=via))
    assert (broker.info(via).transfer_dead_letter_count, broker.info(via).dead_letter_count) == (1, 0)
    broker.restart()
    (failed,) = broker.receive(transfers(via))
    assert (text(failed), reason(failed)) == ("x", expected)


def test_a6_failed_transfers_are_settled_but_not_dead_lettered_again() -> None:
    broker = Broker()
    via = broker.queue("via")
    transact(broker, SendOperation(NOWHERE, [letter("x")], via=via))
    delivery = broker.one(transfers(via))
    with pytest.raises(InvalidOperationError):
        broker.dead_letter(transfers(via), delivery)
    broker.complete(transfers(via), delivery)
    assert (broker.info(via).message_count, broker.info(via).size_bytes) == (0, 0)
