"""The management half of our own client, written once for its asynchronous and its blocking half."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Final, TypeVar

from pairbus import (
    NO_RETRY,
    AccessRights,
    EntityStatus,
    MessagingFactorySettings,
    QueueDescription,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    TopicDescription,
)
from tests.compatibility.administration import (
    Administration,
    Counts,
    Key,
    NamespaceProperties,
    Queue,
    Rule,
    Topic,
    TopicSubscription,
)
from tests.compatibility.client import Endpoint
from tests.compatibility.pairbus_client import Half
from tests.compatibility.pairbus_errors import translated
from tests.compatibility.pairbus_rules import rule_in, rule_out
from tests.compatibility.values import NEVER

T = TypeVar("T", Queue, Topic, TopicSubscription)

_RENAMED: Final = {
    "dead_lettering_on_message_expiration": "enable_dead_lettering_on_message_expiration",
    "dead_lettering_on_filter_evaluation_exceptions": "enable_dead_lettering_on_filter_evaluation_exceptions",
}
"""The suite's words, and ours."""


class PairbusAdministration(Administration):
    """A ``NamespaceManager``."""

    def __init__(self, half: Half, endpoint: Endpoint) -> None:
        self._half = half
        self._endpoint = endpoint

    async def open(self) -> None:
        self._manager = self._half.manager(
            self._endpoint.tls_connection_string,
            MessagingFactorySettings(ca_file=self._endpoint.ca_file, retry_policy=NO_RETRY),
        )

    async def close(self) -> None:
        await self._half.do(self._manager.close)

    async def namespace(self) -> NamespaceProperties:
        found = await self._half.do(self._manager.get_namespace_info)
        return NamespaceProperties(
            name=found.name, tier=found.messaging_sku, created=found.created_at, modified=found.updated_at
        )

    # Queues

    async def create_queue(self, queue: Queue) -> Queue:
        with translated():
            description = QueueDescription(queue.name, **_options(queue))
        return _queue(await self._half.do(self._manager.create_queue, description))

    async def queue(self, name: str) -> Queue:
        return _queue(await self._half.do(self._manager.get_queue, name))

    async def update_queue(self, name: str, **changes: Any) -> None:
        found = await self._half.do(self._manager.get_queue, name)
        await self._half.do(self._manager.update_queue, dataclasses.replace(found, **_converted(changes)))

    async def update_missing_queue(self, like: str, name: str) -> None:
        found = await self._half.do(self._manager.get_queue, like)
        await self._half.do(self._manager.update_queue, dataclasses.replace(found, path=name))

    async def delete_queue(self, name: str) -> None:
        await self._half.do(self._manager.delete_queue, name)

    async def queues(self) -> list[Queue]:
        return [_queue(found) for found in await self._half.do(self._manager.get_queues)]

    async def queue_exists(self, name: str) -> bool:
        exists: bool = await self._half.do(self._manager.queue_exists, name)
        return exists

    async def queue_counts(self, name: str) -> Counts:
        return _counts(await self._half.do(self._manager.get_queue_runtime_info, name))

    async def all_queue_counts(self) -> dict[str, Counts]:
        return {found.path: _counts(found) for found in await self._half.do(self._manager.get_queues_runtime_info)}

    # Topics

    async def create_topic(self, topic: Topic) -> Topic:
        with translated():
            description = TopicDescription(topic.name, **_options(topic))
        return _topic(await self._half.do(self._manager.create_topic, description))

    async def topic(self, name: str) -> Topic:
        return _topic(await self._half.do(self._manager.get_topic, name))

    async def update_topic(self, name: str, **changes: Any) -> None:
        found = await self._half.do(self._manager.get_topic, name)
        await self._half.do(self._manager.update_topic, dataclasses.replace(found, **_converted(changes)))

    async def delete_topic(self, name: str) -> None:
        await self._half.do(self._manager.delete_topic, name)

    async def topics(self) -> list[Topic]:
        return [_topic(found) for found in await self._half.do(self._manager.get_topics)]

    async def topic_exists(self, name: str) -> bool:
        exists: bool = await self._half.do(self._manager.topic_exists, name)
        return exists

    async def topic_counts(self, name: str) -> Counts:
        return _counts(await self._half.do(self._manager.get_topic_runtime_info, name))

    async def all_topic_counts(self) -> dict[str, Counts]:
        return {found.path: _counts(found) for found in await self._half.do(self._manager.get_topics_runtime_info)}

    # Subscriptions

    async def create_subscription(self, subscription: TopicSubscription) -> TopicSubscription:
        with translated():
            description = SubscriptionDescription(subscription.name, **_options(subscription))
        made = await self._half.do(self._manager.create_subscription, subscription.topic, description)
        return _subscription(subscription.topic, made)

    async def subscription(self, topic: str, name: str) -> TopicSubscription:
        return _subscription(topic, await self._half.do(self._manager.get_subscription, topic, name))

    async def update_subscription(self, topic: str, name: str, **changes: Any) -> None:
        found = await self._half.do(self._manager.get_subscription, topic, name)
        changed = dataclasses.replace(found, **_converted(changes))
        await self._half.do(self._manager.update_subscription, topic, changed)

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._half.do(self._manager.delete_subscription, topic, name)

    async def subscriptions(self, topic: str) -> list[TopicSubscription]:
        return [_subscription(topic, found) for found in await self._half.do(self._manager.get_subscriptions, topic)]

    async def subscription_exists(self, topic: str, name: str) -> bool:
        exists: bool = await self._half.do(self._manager.subscription_exists, topic, name)
        return exists

    async def subscription_counts(self, topic: str, name: str) -> Counts:
        return _counts(await self._half.do(self._manager.get_subscription_runtime_info, topic, name))

    async def all_subscription_counts(self, topic: str) -> dict[str, Counts]:
        found = await self._half.do(self._manager.get_subscriptions_runtime_info, topic)
        return {one.name: _counts(one) for one in found}

    # Rules

    async def create_rule(self, topic: str, subscription: str, rule: Rule) -> Rule:
        return rule_in(await self._half.do(self._manager.create_rule, topic, subscription, rule_out(rule)))

    async def rule(self, topic: str, subscription: str, name: str) -> Rule:
        return rule_in(await self._half.do(self._manager.get_rule, topic, subscription, name))

    async def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        await self._half.do(self._manager.update_rule, topic, subscription, rule_out(rule))

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        await self._half.do(self._manager.delete_rule, topic, subscription, name)

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        return [rule_in(found) for found in await self._half.do(self._manager.get_rules, topic, subscription)]

    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        exists: bool = await self._half.do(self._manager.rule_exists, topic, subscription, name)
        return exists


