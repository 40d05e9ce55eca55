"""The administration client of @azure/service-bus."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlparse

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
from tests.compatibility.js_errors import translated
from tests.compatibility.js_rules import action_out, filter_out, rule_in
from tests.compatibility.node import UNDEFINED, node_process
from tests.compatibility.values import NEVER

T = TypeVar("T", Queue, Topic, TopicSubscription)

_PATHS: Final = {"forward_to", "forward_dead_lettered_messages_to"}
_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>[\d.]+)S)?)?"
)
_NAMES: Final[dict[type, dict[str, str]]] = {TopicSubscription: {"name": "subscriptionName", "topic": "topicName"}}


class JsAdministration(Administration):
    """A ``ServiceBusAdministrationClient``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def open(self) -> None:
        self._node = node_process(self._endpoint.ca_file)
        self._client = await self._node.new(
            "ServiceBusAdministrationClient",
            self._endpoint.connection_string,
            {"retryOptions": {"maxRetries": 0}},
        )

    async def close(self) -> None:
        """The SDK has nothing to close."""

    async def _call(self, method: str, *args: Any) -> Any:
        with translated():
            return await self._node.call(self._client, method, *args)

    async def _collect(self, method: str, *args: Any) -> list[Any]:
        with translated():
            return await self._node.collect(self._client, method, *args)

    async def namespace(self) -> NamespaceProperties:
        found = await self._call("getNamespaceProperties")
        return NamespaceProperties(
            name=found["name"],
            tier=found["messagingSku"],
            created=found["createdAt"],
            modified=found["modifiedAt"],
        )

    # Queues

    async def create_queue(self, queue: Queue) -> Queue:
        return _settings(Queue, await self._call("createQueue", queue.name, _options(queue)))

    async def queue(self, name: str) -> Queue:
        return _settings(Queue, await self._call("getQueue", name))

    async def update_queue(self, name: str, **changes: Any) -> None:
        queue = await self._call("getQueue", name)
        await self._call("updateQueue", {**queue, **_converted(changes)})

    async def update_missing_queue(self, like: str, name: str) -> None:
        queue = await self._call("getQueue", like)
        await self._call("updateQueue", {**queue, "name": name})

    async def delete_queue(self, name: str) -> None:
        await self._call("deleteQueue", name)

    async def queues(self) -> list[Queue]:
        return [_settings(Queue, found) for found in await self._collect("listQueues")]

    async def queue_exists(self, name: str) -> bool:
        return bool(await self._call("queueExists", name))

    async def queue_counts(self, name: str) -> Counts:
        return _counts(await self._call("getQueueRuntimeProperties", name))

    async def all_queue_counts(self) -> dict[str, Counts]:
        return {found["name"]: _counts(found) for found in await self._collect("listQueuesRuntimeProperties")}

    # Topics

    async def create_topic(self, topic: Topic) -> Topic:
        return _settings(Topic, await self._call("createTopic", topic.name, _options(topic)))

    async def topic(self, name: str) -> Topic:
        return _settings(Topic, await self._call("getTopic", name))

    async def update_topic(self, name: str, **changes: Any) -> None:
        topic = await self._call("getTopic", name)
        await self._call("updateTopic", {**topic, **_converted(changes)})

    async def delete_topic(self, name: str) -> None:
        await self._call("deleteTopic", name)

    async def topics(self) -> list[Topic]:
        return [_settings(Topic, found) for found in await self._collect("listTopics")]

    async def topic_exists(self, name: str) -> bool:
        return bool(await self._call("topicExists", name))

    async def topic_counts(self, name: str) -> Counts:
        return _counts(await self._call("getTopicRuntimeProperties", name))

    async def all_topic_counts(self) -> dict[str, Counts]:
        return {found["name"]: _counts(found) for found in await self._collect("listTopicsRuntimeProperties")}

    # Subscriptions

    async def create_subscription(self, subscription: TopicSubscription) -> TopicSubscription:
        made = await self._call("createSubscription", subscription.topic, subscription.name, _options(subscription))
        return _settings(TopicSubscription, made)

    async def subscription(self, topic: str, name: str) -> TopicSubscription:
        return _settings(TopicSubscription, await self._call("getSubscription", topic, name))

    async def update_subscription(self, topic: str, name: str, **changes: Any) -> None:
        found = await self._call("getSubscription", topic, name)
        await self._call("updateSubscription", {**found, **_converted(changes)})

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._call("deleteSubscription", topic, name)

    async def subscriptions(self, topic: str) -> list[TopicSubscription]:
        return [_settings(TopicSubscription, found) for found in await self._collect("listSubscriptions", topic)]

    async def subscription_exists(self, topic: str, name: str) -> bool:
        return bool(await self._call("subscriptionExists", topic, name))

    async def subscription_counts(self, topic: str, name: str) -> Counts:
        return _counts(await self._call("getSubscriptionRuntimeProperties", topic, name))

    async def all_subscription_counts(self, topic: str) -> dict[str, Counts]:
        found = await self._collect("listSubscriptionsRuntimeProperties", topic)
        return {one["subscriptionName"]: _counts(one) for one in found}

    # Rules

    async def create_rule(self, topic: str, subscription: str, rule: Rule) -> Rule:
        made = await self._call(
            "createRule",
            topic,
            subscription,
            rule.name,
            filter_out(rule.filter),
            action_out(rule.action) or UNDEFINED,
        )
        return rule_in(made)

    async def rule(self, topic: str, subscription: str, name: str) -> Rule:
        return rule_in(await self._call("getRule", topic, subscription, name))

    async def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        found = await self._call("getRule", topic, subscription, rule.name)
        changed = {**found, "filter": filter_out(rule.filter), "action": action_out(rule.action) or {}}
        await self._call("updateRule", topic, subscription, changed)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        await self._call("deleteRule", topic, subscription, name)

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        return [rule_in(found) for found in await self._collect("listRules", topic, subscription)]

    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        return bool(await self._call("ruleExists", topic, subscription, name))


