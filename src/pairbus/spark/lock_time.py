"""How long a lock is, as far as a receiver can tell."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from pairbus.client.received_message import ReceivedMessage

_USUAL_S: Final = 60.0
_SHORTEST_S: Final = 5.0
_DOUBT_S: Final = 600.0
_UNDER_WAY_S: Final = 1.0


class LockTime:
    """Nobody says how long the locks of an entity are, only when one of them ends, on a clock that may be off.

    A lock that was lost was no longer than it has been held; which may have another reason, so that is believed for a
    while and not for ever.
    """

    def __init__(self) -> None:
        self._s: float | None = None
        self._doubted_s = -_DOUBT_S

    @property
    def careful_s(self) -> float:
        """How long to rely on a lock: not long, before there was one."""
        return self._s or _SHORTEST_S

    @property
    def patient_s(self) -> float:
        """When the lock of somebody else has certainly ended."""
        return (self._s or _USUAL_S) + _UNDER_WAY_S

    def note(self, message: ReceivedMessage) -> None:
        """No message was locked before it was enqueued, nor, if the clocks of this machine and of the namespace agree,
        before it came. Where they do not, a lock may seem longer than it is, until one is lost.
        """
        if message.locked_until is None:
            return
        if asyncio.get_running_loop().time() - self._doubted_s > _DOUBT_S:
            self._s = None
        ends = message.locked_until.timestamp()
        self._shorten(min(ends - message.enqueued_time.timestamp(), ends - time.time() + _UNDER_WAY_S))

    def was_lost(self, held_s: float, now_s: float) -> None:
        """A lock had ended after no longer than this."""
        self._shorten(held_s)
        self._doubted_s = now_s

    def _shorten(self, lock_s: float) -> None:
        self._s = max(_SHORTEST_S, min(self._s or _USUAL_S, lock_s))
