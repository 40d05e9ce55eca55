"""Locks that are renewed while the application works."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from pairbus.client.errors import InvalidMessageError, MessagingError

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.5
"""How much of a lock's time may pass before it is renewed."""
_SHORTEST_S: Final = 0.5
_FEW: Final = 100
_TOGETHER_S: Final = 0.25
"""What is due within so short a time is renewed with one request."""


class Locked(Protocol):
    """A message, or a session."""

    @property
    def locked_until(self) -> datetime | None: ...

    @property
    def is_settled(self) -> bool:
        """Whether the lock is not needed any more."""


class LockRenewer:
    """Renews the lock of each thing that it is given, until that is settled or so much time has passed."""

    def __init__(self, renew: Callable[[list[Any]], Awaitable[object]], longest: timedelta) -> None:
        self._renew = renew
        self._longest_s = longest.total_seconds()
        self._due: list[tuple[float, int, float, Locked]] = []
        """When to renew, a number that keeps the order, when to stop, and what."""

        self._is_closed = False
        self._crowded = _FEW
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._renewing: set[asyncio.Task[None]] = set()
        self._more = asyncio.Event()

    def watch(self, locked: Locked) -> None:
        """Renew this one from now on, unless there is no renewing any more."""
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        self._push(locked, loop.time() + self._longest_s)
        if self._task is None:
            self._task = loop.create_task(self._run())

    async def close(self) -> None:
        self._is_closed = True
        tasks = [task for task in (self._task, *self._renewing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._task = None
        self._due.clear()

    def _push(self, locked: Locked, stop_s: float) -> None:
        try:
            locked_until = locked.locked_until
        except InvalidMessageError:  # what cannot be read is for the application to settle
            return
        if locked_until is None:
            return
        left_s = locked_until.timestamp() - time.time()
        due_s = asyncio.get_running_loop().time() + max(_SHORTEST_S, left_s * _RENEW_AT)
        if due_s < stop_s:
            self._count += 1
            heapq.heappush(self._due, (due_s, self._count, stop_s, locked))
            self._more.set()
            if len(self._due) > self._crowded:
                self._tidy()

    def _tidy(self) -> None:
        """Let go of what has been settled; not before there is as much again, so that it costs little each time."""
        self._due = [entry for entry in self._due if not entry[3].is_settled]
        heapq.heapify(self._due)
        self._crowded = 2 * len(self._due) + _FEW

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait()
            due: list[tuple[Locked, float]] = []
            while self._due and self._due[0][0] <= loop.time() + _TOGETHER_S:
                _, _, stop_s, locked = heapq.heappop(self._due)
                if not locked.is_settled:
                    due.append((locked, stop_s))
            if due:  # on its own: one that takes long must not keep the next ones waiting
                task = loop.create_task(self._renew_due(due))
                self._renewing.add(task)
                task.add_done_callback(self._renewing.discard)

    async def _renew_due(self, due: list[tuple[Locked, float]]) -> None:
        hopeful = {id(locked) for locked in await self._renew_together([locked for locked, _ in due])}
        for locked, stop_s in due:
            if id(locked) in hopeful and not locked.is_settled:
                self._push(locked, stop_s)

    async def _wait(self) -> None:
        """Wait until something is due; something more urgent may come meanwhile."""
        while True:
            self._more.clear()
            delay_s = self._due[0][0] - asyncio.get_running_loop().time() if self._due else None
            if delay_s is not None and delay_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._more.wait()

    async def _renew_together(self, due: list[Locked]) -> list[Locked]:
        """Renew these; those are given back that there is hope for."""
        if not due:
            return []
        try:
            await self._renew(due)
        except MessagingError as error:
            if error.is_transient:
                return due
            if len(due) > 1:  # one that is lost must not take the others with it
                half = len(due) // 2
                return await self._renew_together(due[:half]) + await self._renew_together(due[half:])
            # The application hears of it when it settles; until then there is nothing that it could do.
            _log.warning("a lock could not be renewed: %s", error)
            return []
        return due
