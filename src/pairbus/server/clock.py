"""The clock of a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Milliseconds since the Unix epoch."""


class SystemClock:
    """The machine's clock, made monotonic: it never stops and never runs backwards.

    A clock that is set back would extend every lock and every deadline until it has caught up. Instead this one runs
    on, at half speed, until the two agree again.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._told_ns = wall_ns()
        self._steady_at_ns = steady_ns()

    def wall_ms(self) -> int:
        """Return the wall clock time, for times set by others: tokens."""
        return self._wall_ns() // 1_000_000

    def __call__(self) -> int:
        steady_ns = self._steady_ns()
        slow_ns = self._told_ns + (steady_ns - self._steady_at_ns) // 2
        self._told_ns = max(self._wall_ns(), slow_ns)
        self._steady_at_ns = steady_ns
        return self._told_ns // 1_000_000
