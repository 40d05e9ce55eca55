"""What queues, topics and subscriptions are told to be.

Whatever is ``None`` is left to the service, which has a default for it; in what the service answers everything is
filled in. ``timedelta.max`` means never.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import Enum

from pairbus.client.management.authorization_rule import SharedAccessAuthorizationRule
from pairbus.client.validation import check_fields, check_path, check_type


class EntityStatus(Enum):
    """What an entity can do at the moment. The first four can be asked for."""

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
    """Its name, which may have slashes."""

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
    """The path of a queue or topic of the same namespace."""

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
    """Its name, which may have slashes."""

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
    """The settings of a subscription. Which topic it belongs to is said beside it."""

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
    """The path of a queue or topic of the same namespace."""

    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle: timedelta | None = None
    user_metadata: str | None = None

    def __post_init__(self) -> None:
        check_path("name", self.name)
        check_fields(self)


def _check_keys(rules: tuple[SharedAccessAuthorizationRule, ...] | None) -> None:
    for rule in rules or ():
        check_type("each of the authorization_rules", rule, (SharedAccessAuthorizationRule,))
