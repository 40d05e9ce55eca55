"""The time of day, as a function that a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], int]
"""Milliseconds since the Unix epoch."""


def system_clock() -> int:
    return time.time_ns() // 1_000_000
