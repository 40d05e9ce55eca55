"""A context manager that ends when a future is done."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


class Until:
    """An asynchronous context manager that ends its block when a future is done, as ``asyncio.timeout`` at a time.

    It cancels the task, so that the block runs in the same task, and keeps its position in the order of sends.
    """

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.expired = False
        """True if the block was cancelled because the future is done."""

        self._future = future
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no current task: use this context manager in an asyncio task")
        self._task = task
        self._cancelling = task.cancelling()
        self._future.add_done_callback(self._cancel)
        return self

    def _cancel(self, _future: asyncio.Future[Any]) -> None:
        if self._task is not None:
            self.expired = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._future.remove_done_callback(self._cancel)
        task, self._task = self._task, None
        if not self.expired or task is None:
            return False
        # Another caller may have cancelled the task as well, which must not be suppressed.
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
