"""The holder that opens a link at first use, and again when it is lost."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.client.amqp.authorization import Reconnecting
from pairbus.client.errors import ClosedError, MessagingCommunicationError, MessagingError, MessagingTimeoutError


class Thing:
    def __init__(self) -> None:
        self.error: MessagingError | None = None


class Workshop:
    """Opens things when its gate is set."""

    def __init__(self) -> None:
        self.made: list[Thing] = []
        self.begun = 0
        self.gate = asyncio.Event()
        self.failure: Exception | None = None

    async def make(self) -> Thing:
        self.begun += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.made.append(Thing())
        return self.made[-1]


async def started(current: Reconnecting[Thing], number: int) -> list[asyncio.Task[Thing]]:
    tasks = [asyncio.create_task(current.get()) for _ in range(number)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_concurrent_callers_share_one_opening() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        current = Reconnecting(workshop.make)
        tasks = await started(current, 10)
        assert (current.ready, current.last) == (None, None)
        workshop.gate.set()
        assert set(await asyncio.gather(*tasks)) == {workshop.made[0]}
        assert await current.get() is current.ready is current.last is workshop.made[0]
        assert workshop.begun == 1

    asyncio.run(scenario())


def test_caller_that_joined_a_timed_out_opening_gets_another_one() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        current = Reconnecting(workshop.make)
        first, second = await started(current, 2)
        workshop.failure = MessagingTimeoutError("late")
        workshop.gate.set()
        with pytest.raises(MessagingTimeoutError):
            await first
        workshop.failure = None
        assert await second is workshop.made[0]
        assert workshop.begun == 2

    asyncio.run(scenario())


def test_lost_link_is_opened_again() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.gate.set()
        current = Reconnecting(workshop.make)
        first = await current.get()
        first.error = MessagingCommunicationError("lost")
        assert current.ready is None
        assert current.last is first
        second = await current.get()
        assert second is not first
        assert current.ready is second

    asyncio.run(scenario())


def test_failure_is_raised_to_all_callers_and_next_call_retries() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.failure = MessagingCommunicationError("cannot be reached")
        current = Reconnecting(workshop.make)
        tasks = await started(current, 3)
        workshop.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, MessagingCommunicationError) for result in results)
        workshop.failure = None
        assert await current.get() is workshop.made[0]
        assert workshop.begun == 2

    asyncio.run(scenario())


def test_cancelled_caller_does_not_cancel_others() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        current = Reconnecting(workshop.make)
        first, second = await started(current, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        workshop.gate.set()
        assert await second is workshop.made[0]

    asyncio.run(scenario())


def test_failure_without_waiting_caller_is_ignored() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[object] = []
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        workshop = Workshop()
        workshop.failure = MessagingCommunicationError("cannot be reached")
        current = Reconnecting(workshop.make)
        [task] = await started(current, 1)
        task.cancel()
        workshop.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del current, task
        assert not complaints

    asyncio.run(scenario())


def test_clear_cancels_opening_and_raises_to_callers() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        current = Reconnecting(workshop.make)
        tasks = await started(current, 3)
        assert await current.clear() is None
        for task in tasks:
            with pytest.raises(ClosedError, match="while it was being opened"):
                await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_clear_returns_current_link_even_if_lost() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.gate.set()
        current = Reconnecting(workshop.make)
        for error in (None, MessagingCommunicationError("lost")):
            thing = await current.get()
            thing.error = error
            assert await current.clear() is thing
            assert current.last is None
            assert await current.clear() is None

    asyncio.run(scenario())


def test_caller_cancelled_during_close_is_cancelled() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        current = Reconnecting(workshop.make)
        [task] = await started(current, 1)
        task.cancel()
        await current.clear()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
