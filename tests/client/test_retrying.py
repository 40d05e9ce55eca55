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
from pairbus.client.retry import NO_RETRY, RetryPolicy
from pairbus.client.retrying import retrying
from pairbus.client.settings import MessagingFactorySettings

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


def test_what_succeeds_is_done_once(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop)
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    assert attempts.times_s == [0]


def test_what_fails_in_passing_is_tried_again_after_longer_and_longer_pauses(
    loop: asyncio.AbstractEventLoop, run: Run
) -> None:
    attempts = Attempts(loop, *[MessagingCommunicationError("lost")] * 5)
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    for pause_s, longest_s in zip(attempts.pauses_s(), [1, 2, 4, 4, 4], strict=True):
        assert longest_s / 2 - 0.001 <= pause_s <= longest_s + 0.001


def test_what_fails_for_good_is_not_tried_again(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("lost"), EntityNotFoundError("gone"))
    with pytest.raises(EntityNotFoundError) as caught:
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert caught.value.entity == "orders"
    assert len(attempts.times_s) == 2


def test_it_ends_when_the_time_is_up_and_says_what_was_wrong_at_last(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("the wire was cut"), last=True)
    with pytest.raises(
        MessagingTimeoutError, match=r"it did not succeed within 60 s; at last: .*the wire was cut"
    ) as caught:
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert caught.value.entity == "orders"
    assert isinstance(caught.value.__cause__, MessagingCommunicationError)
    assert 50 <= loop.time() <= 60


@pytest.mark.parametrize("kind", [ServerBusyError, InternalServerError])
def test_c7_what_the_namespace_said_to_the_last_is_what_is_told(
    loop: asyncio.AbstractEventLoop, run: Run, kind: type[MessagingError]
) -> None:
    attempts = Attempts(loop, kind("so it said"), last=True)
    with pytest.raises(kind):
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert loop.time() <= 60


def test_b2_a_busy_namespace_is_given_ten_seconds_each_time(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, ServerBusyError("busy"), ServerBusyError("busy"), ServerBusyError("busy"))
    assert run(retrying(attempts, settings=SETTINGS)) == "done"
    assert min(attempts.pauses_s()) >= 10


def test_a_try_that_hangs_is_given_up_and_made_again(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop, takes_s=1_000)
    with pytest.raises(MessagingTimeoutError, match="within 60 s"):
        run(retrying(attempts, settings=SETTINGS, entity="orders"))
    assert len(attempts.times_s) == 4
    assert loop.time() == pytest.approx(60, abs=0.01)
    for pause_s in attempts.pauses_s():
        assert 15 < pause_s <= 19.001


def test_no_try_goes_on_beyond_the_end_of_the_operation(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    settings = MessagingFactorySettings(operation_timeout=timedelta(seconds=5), retry_policy=NO_RETRY)
    with pytest.raises(MessagingTimeoutError):
        run(retrying(Attempts(loop, takes_s=1_000), settings=settings))
    assert loop.time() == pytest.approx(5, abs=0.01)


PATIENT: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=60),
    retry_policy=RetryPolicy(minimum_backoff=timedelta(milliseconds=100), maximum_backoff=timedelta(seconds=30)),
)


def test_an_outage_that_ends_just_before_the_time_is_up_is_ridden_out(
    loop: asyncio.AbstractEventLoop, run: Run
) -> None:
    attempts = Attempts(loop, MessagingCommunicationError("lost"), last=True)
    with pytest.raises(MessagingTimeoutError):
        run(retrying(attempts, settings=PATIENT))
    assert attempts.times_s[-1] >= 60 - 0.201
    assert len(attempts.times_s) < 40


def test_whoever_waits_after_an_outage_goes_on_as_soon_as_there_is_something_to_hurry_for(
    loop: asyncio.AbstractEventLoop, run: Run
) -> None:
    async def scenario() -> None:
        back: asyncio.Future[None] = loop.create_future()
        attempts = Attempts(loop, *[MessagingCommunicationError("lost")] * 6)
        task = asyncio.create_task(
            retrying(attempts, settings=PATIENT, failure=attempts._errors[0], failures=20, hurry=lambda: back)
        )
        await asyncio.sleep(5)
        assert attempts.times_s == []
        attempts._errors.clear()
        back.set_result(None)
        assert await task == "done"
        assert attempts.times_s == pytest.approx([5], abs=0.01)

    run(scenario())


def test_b2_nobody_hurries_to_a_namespace_that_is_busy(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def scenario() -> None:
        back: asyncio.Future[None] = loop.create_future()
        back.set_result(None)
        attempts = Attempts(loop, ServerBusyError("busy"))
        assert await retrying(attempts, settings=SETTINGS, hurry=lambda: back) == "done"
        assert min(attempts.pauses_s()) >= 10

    run(scenario())


def test_a_first_try_that_was_made_before_counts(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def scenario() -> None:
        await asyncio.sleep(100)
        attempts = Attempts(loop, MessagingCommunicationError("again"), last=True)
        with pytest.raises(MessagingTimeoutError):
            await retrying(attempts, settings=SETTINGS, failure=MessagingCommunicationError("lost"), started_s=80.0)
        assert attempts.times_s[0] > 100.4
        assert loop.time() <= 140

    run(scenario())


def test_a_first_try_that_failed_for_good_is_the_last(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    attempts = Attempts(loop)
    gone = EntityNotFoundError("gone")
    with pytest.raises(EntityNotFoundError) as caught:
        run(retrying(attempts, settings=SETTINGS, failure=gone))
    assert caught.value is gone
    assert not attempts.times_s


def test_without_retries_the_first_failure_is_told_as_it_is(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    settings = MessagingFactorySettings(retry_policy=NO_RETRY)
    lost = MessagingCommunicationError("lost", entity="orders")
    with pytest.raises(MessagingCommunicationError) as caught:
        run(retrying(Attempts(loop, lost), settings=settings, entity="orders"))
    assert caught.value is lost


def test_errors_that_are_none_of_ours_are_let_through(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    async def fails() -> None:
        raise TimeoutError("the application's own")

    with pytest.raises(TimeoutError, match="the application's own"):
        run(retrying(fails, settings=SETTINGS))


def test_whoever_is_cancelled_stops(loop: asyncio.AbstractEventLoop, run: Run) -> None:
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
