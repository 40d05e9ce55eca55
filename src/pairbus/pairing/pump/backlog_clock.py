"""How long messages have been in a backlog queue, by the clock of the namespace that it is in."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final

from pairbus.client.received_message import ReceivedMessage

_LOCK: Final = timedelta(minutes=1)
"""How long backlog queues lock messages, unless somebody has made them otherwise."""


class BacklogClock:
    """Reads the time of the namespace from locks: one that has just been given ends a lock duration from now.

    The clocks of this machine and of the primary namespace may tell another time.
    """

    def __init__(self) -> None:
        self.lock = _LOCK
        """The lock duration. No message was locked before it was enqueued, so it can be seen to be shorter."""

        self._offset_s: float | None = None
        """What the namespace's time is ahead of the loop's."""

    def note(self, message: ReceivedMessage) -> None:
        """A message has just been locked."""
        if message.locked_until is None:
            return
        longest = message.locked_until - message.enqueued_time
        if timedelta() < longest < self.lock:
            self.lock = longest
        self._offset_s = (message.locked_until - self.lock).timestamp() - asyncio.get_running_loop().time()

    def age(self, enqueued: datetime) -> timedelta:
        """How long ago a message was enqueued; nothing if that cannot be told."""
        if self._offset_s is None:
            return timedelta()
        return timedelta(seconds=max(0.0, asyncio.get_running_loop().time() + self._offset_s - enqueued.timestamp()))
