"""Declarations: validated, applied only where they name something, and idempotent."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from pairbus.broker import (
    Address,
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.server.declaration import Declaration, DeclarationError, apply_declaration, parse_declaration
from tests.broker.broker import MINUTE, START, Broker, letter, sql

ALL = """
[[keys]]
name = "reader"
rights = ["listen"]
primary_key = "one"
secondary_key = "two"

[[queues]]
name = "orders"
lock_duration = "30s"
default_time_to_live = "7d"
duplicate_window = "PT1M"
requires_duplicate_detection = true
max_delivery_count = 5
forward_dead_letters_to = "Letters"
status = "receive-disabled"
user_metadata = "of the shop"

[[queues.keys]]
name = "shop"
rights = ["manage"]
primary_key = "three"

[[queues]]
name = "letters"

[[topics]]
name = "events"
max_size_megabytes = 2048

[[topics.subscriptions]]
name = "large"
forward_to = "orders"
auto_delete_on_idle = "1h"

[[topics.subscriptions.rules]]
name = "sql"
filter = { expression = "quantity > @least", parameters = { "@least" = 100 } }
action = "SET size = 'large'"

[[topics.subscriptions.rules]]
name = "equal"
filter = { label = "order", properties = { urgent = true } }

[[topics.subscriptions]]
name = "all"
"""
ORDERS, EVENTS = Address.of("orders"), Address.of("events")
LARGE, EVERYTHING = Address.of("events", "large"), Address.of("events", "all")


def parse(text: str) -> Declaration:
    return parse_declaration(tomllib.loads(text))


def refusal(text: str) -> str:
    with pytest.raises(DeclarationError) as caught:
        parse(text)
    return str(caught.value)


def queue_setting(line: str, name: str) -> Any:
    (queue,) = parse(f'[[queues]]\nname = "q"\n{line}').queues
    return getattr(queue.description, name)


def rule_of(lines: str) -> RuleDescription:
    topic = '[[topics]]\nname = "t"\n[[topics.subscriptions]]\nname = "s"\n[[topics.subscriptions.rules]]\n'
    return parse(topic + lines).topics[0].subscriptions[0].rules[0]


def declare(broker: Broker, text: str) -> None:
    apply_declaration(parse(text), broker.namespace, broker.now_ms)


def rules(broker: Broker, address: Address) -> list[RuleDescription]:
    found = broker.namespace.rules(address.entity, address.subscription or "", broker.now_ms)
    return [rule.description for rule in found]


# Parsing


def test_all_settings_are_parsed() -> None:
    declaration = parse(ALL)
    orders, letters = declaration.queues
    assert orders.description == QueueDescription(
        lock_duration_ms=30_000,
        default_time_to_live_ms=7 * 24 * 60 * MINUTE,
        duplicate_window_ms=MINUTE,
        requires_duplicate_detection=True,
        max_delivery_count=5,
        forward_dead_letters_to="Letters",
        status=EntityStatus.RECEIVE_DISABLED,
        user_metadata="of the shop",
        authorization_rules=(
            AuthorizationRule(
                name="shop",
                rights=(Right.SEND, Right.LISTEN, Right.MANAGE),
                primary_key="three",
                secondary_key="three",
            ),
        ),
    )
    assert (letters.description, letters.given) == (QueueDescription(), frozenset())
    (events,) = declaration.topics
    assert events.description == TopicDescription(max_size_megabytes=2048)
    assert events.given == {"max_size_megabytes"}
    large, everything = events.subscriptions
    assert large.description == SubscriptionDescription(forward_to="orders", auto_delete_on_idle_ms=60 * MINUTE)
    assert [rule.name for rule in large.rules] == ["sql", "equal"]
    assert everything.rules == ()
    assert declaration.keys == (
        AuthorizationRule(name="reader", rights=(Right.LISTEN,), primary_key="one", secondary_key="two"),
    )


def test_empty_declaration_is_valid() -> None:
    assert parse("") == Declaration()


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("30", 30_000),
        ('"250ms"', 250),
        ('"30s"', 30_000),
        ('"5m"', 5 * MINUTE),
        ('"1h"', 60 * MINUTE),
        ('"7d"', 7 * 24 * 60 * MINUTE),
        ('"PT1M"', MINUTE),
        ('"PT1H30M"', 90 * MINUTE),
        ('"PT0.5S"', 500),
        ('"P1DT1S"', 24 * 60 * MINUTE + 1_000),
        ('"P1M"', 30 * 24 * 60 * MINUTE),
        ('"P10675199DT2H48M5.4775807S"', None),
        ('"never"', None),
    ],
)
def test_duration_formats(text: str, milliseconds: int | None) -> None:
    assert queue_setting(f"default_time_to_live = {text}", "default_time_to_live_ms") == milliseconds


@pytest.mark.parametrize("text", ["-1", "true", "1.5", '"soon"', '"5 m"', '"P"', '"PT"', '"never"', "[]"])
def test_invalid_duration_is_refused(text: str) -> None:
    said = refusal(f'[[queues]]\nname = "q"\nlock_duration = {text}')
    assert said.startswith("lock_duration of queue 'q' must be a duration")
    assert "30s, 5m, 1h" in said


def test_empty_forward_is_none() -> None:
    assert queue_setting('forward_to = ""', "forward_to") is None


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("", RuleDescription()),
        ('name = "r"\nfilter = true', RuleDescription(name="r", filter=TrueFilter())),
        ('name = "r"\nfilter = false', RuleDescription(name="r", filter=FalseFilter())),
        ('name = "r"\nfilter = "a = 1"', RuleDescription(name="r", filter=SqlFilterDescription("a = 1"))),
        ('name = "r"\nfilter = {to = "x"}', RuleDescription(name="r", filter=CorrelationFilter(to="x"))),
        ('action = "SET a = 1"', RuleDescription(action=SqlActionDescription("SET a = 1"))),
        (
            'action = {expression = "SET a = @b", parameters = {"@b" = 1.5}}',
            RuleDescription(action=SqlActionDescription("SET a = @b", {"@b": 1.5})),
        ),
    ],
    ids=["nothing", "true", "false", "sql", "correlation", "action", "parameters"],
)
def test_rule_formats(lines: str, rule: RuleDescription) -> None:
    assert rule_of(lines) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[queue]]", "the declaration has an unknown key 'queue'; did you mean 'queues'?"),
        ("queues = 1", "queues must be a list of tables"),
        ("[[queues]]", "a queue has no name"),
        ('[[queues]]\nname = "q"\nlock_duraton = 1', "unknown key 'lock_duraton'; did you mean 'lock_duration'?"),
        ('[[queues]]\nname = "q"\nlock_duration_ms = 1', "did you mean 'lock_duration'?"),
        ('[[queues]]\nname = "q"\nrequires_session = 1', "requires_session of queue 'q' must be true or false, got 1"),
        ('[[queues]]\nname = "q"\nmax_delivery_count = true', "must be a whole number, got True"),
        ('[[queues]]\nname = "q"\nstatus = "off"', "must be one of active, disabled"),
        ('[[queues]]\nname = "q"\n[[topics]]\nname = "Q"', "the namespace has 'Q' twice"),
        ('[[topics]]\nname = "t"\nrequires_session = true', "topic 't' has an unknown key 'requires_session'"),
        ('[[topics]]\nname = "t"\n[[topics.subscriptions]]', "a subscription of topic 't' has no name"),
        ('[[topics]]\nname = "t"\n[[topics.subscriptions]]\nname = "s"\nkeys = []', "'t/s' has an unknown key 'keys'"),
        ('[[keys]]\nname = "k"\nrights = ["send"]', "primary_key of key 'k' of the namespace must be a text"),
        ('[[keys]]\nname = "k"\nprimary_key = "x"', "rights of key 'k' of the namespace must be a list"),
        ('[[keys]]\nname = "k"\nprimary_key = "x"\nrights = ["write"]', "must be one of send, listen, manage"),
    ],
)  # fmt: skip
def test_invalid_document_is_refused(text: str, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('filter = {lable = "x"}', "the filter of rule '$Default' of subscription 't/s' has an unknown key 'lable'"),
        ("filter = 1", "must be a text, got 1"),
        ("filter = {label = 1}", "label of the filter"),
        ("filter = {properties = 1}", "must be a table, got 1"),
        ("filter = {properties = {a = [1]}}", "must be text, a number, true or false"),
        ('filter = {expression = "1=1", to = "x"}', "unknown key 'to'"),
        ("fliter = true", "did you mean 'filter'?"),
    ],
)
def test_invalid_rule_is_refused(lines: str, said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        rule_of(lines)
    assert said in str(caught.value)


def test_key_is_not_repeated_in_an_error() -> None:
    assert "12345" not in refusal('[[keys]]\nname = "k"\nrights = ["send"]\nprimary_key = 12345')


# Application


def test_empty_namespace_gets_everything() -> None:
    broker = Broker()
    declare(broker, ALL)
    orders = broker.info(ORDERS).description
    assert isinstance(orders, QueueDescription)
    assert (orders.forward_dead_letters_to, orders.lock_duration_ms) == ("letters", 30_000)
    large = broker.info(LARGE).description
    assert isinstance(large, SubscriptionDescription)
    assert large.forward_to == "orders"
    assert [rule.name for rule in rules(broker, LARGE)] == ["sql", "equal"]
    assert rules(broker, EVERYTHING) == [RuleDescription()]
    assert [key.name for key in broker.namespace.authorization_rules(START)] == ["reader"]


def test_second_time_changes_nothing_even_after_a_restart() -> None:
    broker = Broker()
    declare(broker, ALL)
    broker.restart()
    before = dict(broker.store.scan(b"", b"\xff"))
    broker.wait(MINUTE)
    declare(broker, ALL)
    broker.commit()
    assert dict(broker.store.scan(b"", b"\xff")) == before
    assert {broker.info(each).updated_ms for each in (ORDERS, EVENTS, LARGE, EVERYTHING)} == {START}


def test_only_named_settings_are_changed() -> None:
    broker = Broker()
    orders = broker.queue("Orders", max_delivery_count=7, user_metadata="by hand")
    other = broker.queue("other")
    declare(broker, '[[queues]]\nname = "orders"\nlock_duration = "10s"')
    info = broker.info(orders)
    assert info.path == "Orders"
    assert info.description == QueueDescription(max_delivery_count=7, user_metadata="by hand", lock_duration_ms=10_000)
    assert broker.info(other).description == QueueDescription()


def test_named_settings_are_reset_to_the_declaration() -> None:
    broker = Broker()
    declare(broker, '[[queues]]\nname = "q"\ndefault_time_to_live = "never"\nmax_delivery_count = 10')
    broker.update(Address.of("q"), default_time_to_live_ms=MINUTE, max_delivery_count=3)
    declare(broker, '[[queues]]\nname = "q"\ndefault_time_to_live = "never"\nmax_delivery_count = 10')
    assert broker.info(Address.of("q")).description == QueueDescription()


def test_entities_can_forward_to_each_other_in_any_order() -> None:
    broker = Broker()
    declare(
        broker,
        """
        queues = [{ name = "a", forward_to = "t" }, { name = "b" }]
        topics = [{ name = "t", subscriptions = [{ name = "s", forward_to = "B" }] }]
        """,
    )
    broker.send(Address.of("a"), "through")
    assert broker.take(Address.of("b")) == ["through"]


def test_messages_stay_where_they_are() -> None:
    broker = Broker()
    orders = broker.queue("orders")
    broker.send(orders, "before")
    declare(broker, '[[queues]]\nname = "orders"\nmax_delivery_count = 2')
    assert broker.take(orders) == ["before"]


TOPIC = 'topics = [{{ name = "topic", subscriptions = [{{ name = "sub", rules = [{}] }}] }}]'


def test_declared_rules_replace_all_others() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription(rule=sql("a = 1", "old"))
    broker.add_rule(subscription, sql("b = 1", "kept"))
    declare(broker, TOPIC.format('{ name = "Kept", filter = "b = 2" }, { name = "new", filter = "c = 3" }'))
    assert rules(broker, subscription) == [sql("b = 2", "Kept"), sql("c = 3", "new")]


def test_rules_that_are_not_declared_are_kept() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription(rule=sql("a = 1", "old"))
    declare(broker, TOPIC.format(""))
    assert rules(broker, subscription) == [sql("a = 1", "old")]


def test_new_subscription_with_rules_has_no_default_one() -> None:
    broker = Broker()
    declare(broker, TOPIC.format('{ name = "big", filter = "size > 1" }'))
    broker.send(Address.of("topic"), letter("small", user={"size": 1}), letter("big", user={"size": 2}))
    assert broker.take(Address.of("topic", "sub")) == ["big"]


def test_value_of_another_type_is_a_change() -> None:
    broker = Broker()
    declare(broker, TOPIC.format("{ filter = { properties = { a = 1 } } }"))
    declare(broker, TOPIC.format("{ filter = { properties = { a = true } } }"))
    broker.send(Address.of("topic"), letter("number", user={"a": 1}), letter("truth", user={"a": True}))
    assert broker.take(Address.of("topic", "sub")) == ["truth"]


def test_rule_that_is_refused_does_not_leave_a_subscription_without_rules() -> None:
    broker = Broker()
    broker.topic()
    subscription = broker.subscription()
    with pytest.raises(DeclarationError, match=r"rule .bad. of .*/.*. cannot be applied as declared"):
        declare(broker, TOPIC.format('{ name = "bad", filter = "a = = 1" }'))
    assert rules(broker, subscription) == [RuleDescription()]


def key(name: str, text: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights or (Right.SEND,), primary_key=text, secondary_key=text)


def test_keys_are_set_by_name_and_others_left() -> None:
    broker = Broker()
    broker.namespace.set_authorization_rules([key("Root", "1"), key("other", "2")], START)
    broker.queue("q", authorization_rules=(key("Own", "3"), key("mine", "4")))
    declare(
        broker,
        """
        keys = [{ name = "root", rights = ["send"], primary_key = "5" }]
        [[queues]]
        name = "q"
        keys = [
            { name = "new", rights = ["send"], primary_key = "6" },
            { name = "own", rights = ["send"], primary_key = "7" },
        ]
        """,
    )
    assert broker.namespace.authorization_rules(START) == (key("root", "5"), key("other", "2"))
    description = broker.info(Address.of("q")).description
    assert isinstance(description, QueueDescription)
    assert description.authorization_rules == (key("own", "7"), key("mine", "4"), key("new", "6"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('queues = [{ name = "topic" }]', "'topic' is declared as a queue, but it is an existing topic"),
        ('queues = [{ name = "queue", requires_session = true }]', "requires_session of 'queue' cannot be changed"),
        ('queues = [{ name = "queue", lock_duration = "1d" }]', "lock_duration must be from 5s to 5m, got 1d"),
        ('queues = [{ name = "queue", forward_to = "nowhere" }]', "cannot forward to 'nowhere'"),
        ('queues = [{ name = "$q" }]', "reserved"),
        (
            'queues = [{ name = "bad name!!" }]',
            "queue 'bad name!!' cannot be applied as declared: 'bad name!!' has the",
        ),
        ('topics = [{ name = "topic", subscriptions = [{ name = "a~b" }] }]', "'a~b' has the character '~'"),
        ('queues = [{ name = "q", forward_to = "Q" }]', "forward_to of queue 'q' is the queue itself"),
    ],
)
def test_impossible_change_is_refused(text: str, said: str) -> None:
    broker = Broker()
    broker.queue()
    broker.topic()
    with pytest.raises(DeclarationError) as caught:
        declare(broker, text)
    assert said in str(caught.value)
