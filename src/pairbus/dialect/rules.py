"""Rules as they travel over AMQP."""

from __future__ import annotations

from typing import Final

from pairbus.wire import ULong

RULE: Final = ULong(0x13700000004)
EMPTY_ACTION: Final = ULong(0x13700000005)
SQL_ACTION: Final = ULong(0x13700000006)
SQL_FILTER: Final = ULong(0x1370000006)
TRUE_FILTER: Final = ULong(0x1370000007)
FALSE_FILTER: Final = ULong(0x1370000008)
CORRELATION_FILTER: Final = ULong(0x1370000009)

CORRELATED: Final = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)
"""The fields of a correlation filter, in the order of the wire; in requests their names have hyphens."""
