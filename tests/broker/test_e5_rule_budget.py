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


def test_e5_messages_of_a_batch_do_not_share_the_budget() -> None:
    broker = Broker(limits=replace(STANDARD, rule_units=30_000))
    topic = costly_topic(broker)
    broker.send(topic, *(letter(str(number), user={"text": "a" * 10_000 + "x"}) for number in range(10)))
    assert len(broker.take(SUBSCRIPTION)) == 10


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
