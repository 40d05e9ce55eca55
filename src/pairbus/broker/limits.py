"""The limits of a namespace, as values: those of Azure's tiers, and relaxed ones for local use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS
KILOBYTE: Final = 1024
MEGABYTE: Final = 1024 * KILOBYTE
UNLIMITED: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one namespace. A request that exceeds a limit raises the error type of that limit."""

    message_bytes: int
    """Largest message, properties included. An entity can only lower it if ``large_message_bytes`` is 0."""

    large_message_bytes: int = 0
    """Maximum to which an entity's own setting may raise ``message_bytes``."""

    batch_bytes: int
    """Largest batch, all its messages together; also applies if the entity accepts larger single messages."""

    header_bytes: int = 64 * KILOBYTE
    id_characters: int = 128
    """Of a message id, session id or partition key."""

    path_characters: int = 260
    name_characters: int = 50
    """Of the name of a subscription or a rule."""

    entities: int = 10_000
    """Queues and topics of a namespace."""

    subscriptions_per_topic: int = 2_000
    sql_filters_per_topic: int = 2_000
    correlation_filters_per_topic: int = 100_000
    rules_per_subscription: int = UNLIMITED
    expression_characters: int = 1_024
    statements_per_action: int = 32
    rule_units: int = 50_000_000
    """Work that rules may do for one message, all its copies together; a unit is about a nanosecond.

    The messages of a batch or a transaction have twice as much together, or 100,000 for each if that is more.
    """

    authorization_rules: int = 12
    entity_megabytes: tuple[int, ...] = (1024, 2048, 3072, 4096, 5120)
    """The sizes that an entity may have."""

    min_lock_ms: int = 5 * SECOND_MS
    max_lock_ms: int = 5 * MINUTE_MS
    max_delivery_count: int = 2_000
    min_time_to_live_ms: int = SECOND_MS
    min_duplicate_window_ms: int = 20 * SECOND_MS
    max_duplicate_window_ms: int = 7 * DAY_MS
    duplicate_ids_in_memory: int = 200_000
    """Of all entities together; older ids are looked up in the store."""

    min_idle_ms: int = 5 * MINUTE_MS
    messages_per_batch: int = 4_500
    """Of one send, as in the service. A batch is stored in one piece, and other requests wait meanwhile."""

    messages_per_transaction: int = 100
    messages_per_delete: int = 4_000
    forwarding_hops: int = 4
    forwards_per_message: int = 10_000
    """For all copies of a message together: topics that forward to topics multiply them."""

    messages_per_receive: int = 10_000
    """Most messages that one request returns."""

    partitions: int = 16

    @property
    def largest_message_bytes(self) -> int:
        """The largest size that an entity's ``max_message_bytes`` may have."""
        return max(self.message_bytes, self.large_message_bytes)

    @property
    def largest_bytes(self) -> int:
        """Return the most bytes that one send can carry: a message of an entity that accepts large ones, or a batch."""
        return max(self.message_bytes, self.large_message_bytes, self.batch_bytes)


INT32_MAX: Final = 2**31 - 1

# Backlog queues of a pair are created with the largest delivery count, so every tier accepts it.
STANDARD: Final = Limits(message_bytes=256 * KILOBYTE, batch_bytes=256 * KILOBYTE, max_delivery_count=INT32_MAX)
PREMIUM: Final = Limits(
    message_bytes=MEGABYTE,
    large_message_bytes=100 * MEGABYTE,
    batch_bytes=MEGABYTE,
    messages_per_batch=15_885,
    max_delivery_count=INT32_MAX,
    entity_megabytes=(1024, 2048, 3072, 4096, 5120, 10240, 20480, 40960, 81920),
)
RELAXED: Final = Limits(
    message_bytes=100 * MEGABYTE,
    batch_bytes=100 * MEGABYTE,
    header_bytes=MEGABYTE,
    entities=UNLIMITED,
    subscriptions_per_topic=UNLIMITED,
    sql_filters_per_topic=UNLIMITED,
    expression_characters=64 * KILOBYTE,
    statements_per_action=1_000,
    entity_megabytes=(),
    min_lock_ms=1,
    max_lock_ms=7 * DAY_MS,
    max_delivery_count=INT32_MAX,
    min_time_to_live_ms=1,
    min_duplicate_window_ms=1,
    max_duplicate_window_ms=365 * DAY_MS,
    min_idle_ms=1,
    messages_per_batch=UNLIMITED,
    messages_per_transaction=10_000,
    messages_per_delete=100_000,
    messages_per_receive=1_000_000,
)
"""For tests and local use: any entity size, short durations, no limit on the number of entities."""
