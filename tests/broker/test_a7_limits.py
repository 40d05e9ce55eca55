"""A7: limits are values; exceeding one raises an error of its type and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pairbus.broker.descriptions import (
    AuthorizationRule,
    CorrelationFilter,
    Right,
    RuleDescription,
    TopicDescription,
)
from pairbus.broker.errors import (
    BrokerError,
    HeaderSizeExceededError,
    InvalidDescriptionError,
    InvalidExpressionError,
    InvalidMessageError,
    InvalidNameError,
    InvalidRequestError,
    MessageSizeExceededError,
    QuotaExceededError,
)
from pairbus.broker.limits import PREMIUM, RELAXED, STANDARD, Limits
from pairbus.broker.message import Address
from pairbus.broker.transaction import SendOperation, SettleOperation
from tests.broker.broker import Broker, blob, dead, letter, numbers, reason, sql

KILOBYTE = 1024
MEGABYTE = 1024 * KILOBYTE
SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
INT32_MAX = 2**31 - 1

TIERS = pytest.mark.parametrize("limits", [STANDARD, PREMIUM, RELAXED], ids=["standard", "premium", "relaxed"])

Do = Callable[[Broker, int], object]
"""Requests that much of something, in a namespace with a queue, and a topic with a subscription."""


class Bound(NamedTuple):
    """The maximum, or the minimum, of something, and the error beyond it."""

    limit: Callable[[Limits], int]
    do: Do
    error: type[BrokerError]
    is_least: bool = False


def setting(name: str, **others: Any) -> Do:
    return lambda broker, value: broker.queue("made", **{name: value}, **others)


def keys(count: int) -> tuple[AuthorizationRule, ...]:
    return tuple(
        AuthorizationRule(name=str(number), rights=(Right.SEND,), primary_key="p", secondary_key="s")
        for number in range(count)
    )


QUEUE = Address.of("queue")
TOPIC = Address.of("topic")
SUBSCRIPTION = Address.of("topic", "sub")


def expression(characters: int) -> RuleDescription:
    return sql("x = '" + "y" * (characters - 6) + "'", "long")


def action(characters: int) -> RuleDescription:
    return sql("1=1", "long", "SET x = '" + "y" * (characters - 10) + "'")


def statements(count: int) -> RuleDescription:
    return sql("1=1", "many", ";".join(f"SET x{number}=1" for number in range(count)))


def with_rule(make: Callable[[int], RuleDescription]) -> Do:
    return lambda broker, value: broker.add_rule(SUBSCRIPTION, make(value))


BOUNDS: dict[str, Bound] = {
    "message_bytes": Bound(
        lambda limits: limits.message_bytes,
        lambda broker, value: broker.send(QUEUE, blob(value)),
        MessageSizeExceededError,
    ),
    "header_bytes": Bound(
        lambda limits: limits.header_bytes,
        lambda broker, value: broker.send(QUEUE, blob(1, header_bytes=value)),
        HeaderSizeExceededError,
    ),
    "message id": Bound(
        lambda limits: limits.id_characters,
        lambda broker, value: broker.send(QUEUE, blob(1, message_id="x" * value)),
        InvalidMessageError,
    ),
    "session id": Bound(
        lambda limits: limits.id_characters,
        lambda broker, value: broker.send(QUEUE, blob(1, session_id="x" * value)),
        InvalidMessageError,
    ),
    "partition key": Bound(
        lambda limits: limits.id_characters,
        lambda broker, value: broker.send(QUEUE, blob(1, partition_key="x" * value)),
        InvalidMessageError,
    ),
    "path_characters": Bound(
        lambda limits: limits.path_characters, lambda broker, value: broker.queue("x" * value), InvalidNameError
    ),
    "subscription name": Bound(
        lambda limits: limits.name_characters, lambda broker, value: broker.subscription("x" * value), InvalidNameError
    ),
    "rule name": Bound(
        lambda limits: limits.name_characters, with_rule(lambda value: sql("1=1", "x" * value)), InvalidNameError
    ),
    "expression_characters of a filter": Bound(
        lambda limits: limits.expression_characters, with_rule(expression), InvalidDescriptionError
    ),
    "expression_characters of an action": Bound(
        lambda limits: limits.expression_characters, with_rule(action), InvalidDescriptionError
    ),
    "authorization_rules": Bound(
        lambda limits: limits.authorization_rules,
        lambda broker, value: broker.queue("made", authorization_rules=keys(value)),
        InvalidDescriptionError,
    ),
    "max_lock_ms": Bound(lambda limits: limits.max_lock_ms, setting("lock_duration_ms"), InvalidDescriptionError),
    "min_lock_ms": Bound(lambda limits: limits.min_lock_ms, setting("lock_duration_ms"), InvalidDescriptionError, True),
    "max_delivery_count": Bound(
        lambda limits: limits.max_delivery_count, setting("max_delivery_count"), InvalidDescriptionError
    ),
    "min_time_to_live_ms": Bound(
        lambda limits: limits.min_time_to_live_ms, setting("default_time_to_live_ms"), InvalidDescriptionError, True
    ),
    "max_duplicate_window_ms": Bound(
        lambda limits: limits.max_duplicate_window_ms,
        setting("duplicate_window_ms", requires_duplicate_detection=True),
        InvalidDescriptionError,
    ),
    "min_duplicate_window_ms": Bound(
        lambda limits: limits.min_duplicate_window_ms,
        setting("duplicate_window_ms", requires_duplicate_detection=True),
        InvalidDescriptionError,
        True,
    ),
    "min_idle_ms": Bound(
        lambda limits: limits.min_idle_ms, setting("auto_delete_on_idle_ms"), InvalidDescriptionError, True
    ),
    "large_message_bytes": Bound(
        lambda limits: max(limits.large_message_bytes, limits.message_bytes),
        setting("max_message_bytes"),
        InvalidDescriptionError,
    ),
}


def namespace(limits: Limits) -> Broker:
    broker = Broker(limits)
    broker.queue()
    broker.topic()
    broker.subscription()
    return broker


def everything(broker: Broker) -> list[object]:
    now_ms = broker.now_ms
    found: list[object] = [*broker.namespace.queues(now_ms), *broker.namespace.topics(now_ms)]
    for info in broker.namespace.subscriptions("topic", now_ms):
        found += [info, broker.namespace.rules("topic", info.path, broker.now_ms)]
    return found


@TIERS
@pytest.mark.parametrize("name", BOUNDS)
def test_a7_value_at_a_limit_is_accepted(limits: Limits, name: str) -> None:
    bound = BOUNDS[name]
    bound.do(namespace(limits), bound.limit(limits))


@TIERS
@pytest.mark.parametrize("name", BOUNDS)
def test_a7_value_past_a_limit_is_refused_and_changes_nothing(limits: Limits, name: str) -> None:
    bound = BOUNDS[name]
    broker = namespace(limits)
    before = everything(broker)
    with pytest.raises(bound.error) as raised:
        bound.do(broker, bound.limit(limits) + (-1 if bound.is_least else 1))
    assert type(raised.value) is bound.error
    assert everything(broker) == before


# The tiers


def test_a7_limits_of_each_tier() -> None:
    assert (STANDARD.message_bytes, STANDARD.batch_bytes) == (256 * KILOBYTE, 256 * KILOBYTE)
    assert (PREMIUM.message_bytes, PREMIUM.batch_bytes) == (MEGABYTE, MEGABYTE)
    assert PREMIUM.large_message_bytes == 100 * MEGABYTE
    assert STANDARD.entity_megabytes == (1024, 2048, 3072, 4096, 5120)
    assert max(PREMIUM.entity_megabytes) == 80 * 1024
    for tier in (STANDARD, PREMIUM):
        assert (tier.header_bytes, tier.id_characters) == (64 * KILOBYTE, 128)
        assert (tier.path_characters, tier.name_characters) == (260, 50)
        assert (tier.entities, tier.subscriptions_per_topic) == (10_000, 2_000)
        assert (tier.sql_filters_per_topic, tier.correlation_filters_per_topic) == (2_000, 100_000)
        assert (tier.expression_characters, tier.statements_per_action) == (1_024, 32)
        assert tier.authorization_rules == 12
        assert (tier.min_lock_ms, tier.max_lock_ms) == (5 * SECOND, 5 * MINUTE)
        assert (tier.min_duplicate_window_ms, tier.max_duplicate_window_ms) == (20 * SECOND, 7 * DAY)
        assert (tier.min_time_to_live_ms, tier.min_idle_ms) == (SECOND, 5 * MINUTE)
        assert (tier.messages_per_transaction, tier.forwarding_hops, tier.partitions) == (100, 4, 16)


@TIERS
def test_a7_every_tier_accepts_the_description_of_a_backlog_queue(limits: Limits) -> None:
    broker = Broker(limits)
    broker.queue(
        "contoso/x-servicebus-transfer/0",
        max_size_megabytes=5120,
        max_delivery_count=INT32_MAX,
        lock_duration_ms=MINUTE,
        dead_letter_on_expiration=True,
    )


# Messages and batches


@TIERS
def test_a7_batch_bytes(limits: Limits) -> None:
    broker = Broker(limits)
    queue = broker.queue()
    half = limits.batch_bytes // 2
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, blob(half), blob(half), blob(1))
    assert broker.info(queue).message_count == 0
    broker.send(queue, blob(half), blob(half))
    assert broker.info(queue).message_count == 2


def test_a7_entity_may_lower_the_message_size() -> None:
    broker = Broker()
    queue = broker.queue(max_message_bytes=100)
    broker.send(queue, blob(100))
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, blob(101))


def test_a7_premium_entity_may_raise_the_message_size() -> None:
    broker = Broker(PREMIUM)
    queue = broker.queue(max_message_bytes=2 * MEGABYTE)
    broker.send(queue, blob(2 * MEGABYTE))
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, blob(2 * MEGABYTE + 1))
    assert broker.info(queue).message_count == 1


def test_a7_batch_limit_applies_to_entities_with_larger_messages() -> None:
    broker = Broker(PREMIUM)
    queue = broker.queue(max_message_bytes=100 * MEGABYTE)
    with pytest.raises(MessageSizeExceededError, match=r"batch of 2 messages has 1048577 bytes.*at most 1048576 bytes"):
        broker.send(queue, blob(MEGABYTE), blob(1))
    broker.send(queue, blob(MEGABYTE - 1), blob(1))
    broker.send(queue, blob(2 * MEGABYTE))
    assert broker.info(queue).message_count == 3


def test_a7_state_of_a_session() -> None:
    broker = Broker(replace(STANDARD, message_bytes=100))
    queue = broker.queue(requires_session=True)
    token = broker.accept(queue, "s")
    broker.namespace.set_session_state(queue, token, bytes(100), broker.now_ms)
    with pytest.raises(InvalidRequestError):
        broker.namespace.set_session_state(queue, token, bytes(101), broker.now_ms)
    assert broker.namespace.session_state(queue, token, broker.now_ms) == bytes(100)


# Entities and rules


def test_a7_entities() -> None:
    broker = Broker(replace(STANDARD, entities=2))
    broker.queue("a")
    topic = broker.topic("b")
    for create in (broker.queue, broker.topic):
        with pytest.raises(QuotaExceededError):
            create("c")
    broker.delete(topic)
    broker.queue("c")
    assert len(broker.namespace.queues(broker.now_ms)) == 2


def test_a7_subscriptions_do_not_count_as_entities() -> None:
    broker = Broker(replace(STANDARD, entities=1))
    topic = broker.topic()
    broker.subscription("a")
    broker.subscription("b")
    assert broker.info(topic).subscription_count == 2


def test_a7_subscriptions_per_topic() -> None:
    broker = Broker(replace(STANDARD, subscriptions_per_topic=2))
    topic = broker.topic()
    broker.topic("other")
    broker.subscription("a")
    gone = broker.subscription("b")
    with pytest.raises(QuotaExceededError):
        broker.subscription("c")
    broker.subscription("c", topic="other")
    broker.delete(gone)
    broker.subscription("c")
    assert broker.info(topic).subscription_count == 2


def correlation(name: str) -> RuleDescription:
    return RuleDescription(name=name, filter=CorrelationFilter(label=name))


def few_filters(*, sql_filters: int = 100, correlation_filters: int = 100) -> Broker:
    limits = replace(STANDARD, sql_filters_per_topic=sql_filters, correlation_filters_per_topic=correlation_filters)
    broker = Broker(limits)
    broker.namespace.create_topic("topic", TopicDescription(), broker.now_ms)
    return broker


def test_a7_sql_filters_per_topic() -> None:
    broker = few_filters(sql_filters=2)
    one, other = broker.bare_subscription("one"), broker.bare_subscription("other")
    broker.add_rule(one, sql("1=1", "a"))
    broker.add_rule(other, sql("1=1", "b"))
    with pytest.raises(QuotaExceededError):
        broker.add_rule(one, sql("1=1", "c"))
    broker.namespace.remove_rule("topic", "other", "b", broker.now_ms)
    broker.add_rule(one, sql("1=1", "c"))
    assert broker.info(TOPIC).sql_filter_count == 2


def test_a7_correlation_filters_per_topic() -> None:
    broker = few_filters(correlation_filters=1)
    subscription = broker.bare_subscription()
    broker.add_rule(subscription, correlation("a"))
    with pytest.raises(QuotaExceededError):
        broker.add_rule(subscription, correlation("b"))
    assert broker.info(TOPIC).correlation_filter_count == 1


def test_a7_sql_and_correlation_filters_are_limited_separately() -> None:
    full_of_sql = few_filters(sql_filters=1)
    subscription = full_of_sql.bare_subscription()
    full_of_sql.add_rule(subscription, sql("1=1", "a"))
    full_of_sql.add_rule(subscription, correlation("b"))
    full_of_correlation = few_filters(correlation_filters=1)
    subscription = full_of_correlation.bare_subscription()
    full_of_correlation.add_rule(subscription, correlation("a"))
    full_of_correlation.add_rule(subscription, sql("1=1", "b"))


def test_a7_update_cannot_exceed_the_number_of_filters() -> None:
    broker = few_filters(sql_filters=1)
    subscription = broker.bare_subscription()
    broker.add_rule(subscription, correlation("a"))
    broker.add_rule(subscription, sql("1=1", "b"))
    broker.namespace.update_rule("topic", "sub", sql("2=2", "b"), broker.now_ms)
    with pytest.raises(QuotaExceededError):
        broker.namespace.update_rule("topic", "sub", sql("1=1", "a"), broker.now_ms)
    assert broker.info(TOPIC).sql_filter_count == 1


def test_a7_new_subscription_cannot_exceed_the_number_of_filters() -> None:
    broker = few_filters(sql_filters=1)
    broker.subscription("a", rule=sql("1=1"))
    with pytest.raises(QuotaExceededError):
        broker.subscription("b", rule=sql("1=1"))
    assert broker.info(TOPIC).subscription_count == 1


@TIERS
def test_a7_statements_per_action(limits: Limits) -> None:
    broker = namespace(limits)
    broker.add_rule(SUBSCRIPTION, statements(limits.statements_per_action))
    with pytest.raises(InvalidExpressionError):
        broker.namespace.update_rule("topic", "sub", statements(limits.statements_per_action + 1), broker.now_ms)


@pytest.mark.parametrize("limits", [STANDARD, PREMIUM], ids=["standard", "premium"])
def test_a7_entity_megabytes(limits: Limits) -> None:
    broker = Broker(limits)
    for size in limits.entity_megabytes:
        broker.queue(f"q{size}", max_size_megabytes=size)
        broker.topic(f"t{size}", max_size_megabytes=size)
        with pytest.raises(InvalidDescriptionError):
            broker.queue("bad", max_size_megabytes=size + 1)
    with pytest.raises(InvalidDescriptionError):
        broker.queue("bad", max_size_megabytes=0)


def test_a7_relaxed_entity_may_have_any_size_above_zero() -> None:
    broker = Broker(RELAXED)
    broker.queue("small", max_size_megabytes=1)
    broker.queue("large", max_size_megabytes=1_000_003)
    with pytest.raises(InvalidDescriptionError):
        broker.queue("none", max_size_megabytes=0)


# Operations


def test_a7_messages_per_transaction() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, *["x"] * 50)
    tokens = [delivery.lock_token for delivery in broker.receive(queue)]
    settles = [SettleOperation(queue, token) for token in tokens if token is not None]
    with pytest.raises(InvalidRequestError):
        broker.namespace.transact([*settles, SendOperation(queue, [letter("y")] * 51)], broker.now_ms)
    assert broker.info(queue).locked_count == 50
    broker.namespace.transact([*settles, SendOperation(queue, [letter("y")] * 50)], broker.now_ms)
    assert broker.take(queue) == ["y"] * 50


def test_a7_messages_per_delete() -> None:
    broker = Broker(replace(STANDARD, messages_per_delete=3))
    queue = broker.queue()
    broker.send(queue, *"abcd")
    assert broker.namespace.delete_messages(queue, 4, broker.now_ms) == 3
    assert broker.take(queue) == ["d"]


def test_a7_forwarding_hops() -> None:
    broker = Broker(replace(STANDARD, forwarding_hops=1))
    broker.queue("c")
    broker.queue("b", forward_to="c")
    broker.queue("a", forward_to="b")
    broker.send(Address.of("b"), "once")
    broker.send(Address.of("a"), "twice")
    assert broker.take(Address.of("c")) == ["once"]
    assert [reason(found) for found in broker.peek(dead(Address.of("b")))] == ["MaxTransferHopCountExceeded"]


def test_a7_partitions() -> None:
    broker = Broker(replace(STANDARD, partitions=4))
    queue = broker.queue(partitioned=True)
    broker.send(queue, *["x"] * 8)
    assert [sequence >> 48 for sequence in numbers(broker.peek(queue))] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a7_error_names_the_problem_and_the_entity() -> None:
    broker = Broker()
    queue = broker.queue("Orders")
    with pytest.raises(MessageSizeExceededError, match=r"262145 bytes.*'Orders'.*262144") as raised:
        broker.send(queue, blob(256 * KILOBYTE + 1))
    assert raised.value.entity == "Orders"


@pytest.mark.parametrize("count", [-1, -(2**31)])
def test_a7_negative_count_is_an_invalid_request(count: int) -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    for request in (
        lambda: broker.peek(queue, 0, count),
        lambda: broker.namespace.delete_messages(queue, count, broker.now_ms),
    ):
        with pytest.raises(InvalidRequestError):
            request()
    assert broker.take(queue) == ["x"]
