"""The settings of queues, topics and subscriptions.

The service uses its default for a field that is ``None``; in a response of the service all fields are set.
``timedelta.max`` means never.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from pairbus.client.validation import check_fields, check_path, check_type


class AccessRights(Enum):
    """The rights of a key. Manage includes Send and Listen."""

    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


@dataclass(frozen=True, slots=True)
class SharedAccessAuthorizationRule:
    """A named rule with two keys, either of which grants its rights."""

    key_name: str
    _: KW_ONLY
    rights: AbstractSet[AccessRights]
    primary_key: str | None = field(default=None, repr=False)
    """``None``: the service generates a key, or keeps the existing one."""

    secondary_key: str | None = field(default=None, repr=False)
    created_at: datetime | None = field(default=None, compare=False)
    """Set by the service, if it is known."""

    updated_at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for right in self.rights:
            check_type("each of the rights", right, (AccessRights,))
        if not self.key_name or not self.rights:
            raise ValueError("an authorization rule requires a name and at least one right")
        object.__setattr__(self, "rights", frozenset(self.rights))


class EntityStatus(Enum):
    """The status of an entity. Only the first four can be set."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"
    RESTORING = "Restoring"
    CREATING = "Creating"
    DELETING = "Deleting"
    RENAMING = "Renaming"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The settings of a queue."""

    path: str
    """The name, which may contain slashes."""

    _: KW_ONLY
    lock_duration: timedelta | None = None
    max_size_in_megabytes: int | None = None
    max_message_size_in_kilobytes: int | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    requires_session: bool | None = None
    default_message_time_to_live: timedelta | None = None
    enable_dead_lettering_on_message_expiration: bool | None = None
    max_delivery_count: int | None = None
    enable_batched_operations: bool | None = None
    status: EntityStatus | None = None
    forward_to: str | None = None
    """The path of a queue or topic in the same namespace."""

    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool | None = None
    enable_express: bool | None = None
    support_ordering: bool | None = None
    user_metadata: str | None = None
    authorization_rules: tuple[SharedAccessAuthorizationRule, ...] | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_fields(self)
        _check_keys(self.authorization_rules)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The settings of a topic."""

    path: str
    """The name, which may contain slashes."""

    _: KW_ONLY
    max_size_in_megabytes: int | None = None
    max_message_size_in_kilobytes: int | None = None
    requires_duplicate_detection: bool | None = None
    duplicate_detection_history_time_window: timedelta | None = None
    default_message_time_to_live: timedelta | None = None
    enable_batched_operations: bool | None = None
    enable_filtering_messages_before_publishing: bool | None = None
    status: EntityStatus | None = None
    auto_delete_on_idle: timedelta | None = None
    enable_partitioning: bool | None = None
    enable_subscription_partitioning: bool | None = None
    enable_express: bool | None = None
    support_ordering: bool | None = None
    user_metadata: str | None = None
    authorization_rules: tuple[SharedAccessAuthorizationRule, ...] | None = None

    def __post_init__(self) -> None:
        check_path("path", self.path)
        check_fields(self)
        _check_keys(self.authorization_rules)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """The settings of a subscription. The topic is a separate argument."""

    name: str
    _: KW_ONLY
    lock_duration: timedelta | None = None
    requires_session: bool | None = None
    default_message_time_to_live: timedelta | None = None
    enable_dead_lettering_on_message_expiration: bool | None = None
    enable_dead_lettering_on_filter_evaluation_exceptions: bool | None = None
    max_delivery_count: int | None = None
    enable_batched_operations: bool | None = None
    status: EntityStatus | None = None
    forward_to: str | None = None
    """The path of a queue or topic in the same namespace."""

    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: timedelta | None = None
    user_metadata: str | None = None

    def __post_init__(self) -> None:
        check_path("name", self.name)
        check_fields(self)


def _check_keys(rules: tuple[SharedAccessAuthorizationRule, ...] | None) -> None:
    for rule in rules or ():
        check_type("each of the authorization_rules", rule, (SharedAccessAuthorizationRule,))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRuntimeInfo:
    """The message counts, size and times of a queue."""

    path: str
    message_count: int = 0
    """The number of messages in all states."""

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    size_in_bytes: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    accessed_at: datetime | None = None
    """The time of the last use; ``None`` if never."""

    availability_status: str | None = None
    is_anonymous_accessible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRuntimeInfo:
    """The scheduled messages, size and times of a topic. Other messages are in its subscriptions."""

    path: str
    subscription_count: int = 0
    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    size_in_bytes: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    accessed_at: datetime | None = None
    """The time of the last use; ``None`` if never."""

    availability_status: str | None = None
    is_anonymous_accessible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRuntimeInfo:
    """The message counts and times of a subscription."""

    name: str
    message_count: int = 0
    """The number of messages in all states."""

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    accessed_at: datetime | None = None
    """The time of the last use; ``None`` if never."""

    availability_status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """The name, tier and times of a namespace."""

    name: str
    alias: str | None = None
    messaging_sku: str | None = None
    """``Basic``, ``Standard`` or ``Premium``."""

    messaging_units: int | None = None
    """The number of messaging units; Premium only."""

    namespace_type: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
