"""The settings of queues, topics, subscriptions and rules, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias
from uuid import UUID

from pairbus.entity_settings import (
    AUTO_DELETE_ON_IDLE,
    BATCHED_OPERATIONS,
    DEAD_LETTER_ON_EXPIRATION,
    DEAD_LETTER_ON_FILTER_ERRORS,
    DEFAULT_TIME_TO_LIVE,
    DUPLICATE_WINDOW,
    EXPRESS,
    FORWARD_DEAD_LETTERS_TO,
    FORWARD_TO,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    PARTITIONED,
    REQUIRES_DUPLICATE_DETECTION,
    REQUIRES_SESSION,
    STATUS,
    SUPPORT_ORDERING,
    USER_METADATA,
    EntityKind,
)


class Instant(int):
    """A point in time: milliseconds since the Unix epoch."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Instant({int(self)})"


class ZonelessInstant(Instant):
    """A point in time that was given without a time zone. It counts as UTC, and is returned without a zone."""

    __slots__ = ()


class Span(int):
    """A length of time in milliseconds."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Span({int(self)})"


Value: TypeAlias = bool | int | float | str | bytes | UUID | None
"""Integers that are points in time or durations are instances of ``Instant`` and ``Span``."""


DEFAULT_RULE: Final = "$Default"


class EntityStatus(StrEnum):
    """The status of an entity: which operations an operator has enabled."""

    ACTIVE = "active"
    DISABLED = "disabled"
    SEND_DISABLED = "send-disabled"
    RECEIVE_DISABLED = "receive-disabled"

    @property
    def can_send(self) -> bool:
        return self in _SENDING

    @property
    def can_receive(self) -> bool:
        return self in _RECEIVING


_SENDING: Final = frozenset({EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED})
_DEFAULT_STATUS: Final = EntityStatus(STATUS.default)
_RECEIVING: Final = frozenset({EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED})


class Right(StrEnum):
    """A right that a key grants."""

    SEND = "send"
    LISTEN = "listen"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A key to one entity. The broker stores it; the server verifies tokens against it."""

    name: str
    rights: tuple[Right, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """The settings of a queue. A duration of ``None`` means never."""

    lock_duration_ms: int = LOCK_DURATION.default
    max_size_megabytes: int = MAX_SIZE.default
    max_message_bytes: int | None = MAX_MESSAGE_SIZE.default
    """``None`` means the namespace's limit."""

    requires_duplicate_detection: bool = REQUIRES_DUPLICATE_DETECTION.default
    duplicate_window_ms: int = DUPLICATE_WINDOW.default
    requires_session: bool = REQUIRES_SESSION.default
    partitioned: bool = PARTITIONED.default
    default_time_to_live_ms: int | None = DEFAULT_TIME_TO_LIVE.default
    dead_letter_on_expiration: bool = DEAD_LETTER_ON_EXPIRATION.default
    max_delivery_count: int = MAX_DELIVERY_COUNT.default
    forward_to: str | None = FORWARD_TO.default
    forward_dead_letters_to: str | None = FORWARD_DEAD_LETTERS_TO.default
    auto_delete_on_idle_ms: int | None = AUTO_DELETE_ON_IDLE.default
    status: EntityStatus = _DEFAULT_STATUS
    batched_operations: bool = BATCHED_OPERATIONS.default
    express: bool = EXPRESS.default
    """Stored for clients to read back; messages are durable regardless."""

    user_metadata: str = USER_METADATA.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """The settings of a topic. A duration of ``None`` means never."""

    max_size_megabytes: int = MAX_SIZE.default
    max_message_bytes: int | None = MAX_MESSAGE_SIZE.default
    requires_duplicate_detection: bool = REQUIRES_DUPLICATE_DETECTION.default
    duplicate_window_ms: int = DUPLICATE_WINDOW.default
    partitioned: bool = PARTITIONED.default
    default_time_to_live_ms: int | None = DEFAULT_TIME_TO_LIVE.default
    auto_delete_on_idle_ms: int | None = AUTO_DELETE_ON_IDLE.default
    status: EntityStatus = _DEFAULT_STATUS
    batched_operations: bool = BATCHED_OPERATIONS.default
    support_ordering: bool = SUPPORT_ORDERING.default
    express: bool = EXPRESS.default
    """Stored for clients to read back; messages are durable regardless."""

    user_metadata: str = USER_METADATA.default
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """The settings of a subscription. A duration of ``None`` means never."""

    lock_duration_ms: int = LOCK_DURATION.default
    requires_session: bool = REQUIRES_SESSION.default
    default_time_to_live_ms: int | None = DEFAULT_TIME_TO_LIVE.default
    dead_letter_on_expiration: bool = DEAD_LETTER_ON_EXPIRATION.default
    dead_letter_on_filter_errors: bool = DEAD_LETTER_ON_FILTER_ERRORS.default
    max_delivery_count: int = MAX_DELIVERY_COUNT.default
    forward_to: str | None = FORWARD_TO.default
    forward_dead_letters_to: str | None = FORWARD_DEAD_LETTERS_TO.default
    auto_delete_on_idle_ms: int | None = AUTO_DELETE_ON_IDLE.default
    status: EntityStatus = _DEFAULT_STATUS
    batched_operations: bool = BATCHED_OPERATIONS.default
    user_metadata: str = USER_METADATA.default


EntityDescription: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription

KIND_OF: Final[Mapping[type[EntityDescription], EntityKind]] = {
    QueueDescription: EntityKind.QUEUE,
    TopicDescription: EntityKind.TOPIC,
    SubscriptionDescription: EntityKind.SUBSCRIPTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRecord:
    """The stored form of an entity. ``entity_id`` is never reused; a subscription refers to its topic's."""

    entity_id: int
    path: str
    topic_id: int | None = None
    description: EntityDescription
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """A filter that matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """A filter that matches no message."""


@dataclass(frozen=True, slots=True)
class SqlFilterDescription:
    """A filter that matches messages for which an SQL expression is true."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """A filter that matches messages whose properties equal all of those given here."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)


CORRELATION_FIELDS: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}
"""The fields of a correlation filter and the system properties that they compare, in the order of the protocols."""

FilterDescription: TypeAlias = TrueFilter | FalseFilter | SqlFilterDescription | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlActionDescription:
    """An SQL action that changes the copies of messages that a rule matches."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    """A rule of a subscription: a filter that selects messages, and an action that changes their copies."""

    name: str = DEFAULT_RULE
    filter: FilterDescription = field(default_factory=TrueFilter)
    action: SqlActionDescription | None = None
