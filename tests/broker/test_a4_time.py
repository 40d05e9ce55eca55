"""A4: time to live, scheduled messages, auto-delete on idle."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import EntityNotFoundError, LockLostError, MessageNotFoundError
from pairbus.broker.message import NEVER, Address, MessageState
from pairbus.broker.ports import EntityGone
from tests.broker.broker import LOCK, MINUTE, SECOND, START, Broker, dead, letter, numbers, reason, text, texts

IDLE = 5 * MINUTE


# Time to live


def test_a4_message_expires_at_exactly_its_time() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, letter("x", time_to_live_ms=10 * SECOND))
    broker.wait(10 * SECOND - 1)
    assert texts(broker.peek(queue)) == ["x"]
    broker.wait(1)
    assert broker.receive(queue) == []
    assert broker.info(queue).message_count == 0


@pytest.mark.parametrize(
    ("of_message", "of_entity", "expected"),
    [(10, None, 10), (None, 20, 20), (10, 20, 10), (20, 10, 10), (None, None, None)],
)
def test_a4_shorter_time_to_live_counts(of_message: int | None, of_entity: int | None, expected: int | None) -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=None if of_entity is None else of_entity * SECOND)
    broker.send(queue, letter("x", time_to_live_ms=None if of_message is None else of_message * SECOND))
    expires_ms = broker.peek(queue)[0].record.expires_ms
    assert expires_ms == (NEVER if expected is None else START + expected * SECOND)


def test_a4_shortest_of_message_topic_and_subscription_counts() -> None:
    broker = Broker()
    topic = broker.topic(default_time_to_live_ms=20 * SECOND)
    shorter = broker.subscription("shorter", default_time_to_live_ms=10 * SECOND)
    longer = broker.subscription("longer", default_time_to_live_ms=30 * SECOND)
    broker.send(topic, "without", letter("with", time_to_live_ms=5 * SECOND))
    assert [found.record.expires_ms - START for found in broker.peek(shorter)] == [10 * SECOND, 5 * SECOND]
    assert [found.record.expires_ms - START for found in broker.peek(longer)] == [20 * SECOND, 5 * SECOND]


def test_a4_expired_message_is_dead_lettered_if_enabled() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True, default_time_to_live_ms=SECOND)
    broker.send(queue, "x")
    broker.wait(SECOND)
    assert broker.receive(queue) == []
    buried = broker.one(dead(queue))
    assert (text(buried), reason(buried)) == ("x", "TTLExpiredException")


def test_a4_expired_message_is_removed_if_dead_lettering_is_disabled() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=SECOND)
    broker.send(queue, "x")
    broker.wait(SECOND)
    info = broker.info(queue)
    assert (info.message_count, info.size_bytes) == (0, 0)


def test_a4_copies_in_subscriptions_expire_separately() -> None:
    broker = Broker()
    topic = broker.topic()
    buries = broker.subscription("buries", dead_letter_on_expiration=True, default_time_to_live_ms=SECOND)
    drops = broker.subscription("drops", default_time_to_live_ms=SECOND)
    keeps = broker.subscription("keeps")
    broker.send(topic, "x")
    broker.wait(SECOND)
    assert broker.take(dead(buries)) == ["x"]
    assert broker.info(drops).message_count == 0
    assert broker.take(keeps) == ["x"]


def test_a4_message_that_expires_while_it_is_locked_can_still_be_completed() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("x", time_to_live_ms=SECOND))
    delivery = broker.one(queue)
    broker.wait(2 * SECOND)
    assert broker.renew(queue, delivery) == broker.now_ms + LOCK
    broker.complete(queue, delivery)
    assert broker.info(queue).message_count == 0


@pytest.mark.parametrize("ends_by", ["abandon", "release", "lock end"])
def test_a4_message_that_expired_while_locked_is_removed_when_the_lock_ends(ends_by: str) -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("x", time_to_live_ms=SECOND))
    delivery = broker.one(queue)
    broker.wait(2 * SECOND)
    assert broker.info(queue).locked_count == 1
    if ends_by == "abandon":
        broker.abandon(queue, delivery)
    elif ends_by == "release":
        broker.release(queue, delivery)
    else:
        broker.wait(LOCK)
    assert broker.receive(queue) == []
    assert [reason(buried) for buried in broker.peek(dead(queue))] == ["TTLExpiredException"]


def test_a4_deferred_message_stays_after_its_expiry() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("x", time_to_live_ms=SECOND))
    broker.defer(queue, broker.one(queue))
    broker.wait(10 * MINUTE)
    assert texts(broker.peek(queue)) == ["x"]
    assert broker.info(queue).dead_letter_count == 0


def test_a4_expired_deferred_message_is_not_delivered() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("x", time_to_live_ms=SECOND))
    sequence = broker.defer(queue, broker.one(queue))
    broker.wait(SECOND)
    with pytest.raises(MessageNotFoundError):
        broker.deferred(queue, sequence)
    assert [reason(buried) for buried in broker.peek(dead(queue))] == ["TTLExpiredException"]


def test_a4_deferred_message_that_expires_while_it_is_locked_stays_deferred() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, letter("x", time_to_live_ms=SECOND))
    sequence = broker.defer(queue, broker.one(queue))
    (delivery,) = broker.deferred(queue, sequence)
    broker.wait(SECOND)
    broker.abandon(queue, delivery)
    assert (broker.info(queue).deferred_count, broker.info(queue).dead_letter_count) == (1, 0)


def test_a4_dead_letters_do_not_expire() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=SECOND, dead_letter_on_expiration=True)
    broker.send(queue, letter("by hand", time_to_live_ms=SECOND), letter("by time", time_to_live_ms=SECOND))
    broker.dead_letter(queue, broker.one(queue))
    broker.wait(365 * 24 * 60 * MINUTE)
    assert broker.take(dead(queue)) == ["by hand", "by time"]


def test_a4_receiver_gets_no_expired_message_however_much_else_is_due() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=SECOND)
    for _ in range(101):
        broker.send(queue, *["expires"] * 100)
    broker.now_ms += SECOND
    assert broker.receive(queue) == []


def test_a4_huge_time_to_live_means_never() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, letter("x", time_to_live_ms=2**63 - 1))
    broker.restart()
    assert broker.peek(queue)[0].record.expires_ms == NEVER


def test_a4_message_with_a_time_to_live_of_zero_is_not_delivered() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, letter("x", time_to_live_ms=0))
    assert broker.receive(queue) == []


# Scheduling


def test_a4_scheduled_message_is_not_received_before_its_time() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.schedule(queue, "x", MINUTE)
    broker.wait(MINUTE - 1)
    assert broker.receive(queue) == []
    assert (broker.info(queue).scheduled_count, broker.info(queue).active_count) == (1, 0)
    broker.wait(1)
    assert texts(broker.receive(queue)) == ["x"]
    assert broker.info(queue).scheduled_count == 0


def test_a4_activated_message_gets_a_new_sequence_number_and_keeps_its_first_one() -> None:
    broker = Broker()
    queue = broker.queue()
    old = broker.schedule(queue, "x", MINUTE)
    broker.send(queue, "y")
    broker.wait(MINUTE)
    first, second = broker.receive(queue)
    assert texts([first, second]) == ["y", "x"]
    assert (second.record.sequence, second.record.original_sequence) == (3, old)
    assert second.record.enqueued_ms == START + MINUTE
    assert second.record.scheduled_ms == START + MINUTE
    assert second.record.state is MessageState.ACTIVE


def test_a4_messages_become_active_in_the_order_of_their_times() -> None:
    broker = Broker()
    queue = broker.queue()
    for delay in (3, 1, 2):
        broker.schedule(queue, str(delay), delay * SECOND)
    broker.wait(MINUTE)
    found = broker.receive(queue)
    assert texts(found) == ["1", "2", "3"]
    assert [delivery.record.enqueued_ms - START for delivery in found] == [SECOND, 2 * SECOND, 3 * SECOND]


@pytest.mark.parametrize("delay_ms", [0, -1, -MINUTE])
def test_a4_message_scheduled_for_now_or_the_past_is_active_at_once(delay_ms: int) -> None:
    broker = Broker()
    queue = broker.queue()
    sequence = broker.schedule(queue, "x", delay_ms)
    delivery = broker.one(queue)
    assert (delivery.record.sequence, delivery.record.state) == (sequence, MessageState.ACTIVE)


def test_a4_time_to_live_of_a_scheduled_message_begins_when_it_becomes_active() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=5 * SECOND)
    broker.schedule(queue, "x", MINUTE, time_to_live_ms=SECOND)
    broker.wait(MINUTE)
    assert broker.peek(queue)[0].record.expires_ms == START + MINUTE + SECOND


def test_a4_cancelled_message_is_never_delivered() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.schedule(queue, "kept", MINUTE)
    sequence = broker.schedule(queue, "cancelled", MINUTE)
    broker.namespace.cancel_scheduled(queue, [sequence], broker.now_ms)
    assert broker.info(queue).scheduled_count == 1
    broker.wait(MINUTE)
    assert broker.take(queue) == ["kept"]


def test_a4_messages_are_cancelled_all_or_none() -> None:
    broker = Broker()
    queue = broker.queue()
    (active,) = broker.send(queue, "active")
    sequence = broker.schedule(queue, "x", MINUTE)
    for other in (active, 99):
        assert other is not None
        with pytest.raises(MessageNotFoundError):
            broker.namespace.cancel_scheduled(queue, [sequence, other], broker.now_ms)
    broker.wait(MINUTE)
    assert broker.take(queue) == ["active", "x"]


def test_a4_active_message_cannot_be_cancelled() -> None:
    broker = Broker()
    queue = broker.queue()
    sequence = broker.schedule(queue, "x", MINUTE)
    broker.wait(MINUTE)
    with pytest.raises(MessageNotFoundError):
        broker.namespace.cancel_scheduled(queue, [sequence], broker.now_ms)
    assert broker.take(queue) == ["x"]


def test_a4_topic_holds_scheduled_messages_until_their_time() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    cancelled, kept = (broker.schedule(topic, content, MINUTE) for content in ("cancelled", "kept"))
    assert (broker.info(topic).scheduled_count, broker.info(subscription).message_count) == (2, 0)
    broker.namespace.cancel_scheduled(topic, [cancelled], broker.now_ms)
    broker.wait(MINUTE)
    delivery = broker.one(subscription)
    assert (text(delivery), delivery.record.sequence, delivery.record.original_sequence) == ("kept", 1, kept)
    assert broker.info(topic).scheduled_count == 0


def test_a4_scheduled_message_is_not_received_as_a_deferred_one() -> None:
    broker = Broker()
    queue = broker.queue()
    sequence = broker.schedule(queue, "x", MINUTE)
    with pytest.raises(MessageNotFoundError):
        broker.deferred(queue, sequence)


def test_a4_scheduled_message_becomes_active_in_a_queue_that_was_disabled_meanwhile() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.schedule(queue, "x", MINUTE)
    broker.update(queue, status=EntityStatus.DISABLED)
    broker.wait(MINUTE)
    broker.update(queue, status=EntityStatus.ACTIVE)
    assert broker.take(queue) == ["x"]


# Due work


def test_a4_namespace_reports_when_work_is_due_next() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.namespace.next_due_ms() is None
    broker.schedule(queue, "x", 5 * SECOND)
    assert broker.namespace.next_due_ms() == START + 5 * SECOND
    broker.send(queue, letter("y", time_to_live_ms=SECOND))
    assert broker.namespace.next_due_ms() == START + SECOND


def test_a4_clock_jump_has_the_same_outcome_as_small_steps() -> None:
    def life(step_ms: int) -> list[Any]:
        broker = Broker()
        queue = broker.queue(dead_letter_on_expiration=True, max_delivery_count=2)
        broker.send(queue, letter("a", time_to_live_ms=70 * SECOND), "b", letter("c", time_to_live_ms=5 * SECOND))
        broker.receive(queue, 2)
        broker.schedule(queue, "d", 3 * SECOND, time_to_live_ms=4 * SECOND)
        for _ in range(90 * SECOND // step_ms):
            broker.wait(step_ms)
        return [broker.info(queue), broker.peek(queue), broker.peek(dead(queue))]

    assert life(90 * SECOND) == life(SECOND) == life(500)


# Auto-delete on idle


@pytest.mark.parametrize("kind", ["queue", "topic", "subscription"])
def test_a4_idle_entity_is_deleted(kind: str) -> None:
    broker = Broker()
    match kind:
        case "queue":
            address = broker.queue(auto_delete_on_idle_ms=IDLE)
        case "topic":
            address = broker.topic(auto_delete_on_idle_ms=IDLE)
        case _:
            broker.topic()
            address = broker.subscription(auto_delete_on_idle_ms=IDLE)
    broker.wait(IDLE - 1)
    assert broker.info(address).created_ms == START
    broker.wait(1)
    with pytest.raises(EntityNotFoundError):
        broker.info(address)
    assert broker.namespace.take_notices() == [EntityGone(address)]
    if kind == "subscription":
        assert broker.info(Address.of("topic")).subscription_count == 0


@pytest.mark.parametrize("use", ["send", "receive", "touch", "update"])
def test_a4_entity_in_use_is_not_deleted(use: str) -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=IDLE)
    broker.wait(IDLE - 1)
    match use:
        case "send":
            broker.send(queue, "x")
        case "receive":
            broker.receive(queue)
        case "touch":
            broker.namespace.touch(queue, broker.now_ms)
        case _:
            broker.update(queue, user_metadata="x")
    broker.wait(IDLE - 1)
    assert broker.info(queue).path == "queue"
    broker.wait(1)
    assert broker.namespace.queues(broker.now_ms) == []


def test_a4_forwarding_entity_is_never_idle() -> None:
    broker = Broker()
    broker.queue("target")
    queue = broker.queue(auto_delete_on_idle_ms=IDLE, forward_to="target")
    broker.wait(100 * IDLE)
    assert broker.send(queue, "x") == [1]


def test_a4_entity_that_stops_forwarding_can_become_idle() -> None:
    broker = Broker()
    broker.queue("target")
    queue = broker.queue(auto_delete_on_idle_ms=IDLE, forward_to="target")
    broker.wait(10 * IDLE)
    broker.update(queue, forward_to=None)
    broker.wait(IDLE - 1)
    assert broker.info(queue).path == "queue"
    broker.wait(1)
    with pytest.raises(EntityNotFoundError):
        broker.info(queue)


def test_a4_shorter_idle_time_applies_at_once() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=10 * IDLE)
    broker.update(queue, auto_delete_on_idle_ms=IDLE)
    broker.wait(IDLE)
    with pytest.raises(EntityNotFoundError):
        broker.info(queue)


def test_a4_longer_idle_time_applies_at_once() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=IDLE)
    broker.update(queue, auto_delete_on_idle_ms=2 * IDLE)
    broker.wait(2 * IDLE - 1)
    assert broker.info(queue).path == "queue"
    broker.wait(1)
    with pytest.raises(EntityNotFoundError):
        broker.info(queue)


def test_a4_auto_delete_can_be_disabled_and_enabled_again() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=IDLE)
    broker.update(queue, auto_delete_on_idle_ms=None)
    broker.wait(10 * IDLE)
    assert broker.info(queue).path == "queue"
    broker.update(queue, auto_delete_on_idle_ms=IDLE)
    broker.wait(IDLE)
    with pytest.raises(EntityNotFoundError):
        broker.info(queue)


def test_a4_idle_time_restarts_after_a_restart() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=IDLE)
    broker.commit()
    broker.now_ms += 10 * IDLE
    broker.crash()
    broker.wait(IDLE - 1)
    assert broker.info(queue).path == "queue"
    broker.wait(1)
    with pytest.raises(EntityNotFoundError):
        broker.info(queue)


def test_a4_locks_of_a_deleted_entity_settle_nothing_in_its_successor() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=IDLE, lock_duration_ms=IDLE)
    broker.send(queue, "x")
    delivery = broker.one(queue)
    broker.wait(IDLE)
    broker.queue()
    broker.send(queue, "y")
    with pytest.raises(LockLostError):
        broker.complete(queue, delivery)
    assert numbers(broker.peek(queue)) == [1]


def test_a4_entity_with_a_scheduled_message_is_not_idle() -> None:
    broker = Broker()
    queue = broker.queue(auto_delete_on_idle_ms=5 * MINUTE)
    broker.schedule(queue, "later", 12 * MINUTE)
    broker.wait(12 * MINUTE)
    assert broker.take(queue) == ["later"]
    broker.wait(5 * MINUTE)
    assert broker.namespace.queues(broker.now_ms) == []


def test_a4_use_of_a_subscription_counts_as_use_of_its_topic() -> None:
    broker = Broker()
    topic = broker.topic(auto_delete_on_idle_ms=5 * MINUTE)
    subscription = broker.subscription("sub")
    broker.wait(4 * MINUTE)
    broker.receive(subscription)
    broker.wait(4 * MINUTE)
    assert broker.info(topic).subscription_count == 1
    broker.wait(MINUTE)
    assert broker.namespace.topics(broker.now_ms) == []


def test_a4_forwarded_message_counts_as_use_of_its_destination() -> None:
    broker = Broker()
    end = broker.queue("end", auto_delete_on_idle_ms=5 * MINUTE)
    first = broker.queue("first", forward_to="end")
    broker.wait(4 * MINUTE)
    broker.send(first, "x")
    broker.wait(4 * MINUTE)
    assert broker.take(end) == ["x"]
