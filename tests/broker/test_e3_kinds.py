"""E3: an argument of any type, right or wrong, gets a broker error if it is invalid, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pairbus.broker import (
    Address,
    BrokerError,
    CorrelationFilter,
    InvalidOperationError,
    Namespace,
    NewMessage,
    PropertyView,
    QueueDescription,
    QueuePart,
    Records,
    RuleDescription,
    SendOperation,
    SettlementKind,
    SettlementRequest,
    SettleOperation,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.store import MemoryStore, NamespaceReplacedError, StoreError, StoreFailedError
from tests.broker.broker import START, Broker, dead, letter

QUEUE, TOPIC, SESSIONS = Address.of("queue"), Address.of("topic"), Address.of("sessions")
MINUTES_AS_FLOAT = timedelta(minutes=1).total_seconds() * 1e3

Request = Callable[[Any, bytes, bytes], object]


def bad_message(**fields: Any) -> Request:
    return lambda n, _lock, _session: n.send(QUEUE, [letter("good", message_id="1"), NewMessage(b"", **fields)], START)


def bad_verdict(**fields: Any) -> Request:
    return lambda n, lock, _session: n.settle(QUEUE, lock, START, SettlementRequest(**fields))


def bad_queue(**fields: Any) -> Request:
    return lambda n, _lock, _session: n.create_queue("new", QueueDescription(**fields), START)


def bad_rule(rule: Any) -> Request:
    return lambda n, _lock, _session: n.add_rule("topic", "sub", rule, START)


BAD: dict[str, Request] = {
    # addresses and times
    "text for an address": lambda n, _l, _s: n.send("queue", [letter("x")], START),
    "a tuple for an address": lambda n, _l, _s: n.receive(("queue", None, 0), 1, START),
    "a number for a part": lambda n, _l, _s: n.receive(Address("queue", None, 7), 1, START),  # type: ignore[arg-type]
    "text for a part": lambda n, _l, _s: n.peek(Address.of("queue", part="dead"), 0, 1, START),  # type: ignore[arg-type]
    "a part for a name": lambda _n, _l, _s: Address.of("queue", QueuePart.DEAD_LETTER),  # type: ignore[arg-type]
    "a float for a time": lambda n, _l, _s: n.send(QUEUE, [letter("x")], START + 0.5),
    "microseconds": lambda n, _l, _s: n.send(QUEUE, [letter("x")], START * 1000),
    "a time before all times": lambda n, _l, _s: n.advance(-1),
    "no time": lambda n, _l, _s: n.receive(QUEUE, 1, None),
    "a truth value for a count": lambda n, _l, _s: n.receive(QUEUE, True, START),
    "a float for a count": lambda n, _l, _s: n.peek(QUEUE, 0, 1.5, START),
    # messages
    "a message without a list": lambda n, _l, _s: n.send(QUEUE, letter("x"), START),
    "bytes for a message": lambda n, _l, _s: n.send(QUEUE, [b"x"], START),
    "text for a body": lambda n, _l, _s: n.send(QUEUE, [letter("good"), NewMessage("x")], START),  # type: ignore[arg-type]
    "a number for a message id": bad_message(message_id=5),
    "no message id": bad_message(message_id=None, time_to_live_ms="1"),
    "a number for a session id": bad_message(session_id=5),
    "a float for a time to live": bad_message(time_to_live_ms=MINUTES_AS_FLOAT),
    "a time to live that is too long": bad_message(time_to_live_ms=2**63),
    "a date for a schedule": bad_message(scheduled_ms=datetime.now(UTC)),
    "a schedule that is too far": bad_message(scheduled_ms=2**63),
    # settling
    "a disposition for a verdict": lambda n, lock, _s: n.settle(QUEUE, lock, START, SettlementKind.ABANDON),
    "text for a disposition": bad_verdict(disposition="abandon"),
    "an error for a description": bad_verdict(disposition=SettlementKind.DEAD_LETTER, description=ValueError("x")),
    "a number for a reason": bad_verdict(disposition=SettlementKind.DEAD_LETTER, reason=5),
    "a date for a property": bad_verdict(disposition=SettlementKind.ABANDON, properties={"a": datetime.now(UTC)}),
    "a number for a property's name": bad_verdict(disposition=SettlementKind.DEFER, properties={5: "a"}),
    "a list for properties": bad_verdict(disposition=SettlementKind.DEFER, properties=["a"]),
    "a delivery for a token": lambda n, _l, _s: n.settle(QUEUE, None, START),
    # transactions
    "one bad message among good operations": lambda n, lock, _s: n.transact(
        [SettleOperation(QUEUE, lock), SendOperation(TOPIC, [NewMessage(b"", time_to_live_ms=MINUTES_AS_FLOAT)])],  # type: ignore[arg-type]
        START,
    ),
    "one bad verdict among good operations": lambda n, lock, _s: n.transact(
        [SendOperation(TOPIC, [letter("x")]), SettleOperation(QUEUE, lock, SettlementRequest(reason=5))],  # type: ignore[arg-type]
        START,
    ),
    "text for an operation": lambda n, _l, _s: n.transact(["x"], START),
    "no list of operations": lambda n, _l, _s: n.transact(None, START),
    "no list of messages": lambda n, _l, _s: n.send(QUEUE, 5, START),
    "text for the size of the header": bad_message(header_bytes="5"),
    "an unhashable token": lambda n, _l, _s: n.settle(QUEUE, {}, START),
    "text for sequence numbers": lambda n, _l, _s: n.receive_deferred(QUEUE, "12", START),
    "no sequence numbers": lambda n, _l, _s: n.cancel_scheduled(QUEUE, None, START),
    "text for a sequence number": lambda n, _l, _s: n.peek(QUEUE, "1", 1, START),
    "text for a range": lambda n, _l, _s: n.delete_messages(QUEUE, 1, START, to_sequence="9"),
    # sessions
    "text for a session's token": lambda n, _l, _s: n.renew_session(SESSIONS, "x", START),
    "a number for a session": lambda n, _l, _s: n.accept_session(SESSIONS, 5, START),
    "text for a state": lambda n, _l, session: n.set_session_state(SESSIONS, session, "x", START),
    # entities
    "a topic's settings for a queue": lambda n, _l, _s: n.create_queue("new", TopicDescription(), START),
    "a queue's settings for a topic": lambda n, _l, _s: n.create_topic("new", QueueDescription(), START),
    "no settings": lambda n, _l, _s: n.create_queue("new", None, START),
    "a number for a name": lambda n, _l, _s: n.create_queue(5, QueueDescription(), START),
    "another kind of settings": lambda n, _l, _s: n.update(QUEUE, SubscriptionDescription(), START),
    "text for a status": bad_queue(status="active"),
    "a float for a duration": bad_queue(lock_duration_ms=30_000.5),
    "a truth value for a number": bad_queue(max_delivery_count=True),
    "a number for an authorization rule": bad_queue(authorization_rules=(1,)),
    "a list of authorization rules": bad_queue(authorization_rules=[]),
    "a number for a target": bad_queue(forward_to=5),
    "the dead letters deleted": lambda n, _l, _s: n.delete(dead(QUEUE), START),
    "the dead letters updated": lambda n, _l, _s: n.update(dead(QUEUE), QueueDescription(), START),
    "a number for a topic": lambda n, _l, _s: n.subscriptions(5, START),
    "a number for a subscription": lambda n, _l, _s: n.rules("topic", 5, START),
    "a number for a new subscription": lambda n, _l, _s: n.create_subscription(
        "topic", 5, SubscriptionDescription(), START
    ),
    "a number for a rule's name": lambda n, _l, _s: n.remove_rule("topic", "sub", 5, START),
    # rules
    "a class for a filter": bad_rule(RuleDescription(name="r", filter=TrueFilter)),  # type: ignore[arg-type]
    "text for a filter": bad_rule(RuleDescription(name="r", filter="a=1")),  # type: ignore[arg-type]
    "no filter": bad_rule(RuleDescription(name="r", filter=None)),  # type: ignore[arg-type]
    "text for a rule": bad_rule("a=1"),
    "text for an action": bad_rule(RuleDescription(name="r", action="SET a=1")),  # type: ignore[arg-type]
    "a number for an expression": bad_rule(RuleDescription(name="r", filter=SqlFilterDescription(5))),  # type: ignore[arg-type]
    "a date for a parameter": bad_rule(
        RuleDescription(name="r", filter=SqlFilterDescription("a=@b", {"@b": datetime.now(UTC)}))  # type: ignore[dict-item]
    ),
    "a number to correlate by": bad_rule(RuleDescription(name="r", filter=CorrelationFilter(label=5))),  # type: ignore[arg-type]
    "a date to correlate by": bad_rule(
        RuleDescription(name="r", filter=CorrelationFilter(properties={"a": datetime.now(UTC)}))  # type: ignore[dict-item]
    ),
    "a bad action": bad_rule(RuleDescription(name="r", action=SqlActionDescription(b"SET a=1"))),  # type: ignore[arg-type]
}


def everything(broker: Broker) -> object:
    """Return everything that a restart would restore, and all locks."""
    broker.commit()
    assert isinstance(broker.store, MemoryStore)
    entities = [*broker.namespace.queues(START), *broker.namespace.topics(START)]
    return list(broker.store.scan(b"\0", b"\xff")), entities, broker.namespace.subscriptions("topic", START)


@pytest.mark.parametrize("request_", BAD.values(), ids=BAD.keys())
def test_e3_argument_of_the_wrong_type_is_refused_and_changes_nothing(request_: Request) -> None:
    broker = Broker()
    broker.queue(requires_duplicate_detection=True, max_delivery_count=1)
    broker.topic()
    broker.subscription("sub")
    broker.queue("sessions", requires_session=True)
    broker.send(QUEUE, letter("waits", message_id="waits"))
    session = broker.accept(SESSIONS, "s")
    (delivery,) = broker.receive(QUEUE)
    before = everything(broker)
    with pytest.raises(BrokerError) as refused:
        request_(broker.namespace, delivery.lock_token or b"", session)
    assert len(str(refused.value)) > 10
    assert everything(broker) == before
    assert broker.send(QUEUE, letter("good", message_id="1")) != [None], "a refused send does not count as seen"
    broker.namespace.settle(QUEUE, delivery.lock_token or b"", START)
    broker.restart()


def test_e3_dead_letter_queue_is_emptied_by_delete_messages() -> None:
    broker = Broker()
    queue = broker.queue()
    with pytest.raises(InvalidOperationError, match="delete_messages"):
        broker.namespace.delete(dead(queue), START)
    assert broker.info(queue).path == "queue"


def test_e3_failing_view_dead_letters_the_message_without_an_error() -> None:
    class Blind(Broker):
        def _make(self, records: Records) -> Namespace:
            return Namespace(records, view=self.fail, fresh_id=self._fresh_id, fresh_token=self._fresh_token)

        def fail(self, _body: bytes) -> PropertyView:
            raise RuntimeError("no idea")

    broker = Blind()
    broker.topic()
    rule = RuleDescription(filter=SqlFilterDescription("color = 'red'"))
    subscription = broker.subscription("sub", rule=rule)
    assert broker.send(Address.of("topic"), letter("a"), letter("b")) == [1, 2]
    assert broker.info(subscription).dead_letter_count == 2


def test_e1_namespace_replaced_by_a_failed_commit_rejects_all_use() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, letter("kept"))
    broker.commit()
    old = broker.namespace
    broker.send(queue, letter("lost"))
    assert isinstance(broker.store, MemoryStore)
    broker.store.fail_next_run(StoreFailedError("disk", "broken"))
    with pytest.raises(StoreFailedError):
        broker.commit()
    with pytest.raises(NamespaceReplacedError):
        old.send(queue, [letter("into the void")], START)
    with pytest.raises(NamespaceReplacedError):
        old.receive(queue, 1, START)
    assert broker.take(queue) == ["kept"]


def test_e1_any_error_of_a_commit_is_reported() -> None:
    class Broken(MemoryStore):
        def prepare(self, batch: Any) -> Any:
            if broken:
                raise ZeroDivisionError
            return super().prepare(batch)

    broken = False
    broker = Broker(store=Broken())
    queue = broker.queue()
    broker.commit()
    broker.send(queue, letter("lost"))
    reported: list[StoreError | None] = []
    broker.keeper.when_durable(reported.append)
    broken = True
    with pytest.raises(StoreFailedError, match="ZeroDivisionError"):
        broker.commit()
    assert isinstance(reported[0], StoreFailedError)
    broken = False
    broker.send(queue, letter("next"))
    broker.restart()
    assert broker.take(queue) == ["next"]
