"""The management of a namespace: every operation, and every setting there and back, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.broker import Address, NewMessage
from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
)
from pairbus.client.management.descriptions import (
    AccessRights,
    EntityStatus,
    QueueDescription,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rules import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.description_values import QUEUE_FIELDS, RULES, SUBSCRIPTION_FIELDS, TOPIC_FIELDS, some_of
from tests.thoroughness import times

T = TypeVar("T")
Use = Callable[[NamespaceManager], Awaitable[T]]

NUMBERS = count()
ON_A_SERVER = settings(
    max_examples=times(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES_WITH_SPECIALS = ["a/b/c", "a.b-c_d", ".-_123"]
ODD_NAMES = ["Caffè Nero", "50% off", "a+b&c=d", "q;x,y", "semi:colon", "日本", "x$y", "bad name!!"]


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["target"], topics={"news": ["all"]}) as running:
        yield running


def run(namespace: RunningNamespace, use: Use[T]) -> T:
    async def using() -> T:
        async with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
            return await use(manager)

    return asyncio.run(using())


def fresh(word: str) -> str:
    return f"{word}{next(NUMBERS)}"


def assert_has(found: object, given: dict[str, Any]) -> None:
    """All that was given is there, and what was not has been filled in."""
    assert {name: getattr(found, name) for name in given} == given
    open_fields = {"forward_to", "forward_dead_lettered_messages_to", "user_metadata"}
    for field in fields(found):  # type: ignore[arg-type]
        assert field.name in open_fields or getattr(found, field.name) is not None, field.name


# Every setting


@ON_A_SERVER
@given(some_of(QUEUE_FIELDS))
def test_queue_keeps_its_settings(namespace: RunningNamespace, given: dict[str, Any]) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = fresh("queue")
        created = await manager.create_queue(QueueDescription(path, **given))
        assert_has(created, given)
        assert await manager.get_queue(path) == created
        assert await manager.update_queue(created) == created
        await manager.delete_queue(path)

    run(namespace, use)


@ON_A_SERVER
@given(some_of(TOPIC_FIELDS))
def test_topic_keeps_its_settings(namespace: RunningNamespace, given: dict[str, Any]) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = fresh("topic")
        created = await manager.create_topic(TopicDescription(path, **given))
        assert_has(created, given)
        assert await manager.get_topic(path) == created
        assert await manager.update_topic(created) == created
        await manager.delete_topic(path)

    run(namespace, use)


@ON_A_SERVER
@given(some_of(SUBSCRIPTION_FIELDS))
def test_subscription_keeps_its_settings(namespace: RunningNamespace, given: dict[str, Any]) -> None:
    async def use(manager: NamespaceManager) -> None:
        name = fresh("subscription")
        created = await manager.create_subscription("news", SubscriptionDescription(name, **given))
        assert_has(created, given)
        assert await manager.get_subscription("news", name) == created
        assert await manager.update_subscription("news", created) == created
        await manager.delete_subscription("news", name)

    run(namespace, use)


@ON_A_SERVER
@given(RULES)
def test_rule_keeps_its_settings(namespace: RunningNamespace, rule: RuleDescription) -> None:
    async def use(manager: NamespaceManager) -> None:
        created = await manager.create_rule("news", "all", rule)
        assert created == rule
        assert created.created_at is not None
        assert await manager.get_rule("news", "all", rule.name) == rule
        assert await manager.update_rule("news", "all", rule) == rule
        await manager.delete_rule("news", "all", rule.name)

    run(namespace, use)


@pytest.mark.parametrize("partitioned", [True, False])
def test_partitioned_entity_is_partitioned(namespace: RunningNamespace, partitioned: bool) -> None:
    async def use(manager: NamespaceManager) -> None:
        queue = await manager.create_queue(QueueDescription(fresh("queue"), enable_partitioning=partitioned))
        topic = await manager.create_topic(TopicDescription(fresh("topic"), enable_partitioning=partitioned))
        assert (queue.enable_partitioning, topic.enable_partitioning) == (partitioned, partitioned)
        assert await manager.update_queue(queue) == queue

    run(namespace, use)


def test_unset_fields_get_service_defaults(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = fresh("queue")
        assert await manager.create_queue(path) == QueueDescription(
            path,
            lock_duration=timedelta(minutes=1),
            max_size_in_megabytes=1024,
            max_message_size_in_kilobytes=256,
            requires_duplicate_detection=False,
            duplicate_detection_history_time_window=timedelta(minutes=10),
            requires_session=False,
            default_message_time_to_live=timedelta.max,
            enable_dead_lettering_on_message_expiration=False,
            max_delivery_count=10,
            enable_batched_operations=True,
            status=EntityStatus.ACTIVE,
            auto_delete_on_idle=timedelta.max,
            enable_partitioning=False,
            enable_express=False,
            support_ordering=True,
            authorization_rules=(),
        )

    run(namespace, use)


def test_forwarding_targets_are_paths(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        dead = (await manager.create_queue(f"dead/{fresh('letters')}")).path
        queue = QueueDescription(fresh("queue"), forward_to="target", forward_dead_lettered_messages_to=dead)
        created = await manager.create_queue(queue)
        assert (created.forward_to, created.forward_dead_lettered_messages_to) == ("target", dead)
        subscription = SubscriptionDescription(
            fresh("subscription"), forward_to="target", forward_dead_lettered_messages_to=dead
        )
        subscribed = await manager.create_subscription("news", subscription)
        assert (subscribed.forward_to, subscribed.forward_dead_lettered_messages_to) == ("target", dead)
        changed = await manager.update_queue(replace(created, forward_to=None))
        assert (changed.forward_to, changed.forward_dead_lettered_messages_to) == (None, dead)
        assert next(found for found in await manager.get_queues() if found.path == queue.path) == changed

    run(namespace, use)


def test_missing_keys_are_generated_and_kept(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        rights = {AccessRights.SEND, AccessRights.LISTEN}
        rule = SharedAccessAuthorizationRule("clerk", rights=rights)
        created = await manager.create_queue(QueueDescription(fresh("queue"), authorization_rules=(rule,)))
        assert created.authorization_rules is not None
        (made,) = created.authorization_rules
        assert (made.key_name, made.rights) == ("clerk", rights)
        assert made.primary_key
        assert made.secondary_key
        assert (await manager.update_queue(replace(created, authorization_rules=(rule,)))) == created

    run(namespace, use)


# Queues


def test_queue_is_created_updated_found_and_deleted(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = fresh("queue")
        assert not await manager.queue_exists(path)
        created = await manager.create_queue(path)
        assert await manager.queue_exists(path)
        changed = await manager.update_queue(replace(created, max_delivery_count=3, status=EntityStatus.SEND_DISABLED))
        assert changed == replace(created, max_delivery_count=3, status=EntityStatus.SEND_DISABLED)
        assert changed in await manager.get_queues()
        await manager.delete_queue(path)
        assert not await manager.queue_exists(path)
        assert path not in [queue.path for queue in await manager.get_queues()]

    run(namespace, use)


def test_queue_runtime_info_counts_messages(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = (await manager.create_queue(fresh("queue"))).path
        for body in (b"one", b"two"):
            message = NewMessage(body=body)
            await asyncio.to_thread(
                namespace.call,
                lambda host, message=message: host.use_namespace().send(Address.of(path), [message], host.now_ms()),
            )
        info = await manager.get_queue_runtime_info(path)
        assert (info.path, info.message_count, info.active_message_count) == (path, 2, 2)
        assert (info.dead_letter_message_count, info.scheduled_message_count, info.transfer_message_count) == (0, 0, 0)
        assert info.size_in_bytes > 0
        assert info.availability_status == "Available"
        assert not info.is_anonymous_accessible
        assert info.created_at is not None
        assert info.accessed_at is not None
        assert info.created_at <= info.accessed_at <= datetime.now(UTC)

    run(namespace, use)


# Topics


def test_topic_is_created_updated_found_and_deleted(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = fresh("topic")
        assert not await manager.topic_exists(path)
        created = await manager.create_topic(path)
        assert await manager.topic_exists(path)
        changed = await manager.update_topic(replace(created, user_metadata="said & done"))
        assert changed == replace(created, user_metadata="said & done")
        assert changed in await manager.get_topics()
        await manager.create_subscription(path, "one")
        await manager.create_subscription(path, "two")
        info = await manager.get_topic_runtime_info(path)
        assert (info.path, info.subscription_count, info.scheduled_message_count) == (path, 2, 0)
        await manager.delete_topic(path)
        assert not await manager.topic_exists(path)
        assert not await manager.subscription_exists(path, "one")

    run(namespace, use)


# Subscriptions


def test_subscription_is_created_updated_found_and_deleted(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        topic = (await manager.create_topic(fresh("topic"))).path
        assert not await manager.subscription_exists(topic, "s")
        created = await manager.create_subscription(topic, "s")
        assert await manager.subscription_exists(topic, "s")
        changed = await manager.update_subscription(topic, replace(created, lock_duration=timedelta(seconds=30)))
        assert changed == replace(created, lock_duration=timedelta(seconds=30))
        assert await manager.get_subscriptions(topic) == [changed]
        info = await manager.get_subscription_runtime_info(topic, "s")
        assert (info.name, info.message_count, info.active_message_count) == ("s", 0, 0)
        assert info.created_at is not None
        await manager.delete_subscription(topic, "s")
        assert await manager.get_subscriptions(topic) == []

    run(namespace, use)


def test_a4_subscription_starts_with_default_or_given_rule(
    namespace: RunningNamespace,
) -> None:
    async def use(manager: NamespaceManager) -> None:
        topic = (await manager.create_topic(fresh("topic"))).path
        await manager.create_subscription(topic, "all")
        assert await manager.get_rules(topic, "all") == [RuleDescription(DEFAULT_RULE, filter=TrueFilter())]
        red = RuleDescription("red", filter=SqlFilter("colour = 'red'"), action=SqlRuleAction("SET seen = 1"))
        await manager.create_subscription(topic, "some", red)
        assert await manager.get_rules(topic, "some") == [red]

    run(namespace, use)


# Rules


def test_rule_is_created_updated_found_and_deleted(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        topic = (await manager.create_topic(fresh("topic"))).path
        await manager.create_subscription(topic, "s")
        assert not await manager.rule_exists(topic, "s", "r")
        assert await manager.create_rule(topic, "s", "r") == RuleDescription("r", filter=TrueFilter())
        assert await manager.rule_exists(topic, "s", "r")
        changed = RuleDescription("r", filter=CorrelationFilter(label="x", properties={"a": 1}))
        assert await manager.update_rule(topic, "s", changed) == changed
        assert await manager.get_rule(topic, "s", "r") == changed
        await manager.delete_rule(topic, "s", "$Default")
        assert await manager.get_rules(topic, "s") == [changed]
        await manager.delete_rule(topic, "s", "r")
        assert await manager.get_rules(topic, "s") == []

    run(namespace, use)


def test_rules_are_listed_in_creation_order_beyond_a_page(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        topic = (await manager.create_topic(fresh("topic"))).path
        await manager.create_subscription(topic, "s")
        names = [f"r{number * 7919 % 103}" for number in range(103)]
        for name in names:
            await manager.create_rule(topic, "s", RuleDescription(name, filter=FalseFilter()))
        assert [rule.name for rule in await manager.get_rules(topic, "s")] == [DEFAULT_RULE, *names]

    run(namespace, use)


# Lists, names and refusals


@pytest.mark.parametrize("number", [0, 99, 100, 101, 250])
def test_list_contains_all_pages(number: int) -> None:
    names = [f"n{n:03}" for n in range(number)]
    with running_namespace(queues=names, topics={"t/t": names}) as namespace:

        async def use(manager: NamespaceManager) -> None:
            assert sorted(queue.path for queue in await manager.get_queues()) == names
            assert sorted(found.name for found in await manager.get_subscriptions("t/t")) == names
            assert [topic.path for topic in await manager.get_topics()] == ["t/t"]

        run(namespace, use)


@pytest.mark.parametrize("name", NAMES_WITH_SPECIALS)
def test_name_is_kept_as_written(namespace: RunningNamespace, name: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = f"{fresh('names')}/{name}"
        assert (await manager.create_queue(path)).path == path
        assert path in [queue.path for queue in await manager.get_queues()]
        assert (await manager.get_queue_runtime_info(path)).path == path
        await manager.delete_queue(path)
        assert (await manager.create_topic(path)).path == path
        part = name.replace("/", ".")
        assert (await manager.create_subscription(path, part)).name == part
        assert (await manager.create_rule(path, part, RuleDescription(part, filter=FalseFilter()))).name == part
        assert (await manager.get_rule(path, part, part)).filter == FalseFilter()
        assert [found.name for found in await manager.get_subscriptions(path)] == [part]
        await manager.delete_rule(path, part, part)
        await manager.delete_subscription(path, part)
        await manager.delete_topic(path)

    run(namespace, use)


@ON_A_SERVER
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/@?#*\\$"), min_size=1),
        min_size=1,
        max_size=3,
    )
)
def test_any_name_reaches_namespace_unchanged(namespace: RunningNamespace, segments: list[str]) -> None:
    async def use(manager: NamespaceManager) -> None:
        path = "/".join(["x" + segment[:20] for segment in segments])
        with pytest.raises(EntityNotFoundError) as caught:
            await manager.delete_queue(path)
        assert f"'{path.lower()}'" in caught.value.message.lower()

    run(namespace, use)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_name_refused_by_service_is_rejected_for_every_kind(namespace: RunningNamespace, name: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        for create in (
            manager.create_queue(name),
            manager.create_topic(name),
            manager.create_subscription("news", name),
            manager.create_rule("news", "all", RuleDescription(name, filter=FalseFilter())),
        ):
            with pytest.raises(InvalidRequestError, match=r"has the character .* at position .*letters"):
                await create

    run(namespace, use)


def test_names_are_case_insensitive(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        assert (await manager.get_queue("TARGET")).path == "target"
        assert (await manager.get_subscription("News", "ALL")).name == "all"

    run(namespace, use)


MISSING: dict[str, Use[object]] = {
    "get_queue": lambda manager: manager.get_queue("nothing"),
    "get_queue, of a topic": lambda manager: manager.get_queue("news"),
    "get_queue, of a subscription": lambda manager: manager.get_queue("news/Subscriptions/all"),
    "get_queue_runtime_info": lambda manager: manager.get_queue_runtime_info("nothing"),
    "update_queue": lambda manager: manager.update_queue(QueueDescription("nothing")),
    "delete_queue": lambda manager: manager.delete_queue("nothing"),
    "delete_queue, of a topic": lambda manager: manager.delete_queue("news"),
    "delete_queue, of a subscription": lambda manager: manager.delete_queue("news/Subscriptions/all"),
    "get_topic": lambda manager: manager.get_topic("nothing"),
    "get_topic, of a queue": lambda manager: manager.get_topic("target"),
    "get_topic_runtime_info": lambda manager: manager.get_topic_runtime_info("nothing"),
    "update_topic": lambda manager: manager.update_topic(TopicDescription("nothing")),
    "delete_topic": lambda manager: manager.delete_topic("nothing"),
    "delete_topic, of a queue": lambda manager: manager.delete_topic("target"),
    "create_subscription": lambda manager: manager.create_subscription("nothing", "s"),
    "get_subscription": lambda manager: manager.get_subscription("news", "nothing"),
    "get_subscriptions": lambda manager: manager.get_subscriptions("nothing"),
    "get_subscription_runtime_info": lambda manager: manager.get_subscription_runtime_info("news", "nothing"),
    "update_subscription": lambda manager: manager.update_subscription("news", SubscriptionDescription("nothing")),
    "delete_subscription": lambda manager: manager.delete_subscription("news", "nothing"),
    "create_rule": lambda manager: manager.create_rule("news", "nothing", "r"),
    "get_rule": lambda manager: manager.get_rule("news", "all", "nothing"),
    "get_rules": lambda manager: manager.get_rules("news", "nothing"),
    "update_rule": lambda manager: manager.update_rule("news", "all", RuleDescription("nothing")),
    "delete_rule": lambda manager: manager.delete_rule("news", "all", "nothing"),
}


@pytest.mark.parametrize("operation", MISSING)
def test_missing_entity_error_names_it(namespace: RunningNamespace, operation: str) -> None:
    with pytest.raises(EntityNotFoundError) as caught:
        run(namespace, MISSING[operation])
    assert caught.value.entity is not None
    assert not caught.value.is_transient
    assert "TrackingId" not in str(caught.value)


def test_delete_of_wrong_kind_keeps_entity(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        for operation in ("delete_queue, of a topic", "delete_queue, of a subscription", "delete_topic, of a queue"):
            with pytest.raises(EntityNotFoundError, match=r"is a (topic|subscription|queue), not a (queue|topic)"):
                await MISSING[operation](manager)
        assert await manager.queue_exists("target")
        assert await manager.subscription_exists("news", "all")
        assert not await manager.queue_exists("news")
        assert not await manager.topic_exists("target")

    run(namespace, use)


@pytest.mark.parametrize(
    "use",
    [
        lambda manager: manager.create_queue("target"),
        lambda manager: manager.create_queue("news"),
        lambda manager: manager.create_topic("target"),
        lambda manager: manager.create_subscription("news", "all"),
        lambda manager: manager.create_rule("news", "all", "$Default"),
    ],
)
def test_existing_entity_raises_already_exists(namespace: RunningNamespace, use: Use[object]) -> None:
    with pytest.raises(EntityAlreadyExistsError) as caught:
        run(namespace, use)
    assert "already" in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda manager: manager.create_queue(QueueDescription("q", lock_duration=timedelta(hours=1))),
        lambda manager: manager.create_queue(QueueDescription("q", status=EntityStatus.CREATING)),
        lambda manager: manager.create_queue("x" * 300),
        lambda manager: manager.create_subscription("news", "a/b"),
        lambda manager: manager.create_rule("news", "all", RuleDescription("r", filter=SqlFilter("a ="))),
        lambda manager: manager.update_queue(QueueDescription("target", requires_session=True)),
    ],
)
def test_value_refused_by_service_raises_with_reason(namespace: RunningNamespace, use: Use[object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        run(namespace, use)
    assert not caught.value.is_transient
    assert len(caught.value.message) > 10
    assert caught.value.condition == "SubCode=40000"


@pytest.mark.parametrize(
    "use",
    [
        lambda manager: manager.create_queue(TopicDescription("q")),
        lambda manager: manager.update_queue("q"),
        lambda manager: manager.create_topic(QueueDescription("q")),
        lambda manager: manager.update_topic("q"),
        lambda manager: manager.create_subscription("news", RuleDescription("q")),
        lambda manager: manager.create_subscription("news", "s", "1=1"),
        lambda manager: manager.update_subscription("news", "s"),
        lambda manager: manager.create_rule("news", "all", TrueFilter()),
        lambda manager: manager.update_rule("news", "all", "r"),
        lambda manager: manager.get_queue(None),
        lambda manager: manager.get_subscription("news", 5),
    ],
)
def test_wrong_type_is_rejected_before_request(namespace: RunningNamespace, use: Use[object]) -> None:
    with pytest.raises(TypeError, match="must be"):
        run(namespace, use)


def test_empty_name_is_rejected_before_request(namespace: RunningNamespace) -> None:
    with pytest.raises(ValueError, match="empty"):
        run(namespace, lambda manager: manager.delete_queue(""))
    with pytest.raises(ValueError, match="slash"):
        run(namespace, lambda manager: manager.delete_subscription("news", "all/"))


# The namespace


@pytest.mark.parametrize(("tier", "sku", "units"), [("standard", "Standard", None), ("premium", "Premium", 1)])
def test_namespace_info_is_returned(tier: str, sku: str, units: int | None) -> None:
    with running_namespace("fabrikam", tier=tier) as namespace:
        info = run(namespace, lambda manager: manager.get_namespace_info())
        assert (info.name, info.messaging_sku, info.messaging_units) == ("fabrikam", sku, units)
        assert (info.namespace_type, info.alias) == ("Messaging", None)
        assert info.created_at is not None
        assert info.updated_at is not None
        assert info.created_at <= info.updated_at <= datetime.now(UTC)


def test_closed_manager_rejects_operations(namespace: RunningNamespace) -> None:
    async def closing() -> None:
        manager = NamespaceManager.from_connection_string(namespace.connection_string)
        await manager.close()
        with pytest.raises(ClosedError):
            await manager.get_queue("target")
        with pytest.raises(ClosedError):
            await manager.get_queues()

    asyncio.run(closing())