def _options(entity: Queue | Topic | TopicSubscription) -> dict[str, Any]:
    given = {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity)}
    return _converted({name: value for name, value in given.items() if name not in {"name", "topic"}})


def _converted(settings: dict[str, Any]) -> dict[str, Any]:
    return {_camel(name): _setting_out(value) for name, value in settings.items() if value is not None}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _setting_out(value: Any) -> Any:
    if isinstance(value, timedelta):
        return f"PT{value.total_seconds():g}S" if value < timedelta(days=1) else f"P{value.days}DT{value.seconds}S"
    if isinstance(value, tuple):
        return [
            {
                "claimType": "SharedAccessKey",
                "accessRights": sorted(key.rights),
                "keyName": key.name,
                "primaryKey": key.primary,
                "secondaryKey": key.secondary,
            }
            for key in value
        ]
    return value


def _settings(kind: type[T], found: dict[str, Any]) -> T:
    names = _NAMES.get(kind, {})
    given: dict[str, Any] = {
        field.name: _setting_in(field.name, found.get(names.get(field.name, _camel(field.name))))
        for field in dataclasses.fields(kind)
    }
    return kind(**given)


def _setting_in(name: str, value: Any) -> Any:
    if name == "authorization_rules":
        return tuple(
            Key(
                name=rule["keyName"],
                rights=frozenset(rule["accessRights"]),
                primary=rule["primaryKey"],
                secondary=rule["secondaryKey"],
            )
            for rule in value or ()
        )
    if name in _PATHS and value is not None:
        return urlparse(value).path.removeprefix("/")
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)) and name not in {"name", "topic"}:
        return min(timedelta(**{unit: float(number) for unit, number in found.groupdict("0").items()}), NEVER)
    return value


def _counts(found: dict[str, Any]) -> Counts:
    return Counts(
        active=found.get("activeMessageCount"),
        dead_letter=found.get("deadLetterMessageCount"),
        scheduled=found.get("scheduledMessageCount"),
        transfer=found.get("transferMessageCount"),
        transfer_dead_letter=found.get("transferDeadLetterMessageCount"),
        total=found.get("totalMessageCount"),
        size_in_bytes=found.get("sizeInBytes"),
        subscriptions=found.get("subscriptionCount"),
        created=found["createdAt"],
        updated=found["modifiedAt"],
        accessed=found["accessedAt"],
    )
