"""Operations that are tried again until they succeed, fail for good, or have used up their time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pairbus.client.errors import MessagingCommunicationError, MessagingError, MessagingTimeoutError
from pairbus.client.settings import MessagingFactorySettings

T = TypeVar("T")
_PASSING: Final = MessagingError("it may pass", is_transient=True)


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *,
    settings: MessagingFactorySettings,
    entity: str | None = None,
    failure: MessagingError | None = None,
    failures: int = 0,
    started_s: float | None = None,
    patience_s: float = 0.0,
    limits_itself: bool = False,
    hurry: Callable[[], asyncio.Future[None]] | None = None,
    insists: Callable[[MessagingError], bool] | None = None,
) -> T:
    """Try until the operation time-out.

    There may have been tries already, which came to ``failure`` at last, and ``failures`` before it. ``patience_s`` is
    what the answer itself may take, beyond all time-outs. An attempt that ``limits_itself`` sees to it that it ends; it
    is cut short by the end of the operation only. ``hurry`` gives what ends the wait after an outage early. What
    ``insists`` is true of is tried again though it is not transient.
    """
    loop = asyncio.get_running_loop()
    timeout_s = settings.operation_timeout.total_seconds() + patience_s
    attempt_s = math.inf if limits_itself else settings.attempt_timeout.total_seconds() + patience_s
    deadline_s = (loop.time() if started_s is None else started_s) + timeout_s
    while True:
        if failure is not None:
            failures += 1
            passing = failure if insists is None or failure.is_transient or not insists(failure) else _PASSING
            delay_s = settings.retry_policy.delay_s(failures, passing)
            if delay_s is None:
                raise failure
            left_s = deadline_s - loop.time()
            if _is_outage(failure) and left_s > 2 * settings.retry_policy.minimum_backoff.total_seconds():
                delay_s = min(delay_s, left_s / 2)  # there is time for another try
            if delay_s >= left_s:
                raise _exhausted(failure, timeout_s, entity)
            await _pause(delay_s, None if hurry is None or not _is_outage(failure) else hurry())
        try:
            return await _within(attempt, min(deadline_s, loop.time() + attempt_s))
        except MessagingError as error:
            if failure is None or loop.time() < deadline_s:  # a try that had no time left says less than the one before
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
            raise MessagingTimeoutError("there was no answer in time") from error
        raise


def _exhausted(failure: MessagingError, timeout_s: float, entity: str | None) -> MessagingError:
    """What to say when the time is used up. That the namespace is busy stays that; nobody has timed out."""
    if not _is_outage(failure):
        return failure
    error = MessagingTimeoutError(f"it did not succeed within {timeout_s:g} s; at last: {failure}", entity=entity)
    error.__cause__ = failure
    return error
