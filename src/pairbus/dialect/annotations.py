"""The annotations and properties that Service Bus puts on messages, and those that links carry."""

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
"""The annotations of a sender that are text. The SDK for Python turns those of a message that it received into binary
when it sends the message again."""


def text_of(value: object) -> object:
    """Return an annotation that is text as a string, whether it was sent as one or as binary."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


SESSION_FILTER: Final = "com.microsoft:session-filter"
LOCKED_UNTIL_UTC: Final = "com.microsoft:locked-until-utc"
LINK_TIMEOUT: Final = "com.microsoft:timeout"
MAX_MESSAGE_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
SYPHON: Final = "com.pairbus:syphon"
"""Ours: a property of the links on which a syphon sends, so that a bill can tell its messages from the others."""

NAMESPACE: Final = "com.pairbus:namespace"
"""Ours: a property of the server's open frame, the name of the namespace."""

TIMESPAN: Final = "com.microsoft:timespan"

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""The content type of a message that only asks whether an entity is well (SYSTEM C13)."""
