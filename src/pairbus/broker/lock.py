"""A message that one receiver has and no other may."""

from __future__ import annotations

from pairbus.broker.message import Record
from pairbus.broker.session import Session


class Lock:
    """Ends when the message is settled or at ``until_ms``; under a session, with the session's own lock."""

    __slots__ = ("record", "session", "token", "until_ms")

    def __init__(self, token: bytes, record: Record, until_ms: int, session: Session | None = None) -> None:
        self.token = token
        self.record = record
        self.until_ms = until_ms
        self.session = session
