"""A1: each subscription has rules: SQL, correlation, true and false filters, and SQL actions."""

from __future__ import annotations

import pytest

from pairbus.broker.descriptions import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlActionDescription,
    TrueFilter,
    Value,
)
from pairbus.broker.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidDescriptionError,
    InvalidExpressionError,
    InvalidNameError,
)
from pairbus.broker.message import Amendments, unreadable
from pairbus.broker.rules import LazyView, RuleBudget, RuleSubject
from pairbus.broker.sql import MISSING, Missing
from tests.broker.broker import MINUTE, START, Broker, View, amended, dead, letter, reason, sql, texts


def rule_names(broker: Broker) -> list[str]:
    return [rule.description.name for rule in broker.namespace.rules("topic", "sub", broker.now_ms)]


# The rules of a subscription


def test_a1_new_subscription_has_a_rule_that_matches_everything() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    (rule,) = broker.namespace.rules("topic", "sub", broker.now_ms)
    assert rule.description == RuleDescription(name="$Default", filter=TrueFilter())
    broker.send(topic, "a", "b")
    assert broker.take(subscription) == ["a", "b"]


def test_a1_subscription_may_be_created_with_a_given_rule() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(rule=sql("price > 10", "dear"))
    assert rule_names(broker) == ["dear"]
    broker.send(topic, letter("cheap", user={"price": 1}), letter("dear", user={"price": 11}))
    assert broker.take(subscription) == ["dear"]


def test_a1_subscription_without_rules_gets_nothing() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.bare_subscription()
    assert broker.send(topic, "x") == [1]
    assert broker.info(subscription).message_count == 0


def test_a1_rules_are_listed_in_the_order_of_their_creation() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription()
    for name in ("z", "a", "m"):
        broker.add_rule(subscription, sql("1=1", name))
    broker.namespace.update_rule("topic", "sub", sql("2=2", "Z"), START)
    broker.restart()
    assert [name.lower() for name in rule_names(broker)] == ["$default", "z", "a", "m"]


def test_a1_rule_has_the_time_of_its_creation_also_after_an_update() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.bare_subscription()
    broker.wait(5)
    broker.add_rule(subscription, sql("1=1"))
    broker.wait(5)
    assert broker.namespace.update_rule("topic", "sub", sql("2=2"), broker.now_ms).created_ms == START + 5


def test_a1_rule_name_in_another_case_is_already_in_use() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription(rule=sql("1=1", "mine"))
    with pytest.raises(EntityExistsError):
        broker.add_rule(subscription, sql("1=1", "MINE"))


def test_a1_rule_that_does_not_exist_is_neither_updated_nor_removed() -> None:
    broker = Broker()
    broker.topic()
    broker.subscription()
    with pytest.raises(EntityNotFoundError):
        broker.namespace.update_rule("topic", "sub", sql("1=1", "no"), START)
    with pytest.raises(EntityNotFoundError):
        broker.namespace.remove_rule("topic", "sub", "no", START)
    with pytest.raises(EntityNotFoundError):
        broker.namespace.rules("topic", "no", broker.now_ms)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 51, "a?b", "a b", "$Other"])
def test_a1_rule_names_follow_the_rules_of_subscription_names(name: str) -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription()
    with pytest.raises(InvalidNameError):
        broker.add_rule(subscription, sql("1=1", name))
    assert rule_names(broker) == ["$Default"]


@pytest.mark.parametrize("expression", ["", "price >", "SELECT * FROM x", "(1=1", "sys.Nonsense('"])
def test_a1_invalid_filter_is_refused_when_the_rule_is_created(expression: str) -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription()
    with pytest.raises(InvalidExpressionError):
        broker.add_rule(subscription, sql(expression, "bad"))
    with pytest.raises(InvalidExpressionError):
        broker.subscription("other", rule=sql(expression, "bad"))
    assert rule_names(broker) == ["$Default"]
    assert broker.info(topic).subscription_count == 1


def test_a1_invalid_action_is_refused() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription()
    with pytest.raises(InvalidExpressionError):
        broker.add_rule(subscription, sql("1=1", action="SET"))


def test_a1_empty_correlation_filter_is_refused() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription()
    with pytest.raises(InvalidDescriptionError):
        broker.add_rule(subscription, RuleDescription(name="empty", filter=CorrelationFilter()))


def test_a1_change_of_rules_applies_to_later_messages_only() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    broker.send(topic, "with the default rule")
    broker.namespace.update_rule("topic", "sub", RuleDescription(filter=FalseFilter()), START)
    broker.send(topic, "with the false one")
    broker.add_rule(subscription, sql("1=1"))
    broker.send(topic, "with another")
    broker.namespace.remove_rule("topic", "sub", "RULE", START)
    broker.send(topic, "without it")
    assert broker.take(subscription) == ["with the default rule", "with another"]


def test_a1_rules_are_applied_to_a_scheduled_message_when_it_is_due() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.bare_subscription()
    broker.schedule(topic, "later", MINUTE)
    broker.add_rule(subscription, sql("1=1"))
    broker.wait(MINUTE)
    assert broker.take(subscription) == ["later"]


