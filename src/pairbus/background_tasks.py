"""Background tasks whose lifetime is tied to an owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from pairbus.backoff import Backoff

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

RESTART_BACKOFF: Final = Backoff(1.0, 60.0)
"""Delays before a task that failed unexpectedly is restarted."""


class BackgroundTasks:
    """A group of background tasks; unexpected errors are logged."""

    def __init__(self, name: str, *, expected: type[Exception] | tuple[type[Exception], ...] = ()) -> None:
        """``expected`` errors are not logged: the task has handled them, or its awaiting caller does."""
        self._name = name
        self._expected = expected
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

    def keep_running(
        self, work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Task[None]:
        """Start a task that runs ``work`` until it returns; after an unexpected error it is run again, with a delay."""
        return self.start(self._keep_running(work, *args, **kwargs))

    async def _keep_running(
        self, work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        loop = asyncio.get_running_loop()
        delay_s = 0.0
        while True:
            started_s = loop.time()
            try:
                await work(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 (whatever failed, the owner still needs the task)
                if loop.time() - started_s > RESTART_BACKOFF.longest_s:
                    delay_s = 0.0
                delay_s = RESTART_BACKOFF.after(delay_s)
                self._log_failure(getattr(work, "__qualname__", repr(work)), error)
                await asyncio.sleep(delay_s)
            else:
                return

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._due.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            self._log_failure(getattr(task.get_coro(), "__qualname__", task.get_name()), error)

    def _log_failure(self, task: str, error: BaseException) -> None:
        _log.error('background task failed owner="%s" task=%s error="%r"', self._name, task, error, exc_info=error)

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
