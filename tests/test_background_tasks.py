"""Background tasks: unexpected errors are logged, and tasks that must go on are restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from pairbus.background_tasks import RESTART_BACKOFF, BackgroundTasks
from tests.faults.virtual_loop import VirtualLoop

OWNER = "tests"


class FailingWork:
    """Fails a number of times, and then returns; notes when it was started."""

    def __init__(self, failures: int, lasts_s: float = 0.0) -> None:
        self.started_s: list[float] = []
        self._failures = failures
        self._lasts_s = lasts_s

    async def run(self, text: str) -> None:
        self.started_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._lasts_s)
        if len(self.started_s) <= self._failures:
            raise RuntimeError(text)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.ERROR]


def test_failed_task_that_must_go_on_is_logged_and_restarted_after_a_delay(caplog: pytest.LogCaptureFixture) -> None:
    work = FailingWork(failures=3)

    async def scenario() -> None:
        await BackgroundTasks(OWNER).keep_running(work.run, "broken")

    run(scenario())
    start_s = work.started_s[0]
    assert [at_s - start_s for at_s in work.started_s] == pytest.approx([0.0, 1.0, 3.0, 7.0])
    line = 'background task failed owner="tests" task=FailingWork.run error="RuntimeError(\'broken\')"'
    assert messages(caplog) == [line] * 3


def test_delay_is_the_first_one_after_a_task_has_run_for_a_while() -> None:
    work = FailingWork(failures=2, lasts_s=RESTART_BACKOFF.longest_s + 1)

    async def scenario() -> None:
        await BackgroundTasks(OWNER).keep_running(work.run, "broken")

    run(scenario())
    first_s, second_s, third_s = work.started_s
    assert third_s - second_s == second_s - first_s


def test_close_ends_a_task_that_waits_for_its_restart() -> None:
    work = FailingWork(failures=10)

    async def scenario() -> None:
        tasks = BackgroundTasks(OWNER)
        task = tasks.keep_running(work.run, "broken")
        await asyncio.sleep(0.5)
        await tasks.close()
        assert task.cancelled()

    run(scenario())
    assert len(work.started_s) == 1


def test_unexpected_error_of_a_task_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = BackgroundTasks(OWNER, expected=LookupError)
        for error in (KeyError("expected"), OSError("unexpected")):
            task = tasks.start(_raise(error))
            await asyncio.wait((task,))

    run(scenario())
    assert messages(caplog) == ['background task failed owner="tests" task=_raise error="OSError(\'unexpected\')"']


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)


async def _raise(error: Exception) -> None:
    raise error
