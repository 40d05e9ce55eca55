"""E6: a message that cannot be read is quarantined: reported, and a stub of it in the dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.broker import Address, InvalidOperationError, MessageNotFoundError, Quarantined, RuleDescription
from pairbus.broker.errors import DAMAGED
from pairbus.broker.message import DeliveredMessage
from pairbus.store import MemoryStore
from tests.broker.broker import LOCK, MINUTE, START, Broker, dead, letter, numbers, reason, sql, texts

QUEUE = Address.of("queue")
LETTERS = Address.of("letters")


def a_broker() -> Broker:
    broker = Broker()
    broker.topic("letters")
    return broker


def store_of(broker: Broker) -> MemoryStore:
    assert isinstance(broker.store, MemoryStore)
    return broker.store


def damage(broker: Broker, kind: bytes, number: int = 0) -> None:
    """Damage a stored record: of the given kind, the one at that position among the keys."""
    broker.commit()
    store = store_of(broker)
    store.damage([key for key, _ in store.scan(kind, bytes((kind[0] + 1,)))][number])


def reported(broker: Broker) -> list[Quarantined]:
    return [notice for notice in broker.namespace.take_notices() if isinstance(notice, Quarantined)]


def stub_of(broker: Broker, address: Address = QUEUE) -> DeliveredMessage:
    """Return the only message in the dead-letter queue, which must be a stub."""
    (stub,) = broker.peek(dead(address))
    assert reason(stub) == DAMAGED
    assert stub.body == b""
    return stub


def known_id(stub: DeliveredMessage) -> object:
    assert stub.record.amendments is not None
    return stub.record.amendments.system.get("MessageId")


# Each way to encounter a damaged body


def receive(broker: Broker) -> list[str]:
    return texts(broker.receive(QUEUE))


def receive_and_delete(broker: Broker) -> list[str]:
    return broker.take(QUEUE)


def peek(broker: Broker) -> list[str]:
    return texts(broker.peek(QUEUE))


def start_forwarding(broker: Broker) -> list[str]:
    broker.queue("next")
    broker.update(QUEUE, forward_to="next")
    broker.tidy()
    return broker.take(Address.of("next"))


def restart_and_receive(broker: Broker) -> list[str]:
    broker.restart()
    return texts(broker.receive(QUEUE))


@pytest.mark.parametrize("read", [receive, receive_and_delete, peek, start_forwarding, restart_and_receive])
@pytest.mark.parametrize("kind", [b"B", b"R"], ids=["body", "record"])
def test_e6_damaged_message_leaves_a_stub_and_all_others_are_delivered(
    read: Callable[[Broker], list[str]], kind: bytes
) -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, *(letter(f"{number}", message_id=f"id {number}") for number in range(5)))
    damage(broker, kind, 2)
    assert read(broker) == ["0", "1", "3", "4"]
    (notice,) = reported(broker)
    assert (notice.address, notice.sequence, notice.damaged) == (QUEUE, 3, "body" if kind == b"B" else "record")
    stub = stub_of(broker)
    assert stub.record.original_sequence == 3
    assert known_id(stub) == (notice.message_id or None) == ("id 2" if kind == b"B" else None)
    broker.restart()
    stub_of(broker)
    assert broker.keeper.recovery.damaged == []
    assert broker.keeper.recovery.quarantined == 1
    assert broker.peek(QUEUE) == [] or 3 not in numbers(broker.peek(QUEUE))
    assert not reported(broker)


def abandon(broker: Broker, delivery: DeliveredMessage) -> None:
    broker.abandon(QUEUE, delivery)


def let_the_lock_expire(broker: Broker, _delivery: DeliveredMessage) -> None:
    broker.wait(LOCK)


@pytest.mark.parametrize("give_back", [abandon, let_the_lock_expire])
def test_e6_damaged_message_is_not_dropped_by_the_rules_of_a_topic_that_it_is_forwarded_to(
    give_back: Callable[[Broker, DeliveredMessage], None],
) -> None:
    broker = a_broker()
    broker.queue()
    broker.subscription(topic="letters", rule=sql("colour = 'red'"))
    broker.send(QUEUE, letter("one", user={"colour": "red"}))
    delivery = broker.one(QUEUE)
    broker.update(QUEUE, forward_to="letters")
    damage(broker, b"B")
    give_back(broker, delivery)
    assert len(reported(broker)) == 1
    stub_of(broker)
    assert broker.peek(QUEUE) == []


def test_e6_damaged_message_that_is_dead_lettered_leaves_a_stub_where_dead_letters_are_forwarded() -> None:
    broker = a_broker()
    broker.queue(forward_dead_letters_to="letters")
    broker.subscription(topic="letters", rule=sql("colour = 'red' OR sys.MessageId IS NOT NULL"))
    broker.send(QUEUE, letter("one", user={"colour": "red"}, message_id="known"))
    delivery = broker.one(QUEUE)
    damage(broker, b"B")
    broker.dead_letter(QUEUE, delivery)
    assert len(reported(broker)) == 1
    (stub,) = broker.peek(Address.of("letters", "sub"))
    assert (reason(stub), stub.body) == (DAMAGED, b"")


def test_e6_damaged_deferred_message_leaves_a_stub() -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, "one", "two")
    first, second = (broker.defer(QUEUE, delivery) for delivery in broker.receive(QUEUE))
    damage(broker, b"B")
    assert texts(broker.deferred(QUEUE, second)) == ["two"]
    assert broker.deferred(QUEUE, first) == []
    assert [notice.sequence for notice in reported(broker)] == [first]
    stub_of(broker)


@pytest.mark.parametrize("kind", [b"B", b"R"], ids=["body", "record"])
def test_e6_damaged_scheduled_message_of_a_topic_leaves_a_stub_in_each_subscription(kind: bytes) -> None:
    broker = a_broker()
    red, blue = (broker.subscription(name, topic="letters", rule=sql("colour = 'red'")) for name in ("red", "blue"))
    broker.schedule(LETTERS, "later", MINUTE, user={"colour": "red"})
    damage(broker, kind)
    broker.wait(MINUTE)
    assert [notice.address for notice in reported(broker)] == [LETTERS]
    stub_of(broker, red)
    stub_of(broker, blue)


def test_e6_damaged_body_that_subscriptions_share_leaves_a_stub_in_each() -> None:
    broker = a_broker()
    subscriptions = [broker.subscription(name, topic="letters", rule=RuleDescription(name="all")) for name in "abc"]
    broker.send(LETTERS, "shared")
    damage(broker, b"B")
    for subscription in subscriptions:
        assert broker.take(subscription) == []
        stub_of(broker, subscription)
    assert len(reported(broker)) == 3
    broker.commit()
    left = [body for key, body in store_of(broker).scan(b"B", b"C")]
    assert left == [b""] * 3, "only those of the stubs"


def test_e6_stub_of_a_session_names_its_session_and_the_session_continues() -> None:
    broker = a_broker()
    broker.queue(requires_session=True)
    broker.send(QUEUE, *(letter(text, session_id="visit") for text in ("one", "two")))
    damage(broker, b"B")
    token = broker.accept(QUEUE, "visit")
    assert texts(broker.receive(QUEUE, session_token=token)) == ["two"]
    assert stub_of(broker).record.session_id == "visit"


def test_e6_message_held_by_a_receiver_is_not_quarantined_by_others() -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, "one")
    delivery = broker.one(QUEUE)
    damage(broker, b"B")
    assert broker.peek(QUEUE) == []
    assert reported(broker) == []
    broker.complete(QUEUE, delivery)
    assert broker.peek(dead(QUEUE)) == []


def test_e6_damaged_dead_letter_leaves_a_stub_in_its_own_queue() -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, "one")
    broker.dead_letter(QUEUE, broker.one(QUEUE))
    damage(broker, b"B")
    assert [reason(stub) for stub in broker.receive(dead(QUEUE))] == [DAMAGED]
    assert len(reported(broker)) == 1


def test_e6_record_under_a_key_that_is_damaged_itself_does_not_stop_the_start() -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, "one")
    broker.commit()
    store = store_of(broker)
    ((key, value),) = store.scan(b"R", b"S")
    strange = [key[:6] + b"\x7f" + key[7:], key[:5] + b"\x09" + key[6:], key[:-3], b"R\xff\xff\xff\xff" + key[5:]]
    commit = store.prepare(dict.fromkeys(strange, value))
    commit.run()
    for each in strange:
        store.damage(each)
    broker.crash()
    assert broker.take(QUEUE, 1) == ["one"]
    recovery = broker.keeper.recovery
    assert sorted(recovery.damaged) == sorted(strange)
    assert len(reported(broker)) == len(recovery.stubs) < len(strange)
    broker.send(QUEUE, "two")
    assert broker.one(QUEUE).record.sequence == 2, "a damaged key says nothing about numbers"
    assert broker.now_ms == START


def test_e6_record_with_unreadable_texts_is_quarantined_when_it_is_delivered() -> None:
    broker = a_broker()
    broker.queue()
    broker.send(QUEUE, letter("one", message_id="first"), letter("two"))
    broker.commit()
    store = store_of(broker)
    (key, value), _ = store.scan(b"R", b"S")
    store.prepare({key: value.replace(b"first", b"f\xffrst")}).run()
    broker.restart()
    assert broker.keeper.recovery.damaged == []
    assert broker.take(QUEUE) == ["two"]
    assert len(reported(broker)) == 1
    stub_of(broker)


# On demand


def test_quarantine_takes_a_readable_message_out_of_service() -> None:
    broker = a_broker()
    broker.queue("queue")
    broker.send(QUEUE, letter("one"), letter("two", message_id="second"), letter("three"))
    broker.namespace.quarantine(QUEUE, 2, START)
    assert [(notice.sequence, notice.message_id) for notice in reported(broker)] == [(2, "second")]
    assert known_id(stub_of(broker)) == "second"
    broker.restart()
    assert texts(broker.receive(QUEUE)) == ["one", "three"]
    assert known_id(stub_of(broker)) == "second"


def test_locked_message_is_not_quarantined() -> None:
    broker = a_broker()
    broker.queue("queue")
    broker.send(QUEUE, letter("one"))
    broker.receive(QUEUE)
    with pytest.raises(InvalidOperationError, match="message 1 of 'queue' is locked"):
        broker.namespace.quarantine(QUEUE, 1, START)
    with pytest.raises(MessageNotFoundError, match="'queue' has no message 2"):
        broker.namespace.quarantine(QUEUE, 2, START)
    assert reported(broker) == []