def _options(entity: Queue | Topic | TopicSubscription) -> dict[str, Any]:
    given = {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity)}
    return _converted({name: value for name, value in given.items() if name not in {"name", "topic"}})


def _converted(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        _RENAMED.get(name, name): _setting_out(name, value) for name, value in settings.items() if value is not None
    }


def _setting_out(name: str, value: Any) -> Any:
    if name == "authorization_rules":
        return tuple(_rule_out(key) for key in value)
    return EntityStatus(value) if name == "status" else value


def _rule_out(key: Key) -> SharedAccessAuthorizationRule:
    return SharedAccessAuthorizationRule(
        key.name,
        rights={AccessRights(right) for right in key.rights},
        primary_key=key.primary,
        secondary_key=key.secondary,
    )


def _queue(found: QueueDescription) -> Queue:
    return _settings(Queue, found, name=found.path)


def _topic(found: TopicDescription) -> Topic:
    return _settings(Topic, found, name=found.path)


def _subscription(topic: str, found: SubscriptionDescription) -> TopicSubscription:
    return _settings(TopicSubscription, found, topic=topic, name=found.name)


def _settings(kind: type[T], found: Any, **names: str) -> T:
    given: dict[str, Any] = {
        field.name: _setting_in(getattr(found, _RENAMED.get(field.name, field.name)))
        for field in dataclasses.fields(kind)
        if field.name not in names
    }
    return kind(**{**given, **names})


def _setting_in(value: Any) -> Any:
    match value:
        case tuple():
            return tuple(_key(rule) for rule in value)
        case EntityStatus():
            return value.value
        case timedelta():
            return min(value, NEVER)
        case _:
            return value


def _key(rule: SharedAccessAuthorizationRule) -> Key:
    assert rule.primary_key is not None
    assert rule.secondary_key is not None
    return Key(
        name=rule.key_name,
        rights=frozenset(right.value for right in rule.rights),
        primary=rule.primary_key,
        secondary=rule.secondary_key,
    )


def _counts(found: Any) -> Counts:
    return Counts(
        active=found.active_message_count,
        dead_letter=found.dead_letter_message_count,
        scheduled=getattr(found, "scheduled_message_count", None),
        transfer=found.transfer_message_count,
        transfer_dead_letter=found.transfer_dead_letter_message_count,
        total=getattr(found, "message_count", None),
        size_in_bytes=getattr(found, "size_in_bytes", None),
        subscriptions=getattr(found, "subscription_count", None),
        created=found.created_at,
        updated=found.updated_at,
        accessed=found.accessed_at,
    )