# Filters


def test_a1_true_and_false_filters() -> None:
    broker = Broker()
    topic = broker.topic()
    everything = broker.subscription("all", rule=RuleDescription(filter=TrueFilter()))
    nothing = broker.subscription("none", rule=RuleDescription(filter=FalseFilter()))
    broker.send(topic, "x")
    assert (broker.take(everything), broker.take(nothing)) == (["x"], [])


@pytest.mark.parametrize(
    ("expression", "parameters"),
    [
        ("COLOR = 'red' AND amount >= 3", {}),
        ("sys.Label LIKE 'ord%'", {}),
        ("sys.MessageId = 'm1' AND sys.SessionId = 's1' AND sys.PartitionKey = 's1'", {}),
        ("sys.SequenceNumber = 1 AND sys.DeliveryCount = 0", {}),
        ("sys.EnqueuedTimeUtc IS NOT NULL AND sys.Size > 0 AND sys.State = 'Active' AND color = 'red'", {}),
        ("amount IN (1, 2, 3) AND missing IS NULL AND EXISTS(amount)", {}),
        ("amount = @wanted", {"@wanted": 3}),
    ],
)
def test_a1_sql_filter_sees_what_the_sender_wrote_and_what_the_broker_knows(
    expression: str, parameters: dict[str, Value]
) -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(rule=sql(expression, parameters=parameters))
    fitting = letter(
        "fits",
        user={"color": "red", "amount": 3},
        system={"Label": "order"},
        message_id="m1",
        session_id="s1",
        partition_key="s1",
    )
    broker.send(topic, fitting, letter("does not", user={"color": "blue", "amount": 9}))
    assert broker.take(subscription) == ["fits"]


@pytest.mark.parametrize(
    "wanted",
    [
        CorrelationFilter(correlation_id="c"),
        CorrelationFilter(message_id="m"),
        CorrelationFilter(to="t"),
        CorrelationFilter(reply_to="r"),
        CorrelationFilter(label="l"),
        CorrelationFilter(session_id="s"),
        CorrelationFilter(reply_to_session_id="rs"),
        CorrelationFilter(content_type="ct"),
        CorrelationFilter(properties={"N": 1}),
        CorrelationFilter(properties={"n": 1.0}),
        CorrelationFilter(label="l", properties={"n": 1, "word": "w"}),
    ],
)
def test_a1_correlation_filter_requires_all_its_fields(wanted: CorrelationFilter) -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(rule=RuleDescription(name="r", filter=wanted))
    system = {
        "CorrelationId": "c", "To": "t", "ReplyTo": "r", "Label": "l", "ReplyToSessionId": "rs", "ContentType": "ct",
    }  # fmt: skip
    broker.send(
        topic,
        letter("all", user={"n": 1, "word": "w"}, system=system, message_id="m", session_id="s"),
        letter("none", user={"n": 2, "word": "W"}, system={"Label": "L"}, message_id="M"),
        letter("nothing at all"),
    )
    assert broker.take(subscription) == ["all"]


def test_a1_correlation_filter_does_not_compare_booleans_as_numbers() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(rule=RuleDescription(name="r", filter=CorrelationFilter(properties={"n": 1})))
    broker.send(topic, letter("true", user={"n": True}), letter("one", user={"n": 1}))
    assert broker.take(subscription) == ["one"]


def test_a1_subscriptions_filter_independently() -> None:
    broker = Broker()
    topic = broker.topic()
    low = broker.subscription("low", rule=sql("n < 5"))
    high = broker.subscription("high", rule=sql("n > 3"))
    broker.send(topic, *(letter(str(n), user={"n": n}) for n in range(3, 7)))
    assert (broker.take(low), broker.take(high)) == (["3", "4"], ["4", "5", "6"])


def test_a1_message_that_no_rule_matches_is_accepted_and_discarded() -> None:
    broker = Broker()
    topic = broker.topic()
    broker.subscription(rule=sql("n = 1"))
    assert broker.send(topic, letter("x", user={"n": 2})) == [1]
    assert broker.info(topic).size_bytes == 0


# Copies


def test_a1_matching_rules_without_an_action_yield_one_copy() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    broker.add_rule(subscription, sql("n = 1", "one"))
    broker.add_rule(subscription, sql("n < 2", "few"))
    broker.send(topic, letter("x", user={"n": 1}))
    (copy,) = broker.receive(subscription)
    assert amended(copy) == {}


def test_a1_each_matching_rule_with_an_action_yields_a_copy_with_its_name() -> None:
    broker = Broker()
    topic, subscription = broker.topic(), broker.subscription()
    broker.add_rule(subscription, sql("n = 1", "first", "SET mark = 'a'"))
    broker.add_rule(subscription, sql("n = 1", "second", "SET mark = 'b'"))
    broker.add_rule(subscription, sql("n = 2", "third", "SET mark = 'c'"))
    broker.send(topic, letter("x", user={"n": 1}))
    copies = broker.receive(subscription)
    assert texts(copies) == ["x", "x", "x"]
    assert [amended(copy) for copy in copies] == [
        {},
        {"mark": "a", "RuleName": "first"},
        {"mark": "b", "RuleName": "second"},
    ]


