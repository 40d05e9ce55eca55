"""Operations that are tried again, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Final

import looptime
import pytest

from pairbus.client.errors import (
    EntityNotFoundError,
    InternalServerError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.retrying import retrying
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings, RetryPolicy

SETTINGS: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=60),
    attempt_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(minimum_backoff=timedelta(seconds=1), maximum_backoff=timedelta(seconds=4)),
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = looptime.new_event_loop(start=0, noop_cycles=1)
    try:
        yield loop
    finally:
        loop.close()


@pytest.fixture
def run(loop: asyncio.AbstractEventLoop) -> Run:
    return loop.run_until_complete


class Attempts:
    """Fails with these errors, one after the other and the last one for ever; without errors it succeeds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *errors: MessagingError, takes_s: float = 0, last: bool = False
    ):
        self.times_s: list[float] = []
        self._loop = loop
        self._errors = [*errors]
        self._takes_s = takes_s
        self._last = last

    async def __call__(self) -> str:
        self.times_s.append(self._loop.time())
        await asyncio.sleep(self._takes_s)
        if self._errors:
            raise self._errors[0] if self._last and len(self._errors) == 1 else self._errors.pop(0)
        return "done"

    def pauses_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]


def test_success_is_not_repeated(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop)
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    assert attempts.times_s == [0]


def test_transient_failure_is_retried_with_growing_backoff(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, *[MessagingCommunicationError("lost")] * 5)
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    for pause_s, longest_s in zip(attempts.pauses_s(), [1, 2, 4, 4, 4], strict=True):
        assert longest_s / 2 - 0.001 <= pause_s <= longest_s + 0.001


def test_permanent_failure_is_not_retried(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("lost"), EntityNotFoundError("gone"))
    with pytest.raises(EntityNotFoundError) as caught:
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert caught.value.entity == "orders"
    assert len(attempts.times_s) == 2


def test_timeout_names_last_error(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("the wire was cut"), last=True)
    with pytest.raises(MessagingTimeoutError, match=r"timed out after 60 s; last error: .*the wire was cut") as caught:
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert caught.value.entity == "orders"
    assert isinstance(caught.value.__cause__, MessagingCommunicationError)
    assert 50 <= loop.time() <= 60


@pytest.mark.parametrize("kind", [ServerBusyError, InternalServerError])
def test_c7_last_error_of_namespace_is_raised(
    loop: asyncio.AbstractEventLoop, run: Run, kind: type[MessagingError]
) -> None:
    attempts = Attempts(loop, kind("so it said"), last=True)
    with pytest.raises(kind):
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert loop.time() <= 60


def test_b2_busy_namespace_gets_ten_seconds_each_time(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, ServerBusyError("busy"), ServerBusyError("busy"), ServerBusyError("busy"))
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    assert min(attempts.pauses_s()) >= 10


def test_hanging_attempt_is_cancelled_and_retried(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, takes_s=1_000)
    with pytest.raises(MessagingTimeoutError, match="timed out after 60 s"):
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert len(attempts.times_s) == 4
    assert loop.time() == pytest.approx(60, abs=0.01)
    for pause_s in attempts.pauses_s():
        assert 15 < pause_s <= 19.001


def test_no_attempt_exceeds_operation_timeout(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    settings = MessagingFactorySettings(operation_timeout=timedelta(seconds=5), retry_policy=NO_RETRY)
    with pytest.raises(MessagingTimeoutError):
        run(retrying(Attempts(loop, takes_s=1_000), settings=settings))
    assert loop.time() == pytest.approx(5, abs=0.01)


PATIENT: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=60),
    retry_policy=RetryPolicy(minimum_backoff=timedelta(milliseconds=100), maximum_backoff=timedelta(seconds=30)),
)


def test_outage_that_ends_before_timeout_is_survived(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("lost"), last=True)
    with pytest.raises(MessagingTimeoutError):
        run(retrying(attempts, settings=PATIENT))
    assert attempts.times_s[-1] >= 60 - 0.201
    assert len(attempts.times_s) < 40


def test_wait_after_outage_ends_with_hurry(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def scenario() -> None:
        back: asyncio.Future[None] = loop.create_future()
        attempts = Attempts(loop, *[MessagingCommunicationError("lost")] * 6)
        task = asyncio.create_task(
            retrying(attempts, settings=PATIENT, failure=attempts._errors[0], failures=20, reconnected=lambda: back)
        )
        await asyncio.sleep(5)
        assert attempts.times_s == []
        attempts._errors.clear()
        back.set_result(None)
        assert await task == "done"
        assert attempts.times_s == pytest.approx([5], abs=0.01)

    run(scenario())


def test_b2_wait_for_busy_namespace_ignores_hurry(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def scenario() -> None:
        back: asyncio.Future[None] = loop.create_future()
        back.set_result(None)
        attempts = Attempts(loop, ServerBusyError("busy"))
        assert await retrying(attempts, settings=SETTINGS, reconnected=lambda: back) == "done"
        assert min(attempts.pauses_s()) >= 10

    run(scenario())


def test_earlier_failure_counts(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def scenario() -> None:
        await asyncio.sleep(100)
        attempts = Attempts(loop, MessagingCommunicationError("again"), last=True)
        with pytest.raises(MessagingTimeoutError):
            await retrying(attempts, settings=SETTINGS, failure=MessagingCommunicationError("lost"), started_s=80.0)
        assert attempts.times_s[0] > 100.4
        assert loop.time() <= 140

    run(scenario())


def test_earlier_permanent_failure_is_raised(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop)
    gone = EntityNotFoundError("gone")
    with pytest.raises(EntityNotFoundError) as caught:
        run(retrying(attempts, settings=SETTINGS, failure=gone))
    assert caught.value is gone
    assert not attempts.times_s


def test_first_failure_is_raised_unchanged_without_retries(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    settings = MessagingFactorySettings(retry_policy=NO_RETRY)
    lost = MessagingCommunicationError("lost", entity="orders")
    with pytest.raises(MessagingCommunicationError) as caught:
        run(retrying(Attempts(loop, lost), settings=settings, entity="orders"))
    assert caught.value is lost


def test_foreign_errors_are_not_caught(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def fails() -> None:
        raise TimeoutError("the application's own")

    with pytest.raises(TimeoutError, match="the application's own"):
        run(retrying(fails, settings=SETTINGS))


def test_cancelled_operation_stops(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("lost"), last=True)

    async def scenario() -> None:
        task = asyncio.create_task(retrying(attempts, settings=SETTINGS))
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tried = len(attempts.times_s)
        await asyncio.sleep(100)
        assert len(attempts.times_s) == tried

    run(scenario())
