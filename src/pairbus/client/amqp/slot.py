"""What is opened when it is first needed, and anew when it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from pairbus.client.errors import ClosedError, MessagingError, MessagingTimeoutError


class Losable(Protocol):
    """A connection or a link."""

    @property
    def error(self) -> MessagingError | None:
        """Why it is of no use any more; ``None`` while it is of use."""


L = TypeVar("L", bound=Losable)


class Slot(Generic[L]):
    """Holds the one of the moment. However many ask at the same time, it is opened once for all of them."""

    def __init__(self, open_new: Callable[[], Awaitable[L]]) -> None:
        self._open_new = open_new
        self._current: L | None = None
        self._opening: asyncio.Task[L] | None = None

    @property
    def ready(self) -> L | None:
        """The one of the moment, if it is of use."""
        current = self._current
        return current if current is not None and current.error is None else None

    @property
    def last(self) -> L | None:
        """The one of the moment, or the one that was lost."""
        return self._current

    async def get(self) -> L:
        """The one of the moment, opened if need be. Whoever stops waiting does not stop it for the others.

        If an attempt to open times out that had begun before this call, it is opened once more: the caller has a time
        of its own.
        """
        current = self.ready
        if current is not None:
            return current
        is_under_way = self._is_opening
        try:
            return await self._opened_now()
        except MessagingTimeoutError:
            if not is_under_way:
                raise
        return await self._opened_now()

    @property
    def _is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    async def _opened_now(self) -> L:
        opening = self._opening
        if opening is None or opening.done():
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
            opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise ClosedError("it was closed while it was being opened") from None
            raise

    async def _open(self) -> L:
        self._current = await self._open_new()
        return self._current

    def _opened(self, task: asyncio.Task[L]) -> None:
        if self._opening is task:
            self._opening = None
        if not task.cancelled():
            task.exception()  # whoever still waits is told; nobody may

    async def clear(self) -> L | None:
        """Stop opening, and give out what is there, of use or not."""
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait((opening,))
        current, self._current = self._current, None
        return current
