"""Interruption of commands by Ctrl-C or SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from threading import Thread
from types import FrameType
from typing import Final, TypeVar

from rich.console import Console

from pairbus.cli.failure import STOPPED, fail

TERMINATED: Final = 143
"""The exit status after SIGTERM: 128 + SIGTERM, as shells report it."""

T = TypeVar("T")

_POLL_S: Final = 0.05
_CODES: Final[Mapping[int, int]] = {signal.SIGINT: STOPPED, signal.SIGTERM: TERMINATED}


@contextmanager
def report_on_interruption(progress: Callable[[], str]) -> Iterator[None]:
    """End the command on Ctrl-C or SIGTERM with one line that states its progress; only the exit status differs."""
    code = STOPPED

    def terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal code
        code = TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # for example in a command that a script started with '&'
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)  # asyncio and the code that waits handle it

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        fail(f"stopped: {progress()}", code)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_on_spark(job: Callable[[], T]) -> T:
    """Run a job that reads ledgers on Spark, and return its result; Ctrl-C and SIGTERM end it with one line.

    The job runs in a separate thread: a signal handled during a call to Java leaves the call in an unknown state, and
    PySpark installs its own handler for Ctrl-C when it is started in the main thread.
    """
    code = STOPPED
    process_id = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal code
        if os.getpid() != process_id:  # the child that is about to become Java, and has inherited this handler
            os._exit(_CODES[number])
        code = _CODES[number]
        for each in before:
            signal.signal(each, partial(_stop_at_once, code))
        raise KeyboardInterrupt

    outcome: Future[T] = Future()
    before = {number: signal.getsignal(number) for number in _CODES}
    try:
        for number in before:
            signal.signal(number, stop)
        Thread(target=_run, args=(job, outcome), name="pairbus-job", daemon=True).start()
        wait((outcome,))  # not join(): if that is interrupted, the thread counts as ended
    except KeyboardInterrupt:
        _end_job(outcome)
        fail("stopped", code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return outcome.result()


def _stop_at_once(code: int, _number: int, _frame: FrameType | None) -> None:
    """Exit on the second signal without cleaning up: the user does not want to wait for the first to take effect."""
    Console(stderr=True).show_cursor()
    os.write(2, b"pairbus: stopped\n")
    os._exit(code)


def _run(job: Callable[[], T], outcome: Future[T]) -> None:
    try:
        with Console(stderr=True).status("reading ledgers"):
            result = job()
        outcome.set_result(result)
    except BaseException as error:  # noqa: BLE001 (it is raised by outcome.result())
        outcome.set_exception(error)


def _end_job(outcome: Future[T]) -> None:
    """Stop Java until the job ends: while Java is still starting, there is nothing to stop yet, so try again."""
    from pairbus.spark.session import end_java_quietly  # noqa: PLC0415 (Spark is optional)

    logging.disable()  # Py4J reports every call that fails
    try:
        while not outcome.done():
            end_java_quietly()
            wait((outcome,), _POLL_S)
    finally:
        logging.disable(logging.NOTSET)
