"""A queue or topic of the primary namespace that messages of the backlog go to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from pairbus.client.errors import MessagingError, ServerBusyError
from pairbus.client.lane import Lane, Opener
from pairbus.client.parcel import Parcel
from pairbus.dialect.annotations import SYPHON
from pairbus.dialect.backlog_path import is_drill_path
from pairbus.pairing.events import DestinationChanged, Listener

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 60.0
_BUSY_PAUSE_S: Final = 10.0
_HELD_PAUSE_S: Final = 5.0
_MOMENT_S: Final = 0.001


class Waiter(Protocol):
    """Somebody who has messages for a destination."""

    def wake(self) -> None: ...


class Destination:
    """Sends, and remembers whether that works. One that is down is tried now and then, by one at a time."""

    def __init__(self, path: str, primary: Opener, is_held: Callable[[str], bool], tell: Listener) -> None:
        self.path = path
        self.cause: MessagingError | None = None
        """Why it is down; ``None`` while it is not."""

        self.waiters: set[Waiter] = set()
        self.used_s = asyncio.get_running_loop().time()
        self._lane = Lane(primary, path, {SYPHON: True})
        self._hold = is_held
        self._tell = tell
        self._pause_s = _FIRST_PAUSE_S
        self._due_s = 0.0
        self._is_held_back = False
        self._trying: Waiter | None = None

    # Whether it works.

    @property
    def is_down(self) -> bool:
        return self.cause is not None

    @property
    def is_tried(self) -> bool:
        """Whether somebody finds out at the moment."""
        return self._trying is not None

    @property
    def wait_s(self) -> float:
        """How long until it may be tried again; a moment is not worth waiting for."""
        wait_s = self._due_s - asyncio.get_running_loop().time()
        return wait_s if wait_s > _MOMENT_S else 0.0

    @property
    def is_held(self) -> bool:
        """Whether the pair sends nothing to it."""
        return self._hold(self.path)

    def hold(self) -> bool:
        """Whether the pair sends nothing to it; then it is down."""
        if not self.is_held:
            return False
        self._is_held_back = True
        error = MessagingError("the pair sends nothing to it at the moment", entity=self.path, is_transient=True)
        self._down(self.cause or error, _HELD_PAUSE_S)
        return True

    def may_try(self, waiter: Waiter) -> bool:
        """Whether somebody may try it now; who may has to tell what came of it, or leave it."""
        if self.is_tried or self.wait_s > 0:
            return False
        self._trying = waiter
        return True

    def leave(self, waiter: Waiter) -> None:
        """Who was to try it has nothing to try it with."""
        if self._trying is waiter:
            self._trying = None
            self.wake()

    def worked(self, waiter: Waiter) -> None:
        self.leave(waiter)
        if self.cause is None:
            return
        _log.info("'%s' takes messages from the backlog again", self.path)
        self.cause = None
        self._pause_s = _FIRST_PAUSE_S
        self._changed(None)

    def failed(self, error: MessagingError, waiter: Waiter) -> None:
        self._is_held_back = False
        pause_s = max(self._pause_s, _BUSY_PAUSE_S) if isinstance(error, ServerBusyError) else self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._down(error, pause_s)
        self.leave(waiter)

    def suspend(self, cause: MessagingError) -> None:
        """The namespace is away; when it is back, it may be tried at once."""
        self._down(cause, 0.0)

    def resume(self) -> None:
        """The pair sends to it again: if that is what it was down for, it may be tried at once."""
        if self._is_held_back:
            self._is_held_back = False
            self._due_s = 0.0
            self.wake()

    def forget(self) -> None:
        """Nothing waits for it any more."""
        if self.cause is not None:
            _log.info("nothing waits for '%s' any more", self.path)
            self.cause = None
            self._changed(None)

    def _down(self, cause: MessagingError, pause_s: float) -> None:
        self._due_s = asyncio.get_running_loop().time() + pause_s
        is_news = self.cause is None
        self.cause = cause
        if is_news:
            # A drill holds its own queue until its message is diverted.
            level = logging.DEBUG if is_drill_path(self.path) else logging.WARNING
            reason = str(cause).removeprefix(f"'{self.path}': ")
            _log.log(level, "messages for '%s' wait in the backlog: %s", self.path, reason)
            self._changed(cause)

    def _changed(self, cause: MessagingError | None) -> None:
        self._tell(DestinationChanged(at=datetime.now(UTC), path=self.path, is_reached=cause is None, cause=cause))
        self.wake()

    def wake(self) -> None:
        for waiter in [*self.waiters]:
            waiter.wake()

    # Sending.

    async def most_bytes(self) -> int:
        """How large a batch may be."""
        self.used_s = asyncio.get_running_loop().time()
        return (await self._lane.link()).max_batch_bytes

    async def send(self, payloads: list[bytes]) -> None:
        """Send messages in one batch, and wait until it is confirmed."""
        await self._lane.attempt(Parcel(payloads, whole=True))

    async def close(self) -> None:
        await self._lane.close()
