"""Heartbeats: how long a task or a thread has been silent, so that one that hangs is noticed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Heartbeat:
    """The last sign of life of a task or a thread. Any thread may read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s = math.inf
        self.is_in_thread = False
        """True while the task waits for a thread, which cannot be cancelled."""

    def beat(self, pause_s: float = 0.0) -> None:
        """Report a step. The next one is due now, or at the end of a pause."""
        self._due_s = self._clock() + pause_s

    def rest(self) -> None:
        """Report that there is nothing to do: no step is due until the next beat."""
        self._due_s = math.inf

    @property
    def silent_s(self) -> float:
        """Return for how long a step has been due; 0 if none is."""
        return max(0.0, self._clock() - self._due_s)

    def excuse(self) -> None:
        """Forget the silence until now: what the component waits for does not answer."""
        if self.silent_s:
            self.beat()

    async def sleep(self, pause_s: float) -> None:
        """Sleep between two beats."""
        self.beat(pause_s)
        await asyncio.sleep(pause_s)
        self.beat()

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Beat, run a function on another thread, and beat again."""
        with self.waiting_for_thread():
            return await asyncio.to_thread(work, *args, **kwargs)

    @contextmanager
    def waiting_for_thread(self) -> Iterator[None]:
        """Beat before and after waiting for another thread."""
        self.beat()
        self.is_in_thread = True
        try:
            yield
        finally:
            self.is_in_thread = False
            self.beat()
