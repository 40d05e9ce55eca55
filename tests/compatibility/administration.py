"""The administration of a namespace: the interface that every SDK's administration is adapted to, and its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeAlias

from tests.compatibility.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An authorization rule."""

    name: str
    rights: frozenset[str]
    primary: str
    secondary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The settings of a queue. What is ``None`` is left to the service."""

    name: str
    lock_duration: timedelta | None = None
    max_size_in_megabytes: int | None = None
    max_message_size_in_kilobytes: int | None = None
    requires_duplicate_detection: bool | None = None
    requires_session: bool | None = None
    default_message_time_to_live: timedelta | None = None
    dead_lettering_on_message_expiration: bool | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    max_delivery_count: int | None = None
    enable_batched_operations: bool | None = None
    authorization_rules: tuple[Key, ...] | None = None
    status: str | None = None
    forward_to: str | None = None
    """The path of the entity alone."""
    user_metadata: str | None = None
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool | None = None
    enable_express: bool | None = None
    forward_dead_lettered_messages_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The settings of a topic."""

    name: str
    default_message_time_to_live: timedelta | None = None
    max_size_in_megabytes: int | None = None
    max_message_size_in_kilobytes: int | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    enable_batched_operations: bool | None = None
    authorization_rules: tuple[Key, ...] | None = None
    status: str | None = None
    user_metadata: str | None = None
    support_ordering: bool | None = None
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool | None = None
    enable_express: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSubscription:
    """The settings of a subscription."""

    topic: str
    name: str
    lock_duration: timedelta | None = None
    requires_session: bool | None = None
    default_message_time_to_live: timedelta | None = None
    dead_lettering_on_message_expiration: bool | None = None
    dead_lettering_on_filter_evaluation_exceptions: bool | None = None
    max_delivery_count: int | None = None
    enable_batched_operations: bool | None = None
    status: str | None = None
    forward_to: str | None = None
    user_metadata: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """The messages for which an expression is true."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """The messages whose properties are these."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    subject: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)


RuleFilter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class RuleAction:
    """The changes of a rule to the copies that match it."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of a subscription."""

    name: str
    filter: RuleFilter
    action: RuleAction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The numbers that the service keeps about an entity; ``None`` where it keeps none for its kind."""

    active: int | None = None
    dead_letter: int | None = None
    scheduled: int | None = None
    transfer: int | None = None
    transfer_dead_letter: int | None = None
    total: int | None = None
    size_in_bytes: int | None = None
    subscriptions: int | None = None
    created: datetime
    updated: datetime
    accessed: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceProperties:
    """The properties of a namespace."""

    name: str
    tier: str
    created: datetime
    modified: datetime


class Administration(AbstractAsyncContextManager["Administration"], ABC):
    """Manages the entities of a namespace."""

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def namespace(self) -> NamespaceProperties: ...

    @abstractmethod
    async def create_queue(self, queue: Queue) -> Queue: ...

    @abstractmethod
    async def queue(self, name: str) -> Queue: ...

    @abstractmethod
    async def update_queue(self, name: str, **changes: Any) -> None:
        """Read the queue, change these settings, and write it back."""

    @abstractmethod
    async def update_missing_queue(self, like: str, name: str) -> None:
        """Write a queue that there is not, with the settings of one that there is."""

    @abstractmethod
    async def delete_queue(self, name: str) -> None: ...

    @abstractmethod
    async def queues(self) -> list[Queue]: ...

    @abstractmethod
    async def queue_exists(self, name: str) -> bool: ...

    @abstractmethod
    async def queue_counts(self, name: str) -> Counts: ...

    @abstractmethod
    async def all_queue_counts(self) -> dict[str, Counts]: ...

    @abstractmethod
    async def create_topic(self, topic: Topic) -> Topic: ...

    @abstractmethod
    async def topic(self, name: str) -> Topic: ...

    @abstractmethod
    async def update_topic(self, name: str, **changes: Any) -> None: ...

    @abstractmethod
    async def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    async def topics(self) -> list[Topic]: ...

    @abstractmethod
    async def topic_exists(self, name: str) -> bool: ...

    @abstractmethod
    async def topic_counts(self, name: str) -> Counts: ...

    @abstractmethod
    async def all_topic_counts(self) -> dict[str, Counts]: ...

    @abstractmethod
    async def create_subscription(self, subscription: TopicSubscription) -> TopicSubscription: ...

    @abstractmethod
    async def subscription(self, topic: str, name: str) -> TopicSubscription: ...

    @abstractmethod
    async def update_subscription(self, topic: str, name: str, **changes: Any) -> None: ...

    @abstractmethod
    async def delete_subscription(self, topic: str, name: str) -> None: ...

    @abstractmethod
    async def subscriptions(self, topic: str) -> list[TopicSubscription]: ...

    @abstractmethod
    async def subscription_exists(self, topic: str, name: str) -> bool: ...

    @abstractmethod
    async def subscription_counts(self, topic: str, name: str) -> Counts: ...

    @abstractmethod
    async def all_subscription_counts(self, topic: str) -> dict[str, Counts]: ...

    @abstractmethod
    async def create_rule(self, topic: str, subscription: str, rule: Rule) -> Rule: ...

    @abstractmethod
    async def rule(self, topic: str, subscription: str, name: str) -> Rule: ...

    @abstractmethod
    async def update_rule(self, topic: str, subscription: str, rule: Rule) -> None: ...

    @abstractmethod
    async def delete_rule(self, topic: str, subscription: str, name: str) -> None: ...

    @abstractmethod
    async def rules(self, topic: str, subscription: str) -> list[Rule]: ...

    @abstractmethod
    async def rule_exists(self, topic: str, subscription: str, name: str) -> bool: ...

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
