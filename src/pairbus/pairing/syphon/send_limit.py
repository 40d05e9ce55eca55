"""The limit of messages that are sent and not yet removed from the backlog."""

from __future__ import annotations

import asyncio
from typing import Final

_LEAST: Final = 4
"""Waiting senders get at least this fraction of the limit, unless they need less: small batches are expensive."""


class SendLimit:
    """Limits the messages that a process has sent and not yet removed from the backlog.

    If the process is killed these are sent again, and no others.
    """

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self._free = most
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()

    async def acquire(self, wanted: int) -> int:
        """Wait until messages may be sent; return how many, up to ``wanted``. ``release`` them when they are removed.

        Senders take turns in the order of their calls.
        """
        async with self._turn:
            while self._free < min(wanted, max(1, self.most // _LEAST)):
                self._released.clear()
                await self._released.wait()
            count = min(wanted, self._free)
            self._free -= count
            return count

    def release(self, count: int) -> None:
        self._free += count
        self._released.set()
