"""What receiving a message does to it."""

from __future__ import annotations

from enum import Enum


class ReceiveMode(Enum):
    """Whether a message is there until the application says otherwise."""

    PEEK_LOCK = "peek-lock"
    """It is locked for a while, and the application completes, abandons, defers or dead-letters it: at least once."""

    RECEIVE_AND_DELETE = "receive-and-delete"
    """It is gone as soon as it is received: at most once."""
