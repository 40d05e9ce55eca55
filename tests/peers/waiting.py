"""Waiting for what another thread or process does, always with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tests.thoroughness import THOROUGH

DEADLINE_S = 60.0
"""Generous: the other side may share the processors with many."""


SLOWNESS: Final = 10 if THOROUGH else 1
"""The factor by which heartbeats are slowed down: in CI many tests share the processors, and one may be late."""


def passed(seconds: float) -> Callable[[], bool]:
    """Make the condition that so much time has passed, for tests about silence."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
