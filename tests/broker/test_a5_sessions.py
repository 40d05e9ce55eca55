"""A5: session ids, exclusive session locks, session state, accepting a named or the next session, order within one."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import (
    EntityDisabledError,
    InvalidOperationError,
    InvalidRequestError,
    MessageNotFoundError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.broker.message import Address, NewMessage
from pairbus.broker.ports import SessionLost
from tests.broker.broker import LOCK, MINUTE, SECOND, START, UNKNOWN_TOKEN, Broker, dead, letter, reason, text, texts

QUEUE = Address.of("queue")


def sessions(**settings: Any) -> Broker:
    """Return a namespace with a queue that requires sessions."""
    broker = Broker()
    broker.queue(requires_session=True, **settings)
    return broker


def part(content: str, session_id: str = "s") -> NewMessage:
    return letter(content, session_id=session_id)


# Sending


def test_a5_entity_with_sessions_refuses_a_message_without_a_session_id() -> None:
    broker = sessions()
    with pytest.raises(SessionRequiredError):
        broker.send(QUEUE, part("a"), letter("b"))
    assert broker.info(QUEUE).message_count == 0


def test_a5_entity_without_sessions_stores_and_ignores_a_session_id() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, part("a", "one"), part("b", "two"))
    found = broker.receive(queue)
    assert [(text(delivery), delivery.record.session_id) for delivery in found] == [("a", "one"), ("b", "two")]


def test_a5_subscription_with_sessions_dead_letters_a_message_without_a_session_id() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(requires_session=True)
    broker.send(topic, "x", part("y"))
    assert [reason(delivery) for delivery in broker.peek(dead(subscription))] == ["Session ID is null."]
    assert broker.take(subscription, session_token=broker.accept(subscription)) == ["y"]


# Accepting


def test_a5_named_session_is_accepted_for_a_lock_duration() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    grant = broker.namespace.accept_session(QUEUE, "s", START)
    assert grant is not None
    assert (grant.session_id, grant.locked_until_ms) == ("s", START + LOCK)
    delivery = broker.one(QUEUE, session_token=grant.session_token)
    assert (text(delivery), delivery.locked_until_ms) == ("x", START + LOCK)


@pytest.mark.parametrize("session_id", ["", "s" * 128, "größe"])
def test_a5_session_without_messages_may_be_accepted(session_id: str) -> None:
    broker = sessions()
    token = broker.accept(QUEUE, session_id)
    assert broker.receive(QUEUE, session_token=token) == []
    broker.send(QUEUE, part("x", session_id))
    assert broker.take(QUEUE, session_token=token) == ["x"]


def test_a5_session_id_is_case_sensitive() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x", "A"))
    assert broker.take(QUEUE, session_token=broker.accept(QUEUE, "a")) == []


def test_a5_session_has_one_holder() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    with pytest.raises(SessionLockedError):
        broker.accept(QUEUE, "s")
    broker.let_go(QUEUE, token)
    broker.accept(QUEUE, "s")


def test_a5_next_session_is_one_with_a_message_and_without_a_holder() -> None:
    broker = sessions()
    broker.accept(QUEUE, "held")
    broker.send(QUEUE, part("1", "held"), part("2", "free"))
    broker.accept(QUEUE, "empty")
    grant = broker.namespace.accept_session(QUEUE, None, START)
    assert grant is not None
    assert grant.session_id == "free"
    assert broker.namespace.accept_session(QUEUE, None, START) is None


def test_a5_session_that_has_waited_longest_is_the_next() -> None:
    broker = sessions()
    broker.send(QUEUE, part("1", "b"), part("2", "a"), part("3", "b"))
    order = []
    while (grant := broker.namespace.accept_session(QUEUE, None, START)) is not None:
        order.append(grant.session_id)
    assert order == ["b", "a"]


def test_a5_session_with_only_deferred_or_scheduled_messages_is_not_next() -> None:
    broker = sessions()
    broker.send(QUEUE, part("deferred", "d"))
    token = broker.accept(QUEUE, "d")
    broker.defer(QUEUE, broker.one(QUEUE, session_token=token))
    broker.let_go(QUEUE, token)
    broker.schedule(QUEUE, "scheduled", MINUTE, session_id="later")
    assert broker.namespace.accept_session(QUEUE, None, START) is None
    broker.wait(MINUTE)
    grant = broker.namespace.accept_session(QUEUE, None, broker.now_ms)
    assert grant is not None
    assert grant.session_id == "later"


def test_a5_accepting_a_session_of_an_entity_without_sessions_is_refused() -> None:
    broker = sessions()
    plain = broker.queue("plain")
    for address in (plain, dead(QUEUE)):
        with pytest.raises(InvalidOperationError):
            broker.namespace.accept_session(address, None, START)
        with pytest.raises(InvalidOperationError):
            broker.namespace.accept_session(address, "s", START)


def test_a5_long_session_id_is_refused() -> None:
    broker = sessions()
    with pytest.raises(InvalidRequestError):
        broker.accept(QUEUE, "s" * 129)


def test_a5_no_session_is_accepted_where_receiving_is_disabled() -> None:
    broker = sessions(status=EntityStatus.RECEIVE_DISABLED)
    with pytest.raises(EntityDisabledError):
        broker.accept(QUEUE, "s")


# Receiving


def test_a5_receive_without_a_session_is_refused_by_an_entity_with_sessions() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    with pytest.raises(InvalidOperationError):
        broker.receive(QUEUE)
    with pytest.raises(SessionLockLostError):
        broker.receive(QUEUE, session_token=UNKNOWN_TOKEN)


def test_a5_session_token_is_refused_by_an_entity_without_sessions() -> None:
    broker = Broker()
    queue = broker.queue()
    with pytest.raises(InvalidOperationError):
        broker.receive(queue, session_token=UNKNOWN_TOKEN)


def test_a5_holder_gets_the_messages_of_the_session_and_no_others_in_order() -> None:
    broker = sessions()
    for number in range(3):
        broker.send(QUEUE, part(f"a{number}", "a"), part(f"b{number}", "b"))
    one, other = broker.accept(QUEUE, "a"), broker.accept(QUEUE, "b")
    assert texts(broker.receive(QUEUE, session_token=other)) == ["b0", "b1", "b2"]
    assert texts(broker.receive(QUEUE, session_token=one)) == ["a0", "a1", "a2"]


def test_a5_abandoned_message_is_delivered_first_again() -> None:
    broker = sessions()
    broker.send(QUEUE, part("a"), part("b"))
    token = broker.accept(QUEUE, "s")
    broker.abandon(QUEUE, broker.one(QUEUE, session_token=token))
    again = broker.receive(QUEUE, session_token=token)
    assert texts(again) == ["a", "b"]
    assert [delivery.record.delivery_count for delivery in again] == [1, 0]


@pytest.mark.parametrize("session_id", ["s", ""])
def test_a5_session_of_a_partitioned_queue_is_in_order(session_id: str) -> None:
    broker = sessions(partitioned=True)
    for number in range(40):
        broker.send(QUEUE, part(str(number), session_id), part("other", f"o{number}"))
    token = broker.accept(QUEUE, session_id)
    assert broker.take(QUEUE, session_token=token) == [str(number) for number in range(40)]


def test_a5_messages_are_settled_under_the_lock_of_the_session() -> None:
    broker = sessions()
    broker.send(QUEUE, part("completed"), part("buried"), part("deferred"))
    token = broker.accept(QUEUE, "s")
    completed, buried, deferred = broker.receive(QUEUE, session_token=token)
    broker.complete(QUEUE, completed)
    broker.dead_letter(QUEUE, buried, reason="r")
    sequence = broker.defer(QUEUE, deferred)
    assert broker.take(dead(QUEUE)) == ["buried"]
    assert texts(broker.deferred(QUEUE, sequence, session_token=token)) == ["deferred"]


def test_a5_deferred_message_is_delivered_to_the_holder_of_its_session_only() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x", "mine"))
    mine, other = broker.accept(QUEUE, "mine"), broker.accept(QUEUE, "other")
    sequence = broker.defer(QUEUE, broker.one(QUEUE, session_token=mine))
    with pytest.raises(InvalidOperationError):
        broker.deferred(QUEUE, sequence)
    with pytest.raises(MessageNotFoundError):
        broker.deferred(QUEUE, sequence, session_token=other)
    assert texts(broker.deferred(QUEUE, sequence, session_token=mine)) == ["x"]


def test_a5_lock_of_one_message_is_not_renewed() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    delivery = broker.one(QUEUE, session_token=broker.accept(QUEUE, "s"))
    with pytest.raises(InvalidOperationError):
        broker.renew(QUEUE, delivery)


def test_a5_peek_of_one_session_or_all_needs_no_lock() -> None:
    broker = sessions()
    broker.send(QUEUE, part("a", "one"), part("b", "two"), part("c", "one"))
    assert texts(broker.peek(QUEUE)) == ["a", "b", "c"]
    assert texts(broker.peek(QUEUE, session_id="one")) == ["a", "c"]
    assert broker.peek(QUEUE, session_id="none") == []


def test_a5_dead_letters_of_an_entity_with_sessions_are_received_without_one() -> None:
    broker = sessions(default_time_to_live_ms=SECOND, dead_letter_on_expiration=True)
    broker.send(QUEUE, part("x", "one"), part("y", "two"))
    broker.wait(SECOND)
    found = broker.receive(dead(QUEUE))
    assert [(text(delivery), delivery.record.session_id) for delivery in found] == [("x", "one"), ("y", "two")]


# The lock of a session


def test_a5_lock_of_a_session_ends_at_exactly_its_time_with_those_of_its_messages() -> None:
    broker = sessions()
    broker.send(QUEUE, part("a"), part("b"))
    token = broker.accept(QUEUE, "s")
    broker.wait(SECOND)
    delivery = broker.one(QUEUE, session_token=token)
    assert delivery.locked_until_ms == START + LOCK
    broker.wait(LOCK - SECOND - 1)
    with pytest.raises(SessionLockedError):
        broker.accept(QUEUE, "s")
    broker.wait(1)
    with pytest.raises(SessionLockLostError):
        broker.receive(QUEUE, session_token=token)
    with pytest.raises(SessionLockLostError):
        broker.complete(QUEUE, delivery)
    again = broker.receive(QUEUE, session_token=broker.accept(QUEUE, "s"))
    assert texts(again) == ["a", "b"]
    assert [found.record.delivery_count for found in again] == [1, 0]


def crowd(broker: Broker) -> None:
    """Make more work due after a second than one request executes."""
    crowded = broker.queue("crowded", default_time_to_live_ms=SECOND)
    for _ in range(101):
        broker.send(crowded, *["expires"] * 100)


def test_a5_lock_of_a_session_has_ended_at_its_time_however_much_else_is_due() -> None:
    broker = sessions()
    broker.send(QUEUE, part("a"), part("b"))
    token = broker.accept(QUEUE, "s")
    delivery = broker.one(QUEUE, session_token=token)
    crowd(broker)
    broker.now_ms += LOCK
    with pytest.raises(SessionLockLostError):
        broker.complete(QUEUE, delivery)
    with pytest.raises(SessionLockLostError):
        broker.receive(QUEUE, session_token=token)


def test_a5_session_is_free_at_its_time_however_much_else_is_due() -> None:
    broker = sessions()
    broker.send(QUEUE, part("a"))
    broker.accept(QUEUE, "s")
    crowd(broker)
    broker.now_ms += LOCK
    assert broker.take(QUEUE, session_token=broker.accept(QUEUE, "s")) == ["a"]


def test_a5_expired_session_lock_raises_a_notice() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    broker.wait(LOCK)
    assert broker.namespace.take_notices() == [SessionLost(QUEUE, "s", token)]


def test_a5_renewed_session_lasts_a_lock_duration_from_now_with_its_messages() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    token = broker.accept(QUEUE, "s")
    delivery = broker.one(QUEUE, session_token=token)
    broker.wait(LOCK - 1)
    assert broker.namespace.renew_session(QUEUE, token, broker.now_ms) == broker.now_ms + LOCK
    broker.wait(LOCK - 1)
    broker.complete(QUEUE, delivery)
    broker.wait(1)
    with pytest.raises(SessionLockLostError):
        broker.namespace.renew_session(QUEUE, token, broker.now_ms)


def test_a5_renewed_session_ends_at_the_returned_time_even_if_sooner() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    broker.update(QUEUE, lock_duration_ms=5 * SECOND)
    assert broker.namespace.renew_session(QUEUE, token, START) == START + 5 * SECOND
    broker.wait(5 * SECOND)
    broker.accept(QUEUE, "s")


def test_a5_released_session_is_available_at_once_and_its_messages_count_as_undelivered() -> None:
    broker = sessions(max_delivery_count=1)
    broker.send(QUEUE, part("a"), part("b"))
    token = broker.accept(QUEUE, "s")
    delivery = broker.one(QUEUE, session_token=token)
    broker.let_go(QUEUE, token)
    with pytest.raises(SessionLockLostError):
        broker.complete(QUEUE, delivery)
    again = broker.receive(QUEUE, session_token=broker.accept(QUEUE))
    assert texts(again) == ["a", "b"]
    assert [found.record.delivery_count for found in again] == [0, 0]


def test_a5_message_of_a_session_that_expires_too_often_is_dead_lettered() -> None:
    broker = sessions(max_delivery_count=2)
    broker.send(QUEUE, part("x"))
    for _ in range(2):
        assert texts(broker.receive(QUEUE, session_token=broker.accept(QUEUE))) == ["x"]
        broker.wait(LOCK)
    assert broker.namespace.accept_session(QUEUE, None, broker.now_ms) is None
    assert [reason(delivery) for delivery in broker.peek(dead(QUEUE))] == ["MaxDeliveryCountExceeded"]


def test_a5_token_of_an_ended_session_is_refused() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    broker.let_go(QUEUE, token)
    for refused in (
        lambda: broker.let_go(QUEUE, token),
        lambda: broker.namespace.renew_session(QUEUE, token, START),
        lambda: broker.namespace.session_state(QUEUE, token, START),
        lambda: broker.namespace.set_session_state(QUEUE, token, b"x", START),
        lambda: broker.receive(QUEUE, session_token=token),
        lambda: broker.deferred(QUEUE, 1, session_token=token),
        lambda: broker.namespace.delete_messages(QUEUE, 1, START, session_token=token),
    ):
        with pytest.raises(SessionLockLostError):
            refused()


def test_a5_receivers_are_woken_when_a_session_with_messages_is_free_again() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    token = broker.accept(QUEUE, "s")
    broker.namespace.take_woken()
    broker.let_go(QUEUE, token)
    assert broker.namespace.take_woken() == [QUEUE]
    broker.accept(QUEUE, "s")
    broker.wait(LOCK)
    assert broker.namespace.take_woken() == [QUEUE]


# State


def test_a5_session_has_no_state_until_one_is_set() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    assert broker.namespace.session_state(QUEUE, token, START) is None
    broker.namespace.set_session_state(QUEUE, token, b"", START)
    assert broker.namespace.session_state(QUEUE, token, START) == b""


def test_a5_next_holder_reads_the_state_of_the_last_one() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    broker.namespace.set_session_state(QUEUE, token, b"state", START)
    broker.let_go(QUEUE, token)
    assert broker.namespace.session_state(QUEUE, broker.accept(QUEUE, "s"), START) == b"state"


def test_a5_state_is_kept_without_a_holder_and_without_messages_until_it_is_removed() -> None:
    broker = sessions()
    token = broker.accept(QUEUE, "s")
    broker.namespace.set_session_state(QUEUE, token, b"state", START)
    broker.let_go(QUEUE, token)
    broker.restart()
    token = broker.accept(QUEUE, "s")
    assert broker.namespace.session_state(QUEUE, token, START) == b"state"
    broker.namespace.set_session_state(QUEUE, token, None, START)
    broker.let_go(QUEUE, token)
    broker.restart()
    assert broker.namespace.session_state(QUEUE, broker.accept(QUEUE, "s"), START) is None


def test_a5_each_session_has_its_own_state() -> None:
    broker = sessions()
    other = broker.queue("other", requires_session=True)
    tokens = [(QUEUE, broker.accept(QUEUE, name)) for name in ("a", "b")] + [(other, broker.accept(other, "a"))]
    for number, (address, token) in enumerate(tokens):
        broker.namespace.set_session_state(address, token, b"%d" % number, START)
    assert [broker.namespace.session_state(*each, START) for each in tokens] == [b"0", b"1", b"2"]


# Listing


def test_a5_sessions_with_messages_are_listed() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x", "b"), part("y", "a"), part("z", "gone"))
    broker.take(QUEUE, session_token=broker.accept(QUEUE, "gone"))
    broker.accept(QUEUE, "empty")
    assert broker.namespace.sessions(QUEUE, START) == ["a", "b"]


def test_a5_sessions_whose_state_was_set_after_a_time_are_listed() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x", "no state"))
    for name in ("old", "new"):
        broker.namespace.set_session_state(QUEUE, broker.accept(QUEUE, name), b"s", broker.now_ms)
        broker.wait(SECOND)
    assert broker.namespace.sessions(QUEUE, broker.now_ms, START - 1) == ["new", "old"]
    assert broker.namespace.sessions(QUEUE, broker.now_ms, START) == ["new"]
    broker.restart()
    assert broker.namespace.sessions(QUEUE, broker.now_ms, START) == ["new"]


def test_a5_listing_sessions_of_an_entity_without_sessions_is_refused() -> None:
    broker = Broker()
    with pytest.raises(InvalidOperationError):
        broker.namespace.sessions(broker.queue(), START)


# Deleting


def test_a5_batch_delete_keeps_sessions_that_another_receiver_holds() -> None:
    broker = sessions()
    broker.send(QUEUE, part("held", "held"), part("free", "free"))
    token = broker.accept(QUEUE, "held")
    assert broker.namespace.delete_messages(QUEUE, 10, START) == 1
    assert texts(broker.peek(QUEUE)) == ["held"]
    assert broker.namespace.delete_messages(QUEUE, 10, START, session_token=token) == 1
    assert broker.peek(QUEUE) == []


def test_a5_session_that_does_not_expire_is_held_until_it_is_released() -> None:
    broker = sessions()
    broker.send(QUEUE, part("x"))
    grant = broker.namespace.accept_session(QUEUE, "s", START, expires=False)
    assert grant is not None
    assert grant.locked_until_ms == START + LOCK
    broker.namespace.renew_session(QUEUE, grant.session_token, START)
    later = START + 100 * MINUTE
    with pytest.raises(SessionLockedError):
        broker.namespace.accept_session(QUEUE, "s", later)
    assert broker.namespace.take_notices() == []
    broker.namespace.release_session(QUEUE, grant.session_token, later)
    assert broker.namespace.accept_session(QUEUE, None, later) is not None
