"""Doing something until something else happens."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


class Until:
    """``async with Until(future)``: what is done inside is broken off when the future is done.

    As ``asyncio.timeout`` does it, by cancelling; so what is done inside stays in the same task, and keeps its place
    among others.
    """

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.has_happened = False
        """Whether it was broken off."""

        self._future = future
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("this works in a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._future.add_done_callback(self._break_off)
        return self

    def _break_off(self, _future: asyncio.Future[Any]) -> None:
        if self._task is not None:
            self.has_happened = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._future.remove_done_callback(self._break_off)
        task, self._task = self._task, None
        if not self.has_happened or task is None:
            return False
        # Somebody else may have cancelled the task as well, and that is not ours to stop.
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
