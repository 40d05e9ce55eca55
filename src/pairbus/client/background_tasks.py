"""Background tasks whose lifetime is tied to an owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from pairbus.client.errors import MessagingError

_log = logging.getLogger(__name__)
T = TypeVar("T")


class BackgroundTasks:
    """A group of background tasks; unexpected errors are logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._due: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], *, is_due: bool = False) -> asyncio.Task[T]:
        """Start a task; ``finish`` waits for the tasks that are started with ``is_due``."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if is_due:
            self._due.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._due.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MessagingError):
            _log.error('background task failed owner="%s"', self._name, exc_info=error)

    async def finish(self) -> None:
        """Wait for the tasks that were started with ``is_due``."""
        while self._due:
            await asyncio.wait([*self._due])

    async def close(self) -> None:
        """Cancel all tasks and wait for them to end."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
