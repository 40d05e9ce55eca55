"""What receiving a message does to it."""

from __future__ import annotations

from enum import Enum

from pairbus.client.validation import shown


class ReceiveMode(Enum):
    """Whether a message is there until the application says otherwise."""

    PEEK_LOCK = "peek-lock"
    """It is locked for a while, and the application completes, abandons, defers or dead-letters it: at least once."""

    RECEIVE_AND_DELETE = "receive-and-delete"
    """It is gone as soon as it is received: at most once."""

    @classmethod
    def _missing_(cls, value: object) -> ReceiveMode:
        raise ValueError(f"{shown(value)} is no receive mode; write ReceiveMode.PEEK_LOCK or RECEIVE_AND_DELETE")
