"""What an entity is told to be: the settings of queues, topics, subscriptions and rules, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from pairbus.broker.limits import MINUTE_MS
from pairbus.broker.values import Value

DEFAULT_RULE: Final = "$Default"


class EntityStatus(StrEnum):
    """What an operator lets an entity do."""

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
_RECEIVING: Final = frozenset({EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED})


class Right(StrEnum):
    """What a key allows its holder."""

    SEND = "send"
    LISTEN = "listen"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A key to one entity. The broker keeps it; the server checks tokens against it."""

    name: str
    rights: tuple[Right, ...]
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """The settings of a queue. A time of ``None`` means: never."""

    lock_duration_ms: int = MINUTE_MS
    max_size_megabytes: int = 1024
    max_message_bytes: int | None = None
    """The namespace's own limit where it is ``None``."""

    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 10 * MINUTE_MS
    requires_session: bool = False
    partitioned: bool = False
    default_time_to_live_ms: int | None = None
    dead_letter_on_expiration: bool = False
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    auto_delete_on_idle_ms: int | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    batched_operations: bool = True
    express: bool = False
    """Kept for clients to read back; messages are stored durably all the same."""

    user_metadata: str = ""
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """The settings of a topic. A time of ``None`` means: never."""

    max_size_megabytes: int = 1024
    max_message_bytes: int | None = None
    requires_duplicate_detection: bool = False
    duplicate_window_ms: int = 10 * MINUTE_MS
    partitioned: bool = False
    default_time_to_live_ms: int | None = None
    auto_delete_on_idle_ms: int | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    batched_operations: bool = True
    support_ordering: bool = True
    express: bool = False
    """Kept for clients to read back; messages are stored durably all the same."""

    user_metadata: str = ""
    authorization_rules: tuple[AuthorizationRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """The settings of a subscription. A time of ``None`` means: never."""

    lock_duration_ms: int = MINUTE_MS
    requires_session: bool = False
    default_time_to_live_ms: int | None = None
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_errors: bool = True
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    auto_delete_on_idle_ms: int | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    batched_operations: bool = True
    user_metadata: str = ""


EntityDescription: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRecord:
    """What is kept of an entity. ``entity_id`` is never used again; a subscription names its topic's."""

    entity_id: int
    path: str
    topic_id: int | None = None
    description: EntityDescription
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""


@dataclass(frozen=True, slots=True)
class SqlFilterDescription:
    """The messages for which an expression is true."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """The messages whose properties equal all that are given here."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)


FilterDescription: TypeAlias = TrueFilter | FalseFilter | SqlFilterDescription | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlActionDescription:
    """What is changed in the copies of messages that a rule lets through."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    """Which messages a subscription gets a copy of, and what is changed in them."""

    name: str = DEFAULT_RULE
    filter: FilterDescription = field(default_factory=TrueFilter)
    action: SqlActionDescription | None = None
