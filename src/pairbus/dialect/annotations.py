"""The annotations and properties that Service Bus sets on messages and links, and the .NET ticks in some of them."""

from __future__ import annotations

from typing import Final

ENQUEUED_TIME: Final = "x-opt-enqueued-time"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUE_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL: Final = "x-opt-locked-until"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105 (a name)
MESSAGE_STATE: Final = "x-opt-message-state"
PARTITION_KEY: Final = "x-opt-partition-key"
PARTITION_ID: Final = "x-opt-partition-id"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
SCHEDULED_ENQUEUE_TIME: Final = "x-opt-scheduled-enqueue-time"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"

TEXTS: Final = frozenset({PARTITION_KEY, VIA_PARTITION_KEY})
"""The text annotations of a sender. When the SDK for Python sends a received message again, it converts them to
binary."""


def text_of(value: object) -> object:
    """Return a text annotation as a string, whether it was sent as a string or as binary."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL_UTC: Final = "com.microsoft:locked-until-utc"
LINK_TIMEOUT: Final = "com.microsoft:timeout"
MAX_MESSAGE_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
SYPHON: Final = "com.pairbus:syphon"
"""Specific to pairbus: a property of the links of a syphon, so that a bill can tell its messages from others."""

NAMESPACE: Final = "com.pairbus:namespace"
"""Specific to pairbus: a property of the server's open frame, the name of the namespace."""

TIMESPAN: Final = "com.microsoft:timespan"

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""The content type of a ping, which only checks whether an entity is available."""


UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
"""Unix time 0 in .NET ticks, which are steps of 100 nanoseconds since 1 January of the year 1."""

TICKS_PER_MS: Final = 10_000


def to_ticks(time_ms: int) -> int:
    return UNIX_EPOCH_TICKS + time_ms * TICKS_PER_MS


def from_ticks(ticks: int) -> int:
    return (ticks - UNIX_EPOCH_TICKS) // TICKS_PER_MS
