"""What a namespace says of itself and its entities at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRuntimeInfo:
    """What is in a queue."""

    path: str
    message_count: int = 0
    """All of them, wherever they are."""

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    size_in_bytes: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    accessed_at: datetime | None = None
    """When it was last used; ``None`` if it never was."""

    availability_status: str | None = None
    is_anonymous_accessible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRuntimeInfo:
    """What is in a topic: messages that wait for their time. The others are in its subscriptions."""

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
    """When it was last used; ``None`` if it never was."""

    availability_status: str | None = None
    is_anonymous_accessible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRuntimeInfo:
    """What is in a subscription."""

    name: str
    message_count: int = 0
    """All of them, wherever they are."""

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    accessed_at: datetime | None = None
    """When it was last used; ``None`` if it never was."""

    availability_status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """What a namespace is."""

    name: str
    alias: str | None = None
    messaging_sku: str | None = None
    """``Basic``, ``Standard`` or ``Premium``."""

    messaging_units: int | None = None
    """How many the premium tier was bought with."""

    namespace_type: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