def test_a1_copies_of_one_message_are_settled_separately() -> None:
    broker = Broker()
    topic = broker.topic()
    one, other = broker.subscription("one"), broker.subscription("other")
    broker.send(topic, "x")
    broker.complete(one, broker.one(one))
    assert broker.info(one).message_count == 0
    broker.abandon(other, broker.one(other))
    delivery = broker.one(other)
    assert (texts([delivery]), delivery.record.delivery_count) == (["x"], 1)


def test_a1_copy_has_a_sequence_number_of_its_subscription_and_keeps_that_of_its_topic() -> None:
    broker = Broker()
    topic = broker.topic()
    broker.subscription("first")
    broker.send(topic, "a")
    late = broker.subscription("late")
    broker.send(topic, "b")
    (record,) = (delivery.record for delivery in broker.peek(late))
    assert (record.sequence, record.original_sequence) == (1, 2)


# Actions


def test_a1_action_sets_and_removes_properties_of_its_copy_only() -> None:
    broker = Broker()
    topic = broker.topic()
    changed = broker.subscription("changed", rule=sql("1=1", "r", "SET total = amount * 2; REMOVE amount"))
    plain = broker.subscription("plain", rule=sql("amount = 2"))
    broker.send(topic, letter("x", user={"amount": 2}))
    found = amended(broker.one(changed))
    assert found["total"] == 4
    assert "amount" in found  # removed: it differs from the body
    assert found["amount"] != 2
    assert amended(broker.one(plain)) == {}


def test_a1_action_sets_system_properties() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(
        requires_session=True, rule=sql("1=1", "r", "SET sys.SessionId = 'by rule'; SET sys.Label = 'new'")
    )
    broker.send(topic, "x")
    delivery = broker.one(subscription, session_token=broker.accept(subscription, "by rule"))
    assert delivery.record.session_id == "by rule"
    assert delivery.record.amendments is not None
    assert delivery.record.amendments.system["Label"] == "new"


def test_a1_later_rule_sees_what_an_action_has_set() -> None:
    broker = Broker()
    second = broker.topic("second")
    subscription = broker.subscription(topic="second", rule=sql("mark = 'set' AND sys.Label = 'new'"))
    topic = broker.topic()
    broker.subscription(forward_to="second", rule=sql("1=1", "r", "SET mark = 'set'; SET sys.Label = 'new'"))
    broker.send(second, "directly")
    broker.send(topic, "by the rule")
    assert broker.take(subscription) == ["by the rule"]


# Errors while filtering


def test_a1_failing_filter_dead_letters_the_message_in_its_subscription() -> None:
    broker = Broker()
    topic = broker.topic()
    failing = broker.subscription("failing", dead_letter_on_filter_errors=True, rule=sql("n / 0 = 1", "bad"))
    fine = broker.subscription("fine")
    broker.send(topic, letter("x", user={"n": 1}))
    (buried,) = broker.receive(dead(failing))
    assert texts([buried]) == ["x"]
    assert reason(buried) == "FilterEvaluationException"
    assert "bad" in str(amended(buried)["DeadLetterErrorDescription"])
    assert broker.take(failing) == []
    assert broker.take(fine) == ["x"]


def test_a1_failing_filter_does_not_match_if_dead_lettering_is_disabled() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(dead_letter_on_filter_errors=False, rule=sql("n / 0 = 1"))
    broker.send(topic, letter("x", user={"n": 1}))
    assert broker.info(subscription).message_count == 0


def test_a1_failing_action_dead_letters_the_message() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription(rule=sql("1=1", action="SET x = n / 0"))
    broker.send(topic, letter("x", user={"n": 1}))
    assert broker.take(subscription) == []
    assert [reason(delivery) for delivery in broker.peek(dead(subscription))] == ["FilterEvaluationException"]


def test_a1_action_without_a_filter_applies_to_every_message() -> None:
    broker = Broker()
    topic = broker.topic()
    rule = RuleDescription(name="marks", action=SqlActionDescription("SET mark = @what", {"@what": 7}))
    subscription = broker.subscription(rule=rule)
    broker.send(topic, "x")
    assert amended(broker.one(subscription)) == {"mark": 7, "RuleName": "marks"}


# The view of a message


def test_rules_of_a_topic_read_each_property_once() -> None:
    asked: list[str] = []

    class Counting(View):
        def user(self, name: str) -> Value | Missing:
            asked.append(name)
            return super().user(name)

    message = letter(user={"n": 1, "changed": 1, "gone": 1})
    view = LazyView(Counting, message.body)
    record = unreadable(1)._replace(amendments=Amendments(user={"Changed": 2, "Gone": MISSING}))
    subject = RuleSubject(record, view, RuleBudget())
    for _ in range(3):
        assert [subject.user(name) for name in ("n", "N", "changed", "gone", "none")] == [1, 1, 2, MISSING, MISSING]
    assert asked == ["n", "N", "none"]
