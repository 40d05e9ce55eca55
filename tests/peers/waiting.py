"""Waiting for what another thread or process does, always with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

from tests.thoroughness import THOROUGH

T = TypeVar("T")

DEADLINE_S = 60.0
"""Generous: the other side may share the processors with many."""


SLOWNESS: Final = 10 if THOROUGH else 1
"""How much slower heartbeats are than they would have to be: in CI many share the processors, and one may come late."""


def pause() -> None:
    """Let the other side run for a moment."""
    time.sleep(0.002)


def eventually(condition: Callable[[], T], *, step: Callable[[], object] = pause) -> T:
    """Take ``step`` after ``step`` until ``condition`` is true, and return what it returned; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"still not so after {DEADLINE_S:.0f} s", pytrace=True)
        step()


def passed(seconds: float) -> Callable[[], bool]:
    """Make the condition that so much time has passed, for tests about silence."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
