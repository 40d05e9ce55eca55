"""Retries of an operation until it succeeds, fails permanently, or times out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pairbus.client.errors import MessagingCommunicationError, MessagingError, MessagingTimeoutError
from pairbus.client.settings import MessagingFactorySettings

T = TypeVar("T")
_TRANSIENT: Final = MessagingError("treated as transient", is_transient=True)


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *,
    settings: MessagingFactorySettings,
    entity: str | None = None,
    failure: MessagingError | None = None,
    failures: int = 0,
    started_s: float | None = None,
    patience_s: float = 0.0,
    has_own_timeout: bool = False,
    reconnected: Callable[[], asyncio.Future[None]] | None = None,
    retry_anyway: Callable[[MessagingError], bool] | None = None,
) -> T:
    """Retry until the operation timeout; return the result of ``attempt``.

    ``failure`` is the error of the last attempt made before this call, and ``failures`` the number of failures before
    that one. ``patience_s`` is the time that the response itself may take, on top of all timeouts. With
    ``has_own_timeout``, an attempt limits itself, and only the operation timeout interrupts it. The future that
    ``reconnected`` returns ends the wait after an outage early. An error for which ``retry_anyway`` returns true is
    retried even if it is not transient.
    """
    loop = asyncio.get_running_loop()
    timeout_s = settings.operation_timeout.total_seconds() + patience_s
    attempt_s = math.inf if has_own_timeout else settings.attempt_timeout.total_seconds() + patience_s
    deadline_s = (loop.time() if started_s is None else started_s) + timeout_s
    while True:
        if failure is not None:
            failures += 1
            judged = (
                failure if retry_anyway is None or failure.is_transient or not retry_anyway(failure) else _TRANSIENT
            )
            delay_s = settings.retry_policy.delay_s(failures, judged)
            if delay_s is None:
                raise failure
            left_s = deadline_s - loop.time()
            if _is_outage(failure) and left_s > 2 * settings.retry_policy.minimum_backoff.total_seconds():
                delay_s = min(delay_s, left_s / 2)  # leave time for another attempt
            if delay_s >= left_s:
                raise _exhausted(failure, timeout_s, entity)
            await _pause(delay_s, None if reconnected is None or not _is_outage(failure) else reconnected())
        try:
            return await _within(attempt, min(deadline_s, loop.time() + attempt_s))
        except MessagingError as error:
            if failure is None or loop.time() < deadline_s:  # an error for lack of time is less useful
                failure = error if entity is None else error.at(entity)
            elif not error.is_transient:
                raise


def _is_outage(failure: MessagingError) -> bool:
    return isinstance(failure, MessagingCommunicationError | MessagingTimeoutError)


async def _pause(delay_s: float, end: asyncio.Future[None] | None) -> None:
    if end is None:
        await asyncio.sleep(delay_s)
    else:
        await asyncio.wait((end,), timeout=delay_s)


async def _within(attempt: Callable[[], Awaitable[T]], deadline_s: float) -> T:
    try:
        async with asyncio.timeout_at(deadline_s) as limit:
            return await attempt()
    except TimeoutError as error:
        if limit.expired():
            raise MessagingTimeoutError("no response in time") from error
        raise


def _exhausted(failure: MessagingError, timeout_s: float, entity: str | None) -> MessagingError:
    """Return the error of an operation that ran out of time. A busy namespace stays busy; it is not a timeout."""
    if not _is_outage(failure):
        return failure
    error = MessagingTimeoutError(f"timed out after {timeout_s:g} s; last error: {failure}", entity=entity)
    error.__cause__ = failure
    return error
