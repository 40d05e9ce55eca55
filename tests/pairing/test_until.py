"""Doing something until something else happens, and what other cancellations come to meanwhile."""

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
    """In virtual time; sees that no task is left."""
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
    """Whether nothing of a cancellation hangs on to the task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


def test_what_ends_before_ends_as_it_would() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        async with until:
            await asyncio.sleep(1)
        assert not until.has_happened
        await asyncio.sleep(10)  # and it happens to nobody afterwards
        assert not until.has_happened
        assert is_sound()

    play(scenario)


def test_what_takes_longer_is_broken_off() -> None:
    async def scenario() -> None:
        until, loop = Until(happening_in(5)), asyncio.get_running_loop()
        async with until:
            await asyncio.sleep(100)
            pytest.fail("it was not broken off")
        assert until.has_happened
        assert loop.time() == 5.0
        assert is_sound()
        await asyncio.sleep(1)

    play(scenario)


def test_what_has_happened_before_breaks_off_at_the_first_wait() -> None:
    async def scenario() -> None:
        past = never()
        past.set_result(None)
        until = Until(past)
        steps = []
        async with until:
            steps.append("began")
            await asyncio.sleep(1)
            steps.append("went on")
        assert until.has_happened
        assert steps == ["began"]
        assert is_sound()

    play(scenario)


def test_what_does_not_wait_is_not_broken_off() -> None:
    async def scenario() -> None:
        past = never()
        past.set_result(None)
        until = Until(past)
        async with until:
            pass
        assert not until.has_happened
        await asyncio.sleep(0)
        assert is_sound()

    play(scenario)


@pytest.mark.parametrize("end", [lambda future: future.cancel(), lambda future: future.set_exception(OSError("gone"))])
def test_a_future_that_ends_in_another_way_has_ended_too(end: Callable[[asyncio.Future[None]], object]) -> None:
    async def scenario() -> None:
        future = never()
        asyncio.get_running_loop().call_later(2, end, future)
        until = Until(future)
        async with until:
            await asyncio.sleep(100)
        assert until.has_happened
        assert is_sound()
        if not future.cancelled():
            future.exception()

    play(scenario)


async def fail(until: Until) -> None:
    async with until:
        await asyncio.sleep(1)
        raise ValueError("of its own")


def test_an_error_inside_comes_out() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(ValueError, match="of its own"):
            await fail(until)
        assert not until.has_happened
        await asyncio.sleep(10)
        assert is_sound()

    play(scenario)


async def say(error: Exception) -> None:
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        raise error from None


def test_an_error_that_comes_of_being_broken_off_comes_out() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(ValueError, match="on the way out"):
            async with until:
                await say(ValueError("on the way out"))
        assert until.has_happened
        assert is_sound()

    play(scenario)


def test_who_does_not_let_himself_be_broken_off_goes_on() -> None:
    async def scenario() -> None:
        until, steps = Until(happening_in(5)), []
        async with until:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                steps.append("no")
            await asyncio.sleep(1)
        assert until.has_happened
        assert steps == ["no"]
        assert is_sound()

    play(scenario)


# Others who cancel


async def cancelled_after(delay_s: float, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    asyncio.get_running_loop().call_later(delay_s, task.cancel)
    await asyncio.wait((task,))
    return task


async def wait_until(until: Until) -> None:
    async with until:
        await asyncio.sleep(100)


@pytest.mark.parametrize("cancelled_s", [1, 5], ids=["before", "at the same time"])
def test_whoever_cancels_the_task_cancels_it(cancelled_s: float) -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        task = await cancelled_after(cancelled_s, wait_until(until))
        assert task.cancelled()
        assert until.has_happened is (cancelled_s == 5)

    play(scenario)


def test_whoever_cancels_the_task_afterwards_cancels_it() -> None:
    async def work(until: Until) -> None:
        await wait_until(until)
        await asyncio.sleep(100)

    async def scenario() -> None:
        until = Until(happening_in(5))
        task = await cancelled_after(7, work(until))
        assert task.cancelled()
        assert until.has_happened

    play(scenario)


@pytest.mark.parametrize(("limit_s", "is_over"), [(3, True), (5, True), (8, False)])
def test_a_time_out_around_it_is_told_apart(limit_s: float, is_over: bool) -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        try:
            async with asyncio.timeout(limit_s) as limit:
                await wait_until(until)
        except TimeoutError:
            pass
        assert limit.expired() is is_over
        assert until.has_happened is (limit_s >= 5)
        assert is_sound()

    play(scenario)


def test_a_time_out_inside_it_is_told_apart() -> None:
    async def scenario() -> None:
        until = Until(happening_in(5))
        with pytest.raises(TimeoutError):
            async with until, asyncio.timeout(3):
                await asyncio.sleep(100)
        assert not until.has_happened
        assert is_sound()

    play(scenario)


@pytest.mark.parametrize(("outer_s", "inner_s"), [(2, 5), (5, 2), (3, 3)])
def test_one_in_another_is_told_apart(outer_s: float, inner_s: float) -> None:
    async def scenario() -> None:
        outer, inner, steps = Until(happening_in(outer_s)), Until(happening_in(inner_s)), []
        async with outer:
            async with inner:
                await asyncio.sleep(100)
            steps.append("inner")
            await asyncio.sleep(100)
        assert outer.has_happened
        assert inner.has_happened is (inner_s <= outer_s)
        assert steps == (["inner"] if inner_s < outer_s else [])
        assert is_sound()

    play(scenario)


def test_a_task_that_is_being_cancelled_can_use_it_on_its_way_out() -> None:
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


def test_it_keeps_its_place_in_the_task_that_it_is_used_in() -> None:
    async def scenario() -> None:
        before = asyncio.current_task()
        async with Until(never()):
            assert asyncio.current_task() is before
            await asyncio.sleep(1)

    play(scenario)


def test_many_wait_for_the_same() -> None:
    async def scenario() -> None:
        future = happening_in(5)
        untils = [Until(future) for _ in range(100)]
        await asyncio.gather(*(wait_until(until) for until in untils))
        assert all(until.has_happened for until in untils)

    play(scenario)


def test_a_future_that_lives_long_forgets_those_who_have_left() -> None:
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


def test_outside_of_a_task_it_is_refused() -> None:
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
