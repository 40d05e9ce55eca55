"""E3: transactions over AMQP: declared, filled, and executed as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.broker import Address, EntityStatus, QueueDescription, QueuePart
from pairbus.dialect.annotations import TRANSFER_DESTINATION
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.sent import BATCH_FORMAT, join_batch
from pairbus.testing import RunningNamespace
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RELEASED,
    Condition,
    Declare,
    Declared,
    Delivery,
    Discharge,
    Link,
    Message,
    Modified,
    Rejected,
    Symbol,
    TransactionalState,
    decode_message,
    encode_message,
)
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import (
    LinkRefusedError,
    WireClient,
    connect,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)

MOST_ENLISTED_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def namespace() -> Iterator[ClockedNamespace]:
    with clocked_namespace() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


@pytest.fixture
def queue(namespace: ClockedNamespace) -> str:
    return fresh_queue(namespace)


class Coordination:
    """A coordinator link, as an application uses it."""

    def __init__(self, client: WireClient) -> None:
        self.link = client.coordinator()
        self._client = client

    def say(self, command: object) -> object:
        return self._client.send(self.link, encode_message(Message(body=(command,), body_kind=AMQP_VALUE)))

    def declare(self) -> bytes:
        state = self.say(Declare())
        assert isinstance(state, Declared)
        assert state.txn_id
        return state.txn_id

    def discharge(self, txn_id: bytes, *, fail: bool | None = False) -> object:
        return self.say(Discharge(txn_id=txn_id, fail=fail))


@pytest.fixture
def coordinator(client: WireClient) -> Coordination:
    return Coordination(client)


def within(txn_id: bytes, outcome: object = None) -> TransactionalState:
    return TransactionalState(txn_id=txn_id, outcome=outcome)


def bodies(namespace: ClockedNamespace, queue: str, part: QueuePart = QueuePart.MAIN) -> list[bytes]:
    return [body for body, _ in messages_in(namespace, Address.of(queue, None, part))]


def condition_of(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description
    return state.error.condition


def received(client: WireClient, queue: str, body: str = "before") -> Delivery:
    assert client.send(client.sender(queue), text_message(body)) == ACCEPTED
    return client.receive_one(client.receiver(queue))


def test_transaction_ids_are_unique(coordinator: Coordination) -> None:
    names = [coordinator.declare() for _ in range(5)]
    assert len(set(names)) == 5
    assert {coordinator.discharge(name) for name in names} == {ACCEPTED}


def test_sends_of_a_transaction_take_effect_at_the_commit(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    other = fresh_queue(namespace)
    txn_id = coordinator.declare()
    for name in (queue, other):
        state = client.send(client.sender(name), text_message("one"), state=within(txn_id))
        assert state == within(txn_id, ACCEPTED)
    assert bodies(namespace, queue) == bodies(namespace, other) == []
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert bodies(namespace, queue) == bodies(namespace, other) == [b"one"]


@pytest.mark.parametrize("fail", [True, False, None])
def test_send_and_settlement_commit_together(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str, fail: bool | None
) -> None:
    answers = fresh_queue(namespace)
    delivery = received(client, queue)
    txn_id = coordinator.declare()
    assert client.settle(delivery, within(txn_id, ACCEPTED)) == within(txn_id, ACCEPTED)
    client.send(client.sender(answers), text_message("answer"), state=within(txn_id))
    assert bodies(namespace, queue) == [b"before"]
    assert coordinator.discharge(txn_id, fail=fail) == ACCEPTED
    assert bodies(namespace, queue) == ([b"before"] if fail else [])
    assert bodies(namespace, answers) == ([] if fail else [b"answer"])


@pytest.mark.parametrize(
    ("outcome", "echo"),
    [
        (ACCEPTED, ACCEPTED),
        (RELEASED, RELEASED),
        (Modified(undeliverable_here=True), Modified(undeliverable_here=True)),
        (Rejected(), Rejected()),
    ],
    ids=["complete", "release", "defer", "dead-letter"],
)
def test_every_outcome_can_be_part_of_a_transaction(
    namespace: ClockedNamespace,
    client: WireClient,
    coordinator: Coordination,
    queue: str,
    outcome: object,
    echo: object,
) -> None:
    delivery = received(client, queue)
    txn_id = coordinator.declare()
    assert client.settle(delivery, within(txn_id, outcome)) == within(txn_id, echo)
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert len(bodies(namespace, queue, QueuePart.DEAD_LETTER)) == (1 if outcome == Rejected() else 0)
    assert len(bodies(namespace, queue)) == (0 if outcome in (ACCEPTED, Rejected()) else 1)


def test_settlement_without_an_outcome_is_refused(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    delivery = received(client, queue)
    txn_id = coordinator.declare()
    assert condition_of(client.settle(delivery, within(txn_id))) == ServiceBusCondition.ARGUMENT_ERROR
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert bodies(namespace, queue) == [b"before"]


def test_failed_operation_rolls_the_transaction_back(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    delivery = received(client, queue)
    txn_id = coordinator.declare()
    client.send(client.sender(queue), text_message("one"), state=within(txn_id))
    client.settle(delivery, within(txn_id, ACCEPTED))
    token = delivery.delivery_tag
    namespace.call(lambda host: host.use_namespace().settle(Address.of(queue), token, host.now_ms()))
    state = coordinator.discharge(txn_id)
    assert condition_of(state) == Condition.TRANSACTION_ROLLBACK
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert ServiceBusCondition.MESSAGE_LOCK_LOST in (state.error.description or "")
    assert bodies(namespace, queue) == []
    assert condition_of(coordinator.discharge(txn_id)) == Condition.UNKNOWN_TRANSACTION


def test_deleted_entity_rolls_the_transaction_back(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    gone = fresh_queue(namespace)
    txn_id = coordinator.declare()
    for name in (queue, gone):
        client.send(client.sender(name), text_message("one"), state=within(txn_id))
    namespace.call(lambda host: host.use_namespace().delete(Address.of(gone), host.now_ms()))
    assert condition_of(coordinator.discharge(txn_id)) == Condition.TRANSACTION_ROLLBACK
    assert bodies(namespace, queue) == []


# Unknown transactions.


@pytest.mark.parametrize("txn_id", [b"", b"unknown", b"\0" * 8, b"x" * 1_000], ids=["empty", "text", "zero", "long"])
def test_unknown_transaction_is_refused(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str, txn_id: bytes
) -> None:
    delivery = received(client, queue)
    link = client.sender(queue)
    for state in (
        coordinator.discharge(txn_id),
        client.send(link, text_message("one"), state=within(txn_id)),
        client.settle(delivery, within(txn_id, ACCEPTED)),
    ):
        assert condition_of(state) == Condition.UNKNOWN_TRANSACTION
    assert bodies(namespace, queue) == [b"before"]
    assert client.send(link, text_message("after")) == ACCEPTED


def test_transaction_of_another_connection_is_refused(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    txn_id = coordinator.declare()
    with connect(namespace) as other:
        assert condition_of(Coordination(other).discharge(txn_id)) == Condition.UNKNOWN_TRANSACTION
        state = other.send(other.sender(queue), text_message("one"), state=within(txn_id))
        assert condition_of(state) == Condition.UNKNOWN_TRANSACTION
    assert coordinator.discharge(txn_id) == ACCEPTED


def test_second_discharge_is_refused(coordinator: Coordination) -> None:
    txn_id = coordinator.declare()
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert condition_of(coordinator.discharge(txn_id)) == Condition.UNKNOWN_TRANSACTION


def test_transaction_that_takes_too_long_is_rolled_back(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    link = client.sender(queue)
    txn_id, sending = coordinator.declare(), coordinator.declare()
    assert client.send(link, text_message("one"), state=within(txn_id)) == within(txn_id, ACCEPTED)
    namespace.clock.advance(119_000)
    assert client.send(link, text_message("two"), state=within(txn_id)) == within(txn_id, ACCEPTED)
    namespace.clock.advance(1_001)
    state = client.send(link, text_message("three"), state=within(sending))
    assert condition_of(state) == Condition.TRANSACTION_TIMEOUT
    assert condition_of(coordinator.discharge(txn_id)) == Condition.TRANSACTION_TIMEOUT
    assert condition_of(coordinator.discharge(txn_id)) == Condition.UNKNOWN_TRANSACTION
    assert bodies(namespace, queue) == []
    assert counted(namespace, "transaction_timeout_s") == 2


def test_disconnect_rolls_the_transaction_back(namespace: ClockedNamespace, queue: str) -> None:
    with connect(namespace) as client:
        txn_id = Coordination(client).declare()
        client.send(client.sender(queue), text_message("one"), state=within(txn_id))
    assert bodies(namespace, queue) == []


# Limits.


def test_transaction_has_at_most_a_hundred_messages(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    link = client.sender(queue)
    txn_id = coordinator.declare()
    for _ in range(100):
        assert client.send(link, text_message("x"), state=within(txn_id)) == within(txn_id, ACCEPTED)
    state = client.send(link, text_message("x"), state=within(txn_id))
    assert condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
    delivery = received(client, fresh_queue(namespace))
    state = client.settle(delivery, within(txn_id, ACCEPTED))
    assert condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
    # The refused operation is not part of it; the rest is.
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert len(bodies(namespace, queue)) == 100


def test_batch_counts_as_its_messages(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    link = client.sender(queue)
    txn_id = coordinator.declare()
    batch = join_batch([text_message("x")] * 60)
    assert client.send(link, batch, message_format=BATCH_FORMAT, state=within(txn_id)) == within(txn_id, ACCEPTED)
    state = client.send(link, batch, message_format=BATCH_FORMAT, state=within(txn_id))
    assert condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
    few = join_batch([text_message("y")] * 40)
    assert client.send(link, few, message_format=BATCH_FORMAT, state=within(txn_id)) == within(txn_id, ACCEPTED)
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert len(bodies(namespace, queue)) == 100


def test_connection_has_a_hundred_transactions_open_at_most(
    namespace: ClockedNamespace, coordinator: Coordination
) -> None:
    first, *_ = [coordinator.declare() for _ in range(100)]
    assert condition_of(coordinator.say(Declare())) == ServiceBusCondition.SERVER_BUSY
    assert coordinator.discharge(first) == ACCEPTED
    coordinator.declare()
    assert condition_of(coordinator.say(Declare())) == ServiceBusCondition.SERVER_BUSY
    assert counted(namespace, "open_transactions") == 2
    namespace.clock.advance(120_001)
    coordinator.declare()


def counted(namespace: RunningNamespace, limit: str) -> int:
    return namespace._running._running.services.counters.limits[limit]


def test_buffered_bytes_of_a_connections_transactions_are_bounded(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    """Check the operations that are in memory until the transactions end, while nothing throttles the sender."""
    before = counted(namespace, "transaction_bytes")
    link = client.sender(queue)
    payload = text_message(bytes(250_000))
    accepted = 0
    while accepted <= MOST_ENLISTED_BYTES:
        txn_id = coordinator.declare()
        for _ in range(100):
            state = client.send(link, payload, state=within(txn_id))
            if state != within(txn_id, ACCEPTED):
                assert condition_of(state) in {Condition.RESOURCE_LIMIT_EXCEEDED, ServiceBusCondition.SERVER_BUSY}
                was_reached = condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
                assert (counted(namespace, "transaction_bytes") > before) is was_reached
                return
            accepted += len(payload)
    pytest.fail(f"{accepted} bytes were enlisted, and none refused")


# Via another entity.


def through(client: WireClient, via: str, destination: str) -> Link:
    return client.sender(via, properties={Symbol(TRANSFER_DESTINATION): destination})


@pytest.mark.parametrize("transactional", [False, True])
def test_message_sent_via_an_entity_reaches_its_destination(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str, transactional: bool
) -> None:
    via = fresh_queue(namespace)
    options: dict[str, Any] = {}
    txn_id = coordinator.declare()
    if transactional:
        options["state"] = within(txn_id)
    state = client.send(through(client, via, queue), text_message("one"), **options)
    assert state == (within(txn_id, ACCEPTED) if transactional else ACCEPTED)
    assert bodies(namespace, queue) == ([] if transactional else [b"one"])
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert bodies(namespace, queue) == [b"one"]
    assert bodies(namespace, via) == []


def test_message_that_cannot_reach_its_destination_is_dead_lettered_at_the_via_entity(
    namespace: ClockedNamespace, client: WireClient, coordinator: Coordination, queue: str
) -> None:
    via = fresh_queue(namespace)
    link = through(client, via, queue)
    off = QueueDescription(status=EntityStatus.DISABLED)
    namespace.call(lambda host: host.use_namespace().update(Address.of(queue), off, host.now_ms()))
    assert client.send(link, text_message("one")) == ACCEPTED
    txn_id = coordinator.declare()
    client.send(link, text_message("two"), state=within(txn_id))
    assert coordinator.discharge(txn_id) == ACCEPTED
    assert bodies(namespace, via, QueuePart.TRANSFER_DEAD_LETTER) == [b"one", b"two"]
    letter = client.receive_one(client.receiver(f"{via}/$Transfer/$DeadLetterQueue"))
    assert "DeadLetterReason" in (decode_message(letter.payload).application_properties or {})
    assert client.settle(letter, ACCEPTED) == ACCEPTED


@pytest.mark.parametrize("destination", ["absent", "", "$cbs", 5], ids=["absent", "empty", "tokens", "number"])
def test_invalid_destination_is_refused(client: WireClient, queue: str, destination: Any) -> None:
    with pytest.raises(LinkRefusedError):
        through(client, queue, destination)
    client.barrier()


# Invalid requests to a coordinator.


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        text_message("x"),
        encode_message(Message(body=("declare",), body_kind=AMQP_VALUE)),
        encode_message(Message(body=(None,), body_kind=AMQP_VALUE)),
        encode_message(Message(body=(ACCEPTED,), body_kind=AMQP_VALUE)),
        b"\x00\x53\x77\x00\x53\x32\x45",
        b"\x00\x53\x77\x00\x53\x32\xc0\x03\x01\x54\x05",
    ],
    ids=["nothing", "garbage", "data", "text", "null", "accepted", "no name", "a number for a name"],
)
def test_coordinator_accepts_declare_and_discharge(
    coordinator: Coordination, client: WireClient, payload: bytes
) -> None:
    assert isinstance(client.send(coordinator.link, payload), Rejected)
    coordinator.declare()


def test_coordinator_replenishes_credit(coordinator: Coordination) -> None:
    for _ in range(1_200):
        assert coordinator.discharge(coordinator.declare()) == ACCEPTED
