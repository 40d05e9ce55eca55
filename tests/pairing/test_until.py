"""``Until``: a block that ends when a future is done, and its combination with other cancellations."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from pairbus.pairing.until import Until
from tests.faults.virtual_loop import VirtualLoop


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in virtual time; check that no task is left."""
    loop = VirtualLoop()
    asyncio.set_event_loop(None)
    try:
        loop.run_until_complete(scenario())
        assert not asyncio.all_tasks(loop)
        assert not loop.complaints
    finally:
        loop.close()


def happening_in(delay_s: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_later(delay_s, future.set_result, None)
    return future


def never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def is_sound() -> bool:
    """Return whether the task has no pending cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


def test_block_that_ends_before_the_future_is_unaffected() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        async with until:
            await asyncio.sleep(1)
        assert not until.expired
        await asyncio.sleep(10)  # the future has no effect afterwards
        assert not until.expired
        assert is_sound()

    play(scenario)


def test_block_that_takes_longer_is_cancelled() -> None:
    async def scenario() -> None:
        until, loop = Until(happening_in(5)), asyncio.get_running_loop()
        async with until:
            await asyncio.sleep(100)
            pytest.fail("it was not broken off")
        assert until.expired
        assert loop.time() == 5.0
        assert is_sound()
        await asyncio.sleep(1)

    play(scenario)


def test_future_done_before_cancels_at_the_first_await() -> None:
    async def scenario() -> None:
        past = never()
        past.set_result(None)
        until = Until(past)
        steps = []
        async with until:
            steps.append("began")
            await asyncio.sleep(1)
            steps.append("went on")
        assert until.expired
        assert steps == ["began"]
        assert is_sound()

    play(scenario)


def test_block_without_an_await_is_not_cancelled() -> None:
    async def scenario() -> None:
        past = never()
        past.set_result(None)
        until = Until(past)
        async with until:
            pass
        assert not until.expired
        await asyncio.sleep(0)
        assert is_sound()

    play(scenario)


@pytest.mark.parametrize("end", [lambda future: future.cancel(), lambda future: future.set_exception(OSError("gone"))])
def test_failed_or_cancelled_future_cancels_the_block(end: Callable[[asyncio.Future[None]], object]) -> None:
    async def scenario() -> None:
        future = never()
        asyncio.get_running_loop().call_later(2, end, future)
        until = Until(future)
        async with until:
            await asyncio.sleep(100)
        assert until.expired
        assert is_sound()
        if not future.cancelled():
            future.exception()

    play(scenario)


async def fail(until: Until) -> None:
    async with until:
        await asyncio.sleep(1)
        raise ValueError("of its own")


def test_error_in_the_block_is_raised() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(ValueError, match="of its own"):
            await fail(until)
        assert not until.expired
        await asyncio.sleep(10)
        assert is_sound()

    play(scenario)


async def say(error: Exception) -> None:
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        raise error from None


def test_error_during_the_cancellation_is_raised() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(ValueError, match="on the way out"):
            async with until:
                await say(ValueError("on the way out"))
        assert until.expired
        assert is_sound()

    play(scenario)


def test_block_that_suppresses_the_cancellation_continues() -> None:
    async def scenario() -> None:
        until, steps = Until(happening_in(5)), []
        async with until:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                steps.append("no")
            await asyncio.sleep(1)
        assert until.expired
        assert steps == ["no"]
        assert is_sound()

    play(scenario)


# Other cancellations


async def cancelled_after(delay_s: float, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    asyncio.get_running_loop().call_later(delay_s, task.cancel)
    await asyncio.wait((task,))
    return task


async def wait_until(until: Until) -> None:
    async with until:
        await asyncio.sleep(100)


@pytest.mark.parametrize("cancelled_s", [1, 5], ids=["before", "at the same time"])
def test_cancellation_by_another_caller_is_raised(cancelled_s: float) -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        task = await cancelled_after(cancelled_s, wait_until(until))
        assert task.cancelled()
        assert until.expired is (cancelled_s == 5)

    play(scenario)


def test_later_cancellation_by_another_caller_is_raised() -> None:
    async def work(until: Until) -> None:
        await wait_until(until)
        await asyncio.sleep(100)

    async def scenario() -> None:
        until = Until(happening_in(5))
        task = await cancelled_after(7, work(until))
        assert task.cancelled()
        assert until.expired

    play(scenario)


@pytest.mark.parametrize(("limit_s", "is_over"), [(3, True), (5, True), (8, False)])
def test_outer_timeout_is_distinguished(limit_s: float, is_over: bool) -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        try:
            async with asyncio.timeout(limit_s) as limit:
                await wait_until(until)
        except TimeoutError:
            pass
        assert limit.expired() is is_over
        assert until.expired is (limit_s >= 5)
        assert is_sound()

    play(scenario)


def test_inner_timeout_is_distinguished() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(TimeoutError):
            async with until, asyncio.timeout(3):
                await asyncio.sleep(100)
        assert not until.expired
        assert is_sound()

    play(scenario)


@pytest.mark.parametrize(("outer_s", "inner_s"), [(2, 5), (5, 2), (3, 3)])
def test_nested_blocks_are_distinguished(outer_s: float, inner_s: float) -> None:
    async def scenario() -> None:
        outer, inner, steps = Until(happening_in(outer_s)), Until(happening_in(inner_s)), []
        async with outer:
            async with inner:
                await asyncio.sleep(100)
            steps.append("inner")
            await asyncio.sleep(100)
        assert outer.expired
        assert inner.expired is (inner_s <= outer_s)
        assert steps == (["inner"] if inner_s < outer_s else [])
        assert is_sound()

    play(scenario)


def test_task_being_cancelled_can_use_it() -> None:
    steps = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await wait_until(Until(happening_in(5)))
            steps.append("broken off")

    async def scenario() -> None:
        task = await cancelled_after(1, work())
        assert task.cancelled()
        assert steps == ["broken off"]

    play(scenario)


def test_block_runs_in_the_task_of_its_caller() -> None:
    async def scenario() -> None:
        before = asyncio.current_task()
        async with Until(never()):
            assert asyncio.current_task() is before
            await asyncio.sleep(1)

    play(scenario)


def test_many_blocks_can_share_a_future() -> None:
    async def scenario() -> None:
        future = happening_in(5)
        untils = [Until(future) for _ in range(100)]
        await asyncio.gather(*(wait_until(until) for until in untils))
        assert all(until.expired for until in untils)

    play(scenario)


def test_long_lived_future_keeps_no_references_to_ended_blocks() -> None:
    async def scenario() -> None:
        future = never()
        until = Until(future)
        async with until:
            await asyncio.sleep(1)
        left = weakref.ref(until)
        del until
        gc.collect()
        assert left() is None
        assert not future.done()

    play(scenario)


def test_use_outside_of_a_task_is_rejected() -> None:
    loop = VirtualLoop()
    try:
        future: asyncio.Future[None] = loop.create_future()
        entering: Awaitable[Until] = Until(future).__aenter__()
        caught: list[BaseException] = []
        loop.call_soon(lambda: caught.append(error_of(entering)))
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert "task" in str(caught[0])
    finally:
        loop.close()


def error_of(awaitable: Awaitable[object]) -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        awaitable.__await__().__next__()
    return caught.value
