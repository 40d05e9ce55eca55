"""Counts and sizes are exact through the whole life of an entity."""

from __future__ import annotations

from typing import NamedTuple

from pairbus.broker.descriptions import CorrelationFilter, RuleDescription
from pairbus.broker.message import Address
from pairbus.broker.transaction import SendOperation
from tests.broker.broker import LOCK, MINUTE, START, Broker, blob, dead, letter, sql


class Counts(NamedTuple):
    """The counts in ``EntityInfo`` of the messages in a queue, and their bytes."""

    ready: int = 0
    locked: int = 0
    deferred: int = 0
    scheduled: int = 0
    dead: int = 0
    transfer: int = 0
    size: int = 0


def counts(broker: Broker, address: Address) -> Counts:
    info = broker.info(address)
    found = Counts(
        info.ready_count,
        info.locked_count,
        info.deferred_count,
        info.scheduled_count,
        info.dead_letter_count,
        info.transfer_dead_letter_count,
        info.size_bytes,
    )
    assert info.active_count == found.ready + found.locked + found.deferred
    assert info.message_count == sum(found[:-1])
    return found


def test_a7_counts_of_a_queue_are_exact_through_its_life() -> None:
    broker = Broker()
    queue = broker.queue(max_delivery_count=3)

    def now(*expected: int) -> None:
        assert counts(broker, queue) == Counts(*expected)

    now()
    broker.send(queue, blob(1), blob(10), blob(100))
    now(3, 0, 0, 0, 0, 0, 111)
    broker.send(queue, blob(1_000, scheduled_ms=START + MINUTE))
    now(3, 0, 0, 1, 0, 0, 1_111)
    first, second = broker.receive(queue, 2)
    now(1, 2, 0, 1, 0, 0, 1_111)
    sequence = broker.defer(queue, first, with_a="property")
    now(1, 1, 1, 1, 0, 0, 1_111)
    broker.abandon(queue, second, with_a="property")
    now(2, 0, 1, 1, 0, 0, 1_111)
    (first,) = broker.deferred(queue, sequence)
    now(2, 1, 0, 1, 0, 0, 1_111)
    broker.abandon(queue, first)
    now(2, 0, 1, 1, 0, 0, 1_111)
    broker.dead_letter(queue, broker.deferred(queue, sequence)[0], reason="r")
    now(2, 0, 0, 1, 1, 0, 1_111)
    broker.wait(MINUTE)
    now(3, 0, 0, 0, 1, 0, 1_111)
    broker.receive(queue, 1, delete=True)  # the ten bytes
    now(2, 0, 0, 0, 1, 0, 1_101)
    broker.receive(dead(queue))
    now(2, 0, 0, 0, 1, 0, 1_101)
    broker.wait(LOCK)
    broker.complete(dead(queue), broker.one(dead(queue)))
    now(2, 0, 0, 0, 0, 0, 1_100)
    for _ in range(3):
        broker.one(queue)
        broker.wait(LOCK)
    now(1, 0, 0, 0, 1, 0, 1_100)
    broker.namespace.transact([SendOperation(Address.of("nowhere"), [blob(7)], via=queue)], broker.now_ms)
    now(1, 0, 0, 0, 1, 1, 1_107)
    broker.restart()
    now(1, 0, 0, 0, 1, 1, 1_107)
    broker.namespace.delete_messages(queue, 10, broker.now_ms)
    broker.namespace.delete_messages(dead(queue), 10, broker.now_ms)
    now(0, 0, 0, 0, 0, 1, 7)
    number = broker.schedule(queue, "x", MINUTE)
    broker.namespace.cancel_scheduled(queue, [number], broker.now_ms)
    now(0, 0, 0, 0, 0, 1, 7)


def test_a7_counts_of_a_session_queue_are_exact_through_its_life() -> None:
    broker = Broker()
    queue = broker.queue(requires_session=True, max_delivery_count=2)
    for name in ("a", "b"):
        broker.send(queue, *(blob(10, session_id=name) for _ in range(3)))
    assert counts(broker, queue) == Counts(ready=6, size=60)
    token = broker.accept(queue, "a")
    first, _ = broker.receive(queue, 2, session_token=token)
    assert counts(broker, queue) == Counts(ready=4, locked=2, size=60)
    broker.defer(queue, first)
    assert counts(broker, queue) == Counts(ready=4, locked=1, deferred=1, size=60)
    broker.wait(LOCK)
    assert counts(broker, queue) == Counts(ready=5, deferred=1, size=60)
    token = broker.accept(queue, "a")
    broker.receive(queue, 1, session_token=token)
    broker.wait(LOCK)
    assert counts(broker, queue) == Counts(ready=4, deferred=1, dead=1, size=60)


def test_a7_counts_of_a_topic_and_its_subscriptions_are_exact() -> None:
    broker = Broker()
    topic = broker.topic()
    one, other = broker.subscription("one"), broker.subscription("other")
    broker.send(topic, blob(10))
    broker.send(topic, blob(5, scheduled_ms=START + MINUTE))
    assert counts(broker, topic) == Counts(scheduled=1, size=25)
    assert counts(broker, one) == counts(broker, other) == Counts(ready=1, size=10)
    broker.dead_letter(one, broker.one(one))
    broker.receive(other, delete=True)
    assert counts(broker, topic) == Counts(scheduled=1, size=15)
    assert counts(broker, one) == Counts(dead=1, size=10)
    broker.wait(MINUTE)
    assert counts(broker, topic) == Counts(size=20)
    broker.delete(one)
    assert counts(broker, topic) == Counts(size=5)


def test_a7_counts_follow_a_message_from_entity_to_entity() -> None:
    broker = Broker()
    target, source = broker.queue("target"), broker.queue("source", forward_to="target")
    broker.send(source, blob(10))
    assert (counts(broker, source), counts(broker, target)) == (Counts(), Counts(ready=1, size=10))
    broker.update(target, forward_dead_letters_to="source")
    broker.dead_letter(target, broker.one(target))
    assert (counts(broker, source), counts(broker, target)) == (Counts(), Counts(ready=1, size=10))


def test_a7_rules_are_counted() -> None:
    broker = Broker()
    topic, one = broker.topic(), broker.subscription("one")
    broker.subscription("other", rule=sql("1=1"))
    broker.add_rule(one, RuleDescription(name="c", filter=CorrelationFilter(label="l")))
    for address, expected in ((topic, (2, 1)), (one, (1, 1))):
        info = broker.info(address)
        assert (info.sql_filter_count, info.correlation_filter_count) == expected


def test_a7_last_access_time_changes_with_sends_and_receives() -> None:
    broker = Broker()
    queue = broker.queue()
    for use in (
        lambda: broker.send(queue, letter("x")),
        lambda: broker.receive(queue, delete=True),
        lambda: broker.peek(queue),
        lambda: broker.namespace.touch(queue, broker.now_ms),
    ):
        broker.wait(1)
        use()
        assert broker.info(queue).accessed_ms == broker.now_ms
