"""E3, E5: the rules of a topic do a bounded amount of work for each message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from pairbus.broker.descriptions import CorrelationFilter, RuleDescription
from pairbus.broker.errors import RuleBudgetExceededError
from pairbus.broker.limits import STANDARD
from pairbus.broker.message import Address, DeliveredMessage, NewMessage
from pairbus.broker.transaction import SendOperation
from tests.broker.broker import MINUTE, Broker, amended, dead, letter, reason, sql, texts, transfers

SMALL: Final = replace(STANDARD, rule_units=20_000)
COSTLY: Final = "text LIKE '%x%'"
TOO_LONG: Final = "a" * 30_000
REASON: Final = "RuleBudgetExceeded"


def heavy(content: str = "heavy", **fields: Any) -> NewMessage:
    """Return a message that takes a rule longer to evaluate than allowed."""
    return letter(content, user={"text": TOO_LONG}, **fields)


def matching(content: str) -> NewMessage:
    return letter(content, user={"text": "x"})


def costly_topic(broker: Broker, **settings: Any) -> Address:
    topic = broker.topic(**settings)
    broker.subscription(rule=sql(COSTLY))
    return topic


SUBSCRIPTION: Final = Address.of("topic", "sub")


def description(delivery: DeliveredMessage) -> str:
    return str(amended(delivery)["DeadLetterErrorDescription"])


def test_e5_send_beyond_the_rule_budget_is_refused_with_a_reason() -> None:
    broker = Broker(limits=SMALL)
    topic = costly_topic(broker)
    with pytest.raises(
        RuleBudgetExceededError, match=r"rules of 'topic' take more than 20000 units.*shorter"
    ) as refused:
        broker.send(topic, heavy())
    assert refused.value.entity == "topic"
    with pytest.raises(RuleBudgetExceededError):
        broker.namespace.check_send(topic, [heavy()], broker.now_ms)


@pytest.mark.parametrize("partitioned", [False, True])
def test_e5_refused_batch_changes_nothing(partitioned: bool) -> None:
    broker = Broker(limits=SMALL)
    topic = costly_topic(broker, requires_duplicate_detection=True, partitioned=partitioned)
    broker.commit()
    before = list(broker.store.scan(b"\0", b"\xff"))
    good = matching("good")._replace(message_id="m")
    with pytest.raises(RuleBudgetExceededError):
        broker.send(topic, good, heavy())
    broker.commit()
    assert list(broker.store.scan(b"\0", b"\xff")) == before
    first = broker.send(topic, good)[0]
    assert first is not None
    assert first & 0xFFFFFFFFFFFF == 1
    assert broker.take(SUBSCRIPTION) == ["good"]


# Batches and transactions as a whole

MEDIUM: Final = replace(STANDARD, rule_units=400_000, batch_bytes=STANDARD.batch_bytes * 10)
"""A message of ``slow`` takes half of it. A batch of 30 has 3,000,000 units, enough for the rules of about 15."""


def slow_topic(broker: Broker, path: str = "topic", **settings: Any) -> Address:
    topic = broker.topic(path)
    broker.subscription(topic=path, rule=sql(" OR ".join(["text LIKE '%x%'"] * 3 + ["text LIKE '%y%'"])), **settings)
    return topic


def slow(count: int, **fields: Any) -> list[NewMessage]:
    """Return messages that match the rule of ``slow_topic``, which takes 200,000 units for each."""
    return [letter(str(number), user={"text": "a" * 25_000 + "y"}, **fields) for number in range(count)]


def test_e5_ordinary_full_batch_through_ten_rules_is_accepted() -> None:
    broker = Broker(limits=replace(STANDARD, batch_bytes=MEDIUM.batch_bytes))
    topic = broker.topic()
    for number in range(10):
        broker.subscription(f"s{number}", rule=sql(f"colour = 'red' AND n > 9 AND path LIKE '%/item-{number}/%'"))
    message = letter("x", user={"colour": "red", "n": 10, "path": "/shop/item-3/"})
    broker.send(topic, *[message] * STANDARD.messages_per_batch)
    counts = [broker.info(Address.of("topic", f"s{number}")).message_count for number in range(10)]
    assert counts == [STANDARD.messages_per_batch if number == 3 else 0 for number in range(10)]


def test_e5_batch_beyond_its_budget_is_refused_as_a_whole() -> None:
    broker = Broker(limits=MEDIUM)
    topic = slow_topic(broker)
    with pytest.raises(RuleBudgetExceededError, match=r"for a batch of 30 messages.*fewer messages at once"):
        broker.send(topic, *slow(30))
    with pytest.raises(RuleBudgetExceededError):
        broker.namespace.check_send(topic, slow(30), broker.now_ms)
    assert broker.info(SUBSCRIPTION).message_count == 0
    broker.send(topic, *slow(3))  # each send has a budget of its own
    broker.send(topic, *slow(3))
    assert len(broker.take(SUBSCRIPTION)) == 6


def test_e5_full_batch_through_many_rules_is_refused_without_evaluating_them() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.bare_subscription()
    for number in range(1_000):
        broker.add_rule(subscription, sql(f"text LIKE '%b{number}%'", f"r{number}"))
    before = broker.namespace._router.work
    with pytest.raises(RuleBudgetExceededError):
        broker.send(topic, *[letter("x")] * STANDARD.messages_per_batch)
    assert broker.namespace._router.work == before
    broker.send(topic, *[letter("x")] * 100)


def test_e5_copies_of_a_batch_are_counted() -> None:
    broker = Broker()
    topic = broker.topic()
    for number in range(100):
        broker.subscription(f"s{number}")
    with pytest.raises(RuleBudgetExceededError, match="fewer subscriptions"):
        broker.send(topic, *[letter("x")] * STANDARD.messages_per_batch)
    broker.send(topic, *[letter("x")] * 100)
    assert broker.info(Address.of("topic", "s99")).message_count == 100


def test_e5_sends_of_a_transaction_share_a_budget() -> None:
    broker = Broker(limits=MEDIUM)
    topic, other = slow_topic(broker), slow_topic(broker, "other")
    sends = [SendOperation(address, slow(20)) for address in (topic, other)]
    with pytest.raises(RuleBudgetExceededError, match="transaction"):
        broker.namespace.transact(sends, broker.now_ms)
    assert broker.info(SUBSCRIPTION).message_count == 0


def test_e5_messages_of_a_batch_beyond_its_budget_are_forwarded_later_in_order() -> None:
    broker = Broker(limits=MEDIUM)
    slow_topic(broker)
    queue = broker.queue(forward_to="topic")
    broker.send(queue, *slow(30))
    waiting = broker.info(queue).message_count
    assert 0 < waiting < 30
    broker.send(queue, *slow(1))  # waits behind the others
    assert broker.info(queue).message_count == waiting + 1
    assert broker.namespace.tidy(broker.now_ms)  # not all at once
    assert 0 < broker.info(queue).message_count < waiting
    broker.restart()
    broker.tidy()
    assert broker.take(SUBSCRIPTION, 100) == [*map(str, range(30)), "0"]


def test_e5_copies_of_a_batch_beyond_its_budget_are_forwarded_later() -> None:
    broker = Broker(limits=MEDIUM)
    slow_topic(broker, "second")
    topic = broker.topic()
    source = broker.subscription(forward_to="second")
    broker.send(topic, *slow(30))
    assert broker.info(source).message_count > 0
    broker.tidy()
    assert broker.take(Address.of("second", "sub"), 100) == [*map(str, range(30))]


def test_e5_messages_with_sessions_beyond_the_budget_of_their_batch_are_dead_lettered() -> None:
    broker = Broker(limits=MEDIUM)
    slow_topic(broker)
    queue = broker.queue(requires_session=True, forward_to="topic")
    broker.send(queue, *slow(30, session_id="s"))
    broker.tidy()
    dead_letters = broker.peek(dead(queue))
    assert {reason(found) for found in dead_letters} == {REASON}
    assert len(broker.take(SUBSCRIPTION, 100)) + len(dead_letters) == 30


def test_e5_scheduled_messages_that_are_due_at_once_are_activated_step_by_step() -> None:
    broker = Broker(limits=MEDIUM)
    topic = slow_topic(broker)
    broker.send(topic, *slow(30, scheduled_ms=broker.now_ms + MINUTE))
    broker.wait(MINUTE)
    assert 20 < broker.info(topic).scheduled_count < 30
    while broker.info(topic).scheduled_count:
        assert broker.namespace.next_due_ms() is not None
        broker.tidy()
    assert broker.take(SUBSCRIPTION, 100) == [*map(str, range(30))]


def test_e5_rules_see_the_sequence_number_of_a_message() -> None:
    broker = Broker()
    topic = broker.topic(requires_duplicate_detection=True)
    broker.subscription(rule=sql("sys.SequenceNumber = 3"))
    ids = ("a", "a", "b", "c")
    assert broker.send(topic, *(letter(name, message_id=name) for name in ids)) == [1, None, 2, 3]
    assert broker.take(SUBSCRIPTION) == ["c"]


def test_e5_rules_see_the_sequence_numbers_of_a_transaction() -> None:
    broker = Broker()
    topic = broker.topic()
    broker.subscription(rule=sql("sys.SequenceNumber = 2"))
    sends = [SendOperation(topic, [letter("a")]), SendOperation(topic, [letter("b")])]
    assert broker.namespace.transact(sends, broker.now_ms) == [[1], [2]]
    assert broker.take(SUBSCRIPTION) == ["b"]


def test_e5_transaction_beyond_the_rule_budget_is_refused_as_a_whole() -> None:
    broker = Broker(limits=SMALL)
    topic, queue = costly_topic(broker), broker.queue()
    with pytest.raises(RuleBudgetExceededError):
        broker.namespace.transact([SendOperation(queue, [letter("q")]), SendOperation(topic, [heavy()])], broker.now_ms)
    assert broker.take(queue) == []


def test_e5_forwarded_message_beyond_the_budget_is_dead_lettered_at_its_source() -> None:
    broker = Broker(limits=SMALL)
    costly_topic(broker, requires_duplicate_detection=True)
    queue = broker.queue(forward_to="topic")
    broker.send(queue, heavy(message_id="m"))
    (letter_,) = broker.peek(dead(queue))
    assert reason(letter_) == REASON
    assert "rules of 'topic'" in description(letter_)
    broker.send(Address.of("topic"), matching("fine")._replace(message_id="m"))  # it was not remembered
    assert broker.take(SUBSCRIPTION) == ["fine"]


def test_e5_waiting_message_beyond_the_budget_is_dead_lettered_when_forwarded() -> None:
    broker = Broker(limits=SMALL)
    costly_topic(broker)
    queue = broker.queue()
    broker.send(queue, heavy(), matching("fine"))
    broker.update(queue, forward_to="topic")
    broker.tidy()
    assert [reason(found) for found in broker.peek(dead(queue))] == [REASON]
    assert broker.take(SUBSCRIPTION) == ["fine"]


def test_e5_dead_letter_beyond_the_budget_is_not_forwarded() -> None:
    broker = Broker(limits=SMALL)
    costly_topic(broker)
    queue = broker.queue(forward_dead_letters_to="topic")
    broker.send(queue, heavy())
    broker.dead_letter(queue, broker.one(queue), reason="bad")
    assert [reason(found) for found in broker.peek(dead(queue))] == ["bad"]


def test_e5_scheduled_message_beyond_the_budget_is_dead_lettered_in_each_subscription() -> None:
    broker = Broker(limits=SMALL)
    topic = costly_topic(broker)
    other = broker.subscription("other")
    broker.send(topic, heavy("later", scheduled_ms=broker.now_ms + MINUTE))
    broker.wait(MINUTE)
    broker.restart()
    for subscription in (SUBSCRIPTION, other):
        assert broker.take(subscription) == []
        found = broker.peek(dead(subscription))
        assert texts(found) == ["later"]
        assert reason(found[0]) == REASON
    assert broker.info(topic).scheduled_count == 0


def test_e5_message_sent_via_a_queue_beyond_the_budget_is_a_failed_transfer() -> None:
    broker = Broker(limits=SMALL)
    topic, queue = costly_topic(broker), broker.queue()
    broker.namespace.transact([SendOperation(topic, [heavy()], via=queue)], broker.now_ms)
    assert [reason(found) for found in broker.peek(transfers(queue))] == [REASON]


def test_e5_all_copies_of_a_message_share_the_budget() -> None:
    broker = Broker(limits=replace(STANDARD, rule_units=50_000))
    broker.topic("second")
    broker.subscription(topic="second", rule=sql(COSTLY))
    topic = broker.topic()
    sources = [broker.subscription(f"s{number}", forward_to="second") for number in range(5)]
    broker.send(topic, letter("wide", user={"text": "x" + "a" * 10_000}))
    delivered = len(broker.take(Address.of("second", "sub"), 10))
    dead_lettered = sum(len(broker.peek(dead(source))) for source in sources)
    assert (delivered, dead_lettered) == (2, 3)


def test_e5_large_copies_of_an_action_are_counted() -> None:
    broker = Broker(limits=replace(STANDARD, rule_units=500_000))
    topic = broker.topic()
    subscription = broker.bare_subscription()
    for number in range(20):
        broker.add_rule(subscription, sql("1 = 1", f"r{number}", "SET copy = text"))
    broker.send(topic, matching("small"))
    with pytest.raises(RuleBudgetExceededError):
        broker.send(topic, heavy())
    assert len(broker.take(subscription)) == 20


def test_e5_two_thousand_ordinary_rules_stay_within_the_budget() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.bare_subscription()
    for number in range(1_999):
        broker.add_rule(subscription, sql(f"colour = 'red' AND path LIKE '%/item-{number}/%' OR n > 9", f"r{number}"))
    broker.add_rule(subscription, sql("path LIKE '%z_z'", "last"))
    path = "/shop/" * 500 + "zzz"
    broker.send(topic, letter("ordinary", user={"colour": "red", "path": path, "n": 5}))
    assert broker.take(subscription) == ["ordinary"]


def test_e5_two_thousand_rules_that_search_a_long_text_are_refused() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.bare_subscription()
    for number in range(2_000):
        broker.add_rule(subscription, sql(f"text LIKE '%{'a' * 900}b{number}%'", f"r{number}"))
    with pytest.raises(RuleBudgetExceededError):
        broker.send(topic, letter("hostile", user={"text": "a" * 60_000}))
    broker.send(topic, letter("short", user={"text": "a" * 1_000}))


def test_e5_maximum_number_of_rules_stays_within_the_budget_for_a_small_message() -> None:
    longest = sql("a = 1".ljust(STANDARD.expression_characters))
    widest = RuleDescription(name="c", filter=CorrelationFilter(properties={"a": 1}))
    for rule, most in (
        (longest, STANDARD.sql_filters_per_topic),
        (widest, STANDARD.correlation_filters_per_topic),
    ):
        broker = Broker()
        broker.topic()
        subscription = broker.bare_subscription()
        broker.add_rule(subscription, rule)
        (made,) = broker.namespace.rules("topic", "sub", broker.now_ms)
        assert made.units * most <= STANDARD.rule_units
