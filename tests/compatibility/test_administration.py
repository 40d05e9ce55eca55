"""Administration"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pairbus.testing import RunningNamespace
from tests.compatibility.administration import (
    Administration,
    CorrelationFilter,
    FalseFilter,
    Key,
    Queue,
    Rule,
    RuleAction,
    SqlFilter,
    Topic,
    TopicSubscription,
    TrueFilter,
)
from tests.compatibility.client import Client, Endpoint
from tests.compatibility.entities import Entities
from tests.compatibility.feature import Tier, feature
from tests.compatibility.values import NEVER, Reason, SdkError, SubQueue, text
from tests.compatibility.waiting import now

KEYS = (
    Key(name="listener", rights=frozenset({"Listen"}), primary="p" * 44, secondary="s" * 44),
    Key(name="all", rights=frozenset({"Listen", "Manage", "Send"}), primary="q" * 44, secondary="t" * 44),
)


Attempt = Callable[[], Coroutine[Any, Any, object]]


def given(entity: Any) -> dict[str, Any]:
    """The settings that are not left to the service."""
    fields = {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity)}
    return {name: value for name, value in fields.items() if value is not None}


@feature("Properties of the namespace", tier=Tier.STANDARD)
async def test_namespace(administration: Administration, namespace: RunningNamespace) -> None:
    properties = await administration.namespace()
    assert (properties.name, properties.tier) == (namespace.name, "Standard")
    assert timedelta() < now() - properties.created < timedelta(hours=1)
    assert properties.modified >= properties.created


@feature("Queues: defaults", tier=Tier.STANDARD)
async def test_default_queue(administration: Administration, entities: Entities) -> None:
    name = entities.name("made")
    expected = Queue(
        name=name,
        lock_duration=timedelta(minutes=1),
        max_size_in_megabytes=1024,
        max_message_size_in_kilobytes=256,
        requires_duplicate_detection=False,
        requires_session=False,
        default_message_time_to_live=NEVER,
        dead_lettering_on_message_expiration=False,
        duplicate_detection_history_time_window=timedelta(minutes=10),
        max_delivery_count=10,
        enable_batched_operations=True,
        authorization_rules=(),
        status="Active",
        auto_delete_on_idle=NEVER,
        enable_partitioning=False,
        enable_express=False,
    )
    assert given(await administration.create_queue(Queue(name=name))) | {"user_metadata": None} == given(expected) | {
        "user_metadata": None
    }
    assert given(await administration.queue(name)).items() >= given(expected).items()


@feature("Queues: create with every setting, get", tier=Tier.STANDARD)
async def test_queue_with_everything(administration: Administration, entities: Entities) -> None:
    target = entities.queue()
    queue = Queue(
        name=entities.name("made"),
        lock_duration=timedelta(seconds=13),
        max_size_in_megabytes=3072,
        requires_duplicate_detection=True,
        requires_session=True,
        default_message_time_to_live=timedelta(days=10, hours=2),
        dead_lettering_on_message_expiration=True,
        duplicate_detection_history_time_window=timedelta(minutes=12),
        max_delivery_count=14,
        enable_batched_operations=False,
        authorization_rules=KEYS,
        status="SendDisabled",
        user_metadata="for <tests> & more",
        auto_delete_on_idle=timedelta(minutes=10),
        forward_dead_lettered_messages_to=target,
    )
    made = await administration.create_queue(queue)
    assert given(made).items() >= given(queue).items()
    assert await administration.queue(queue.name) == made


@feature("Queues: forward to another", tier=Tier.STANDARD)
async def test_forwarding_queue(administration: Administration, entities: Entities) -> None:
    target = entities.queue()
    name = entities.name("made")
    await administration.create_queue(Queue(name=name, forward_to=target))
    assert (await administration.queue(name)).forward_to == target
    with pytest.raises(SdkError) as refused:
        await administration.create_queue(Queue(name=entities.name("made"), forward_to="missing"))
    assert refused.value.reason is Reason.GENERAL


@feature("Queues: partitioned", tier=Tier.STANDARD)
async def test_partitioned_queue(administration: Administration, client: Client, entities: Entities) -> None:
    name = entities.name("made")
    made = await administration.create_queue(Queue(name=name, enable_partitioning=True))
    assert made.enable_partitioning is True
    await (await client.sender(name)).send(text("hello", partition_key="p"))
    receiver = await client.receiver(name)
    received = await receiver.one()
    assert (received.text, received.message.partition_key) == ("hello", "p")
    await receiver.complete(received)


@feature("Queues: large messages on a premium namespace", tier=Tier.PREMIUM)
async def test_large_messages(administration: Administration, entities: Entities) -> None:
    name = entities.name("made")
    await administration.create_queue(Queue(name=name, max_message_size_in_kilobytes=10_240))
    assert (await administration.queue(name)).max_message_size_in_kilobytes == 10_240


@feature("Queues: update", tier=Tier.STANDARD)
async def test_update_queue(administration: Administration, entities: Entities) -> None:
    name, target = entities.queue(), entities.queue()
    changes: dict[str, Any] = {
        "lock_duration": timedelta(seconds=33),
        "max_size_in_megabytes": 2048,
        "default_message_time_to_live": timedelta(days=3),
        "dead_lettering_on_message_expiration": True,
        "max_delivery_count": 4,
        "enable_batched_operations": False,
        "status": "ReceiveDisabled",
        "user_metadata": "changed",
        "auto_delete_on_idle": timedelta(hours=3),
        "forward_dead_lettered_messages_to": target,
        "authorization_rules": KEYS,
    }
    before = await administration.queue(name)
    await administration.update_queue(name, **changes)
    assert await administration.queue(name) == dataclasses.replace(before, **changes)


@feature("Queues: settings that cannot be changed", tier=Tier.STANDARD)
async def test_fixed_settings(administration: Administration, queue: str) -> None:
    for setting in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
        with pytest.raises(SdkError) as refused:
            await administration.update_queue(queue, **{setting: True})
        assert refused.value.reason is Reason.GENERAL


@feature("Queues: delete, exists", tier=Tier.STANDARD)
async def test_delete_queue(administration: Administration, entities: Entities) -> None:
    name = entities.queue()
    assert await administration.queue_exists(name)
    await administration.delete_queue(name)
    assert not await administration.queue_exists(name)


@feature("Queues: list several pages", tier=Tier.OWN)
async def test_list_queues(administration: Administration, entities: Entities) -> None:
    names = [entities.queue() for _ in range(205)]
    assert sorted(queue.name for queue in await administration.queues()) == sorted(names)
    assert sorted(await administration.all_queue_counts()) == sorted(names)


@feature("Queues: counts of messages", tier=Tier.STANDARD)
async def test_queue_counts(administration: Administration, client: Client, queue: str) -> None:
    before = now() - timedelta(seconds=1)
    sender = await client.sender(queue)
    await sender.send_all([text(f"{number}") for number in range(5)])
    await sender.schedule([text("later")], now() + timedelta(hours=1))
    receiver = await client.receiver(queue)
    first, second = await receiver.receive(2)
    await receiver.dead_letter(first)
    await receiver.complete(second)
    counts = await administration.queue_counts(queue)
    assert (counts.active, counts.dead_letter, counts.scheduled) == (3, 1, 1)
    assert (counts.transfer, counts.transfer_dead_letter, counts.total) == (0, 0, 5)
    assert counts.size_in_bytes is not None
    assert counts.size_in_bytes > 0
    assert counts.created <= counts.updated
    assert counts.accessed > before
    assert (await administration.all_queue_counts())[queue].active == 3
    assert await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)


@feature("Queues: names with slashes, dots and dashes", tier=Tier.STANDARD)
async def test_long_names(administration: Administration, client: Client, entities: Entities) -> None:
    name = f"orders/{entities.name('eu')}/north-west_2.x"
    await administration.create_queue(Queue(name=name))
    assert (await administration.queue(name)).name == name
    await (await client.sender(name)).send(text("hello"))
    receiver = await client.receiver(name)
    await receiver.complete(await receiver.one())
    await administration.delete_queue(name)
    assert not await administration.queue_exists(name)


@feature("Names are not case-sensitive", tier=Tier.STANDARD)
async def test_case(administration: Administration, client: Client, queue: str) -> None:
    assert await administration.queue_exists(queue.upper())
    await (await client.sender(queue.upper())).send(text("hello"))
    receiver = await client.receiver(queue)
    await receiver.complete(await receiver.one())


@feature("Topics: create with every setting, get", tier=Tier.STANDARD)
async def test_topic_with_everything(administration: Administration, entities: Entities) -> None:
    topic = Topic(
        name=entities.name("made"),
        default_message_time_to_live=timedelta(days=10),
        max_size_in_megabytes=4096,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=12),
        enable_batched_operations=False,
        authorization_rules=KEYS,
        status="Disabled",
        user_metadata="for tests",
        support_ordering=True,
        auto_delete_on_idle=timedelta(minutes=10),
        enable_partitioning=True,
    )
    made = await administration.create_topic(topic)
    assert given(made).items() >= given(topic).items() - {("max_size_in_megabytes", 4096)}
    assert await administration.topic(topic.name) == made


@feature("Topics: update", tier=Tier.STANDARD)
async def test_update_topic(administration: Administration, entities: Entities) -> None:
    name = entities.topic()
    changes: dict[str, Any] = {
        "default_message_time_to_live": timedelta(days=3),
        "max_size_in_megabytes": 2048,
        "enable_batched_operations": False,
        "status": "SendDisabled",
        "user_metadata": "changed",
        "auto_delete_on_idle": timedelta(hours=3),
        "authorization_rules": KEYS,
    }
    before = await administration.topic(name)
    await administration.update_topic(name, **changes)
    assert await administration.topic(name) == dataclasses.replace(before, **changes)


@feature("Topics: delete, exists", tier=Tier.STANDARD)
async def test_delete_topic(administration: Administration, entities: Entities) -> None:
    name = entities.topic()
    entities.subscription(name)
    assert await administration.topic_exists(name)
    await administration.delete_topic(name)
    assert not await administration.topic_exists(name)


@feature("Topics: list several pages", tier=Tier.OWN)
async def test_list_topics(administration: Administration, entities: Entities) -> None:
    names = [entities.topic() for _ in range(105)]
    entities.queue()
    assert sorted(topic.name for topic in await administration.topics()) == sorted(names)
    assert sorted(await administration.all_topic_counts()) == sorted(names)


@feature("Topics: counts of messages and subscriptions", tier=Tier.STANDARD)
async def test_topic_counts(administration: Administration, client: Client, entities: Entities) -> None:
    topic = entities.topic()
    entities.subscription(topic)
    entities.subscription(topic)
    sender = await client.topic_sender(topic)
    await sender.send(text("now"))
    await sender.schedule([text("later")], now() + timedelta(hours=1))
    counts = await administration.topic_counts(topic)
    assert (counts.scheduled, counts.subscriptions) == (1, 2)
    assert counts.size_in_bytes is not None
    assert counts.created <= counts.updated


@feature("Subscriptions: create with every setting, get", tier=Tier.STANDARD)
async def test_subscription_with_everything(administration: Administration, entities: Entities) -> None:
    target = entities.queue()
    subscription = TopicSubscription(
        topic=entities.topic(),
        name="made",
        lock_duration=timedelta(seconds=13),
        requires_session=True,
        default_message_time_to_live=timedelta(days=11),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=14,
        enable_batched_operations=False,
        status="ReceiveDisabled",
        user_metadata="for tests",
        forward_dead_lettered_messages_to=target,
        auto_delete_on_idle=timedelta(minutes=10),
    )
    made = await administration.create_subscription(subscription)
    assert given(made).items() >= given(subscription).items()
    assert await administration.subscription(subscription.topic, "made") == made


@feature("Subscriptions: update", tier=Tier.STANDARD)
async def test_update_subscription(administration: Administration, entities: Entities) -> None:
    target = entities.queue()
    subscription = entities.subscription(entities.topic())
    names = (subscription.topic, subscription.name)
    changes: dict[str, Any] = {
        "lock_duration": timedelta(seconds=33),
        "default_message_time_to_live": timedelta(days=3),
        "dead_lettering_on_message_expiration": True,
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "max_delivery_count": 4,
        "enable_batched_operations": False,
        "status": "ReceiveDisabled",
        "user_metadata": "changed",
        "auto_delete_on_idle": timedelta(hours=3),
        "forward_to": target,
        "forward_dead_lettered_messages_to": target,
    }
    before = await administration.subscription(*names)
    await administration.update_subscription(*names, **changes)
    assert await administration.subscription(*names) == dataclasses.replace(before, **changes)


@feature("Subscriptions: delete, exists", tier=Tier.STANDARD)
async def test_delete_subscription(administration: Administration, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    names = (subscription.topic, subscription.name)
    assert await administration.subscription_exists(*names)
    await administration.delete_subscription(*names)
    assert not await administration.subscription_exists(*names)


@feature("Subscriptions: list several pages", tier=Tier.STANDARD)
async def test_list_subscriptions(administration: Administration, entities: Entities) -> None:
    topic = entities.topic()
    names = sorted(entities.subscription(topic).name for _ in range(105))
    assert sorted(found.name for found in await administration.subscriptions(topic)) == names
    assert sorted(await administration.all_subscription_counts(topic)) == names


@feature("Subscriptions: counts of messages", tier=Tier.STANDARD)
async def test_subscription_counts(administration: Administration, client: Client, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    await (await client.topic_sender(subscription.topic)).send_all([text("1"), text("2"), text("3")])
    receiver = await client.receiver(subscription)
    await receiver.dead_letter(await receiver.one())
    counts = await administration.subscription_counts(subscription.topic, subscription.name)
    assert (counts.active, counts.dead_letter, counts.total) == (2, 1, 3)
    assert (counts.transfer, counts.transfer_dead_letter) == (0, 0)


RULES = [
    Rule(name="true", filter=TrueFilter()),
    Rule(name="false", filter=FalseFilter()),
    Rule(name="sql", filter=SqlFilter("color = 'red' AND size > 3")),
    Rule(
        name="parameters",
        filter=SqlFilter(
            "color = @color AND size > @size AND ratio < @ratio AND ok = @ok",
            {"@color": "red", "@size": 3, "@ratio": 0.5, "@ok": True},
        ),
    ),
    Rule(name="action", filter=SqlFilter("1 = 1"), action=RuleAction("SET color = 'red'; REMOVE size")),
    Rule(
        name="correlation",
        filter=CorrelationFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            subject="s",
            session_id="i",
            reply_to_session_id="j",
            content_type="x",
            properties={"color": "red", "size": 3, "ok": True, "ratio": 0.5},
        ),
    ),
]


@feature("Rules: create each kind, get, list, delete", tier=Tier.STANDARD)
async def test_rules(administration: Administration, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    names = (subscription.topic, subscription.name)
    assert await administration.rules(*names) == [Rule(name="$Default", filter=TrueFilter())]
    for rule in RULES:
        assert await administration.create_rule(*names, rule) == rule
        assert await administration.rule(*names, rule.name) == rule
    assert (await administration.rules(*names))[1:] == RULES
    assert await administration.rule_exists(*names, "$Default")
    await administration.delete_rule(*names, "$Default")
    assert not await administration.rule_exists(*names, "$Default")
    assert await administration.rules(*names) == RULES


@feature("Rules: update", tier=Tier.STANDARD)
async def test_update_rule(administration: Administration, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    names = (subscription.topic, subscription.name)
    await administration.create_rule(*names, Rule(name="rule", filter=SqlFilter("size = 1")))
    for rule in RULES:
        changed = dataclasses.replace(rule, name="rule")
        await administration.update_rule(*names, changed)
        assert await administration.rule(*names, "rule") == changed


@feature("Rules: an invalid expression is refused", tier=Tier.STANDARD)
async def test_broken_rule(administration: Administration, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    for rule in (
        Rule(name="filter", filter=SqlFilter("color =")),
        Rule(name="action", filter=TrueFilter(), action=RuleAction("PAINT red")),
    ):
        with pytest.raises(SdkError) as refused:
            await administration.create_rule(subscription.topic, subscription.name, rule)
        assert refused.value.reason is Reason.GENERAL
        assert not await administration.rule_exists(subscription.topic, subscription.name, rule.name)


@feature("Creating an existing entity is refused", tier=Tier.STANDARD)
async def test_already_there(administration: Administration, entities: Entities, queue: str) -> None:
    subscription = entities.subscription(entities.topic())
    attempts: list[Attempt] = [
        lambda: administration.create_queue(Queue(name=queue)),
        lambda: administration.create_topic(Topic(name=subscription.topic)),
        lambda: administration.create_topic(Topic(name=queue)),
        lambda: administration.create_subscription(TopicSubscription(topic=subscription.topic, name=subscription.name)),
        lambda: administration.create_rule(
            subscription.topic, subscription.name, Rule(name="$Default", filter=SqlFilter("1 = 1"))
        ),
    ]
    for attempt in attempts:
        with pytest.raises(SdkError) as refused:
            await attempt()
        assert refused.value.reason is Reason.ALREADY_EXISTS


@feature("Reading, updating or deleting a missing entity is refused", tier=Tier.STANDARD)
async def test_missing_entity(administration: Administration, entities: Entities, queue: str) -> None:
    subscription = entities.subscription(entities.topic())
    topic = subscription.topic
    attempts: list[Attempt] = [
        lambda: administration.queue("missing"),
        lambda: administration.queue_counts("missing"),
        lambda: administration.update_missing_queue(queue, "missing"),
        lambda: administration.delete_queue("missing"),
        lambda: administration.topic("missing"),
        lambda: administration.delete_topic("missing"),
        lambda: administration.subscription(topic, "missing"),
        lambda: administration.subscription("missing", "missing"),
        lambda: administration.delete_subscription(topic, "missing"),
        lambda: administration.rule(topic, subscription.name, "missing"),
        lambda: administration.delete_rule(topic, subscription.name, "missing"),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(SdkError) as refused:
            await attempt()
        assert (number, refused.value.reason) == (number, Reason.NOT_FOUND)


@feature("Invalid names and settings are refused", tier=Tier.STANDARD)
async def test_not_allowed(administration: Administration, entities: Entities) -> None:
    topic = entities.topic()
    name = entities.name("made")
    attempts: list[Attempt] = [
        lambda: administration.create_queue(Queue(name="n" * 261)),
        lambda: administration.create_queue(Queue(name="a@b")),
        lambda: administration.create_queue(Queue(name=name, lock_duration=timedelta(minutes=6))),
        lambda: administration.create_queue(Queue(name=name, lock_duration=timedelta(seconds=1))),
        lambda: administration.create_queue(Queue(name=name, max_delivery_count=0)),
        lambda: administration.create_queue(Queue(name=name, max_size_in_megabytes=1234)),
        lambda: administration.create_queue(Queue(name=name, auto_delete_on_idle=timedelta(minutes=1))),
        lambda: administration.create_queue(Queue(name="bad name!!")),
        lambda: administration.create_topic(
            Topic(name=name, duplicate_detection_history_time_window=timedelta(days=8))
        ),
        lambda: administration.create_topic(Topic(name=name, default_message_time_to_live=timedelta(milliseconds=10))),
        lambda: administration.create_subscription(TopicSubscription(topic=topic, name="n" * 51)),
        lambda: administration.create_rule(
            topic, entities.subscription(topic).name, Rule(name="n" * 51, filter=TrueFilter())
        ),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(SdkError) as refused:
            await attempt()
        assert (number, refused.value.reason) == (number, Reason.GENERAL)
    assert not await administration.queue_exists(name)


@feature("Administration with a wrong key, or a key without the claim Manage, is refused", tier=Tier.STANDARD)
async def test_no_access(
    administration: Administration,
    endpoint: Endpoint,
    entities: Entities,
    administer: Callable[[Endpoint], Administration],
) -> None:
    name = entities.name("made")
    await administration.create_queue(Queue(name=name, authorization_rules=KEYS[:1]))
    for key in (endpoint.with_key("RootManageSharedAccessKey", "d3Jvbmc="), endpoint.with_key("listener", "p" * 44)):
        async with administer(key) as unauthorized:
            attempts: list[Attempt] = [
                partial(unauthorized.queue, name),
                partial(unauthorized.delete_queue, name),
                partial(unauthorized.create_queue, Queue(name="new")),
            ]
            for attempt in attempts:
                with pytest.raises(SdkError) as refused:
                    await attempt()
                assert refused.value.reason is Reason.UNAUTHORIZED
    assert await administration.queue_exists(name)
