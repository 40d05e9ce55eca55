"""E3: deliveries to a receiver: credit, drain, annotations, and the answer to each settlement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pairbus.broker import Address, QueuePart, SubscriptionDescription, TopicDescription
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.host import NamespaceHost
from pairbus.wire import (
    ACCEPTED,
    RELEASED,
    Condition,
    Delivery,
    DispositionReceived,
    Error,
    Int,
    LinkDrained,
    Message,
    Modified,
    Properties,
    Received,
    Rejected,
    Symbol,
    Timestamp,
    decode_message,
    encode,
    encode_message,
)
from pairbus.wire.performatives import Disposition, Flow
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import WireClient, body_of, connect, failures, fresh_queue, messages_in, text_message
from tests.waiting import eventually

ABANDONED = Modified(delivery_failed=True, undeliverable_here=False)
DEFERRED = Modified(delivery_failed=True, undeliverable_here=True)
DEAD = Rejected(
    Error(
        ServiceBusCondition.DEAD_LETTER,
        "described",
        {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "more", "mine": Int(5)},
    )
)


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


def fill(client: WireClient, queue: str, number: int) -> None:
    link = client.sender(queue)
    sent = [client.begin_send(link, text_message(str(each))) for each in range(number)]
    assert all(client.outcome(delivery) == ACCEPTED for delivery in sent)


def lost(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


def everything(namespace: ClockedNamespace, queue: str) -> list[tuple[bytes, int]]:
    return messages_in(namespace, Address.of(queue))


def dead_letters(namespace: ClockedNamespace, queue: str) -> list[tuple[bytes, int]]:
    return messages_in(namespace, Address.of(queue, None, QueuePart.DEAD_LETTER))


# Credit.


def test_deliveries_do_not_exceed_the_credit(client: WireClient, queue: str) -> None:
    fill(client, queue, 10)
    link = client.receiver(queue)
    client.barrier()
    assert client.deliveries(link) == []
    link.flow(3)
    assert len(client.receive(link, 3)) == 3
    client.barrier()
    assert len(client.deliveries(link)) == 3
    link.flow(2)
    client.receive(link, 5)
    client.barrier()
    assert [body_of(each) for each in client.deliveries(link)] == [b"0", b"1", b"2", b"3", b"4"]


def test_revoked_credit_is_not_used(client: WireClient, queue: str) -> None:
    link = client.receiver(queue, credit=5)
    link.flow(0)
    client.barrier()
    fill(client, queue, 3)
    client.barrier()
    assert client.deliveries(link) == []


def test_waiting_credit_is_used_when_a_message_arrives(client: WireClient, queue: str) -> None:
    link = client.receiver(queue, credit=2)
    fill(client, queue, 3)
    client.receive(link, 2)
    client.barrier()
    assert len(client.deliveries(link)) == 2


def test_two_receivers_share_the_messages(client: WireClient, queue: str) -> None:
    links = [client.receiver(queue, credit=60) for _ in range(2)]
    client.barrier()
    fill(client, queue, 100)
    client.until(lambda: sum(len(client.deliveries(link)) for link in links) == 100)
    assert all(client.deliveries(link) for link in links)
    assert sorted(int(body_of(each)) for link in links for each in client.deliveries(link)) == list(range(100))


@pytest.mark.parametrize("present", [0, 2])
@pytest.mark.parametrize("deletes", [False, True], ids=["locks", "deletes"])
def test_drain_is_answered_at_once(client: WireClient, queue: str, present: int, deletes: bool) -> None:
    fill(client, queue, present)
    link = client.receiver(queue, deletes=deletes)
    link.flow(5, drain=True)
    client.until(lambda: client.seen(LinkDrained))
    assert len(client.deliveries(link)) == present
    assert link.delivery_count == 5  # the rest of the credit was counted as used
    assert link.credit == 0
    fill(client, queue, 1)
    client.barrier()
    assert len(client.deliveries(link)) == present
    link.flow(1)
    client.receive(link, present + 1)


def test_drain_without_credit_is_answered(client: WireClient, queue: str) -> None:
    """Close like the SDK for Python: no credit, drain, and any late deliveries."""
    link = client.receiver(queue, credit=3)
    link.flow(0, drain=True)
    client.barrier()
    fill(client, queue, 1)
    client.barrier()
    assert client.deliveries(link) == []


def test_drain_with_more_messages_than_credit_uses_the_credit_up(client: WireClient, queue: str) -> None:
    fill(client, queue, 40)
    link = client.receiver(queue)
    link.flow(20, drain=True)
    client.until(lambda: client.seen(LinkDrained))
    assert len(client.deliveries(link)) == 20


# Contents of a delivery.


def annotations_of(delivery: Delivery) -> dict[Any, Any]:
    return decode_message(delivery.payload).message_annotations or {}


def test_annotations_have_the_types_that_the_sdks_read(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    before_ms = namespace.clock()
    fill(client, queue, 2)
    first, second = client.receive(client.receiver(queue, credit=2), 2)
    message = decode_message(first.payload)
    found = annotations_of(first)
    assert {str(name): type(value) for name, value in found.items()} == {
        "x-opt-enqueued-time": Timestamp,
        "x-opt-sequence-number": int,
        "x-opt-locked-until": Timestamp,
    }
    assert {type(name) for name in found} == {Symbol}
    assert before_ms <= found["x-opt-enqueued-time"] <= namespace.clock()
    assert found["x-opt-enqueued-time"] + 60_000 <= found["x-opt-locked-until"] <= namespace.clock() + 60_000
    assert [annotations_of(each)["x-opt-sequence-number"] for each in (first, second)] == [1, 2]
    assert message.delivery_annotations == {Symbol("x-opt-lock-token"): UUID(bytes_le=first.delivery_tag)}
    assert (message.header.delivery_count, message.header.first_acquirer) == (0, False)
    assert message.header.ttl is None
    assert not first.settled
    # Eight bytes for each number: the SDK for JavaScript reads no others.
    assert encode(Symbol("x-opt-sequence-number")) + b"\x81" + bytes(7) + b"\x01" in first.payload
    assert first.payload.startswith(b"\x00\x53\x70")


def test_annotations_of_what_was_deleted_as_it_was_received(client: WireClient, queue: str) -> None:
    fill(client, queue, 2)
    deliveries = client.receive(client.receiver(queue, credit=2, deletes=True), 2)
    assert all(delivery.settled for delivery in deliveries)
    assert {len(delivery.delivery_tag) for delivery in deliveries} == {16}  # some SDKs read a GUID in this mode, too
    assert len({delivery.delivery_tag for delivery in deliveries}) == 2
    assert "x-opt-locked-until" not in annotations_of(deliveries[0])
    assert not decode_message(deliveries[0].payload).delivery_annotations


@pytest.mark.parametrize("deletes", [False, True])
def test_copy_of_a_topic_has_the_number_that_the_topic_assigned(
    namespace: ClockedNamespace, client: WireClient, deletes: bool
) -> None:
    """Check this also if both have the same number."""
    topic = f"topic-{deletes}"

    def create(host: NamespaceHost) -> None:
        host.use_namespace().create_topic(topic, TopicDescription(), host.now_ms())
        host.use_namespace().create_subscription(topic, "all", SubscriptionDescription(), host.now_ms())

    namespace.call(create)
    fill(client, topic, 1)
    delivery = client.receive_one(client.receiver(f"{topic}/Subscriptions/all", deletes=deletes))
    found = annotations_of(delivery)
    assert (found["x-opt-sequence-number"], found["x-opt-enqueue-sequence-number"]) == (1, 1)


def test_sender_cannot_set_annotations_of_the_service(client: WireClient, queue: str) -> None:
    forged = {
        Symbol("x-opt-sequence-number"): 77,
        Symbol("x-opt-enqueued-time"): Timestamp(5),
        Symbol("x-opt-locked-until"): Timestamp(5),
        Symbol("x-opt-message-state"): Int(1),
        Symbol("x-opt-deadletter-source"): "elsewhere",
        Symbol("x-opt-partition-id"): 5,
        Symbol("mine"): "kept",
        "text": "kept too",
    }
    tokens = {Symbol("x-opt-lock-token"): UUID(int=5), Symbol("other"): 1}
    payload = encode_message(Message(delivery_annotations=tokens, message_annotations=forged, body=(b"x",)))
    assert client.send(client.sender(queue), payload) == ACCEPTED
    delivery = client.receive_one(client.receiver(queue))
    found = annotations_of(delivery)
    assert found["x-opt-sequence-number"] == 1
    assert found["x-opt-enqueued-time"] > 5
    assert found["x-opt-locked-until"] > 5
    assert not {"x-opt-deadletter-source", "x-opt-partition-id", "x-opt-message-state"} & found.keys()
    assert (found["mine"], found["text"]) == ("kept", "kept too")
    assert decode_message(delivery.payload).delivery_annotations == {
        Symbol("x-opt-lock-token"): UUID(bytes_le=delivery.delivery_tag),
        Symbol("other"): 1,
    }


def test_dead_letter_has_its_reason(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    assert client.send(client.sender(queue), text_message("one", message_id="id")) == ACCEPTED
    assert client.settle(client.receive_one(client.receiver(queue)), DEAD) == Rejected()
    delivery = client.receive_one(client.receiver(f"{queue}/$DeadLetterQueue"))
    message = decode_message(delivery.payload)
    assert message.application_properties == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "more",
        "mine": 5,
    }
    assert message.properties == Properties(message_id="id")
    assert message.header.delivery_count == 0
    assert annotations_of(delivery)["x-opt-enqueue-sequence-number"] == 1


# Settlement.


@pytest.mark.parametrize(
    ("state", "echo"),
    [
        (ACCEPTED, ACCEPTED),
        (RELEASED, RELEASED),
        (ABANDONED, ABANDONED),
        (DEFERRED, DEFERRED),
        (Modified(undeliverable_here=False), Modified(undeliverable_here=False)),
        (Modified(message_annotations={Symbol("a"): 1}), Modified()),
        (DEAD, Rejected()),
        (Rejected(), Rejected()),
        (Rejected(Error(Condition.INTERNAL_ERROR, "any")), Rejected()),
    ],
    ids=["complete", "release", "abandon", "defer", "abandon as js", "change", "dead-letter", "reject", "reject why"],
)
def test_settlement_is_answered_with_the_same_outcome(
    client: WireClient, queue: str, state: object, echo: object
) -> None:
    fill(client, queue, 1)
    delivery = client.receive_one(client.receiver(queue))
    assert client.settle(delivery, state) == echo
    reported = [event for event in client.seen(DispositionReceived) if delivery in event.deliveries]
    assert [(event.state, event.settled) for event in reported] == [(echo, True)]


@pytest.mark.parametrize(
    ("state", "left", "count"),
    [
        (ACCEPTED, False, 0),
        (RELEASED, True, 0),
        (ABANDONED, True, 1),
        (Modified(), True, 1),
        (DEFERRED, True, 0),
        (DEAD, False, 0),
    ],
    ids=["complete", "release", "abandon", "abandon as js", "defer", "dead-letter"],
)
@pytest.mark.parametrize("settled", [False, True], ids=["asked", "settled"])
def test_each_outcome_settles_the_message(
    namespace: ClockedNamespace, client: WireClient, queue: str, state: object, left: bool, count: int, settled: bool
) -> None:
    fill(client, queue, 1)
    delivery = client.receive_one(client.receiver(queue))
    (delivery.link.settle if settled else delivery.link.update)(delivery, state)
    client.barrier()
    namespace.call(lambda _host: None)
    if settled:
        assert [event for event in client.seen(DispositionReceived) if delivery in event.deliveries] == []
    else:
        client.until(lambda: delivery.settled)
    found = everything(namespace, queue)
    assert [body for body, _ in found] == ([b"0"] if left else [])
    if state != DEFERRED:
        assert [times for _, times in found] == ([count] if left else [])
    assert len(dead_letters(namespace, queue)) == (1 if state == DEAD else 0)


def test_released_message_is_redelivered_without_counting(client: WireClient, queue: str) -> None:
    fill(client, queue, 1)
    link = client.receiver(queue)
    for _ in range(15):  # more often than a delivery may fail
        delivery = client.receive_one(link)
        assert decode_message(delivery.payload).header.delivery_count == 0
        link.settle(delivery, RELEASED)


def test_message_abandoned_too_often_is_dead_lettered(namespace: ClockedNamespace, client: WireClient) -> None:
    queue = fresh_queue(namespace, max_delivery_count=3)
    fill(client, queue, 1)
    link = client.receiver(queue)
    for number in range(3):
        delivery = client.receive_one(link)
        assert decode_message(delivery.payload).header.delivery_count == number
        assert client.settle(delivery, ABANDONED) == ABANDONED
    client.until(lambda: dead_letters(namespace, queue))


def test_modified_properties_are_redelivered(client: WireClient, queue: str) -> None:
    fill(client, queue, 1)
    link = client.receiver(queue)
    changes = {Symbol("number"): Int(5), "text": "ö", Symbol("list"): [1]}
    client.settle(client.receive_one(link), Modified(undeliverable_here=False, message_annotations=changes))
    properties = decode_message(client.receive_one(link).payload).application_properties
    assert properties == {"number": 5, "text": "ö"}


def write_disposition(
    client: WireClient, first: int, last: int | None, state: object, *, settled: bool = False
) -> None:
    """Write a disposition with any range, including unknown deliveries."""
    body = encode(Disposition(role=True, first=first, last=last, settled=settled, state=state))
    client.engine._writer.write(client.first_session.channel, body)
    client.flush()


def test_range_settles_all_within(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    fill(client, queue, 10)
    received = client.receive(client.receiver(queue, credit=10), 10)
    numbers = [delivery.delivery_id for delivery in received]
    assert numbers == list(range(numbers[0], numbers[0] + 10))
    write_disposition(client, numbers[2], numbers[6], ACCEPTED)
    client.until(lambda: received[6].settled)
    assert [delivery.settled for delivery in received] == [False] * 2 + [True] * 5 + [False] * 3
    assert {delivery.state for delivery in received[2:7]} == {ACCEPTED}
    assert len(everything(namespace, queue)) == 5


def test_range_over_several_links_and_what_is_settled_already(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    other = fresh_queue(namespace)
    fill(client, queue, 2)
    fill(client, other, 2)
    links = [client.receiver(queue), client.receiver(other)]
    received = [client.receive_one(link) for link in (*links, *links)]
    assert client.settle(received[1], ACCEPTED) == ACCEPTED
    write_disposition(client, received[0].delivery_id, received[3].delivery_id + 1_000, ACCEPTED)
    client.until(lambda: all(delivery.settled for delivery in received))
    assert everything(namespace, queue) == everything(namespace, other) == []


def test_range_with_a_lost_lock_answers_each_delivery(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    fill(client, queue, 3)
    received = client.receive(client.receiver(queue, credit=3), 3)
    address, token = Address.of(queue), received[1].delivery_tag
    namespace.call(lambda host: host.use_namespace().settle(address, token, host.now_ms()))
    write_disposition(client, received[0].delivery_id, received[2].delivery_id, ACCEPTED)
    client.until(lambda: all(delivery.settled for delivery in received))
    assert [received[0].state, received[2].state] == [ACCEPTED, ACCEPTED]
    assert lost(received[1].state) == ServiceBusCondition.MESSAGE_LOCK_LOST


@pytest.mark.parametrize(("first", "last"), [(5_000, None), (5_000, 6_000), (0, 2**32 - 1), (2**32 - 1, 0)])
def test_settlements_of_unknown_deliveries_are_ignored(
    client: WireClient, queue: str, first: int, last: int | None
) -> None:
    write_disposition(client, first, last, ACCEPTED)
    client.barrier()


def test_repeated_settlement_is_answered_once(client: WireClient, queue: str) -> None:
    fill(client, queue, 1)
    delivery = client.receive_one(client.receiver(queue))
    for _ in range(2):
        write_disposition(client, delivery.delivery_id, None, ACCEPTED)
    client.until(lambda: delivery.settled)
    client.barrier()
    assert len([event for event in client.seen(DispositionReceived) if delivery in event.deliveries]) == 1


def test_received_state_settles_nothing(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    fill(client, queue, 1)
    delivery = client.receive_one(client.receiver(queue))
    write_disposition(client, delivery.delivery_id, None, Received(section_number=1, section_offset=0))
    write_disposition(client, delivery.delivery_id, None, None)
    client.barrier()
    assert not delivery.settled
    assert client.settle(delivery, ACCEPTED) == ACCEPTED
    assert everything(namespace, queue) == []


# Locks.


@pytest.mark.parametrize("state", [ACCEPTED, ABANDONED, DEFERRED, DEAD], ids=["complete", "abandon", "defer", "dead"])
def test_settlement_after_the_lock_expired_changes_nothing(
    namespace: ClockedNamespace, client: WireClient, state: object
) -> None:
    queue = fresh_queue(namespace, lock_duration_ms=30_000)
    fill(client, queue, 1)
    delivery = client.receive_one(client.receiver(queue))
    namespace.clock.advance(30_001)
    answer = client.settle(delivery, state)
    assert lost(answer) == ServiceBusCondition.MESSAGE_LOCK_LOST
    assert isinstance(answer, Rejected)
    assert answer.error is not None
    assert answer.error.description
    assert everything(namespace, queue) == [(b"0", 1)]
    assert dead_letters(namespace, queue) == []


def test_expired_lock_makes_the_message_available_to_the_next_receiver(
    namespace: ClockedNamespace, client: WireClient
) -> None:
    queue = fresh_queue(namespace, lock_duration_ms=30_000)
    fill(client, queue, 1)
    client.receive_one(client.receiver(queue))
    other = client.receiver(queue, credit=1)
    client.barrier()
    namespace.clock.advance(30_001)
    namespace.call(lambda host: host.use_namespace().next_due_ms())
    again = client.receive(other)[0]
    assert decode_message(again.payload).header.delivery_count == 1


def test_locks_outlive_the_link_and_the_connection(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    fill(client, queue, 1)
    with connect(namespace) as other:
        delivery = other.receive_one(other.receiver(queue))
        token = UUID(bytes_le=delivery.delivery_tag)
        other.hang_up()
    link = client.receiver(queue, credit=1)
    client.barrier()
    assert client.deliveries(link) == []
    node = client.requests(f"{queue}/$management")
    body = {"disposition-status": "completed", "lock-tokens": [token]}
    assert node.call("com.microsoft:update-disposition", body).status == 200
    assert everything(namespace, queue) == []


# Receive and delete.


def test_received_and_deleted_message_is_removed(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    fill(client, queue, 50)
    received = client.receive(client.receiver(queue, credit=30, deletes=True), 30)
    assert all(delivery.settled for delivery in received)
    assert [body_of(each) for each in received] == [str(number).encode() for number in range(30)]
    assert len(everything(namespace, queue)) == 20


def test_settlement_of_a_removed_message_is_ignored(client: WireClient, queue: str) -> None:
    """Settle like rhea."""
    fill(client, queue, 2)
    link = client.receiver(queue, deletes=True)
    delivery = client.receive_one(link)
    write_disposition(client, delivery.delivery_id, None, ACCEPTED, settled=True)
    client.receive_one(link)
    client.barrier()


# Detached links.


@pytest.mark.parametrize("ending", ["detach", "end", "hang up"])
def test_unsent_message_goes_to_another_receiver(namespace: ClockedNamespace, queue: str, ending: str) -> None:
    """Check that a message behind a closed window is available at once when the link is detached, and counts as
    undelivered.
    """
    with connect(namespace) as client, connect(namespace) as other:
        fill(other, queue, 10)
        stuck = client.receiver(queue)
        flow = Flow(
            next_incoming_id=0,
            incoming_window=2,
            next_outgoing_id=0,
            outgoing_window=100,
            handle=stuck.handle,
            delivery_count=0,
            link_credit=10,
        )
        client.engine._writer.write(client.first_session.channel, encode(flow))
        received = [body_of(each) for each in client.receive(stuck, 2)]
        waiting = other.receiver(queue, credit=10)
        other.barrier()
        assert other.deliveries(waiting) == []
        if ending == "detach":
            client.detach(stuck)
        elif ending == "end":
            client.first_session.end()
            client.flush()
        else:
            client.hang_up()
        again = other.receive(waiting, 8)
        assert [*received, *map(body_of, again)] == [str(number).encode() for number in range(10)]
        assert {decode_message(each.payload).header.delivery_count for each in again} == {0}


def test_detached_links_are_not_counted(namespace: ClockedNamespace, queue: str) -> None:
    def links(host: NamespaceHost) -> int:  # an entity with any link is in use once
        return [*host.in_use()].count(Address.of(queue))

    with connect(namespace) as client:
        ends = [client.receiver(queue, credit=1) for _ in range(3)] + [client.sender(queue)]
        assert namespace.call(links) == 1
        for link in ends:
            assert namespace.call(links) == 1
            client.detach(link)
        assert namespace.call(links) == 0
        client.receiver(queue)
    eventually(lambda: namespace.call(links) == 0)
