"""What is opened when it is first needed, and anew when it was lost."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import ClosedError, MessagingCommunicationError, MessagingError, MessagingTimeoutError


class Thing:
    def __init__(self) -> None:
        self.error: MessagingError | None = None


class Workshop:
    """Makes things when it is told to."""

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


async def started(slot: Slot[Thing], number: int) -> list[asyncio.Task[Thing]]:
    tasks = [asyncio.create_task(slot.get()) for _ in range(number)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


def test_however_many_ask_it_is_opened_once() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        slot = Slot(workshop.make)
        tasks = await started(slot, 10)
        assert (slot.ready, slot.last) == (None, None)
        workshop.gate.set()
        assert set(await asyncio.gather(*tasks)) == {workshop.made[0]}
        assert await slot.get() is slot.ready is slot.last is workshop.made[0]
        assert workshop.begun == 1

    asyncio.run(scenario())


def test_caller_that_joined_a_timed_out_opening_gets_another_one() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        slot = Slot(workshop.make)
        first, second = await started(slot, 2)
        workshop.failure = MessagingTimeoutError("late")
        workshop.gate.set()
        with pytest.raises(MessagingTimeoutError):
            await first
        workshop.failure = None
        assert await second is workshop.made[0]
        assert workshop.begun == 2

    asyncio.run(scenario())


def test_what_was_lost_is_opened_anew() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.gate.set()
        slot = Slot(workshop.make)
        first = await slot.get()
        first.error = MessagingCommunicationError("lost")
        assert slot.ready is None
        assert slot.last is first
        second = await slot.get()
        assert second is not first
        assert slot.ready is second

    asyncio.run(scenario())


def test_a_failure_is_told_to_everyone_who_waits_and_the_next_one_tries_again() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.failure = MessagingCommunicationError("cannot be reached")
        slot = Slot(workshop.make)
        tasks = await started(slot, 3)
        workshop.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, MessagingCommunicationError) for result in results)
        workshop.failure = None
        assert await slot.get() is workshop.made[0]
        assert workshop.begun == 2

    asyncio.run(scenario())


def test_whoever_stops_waiting_does_not_stop_it_for_the_others() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        slot = Slot(workshop.make)
        first, second = await started(slot, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        workshop.gate.set()
        assert await second is workshop.made[0]

    asyncio.run(scenario())


def test_a_failure_that_nobody_waits_for_is_nobody_s_concern() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[object] = []
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        workshop = Workshop()
        workshop.failure = MessagingCommunicationError("cannot be reached")
        slot = Slot(workshop.make)
        [task] = await started(slot, 1)
        task.cancel()
        workshop.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del slot, task
        assert not complaints

    asyncio.run(scenario())


def test_to_clear_stops_the_opening_and_tells_those_who_wait() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        slot = Slot(workshop.make)
        tasks = await started(slot, 3)
        assert await slot.clear() is None
        for task in tasks:
            with pytest.raises(ClosedError, match="while it was being opened"):
                await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_to_clear_gives_out_what_is_there_lost_or_not() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        workshop.gate.set()
        slot = Slot(workshop.make)
        for error in (None, MessagingCommunicationError("lost")):
            thing = await slot.get()
            thing.error = error
            assert await slot.clear() is thing
            assert slot.last is None
            assert await slot.clear() is None

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_while_it_is_closed_is_cancelled() -> None:
    async def scenario() -> None:
        workshop = Workshop()
        slot = Slot(workshop.make)
        [task] = await started(slot, 1)
        task.cancel()
        await slot.clear()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
