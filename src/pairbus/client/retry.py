"""When to try again, and when to give up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final

from pairbus.client.errors import MessagingError, ServerBusyError
from pairbus.client.validation import check_type

_RANDOM: Final = Random()  # noqa: S311 (spreads the load, hides nothing)
if hasattr(os, "register_at_fork"):  # or processes that were forked would all wait alike
    os.register_at_fork(after_in_child=_RANDOM.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Waits longer after each failure, up to a limit, and never for exactly as long as everybody else.

    What is not transient is not tried again. An operation ends when its time-out has passed, or after
    ``maximum_retries`` if that is given.
    """

    minimum_backoff: timedelta = timedelta(milliseconds=100)
    maximum_backoff: timedelta = timedelta(seconds=3)
    server_busy_backoff: timedelta = timedelta(seconds=10)
    """What a namespace that is busy is given at the least."""

    maximum_retries: int | None = None

    def __post_init__(self) -> None:
        for name in ("minimum_backoff", "maximum_backoff", "server_busy_backoff"):
            check_type(name, getattr(self, name), (timedelta,))
        if not timedelta() < self.minimum_backoff <= self.maximum_backoff:
            raise ValueError("minimum_backoff is above zero, and not above maximum_backoff")
        if self.server_busy_backoff < timedelta():
            raise ValueError("server_busy_backoff is not below zero")
        if self.maximum_retries is not None and self.maximum_retries < 0:
            raise ValueError("maximum_retries is not below zero, or None")

    def delay_s(self, failures: int, error: MessagingError, random: Random = _RANDOM) -> float | None:
        """How many seconds to wait after so many failures in a row; ``None`` to give up."""
        if not error.is_transient or (self.maximum_retries is not None and failures > self.maximum_retries):
            return None
        longest_s = min(
            self.maximum_backoff.total_seconds(),
            self.minimum_backoff.total_seconds() * 2.0 ** min(failures - 1, 30),
        )
        delay_s = longest_s * random.uniform(0.5, 1.0)
        if isinstance(error, ServerBusyError):
            delay_s += self.server_busy_backoff.total_seconds()
        return delay_s


NO_RETRY: Final = RetryPolicy(maximum_retries=0)
"""Every failure is told at once."""
