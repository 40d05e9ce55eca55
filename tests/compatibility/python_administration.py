"""The administration client of azure-servicebus, written once for its synchronous and its asynchronous half."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlparse

from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.compatibility.administration import (
    Administration,
    CorrelationFilter,
    Counts,
    FalseFilter,
    Key,
    NamespaceProperties,
    Queue,
    Rule,
    RuleAction,
    RuleFilter,
    SqlFilter,
    Topic,
    TopicSubscription,
    TrueFilter,
)
from tests.compatibility.client import Endpoint
from tests.compatibility.python_client import Half
from tests.compatibility.values import NEVER, Reason, SdkError

T = TypeVar("T", Queue, Topic, TopicSubscription)

_PATHS: Final = {"forward_to", "forward_dead_lettered_messages_to"}


class PythonAdministration(Administration):
    """A ``ServiceBusAdministrationClient``."""

    def __init__(self, half: Half, endpoint: Endpoint) -> None:
        self._half = half
        self._endpoint = endpoint

    async def open(self) -> None:
        self._client = self._half.administration(
            self._endpoint.connection_string,
            connection_verify=str(self._endpoint.ca_file),
            retry_total=0,
            use_env_settings=False,  # pytest changes the environment while other tests of the stage read it
        )

    async def close(self) -> None:
        await self._half.call(self._client.close)

    async def namespace(self) -> NamespaceProperties:
        found = await self._half.do(self._client.get_namespace_properties)
        return NamespaceProperties(
            name=found.name,
            tier=found.messaging_sku,
            created=found.created_at_utc,
            modified=found.modified_at_utc,
        )

    # Queues

    async def create_queue(self, queue: Queue) -> Queue:
        made = await self._half.do(self._client.create_queue, queue.name, **_options(queue))
        return _settings(Queue, made)

    async def queue(self, name: str) -> Queue:
        return _settings(Queue, await self._half.do(self._client.get_queue, name))

    async def update_queue(self, name: str, **changes: Any) -> None:
        queue = await self._half.do(self._client.get_queue, name)
        await self._half.do(self._client.update_queue, queue, **_converted(changes))

    async def update_missing_queue(self, like: str, name: str) -> None:
        queue = await self._half.do(self._client.get_queue, like)
        queue.name = name
        await self._half.do(self._client.update_queue, queue)

    async def delete_queue(self, name: str) -> None:
        await self._half.do(self._client.delete_queue, name)

    async def queues(self) -> list[Queue]:
        return [_settings(Queue, found) for found in await self._half.collect(self._client.list_queues())]

    async def queue_exists(self, name: str) -> bool:
        return await self._exists(self._client.get_queue, name)

    async def queue_counts(self, name: str) -> Counts:
        return _counts(await self._half.do(self._client.get_queue_runtime_properties, name))

    async def all_queue_counts(self) -> dict[str, Counts]:
        return _all_counts(await self._half.collect(self._client.list_queues_runtime_properties()))

    # Topics

    async def create_topic(self, topic: Topic) -> Topic:
        made = await self._half.do(self._client.create_topic, topic.name, **_options(topic))
        return _settings(Topic, made)

    async def topic(self, name: str) -> Topic:
        return _settings(Topic, await self._half.do(self._client.get_topic, name))

    async def update_topic(self, name: str, **changes: Any) -> None:
        topic = await self._half.do(self._client.get_topic, name)
        await self._half.do(self._client.update_topic, topic, **_converted(changes))

    async def delete_topic(self, name: str) -> None:
        await self._half.do(self._client.delete_topic, name)

    async def topics(self) -> list[Topic]:
        return [_settings(Topic, found) for found in await self._half.collect(self._client.list_topics())]

    async def topic_exists(self, name: str) -> bool:
        return await self._exists(self._client.get_topic, name)

    async def topic_counts(self, name: str) -> Counts:
        return _counts(await self._half.do(self._client.get_topic_runtime_properties, name))

    async def all_topic_counts(self) -> dict[str, Counts]:
        return _all_counts(await self._half.collect(self._client.list_topics_runtime_properties()))

    # Subscriptions

    async def create_subscription(self, subscription: TopicSubscription) -> TopicSubscription:
        made = await self._half.do(
            self._client.create_subscription, subscription.topic, subscription.name, **_options(subscription)
        )
        return _settings(TopicSubscription, made, topic=subscription.topic)

    async def subscription(self, topic: str, name: str) -> TopicSubscription:
        found = await self._half.do(self._client.get_subscription, topic, name)
        return _settings(TopicSubscription, found, topic=topic)

    async def update_subscription(self, topic: str, name: str, **changes: Any) -> None:
        found = await self._half.do(self._client.get_subscription, topic, name)
        await self._half.do(self._client.update_subscription, topic, found, **_converted(changes))

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._half.do(self._client.delete_subscription, topic, name)

    async def subscriptions(self, topic: str) -> list[TopicSubscription]:
        found = await self._half.collect(self._client.list_subscriptions(topic))
        return [_settings(TopicSubscription, one, topic=topic) for one in found]

    async def subscription_exists(self, topic: str, name: str) -> bool:
        return await self._exists(self._client.get_subscription, topic, name)

    async def subscription_counts(self, topic: str, name: str) -> Counts:
        return _counts(await self._half.do(self._client.get_subscription_runtime_properties, topic, name))

    async def all_subscription_counts(self, topic: str) -> dict[str, Counts]:
        return _all_counts(await self._half.collect(self._client.list_subscriptions_runtime_properties(topic)))

    # Rules

    async def create_rule(self, topic: str, subscription: str, rule: Rule) -> Rule:
        made = await self._half.do(
            self._client.create_rule,
            topic,
            subscription,
            rule.name,
            filter=_filter_out(rule.filter),
            action=_action_out(rule.action),
        )
        return _rule(made)

    async def rule(self, topic: str, subscription: str, name: str) -> Rule:
        return _rule(await self._half.do(self._client.get_rule, topic, subscription, name))

    async def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        found = await self._half.do(self._client.get_rule, topic, subscription, rule.name)
        found.filter, found.action = _filter_out(rule.filter), _action_out(rule.action)
        await self._half.do(self._client.update_rule, topic, subscription, found)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        await self._half.do(self._client.delete_rule, topic, subscription, name)

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        return [_rule(found) for found in await self._half.collect(self._client.list_rules(topic, subscription))]

    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        return await self._exists(self._client.get_rule, topic, subscription, name)

    async def _exists(self, get: Any, *names: str) -> bool:
        """The SDK has no question for this; its users get the entity and see."""
        try:
            await self._half.do(get, *names)
        except SdkError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False
        return True


def _options(entity: Queue | Topic | TopicSubscription) -> dict[str, Any]:
    given = {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity)}
    return _converted({name: value for name, value in given.items() if name not in {"name", "topic"}})


def _converted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: _setting_out(value) for name, value in settings.items() if value is not None}


def _setting_out(value: Any) -> Any:
    if isinstance(value, tuple):
        return [
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                rights=sorted(key.rights),
                key_name=key.name,
                primary_key=key.primary,
                secondary_key=key.secondary,
            )
            for key in value
        ]
    return value


def _settings(kind: type[T], found: Any, **names: str) -> T:
    given: dict[str, Any] = {
        field.name: _setting_in(field.name, getattr(found, field.name))
        for field in dataclasses.fields(kind)
        if field.name not in names
    }
    return kind(**{**given, **names})


def _setting_in(name: str, value: Any) -> Any:
    if name == "authorization_rules":
        return tuple(_key(rule) for rule in value or ())
    if name in _PATHS and value is not None:
        return urlparse(value).path.removeprefix("/")
    if isinstance(value, timedelta):
        return min(value, NEVER)
    return value


def _key(rule: AuthorizationRule) -> Key:
    assert rule.key_name is not None
    assert rule.primary_key is not None
    assert rule.secondary_key is not None
    return Key(
        name=rule.key_name,
        rights=frozenset(str(right) for right in rule.rights or ()),
        primary=rule.primary_key,
        secondary=rule.secondary_key,
    )


def _filter_out(rule_filter: RuleFilter) -> Any:
    match rule_filter:
        case TrueFilter():
            return TrueRuleFilter()
        case FalseFilter():
            return FalseRuleFilter()
        case SqlFilter():
            return SqlRuleFilter(rule_filter.expression, dict(rule_filter.parameters) or None)  # type: ignore[arg-type]
        case CorrelationFilter():
            return CorrelationRuleFilter(
                correlation_id=rule_filter.correlation_id,
                message_id=rule_filter.message_id,
                to=rule_filter.to,
                reply_to=rule_filter.reply_to,
                label=rule_filter.subject,
                session_id=rule_filter.session_id,
                reply_to_session_id=rule_filter.reply_to_session_id,
                content_type=rule_filter.content_type,
                properties=dict(rule_filter.properties) or None,  # type: ignore[arg-type]
            )


def _action_out(action: RuleAction | None) -> Any:
    return None if action is None else SqlRuleAction(action.expression, dict(action.parameters) or None)  # type: ignore[arg-type]


def _rule(found: RuleProperties) -> Rule:
    action = found.action
    return Rule(
        name=found.name,
        filter=_filter_in(found.filter),
        action=None if action is None else RuleAction(action.sql_expression or "", dict(action.parameters or {})),  # type: ignore[arg-type]
    )


def _filter_in(found: Any) -> RuleFilter:
    if isinstance(found, TrueRuleFilter):
        return TrueFilter()
    if isinstance(found, FalseRuleFilter):
        return FalseFilter()
    if isinstance(found, SqlRuleFilter):
        return SqlFilter(found.sql_expression or "", dict(found.parameters or {}))  # type: ignore[arg-type]
    assert isinstance(found, CorrelationRuleFilter)
    return CorrelationFilter(
        correlation_id=found.correlation_id,
        message_id=found.message_id,
        to=found.to,
        reply_to=found.reply_to,
        subject=found.label,
        session_id=found.session_id,
        reply_to_session_id=found.reply_to_session_id,
        content_type=found.content_type,
        properties=dict(found.properties or {}),  # type: ignore[arg-type]
    )


def _counts(found: Any) -> Counts:
    return Counts(
        active=getattr(found, "active_message_count", None),
        dead_letter=getattr(found, "dead_letter_message_count", None),
        scheduled=getattr(found, "scheduled_message_count", None),
        transfer=getattr(found, "transfer_message_count", None),
        transfer_dead_letter=getattr(found, "transfer_dead_letter_message_count", None),
        total=getattr(found, "total_message_count", None),
        size_in_bytes=getattr(found, "size_in_bytes", None),
        subscriptions=getattr(found, "subscription_count", None),
        created=found.created_at_utc,
        updated=found.updated_at_utc,
        accessed=found.accessed_at_utc,
    )


def _all_counts(found: list[Any]) -> dict[str, Counts]:
    return {one.name: _counts(one) for one in found}
