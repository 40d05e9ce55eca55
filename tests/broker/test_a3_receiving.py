"""A3: peek-lock and receive-and-delete, settling, locks, delivery counts, peeking, deferring."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.broker import SettlementKind
from pairbus.broker.errors import InvalidOperationError, LockLostError, MessageNotFoundError
from pairbus.broker.message import MessageState
from tests.broker.broker import (
    LOCK,
    MINUTE,
    SECOND,
    START,
    UNKNOWN_TOKEN,
    Broker,
    amended,
    dead,
    letter,
    numbers,
    reason,
    text,
    texts,
)

# Receive modes


def test_a3_receive_and_delete_removes_the_message() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    delivery = broker.one(queue, delete=True)
    assert (text(delivery), delivery.lock_token, delivery.locked_until_ms) == ("a", None, None)
    assert texts(broker.peek(queue)) == ["b"]
    assert broker.info(queue).message_count == 1


def test_a3_peek_lock_hides_a_message_from_other_receivers() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    assert delivery.locked_until_ms == START + LOCK
    assert delivery.record.delivery_count == 0
    assert broker.receive(queue) == []
    assert broker.info(queue).locked_count == 1


def test_a3_lock_tokens_are_unique() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b", "c")
    assert len({delivery.lock_token for delivery in broker.receive(queue)}) == 3


def test_a3_messages_are_delivered_in_sequence_order_up_to_the_maximum() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b", "c")
    assert numbers(broker.receive(queue, 2)) == [1, 2]
    assert numbers(broker.receive(queue, 2)) == [3]
    assert broker.receive(queue, 2) == []


def test_a3_message_is_delivered_as_it_was_sent() -> None:
    broker = Broker()
    queue = broker.queue()
    sent = letter("x", user={"a": 1}, message_id="m", session_id="s", partition_key="s", time_to_live_ms=MINUTE)
    broker.send(queue, sent)
    delivery = broker.one(queue)
    record = delivery.record
    assert delivery.body == sent.body
    assert (record.message_id, record.session_id, record.partition_key) == ("m", "s", "s")
    assert (record.time_to_live_ms, record.expires_ms) == (MINUTE, START + MINUTE)
    assert (record.sequence, record.original_sequence, record.enqueued_ms) == (1, 1, START)
    assert (record.size, record.state, record.amendments) == (len(sent.body), MessageState.ACTIVE, None)


# Settling


def test_a3_completed_message_is_removed() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.complete(queue, broker.one(queue))
    broker.wait(10 * LOCK)
    assert broker.peek(queue) == broker.peek(dead(queue)) == []


def test_a3_abandoned_message_returns_to_its_place_with_its_count_raised() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b", "c")
    first, second = broker.receive(queue, 2)
    broker.abandon(queue, second)
    broker.abandon(queue, first)
    again = broker.receive(queue)
    assert texts(again) == ["a", "b", "c"]
    assert numbers(again) == [1, 2, 3]
    assert [delivery.record.delivery_count for delivery in again] == [1, 1, 0]


def test_a3_released_message_returns_and_its_count_is_not_raised() -> None:
    broker = Broker()
    queue = broker.queue(max_delivery_count=1)
    broker.send(queue, "a", "b")
    broker.release(queue, broker.one(queue))
    delivery = broker.one(queue)
    assert (text(delivery), delivery.record.delivery_count) == ("a", 0)


def test_a3_dead_lettered_message_is_in_the_dead_letter_queue_with_its_reason() -> None:
    broker = Broker()
    queue = broker.queue()
    sequences = broker.send(queue, "a", "b")
    broker.dead_letter(queue, broker.receive(queue)[1], reason="broken", description="cannot be read")
    assert broker.info(queue).dead_letter_count == 1
    delivery = broker.one(dead(queue))
    assert text(delivery) == "b"
    assert amended(delivery) == {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "cannot be read"}
    assert delivery.record.original_sequence == sequences[1]


def test_a3_message_may_be_dead_lettered_without_a_reason() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue))
    assert amended(broker.one(dead(queue))) == {}


def test_a3_abandoning_sets_properties() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.abandon(queue, broker.one(queue), seen=1, by="me")
    broker.abandon(queue, broker.one(queue), seen=2)
    assert amended(broker.one(queue)) == {"seen": 2, "by": "me"}


def test_a3_name_of_a_property_that_is_set_again_may_differ_in_case() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.abandon(queue, broker.one(queue), seen=1)
    broker.abandon(queue, broker.one(queue), SEEN=2)
    assert amended(broker.one(queue)) == {"SEEN": 2}


def test_a3_deferring_and_dead_lettering_set_properties_too() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    deferred, buried = broker.receive(queue)
    sequence = broker.defer(queue, deferred, why="later")
    broker.dead_letter(queue, buried, reason="r", properties={"n": 1, "none": None})
    assert amended(broker.deferred(queue, sequence)[0]) == {"why": "later"}
    assert amended(broker.one(dead(queue))) == {"n": 1, "none": None, "DeadLetterReason": "r"}


@pytest.mark.parametrize("disposition", list(SettlementKind))
def test_a3_second_settlement_is_refused(disposition: SettlementKind) -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    broker.settle(queue, delivery, disposition)
    before = broker.info(queue)
    for again in SettlementKind:
        with pytest.raises(LockLostError):
            broker.settle(queue, delivery, again)
    assert broker.info(queue) == before


def test_a3_only_the_lock_token_of_the_delivery_settles() -> None:
    broker = Broker()
    queue, other = broker.queue(), broker.queue("other")
    broker.send(queue, "x")
    delivery = broker.one(queue)
    with pytest.raises(LockLostError):
        broker.namespace.settle(queue, UNKNOWN_TOKEN, START)
    with pytest.raises(LockLostError):
        broker.complete(other, delivery)
    with pytest.raises(LockLostError):
        broker.complete(dead(queue), delivery)
    broker.complete(queue, delivery)


# Locks


def test_a3_lock_ends_at_exactly_its_time() -> None:
    broker = Broker()
    queue = broker.queue(lock_duration_ms=10 * SECOND)
    broker.send(queue, "x")
    before = broker.one(queue)
    broker.wait(10 * SECOND - 1)
    assert broker.receive(queue) == []
    broker.wait(1)
    with pytest.raises(LockLostError):
        broker.complete(queue, before)
    again = broker.one(queue)
    assert again.record.delivery_count == 1
    assert again.lock_token != before.lock_token
    assert again.locked_until_ms == START + 20 * SECOND


def test_a3_message_can_be_settled_until_the_last_moment() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    broker.wait(LOCK - 1)
    broker.complete(queue, delivery)
    assert broker.info(queue).message_count == 0


def test_a3_lock_token_does_not_settle_another_message() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    broker.one(queue)
    broker.wait(LOCK - 1)
    second = broker.one(queue)
    broker.wait(1)
    assert texts(broker.receive(queue)) == ["a"]
    broker.complete(queue, second)


def test_a3_renewed_lock_lasts_a_lock_duration_from_now() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    for _ in range(3):
        broker.wait(LOCK - 1)
        assert broker.renew(queue, delivery) == broker.now_ms + LOCK
    broker.wait(LOCK - 1)
    assert broker.receive(queue) == []
    broker.wait(1)
    assert broker.one(queue).record.delivery_count == 1


def test_a3_renewed_lock_ends_at_the_returned_time_even_if_sooner() -> None:
    broker = Broker()
    queue = broker.queue(lock_duration_ms=MINUTE)
    broker.send(queue, "x")
    delivery = broker.one(queue)
    broker.update(queue, lock_duration_ms=5 * SECOND)
    assert broker.renew(queue, delivery) == START + 5 * SECOND
    broker.wait(5 * SECOND)
    assert texts(broker.receive(queue)) == ["x"]


def test_a3_lock_that_has_ended_is_not_renewed() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    broker.wait(LOCK)
    with pytest.raises(LockLostError):
        broker.renew(queue, delivery)


def test_a3_changed_lock_duration_applies_to_the_next_lock() -> None:
    broker = Broker()
    queue = broker.queue(lock_duration_ms=MINUTE)
    broker.send(queue, "a", "b")
    broker.one(queue)
    broker.update(queue, lock_duration_ms=10 * SECOND)
    assert broker.one(queue).locked_until_ms == START + 10 * SECOND
    broker.wait(10 * SECOND)
    assert texts(broker.receive(queue)) == ["b"]


def test_a3_lock_has_ended_at_its_time_however_much_else_is_due() -> None:
    broker = Broker()
    queue, crowded = broker.queue(), broker.queue("crowded", default_time_to_live_ms=SECOND)
    broker.send(queue, "x")
    delivery = broker.one(queue)
    for _ in range(101):
        broker.send(crowded, *["expires"] * 100)
    broker.now_ms += LOCK
    with pytest.raises(LockLostError):
        broker.complete(queue, delivery)


# Delivery count


@pytest.mark.parametrize("by_abandoning", [True, False], ids=["abandoned", "lock ended"])
def test_a3_message_is_delivered_max_delivery_count_times_and_then_dead_lettered(by_abandoning: bool) -> None:
    broker = Broker()
    queue = broker.queue(max_delivery_count=3)
    broker.send(queue, "x")
    for delivery_count in range(3):
        delivery = broker.one(queue)
        assert delivery.record.delivery_count == delivery_count
        if by_abandoning:
            broker.abandon(queue, delivery)
        else:
            broker.wait(LOCK)
    assert broker.receive(queue) == []
    buried = broker.one(dead(queue))
    assert (text(buried), reason(buried)) == ("x", "MaxDeliveryCountExceeded")


def test_a3_dead_letter_has_the_properties_set_by_the_last_receiver() -> None:
    broker = Broker()
    queue = broker.queue(max_delivery_count=1)
    broker.send(queue, "x")
    broker.abandon(queue, broker.one(queue), tried="twice")
    assert amended(broker.one(dead(queue)))["tried"] == "twice"


def test_a3_delivery_count_survives_deferral() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.abandon(queue, broker.one(queue))
    sequence = broker.defer(queue, broker.one(queue))
    assert broker.deferred(queue, sequence)[0].record.delivery_count >= 1


# Peek


def test_a3_peek_shows_messages_of_every_state_in_the_order_of_their_numbers() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "locked", "deferred", "ready", "deferred and locked")
    _, deferred, ready, both = broker.receive(queue)
    broker.defer(queue, deferred)
    broker.release(queue, ready)
    broker.deferred(queue, broker.defer(queue, both))
    broker.schedule(queue, "scheduled", MINUTE)
    found = broker.peek(queue)
    assert texts(found) == ["locked", "deferred", "ready", "deferred and locked", "scheduled"]
    assert numbers(found) == [1, 2, 3, 4, 5]
    assert [delivery.record.state.name for delivery in found] == [
        "ACTIVE",
        "DEFERRED",
        "ACTIVE",
        "DEFERRED",
        "SCHEDULED",
    ]


def test_a3_peek_starts_at_a_sequence_number_up_to_the_maximum() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, *"abcdef")
    assert texts(broker.peek(queue, 3, 2)) == ["c", "d"]
    assert texts(broker.peek(queue, 6)) == ["f"]
    assert broker.peek(queue, 7) == []
    assert texts(broker.peek(queue, -5, 1)) == ["a"]
    assert broker.peek(queue, 0, 0) == []


def test_a3_peek_changes_nothing() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    before = broker.info(queue)
    (delivery,) = broker.peek(queue)
    assert (delivery.lock_token, delivery.locked_until_ms) == (None, None)
    assert broker.info(queue) == before
    assert broker.one(queue).record.delivery_count == 0


def test_a3_peek_shows_dead_letters_and_scheduled_messages_of_a_topic() -> None:
    broker = Broker()
    queue, topic = broker.queue(), broker.topic()
    broker.send(queue, "buried")
    broker.dead_letter(queue, broker.one(queue))
    broker.schedule(topic, "scheduled", MINUTE)
    assert texts(broker.peek(dead(queue))) == ["buried"]
    assert texts(broker.peek(topic)) == ["scheduled"]


# Deferred messages


def test_a3_deferred_message_is_received_by_its_number_only() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    assert broker.receive(queue) == []
    (delivery,) = broker.deferred(queue, sequence)
    assert (text(delivery), delivery.record.state) == ("x", MessageState.DEFERRED)
    assert delivery.locked_until_ms == START + LOCK
    broker.complete(queue, delivery)
    assert broker.peek(queue) == []


def test_a3_deferred_messages_are_received_together_in_the_order_asked_for() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b", "c")
    for delivery in broker.receive(queue):
        broker.defer(queue, delivery)
    assert texts(broker.deferred(queue, 3, 1)) == ["c", "a"]


@pytest.mark.parametrize("other", [1, 2, 99], ids=["ready", "locked", "unknown"])
def test_a3_receive_deferred_is_all_or_none(other: int) -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "ready", "locked", "deferred")
    ready, _, deferred = broker.receive(queue)
    broker.release(queue, ready)
    broker.defer(queue, deferred)
    before = broker.info(queue)
    with pytest.raises(MessageNotFoundError):
        broker.deferred(queue, 3, other)
    assert broker.info(queue) == before


def test_a3_deferred_message_that_is_locked_is_not_received_again() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    broker.deferred(queue, sequence)
    with pytest.raises(MessageNotFoundError):
        broker.deferred(queue, sequence)


@pytest.mark.parametrize("by_abandoning", [True, False], ids=["abandoned", "lock ended"])
def test_a3_deferred_message_that_fails_stays_deferred_with_its_count_raised(by_abandoning: bool) -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    before = broker.peek(queue)[0].record.delivery_count
    (delivery,) = broker.deferred(queue, sequence)
    if by_abandoning:
        broker.abandon(queue, delivery)
    else:
        broker.wait(LOCK)
    assert broker.receive(queue) == []
    (again,) = broker.deferred(queue, sequence)
    assert again.record.delivery_count == before + 1


def test_a3_deferred_message_can_be_deferred_again_and_dead_lettered() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    broker.defer(queue, broker.deferred(queue, sequence)[0])
    broker.dead_letter(queue, broker.deferred(queue, sequence)[0])
    assert broker.take(dead(queue)) == ["x"]


def test_a3_deferred_message_can_be_received_and_deleted() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    assert texts(broker.deferred(queue, sequence, delete=True)) == ["x"]
    assert broker.info(queue).message_count == 0


# Dead letters


@pytest.mark.parametrize("settle", [Broker.complete, Broker.release], ids=["completed", "released"])
def test_a3_dead_letters_are_received_and_settled_like_other_messages(
    settle: Callable[..., None],
) -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue))
    settle(broker, dead(queue), broker.one(dead(queue)))
    assert broker.take(dead(queue)) == ([] if settle is Broker.complete else ["x"])


def test_a3_dead_letters_can_be_deferred() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue))
    sequence = broker.defer(dead(queue), broker.one(dead(queue)))
    assert texts(broker.deferred(dead(queue), sequence)) == ["x"]


def test_a3_dead_letters_are_not_dead_lettered_again() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue))
    delivery = broker.one(dead(queue))
    with pytest.raises(InvalidOperationError):
        broker.dead_letter(dead(queue), delivery)
    broker.complete(dead(queue), delivery)  # its lock is still valid


def test_a3_dead_letters_stay_after_any_number_of_abandons() -> None:
    broker = Broker()
    queue = broker.queue(max_delivery_count=1)
    broker.send(queue, "x")
    broker.abandon(queue, broker.one(queue))
    for _ in range(5):
        broker.abandon(dead(queue), broker.one(dead(queue)))
    again = broker.one(dead(queue))
    assert (text(again), again.record.sequence, again.record.delivery_count) == ("x", 1, 6)


# Batch deletion


def test_a3_batch_delete_removes_the_oldest_unheld_messages() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "locked", "deferred", "a", "b", "c")
    _, deferred = broker.receive(queue, 2)
    broker.defer(queue, deferred)
    broker.schedule(queue, "scheduled", MINUTE)
    assert broker.namespace.delete_messages(queue, 2, START) == 2
    assert texts(broker.peek(queue)) == ["locked", "deferred", "c", "scheduled"]
    assert broker.namespace.delete_messages(queue, 100, START) == 1
    assert broker.namespace.delete_messages(queue, 100, START) == 0


def test_a3_batch_delete_stops_at_a_time_and_keeps_to_a_range() -> None:
    broker = Broker()
    queue = broker.queue()
    for content in "abcde":
        broker.send(queue, content)
        broker.wait(SECOND)
    assert broker.namespace.delete_messages(queue, 9, broker.now_ms, enqueued_before_ms=START + SECOND) == 1
    assert broker.namespace.delete_messages(queue, 9, broker.now_ms, from_sequence=3, to_sequence=4) == 2
    assert broker.take(queue) == ["b", "e"]


def test_a3_batch_delete_by_time_looks_at_every_partition() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True)
    for second in range(32):
        broker.send(queue, str(second))
        broker.wait(SECOND)
    assert broker.namespace.delete_messages(queue, 99, broker.now_ms, enqueued_before_ms=START + 20 * SECOND) == 20
    assert sorted(broker.take(queue), key=int) == [str(second) for second in range(20, 32)]


def test_a3_batch_delete_works_on_dead_letters() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    for delivery in broker.receive(queue):
        broker.dead_letter(queue, delivery)
    assert broker.namespace.delete_messages(dead(queue), 10, START) == 2
    assert (broker.info(queue).message_count, broker.info(queue).size_bytes) == (0, 0)
