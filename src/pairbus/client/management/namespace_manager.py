"""Creates, updates, gets and deletes the entities of a namespace."""

from __future__ import annotations

from types import NoneType, TracebackType
from typing import Self

from pairbus.client.endpoint import Endpoint, connect_by
from pairbus.client.management.api import ALL_QUEUES, ALL_TOPICS, NAMESPACE_INFO, ManagedResource, ManagementApi
from pairbus.client.management.atom import (
    NAMESPACES,
    QUEUE_RUNTIME,
    QUEUES,
    RULES,
    SUBSCRIPTION_RUNTIME,
    SUBSCRIPTIONS,
    TOPIC_RUNTIME,
    TOPICS,
)
from pairbus.client.management.descriptions import (
    NamespaceInfo,
    QueueDescription,
    QueueRuntimeInfo,
    SubscriptionDescription,
    SubscriptionRuntimeInfo,
    TopicDescription,
    TopicRuntimeInfo,
)
from pairbus.client.management.rules import RuleDescription
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import TokenProvider
from pairbus.client.validation import check_type


class NamespaceManager:
    """Manages a namespace over HTTP.

    Operations require the claim *Manage*. Transient errors are retried until the ``operation_timeout`` of the settings.
    Create and update operations return the description as stored by the namespace, with its defaults.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        token_provider: TokenProvider | None = None,
        settings: MessagingFactorySettings | None = None,
    ) -> None:
        check_type("endpoint", endpoint, (Endpoint, str))
        check_type("settings", settings, (MessagingFactorySettings, NoneType))
        if not isinstance(token_provider, TokenProvider | None):
            raise TypeError(
                "management requires a key or token: use TokenProvider.from_key, from_token or from_credential,"
                f" not {type(token_provider).__name__}"
            )
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        self.settings = MessagingFactorySettings() if settings is None else settings
        self._api = ManagementApi(self.endpoint, token_provider, self.settings)

    @classmethod
    def create(
        cls,
        endpoint: Endpoint | str,
        token_provider: TokenProvider | None = None,
        settings: MessagingFactorySettings | None = None,
    ) -> Self:
        """Create a manager for the namespace at an endpoint. Does not connect yet."""
        return cls(endpoint, token_provider, settings)

    @classmethod
    def from_connection_string(cls, text: str, settings: MessagingFactorySettings | None = None) -> Self:
        """Create a manager from a connection string. Raises ``ConnectionStringError``, a ``ValueError``."""
        return cls(*connect_by(text, settings))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Reject further operations, and close the connections."""
        await self._api.close()

    def __repr__(self) -> str:
        return f"<NamespaceManager {self.endpoint}>"

    async def get_namespace_info(self) -> NamespaceInfo:
        return await self._api.get(NAMESPACE_INFO, NAMESPACES)

    # Queues

    async def create_queue(self, queue: str | QueueDescription) -> QueueDescription:
        """Create a queue. Raises ``EntityAlreadyExistsError`` if a queue or topic with this path exists."""
        description = QueueDescription(queue) if isinstance(queue, str) else queue
        check_type("queue", description, (QueueDescription,))
        return await self._api.create(ManagedResource.of_entity(description.path), QUEUES, description)

    async def get_queue(self, path: str) -> QueueDescription:
        return await self._api.get(ManagedResource.of_entity(path), QUEUES)

    async def update_queue(self, queue: QueueDescription) -> QueueDescription:
        """Replace the settings of a queue. Unset fields get their default, so start from ``get_queue``."""
        check_type("queue", queue, (QueueDescription,))
        return await self._api.update(ManagedResource.of_entity(queue.path), QUEUES, queue)

    async def delete_queue(self, path: str) -> None:
        """Delete a queue and all its messages."""
        await self._api.delete(ManagedResource.of_entity(path), QUEUES)

    async def get_queues(self) -> list[QueueDescription]:
        return await self._api.get_all(ALL_QUEUES, QUEUES)

    async def queue_exists(self, path: str) -> bool:
        return await self._api.exists(ManagedResource.of_entity(path), QUEUES)

    async def get_queue_runtime_info(self, path: str) -> QueueRuntimeInfo:
        return await self._api.get(ManagedResource.of_entity(path), QUEUE_RUNTIME)

    async def get_queues_runtime_info(self) -> list[QueueRuntimeInfo]:
        return await self._api.get_all(ALL_QUEUES, QUEUE_RUNTIME)

    # Topics

    async def create_topic(self, topic: str | TopicDescription) -> TopicDescription:
        """Create a topic. Raises ``EntityAlreadyExistsError`` if a queue or topic with this path exists."""
        description = TopicDescription(topic) if isinstance(topic, str) else topic
        check_type("topic", description, (TopicDescription,))
        return await self._api.create(ManagedResource.of_entity(description.path), TOPICS, description)

    async def get_topic(self, path: str) -> TopicDescription:
        return await self._api.get(ManagedResource.of_entity(path), TOPICS)

    async def update_topic(self, topic: TopicDescription) -> TopicDescription:
        """Replace the settings of a topic. Unset fields get their default, so start from ``get_topic``."""
        check_type("topic", topic, (TopicDescription,))
        return await self._api.update(ManagedResource.of_entity(topic.path), TOPICS, topic)

    async def delete_topic(self, path: str) -> None:
        """Delete a topic, its subscriptions and all their messages."""
        await self._api.delete(ManagedResource.of_entity(path), TOPICS)

    async def get_topics(self) -> list[TopicDescription]:
        return await self._api.get_all(ALL_TOPICS, TOPICS)

    async def topic_exists(self, path: str) -> bool:
        return await self._api.exists(ManagedResource.of_entity(path), TOPICS)

    async def get_topic_runtime_info(self, path: str) -> TopicRuntimeInfo:
        return await self._api.get(ManagedResource.of_entity(path), TOPIC_RUNTIME)

    async def get_topics_runtime_info(self) -> list[TopicRuntimeInfo]:
        return await self._api.get_all(ALL_TOPICS, TOPIC_RUNTIME)

    # Subscriptions

    async def create_subscription(
        self,
        topic_path: str,
        subscription: str | SubscriptionDescription,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Create a subscription. It gets all messages, unless another initial rule is given."""
        description = SubscriptionDescription(subscription) if isinstance(subscription, str) else subscription
        check_type("subscription", description, (SubscriptionDescription,))
        check_type("default_rule", default_rule, (RuleDescription, NoneType))
        resource = ManagedResource.of_subscription(topic_path, description.name)
        return await self._api.create(resource, SUBSCRIPTIONS, description, default_rule)

    async def get_subscription(self, topic_path: str, name: str) -> SubscriptionDescription:
        return await self._api.get(ManagedResource.of_subscription(topic_path, name), SUBSCRIPTIONS)

    async def update_subscription(
        self, topic_path: str, subscription: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace the settings of a subscription. Unset fields get their default."""
        check_type("subscription", subscription, (SubscriptionDescription,))
        resource = ManagedResource.of_subscription(topic_path, subscription.name)
        return await self._api.update(resource, SUBSCRIPTIONS, subscription)

    async def delete_subscription(self, topic_path: str, name: str) -> None:
        """Delete a subscription, its rules and all its messages."""
        await self._api.delete(ManagedResource.of_subscription(topic_path, name), SUBSCRIPTIONS)

    async def get_subscriptions(self, topic_path: str) -> list[SubscriptionDescription]:
        return await self._api.get_all(ManagedResource.of_entity(topic_path).all("Subscriptions"), SUBSCRIPTIONS)

    async def subscription_exists(self, topic_path: str, name: str) -> bool:
        return await self._api.exists(ManagedResource.of_subscription(topic_path, name), SUBSCRIPTIONS)

    async def get_subscription_runtime_info(self, topic_path: str, name: str) -> SubscriptionRuntimeInfo:
        return await self._api.get(ManagedResource.of_subscription(topic_path, name), SUBSCRIPTION_RUNTIME)

    async def get_subscriptions_runtime_info(self, topic_path: str) -> list[SubscriptionRuntimeInfo]:
        return await self._api.get_all(ManagedResource.of_entity(topic_path).all("Subscriptions"), SUBSCRIPTION_RUNTIME)

    # Rules

    async def create_rule(
        self, topic_path: str, subscription_name: str, rule: str | RuleDescription
    ) -> RuleDescription:
        """Add a rule: the subscription gets the messages that match any of its rules."""
        description = RuleDescription(rule) if isinstance(rule, str) else rule
        check_type("rule", description, (RuleDescription,))
        resource = ManagedResource.of_rule(topic_path, subscription_name, description.name)
        return await self._api.create(resource, RULES, description)

    async def get_rule(self, topic_path: str, subscription_name: str, name: str) -> RuleDescription:
        return await self._api.get(ManagedResource.of_rule(topic_path, subscription_name, name), RULES)

    async def update_rule(self, topic_path: str, subscription_name: str, rule: RuleDescription) -> RuleDescription:
        check_type("rule", rule, (RuleDescription,))
        return await self._api.update(ManagedResource.of_rule(topic_path, subscription_name, rule.name), RULES, rule)

    async def delete_rule(self, topic_path: str, subscription_name: str, name: str) -> None:
        """Delete a rule. Messages received through it stay in the subscription."""
        await self._api.delete(ManagedResource.of_rule(topic_path, subscription_name, name), RULES)

    async def get_rules(self, topic_path: str, subscription_name: str) -> list[RuleDescription]:
        """Return the rules in the order of their creation."""
        return await self._api.get_all(
            ManagedResource.of_subscription(topic_path, subscription_name).all("Rules"), RULES
        )

    async def rule_exists(self, topic_path: str, subscription_name: str, name: str) -> bool:
        return await self._api.exists(ManagedResource.of_rule(topic_path, subscription_name, name), RULES)
