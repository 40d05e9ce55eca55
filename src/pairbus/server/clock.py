"""The time of day, as a function that a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Milliseconds since the Unix epoch."""


class SystemClock:
    """The machine's clock, which never stands still and never goes back.

    A clock that is set back would hold up every lock and every deadline until it has caught up. Instead time goes on,
    at half its speed, until the two agree again.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._told_ns = wall_ns()
        self._steady_at_ns = steady_ns()

    def wall_ms(self) -> int:
        """The time of day as it is set now, for what others have dated: tokens."""
        return self._wall_ns() // 1_000_000

    def __call__(self) -> int:
        steady_ns = self._steady_ns()
        slow_ns = self._told_ns + (steady_ns - self._steady_at_ns) // 2
        self._told_ns = max(self._wall_ns(), slow_ns)
        self._steady_at_ns = steady_ns
        return self._told_ns // 1_000_000
