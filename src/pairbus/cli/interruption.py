"""Commands that are stopped before their end: by Ctrl-C, or by who sends SIGTERM."""

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

from pairbus.cli.connection import STOPPED
from pairbus.cli.failure import fail

TERMINATED: Final = 143
"""By SIGTERM, as shells have it."""

T = TypeVar("T")

_POLL_S: Final = 0.05
_CODES: Final[Mapping[int, int]] = {signal.SIGINT: STOPPED, signal.SIGTERM: TERMINATED}


@contextmanager
def telling_how_far(so_far: Callable[[], str]) -> Iterator[None]:
    """End with one line that says how far it has come; SIGTERM is as good as Ctrl-C, but for the code."""
    code = STOPPED

    def terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal code
        code = TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script starts with '&'
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)  # whoever waits knows what to do then

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        fail(f"stopped: {so_far()}", code)
    finally:
        signal.signal(signal.SIGTERM, before)


def run_on_spark(job: Callable[[], T]) -> T:
    """Run a job that reads ledgers on Spark, and return what it returns; Ctrl-C and SIGTERM end it with one line.

    The job has a thread of its own: a signal that is handled in the middle of a call to Java leaves that in an unknown
    state, and PySpark takes Ctrl-C for itself when it is started in the main thread.
    """
    code = STOPPED

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal code
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
        wait((outcome,))  # a thread that is joined, and interrupted in that, counts as ended
    except KeyboardInterrupt:
        _end_job(outcome)
        fail("stopped", code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return outcome.result()


def _stop_at_once(code: int, _number: int, _frame: FrameType | None) -> None:
    """End on the second signal, whatever is left behind: the first takes too long."""
    Console(stderr=True).show_cursor()
    os.write(2, b"pairbus: stopped\n")
    os._exit(code)


def _run(job: Callable[[], T], outcome: Future[T]) -> None:
    try:
        with Console(stderr=True).status("reading ledgers"):
            result = job()
        outcome.set_result(result)
    except BaseException as error:  # noqa: BLE001 (it is raised where the outcome is asked for)
        outcome.set_exception(error)


def _end_job(outcome: Future[T]) -> None:
    """Wait for the end of a job whose Java is taken away; one that is being started has to be there first."""
    from pairbus.spark.session import end_java_quietly  # noqa: PLC0415 (Spark is not everywhere)

    logging.disable()  # Py4J reports every call that fails
    try:
        while not outcome.done():
            end_java_quietly()
            wait((outcome,), _POLL_S)
    finally:
        logging.disable(logging.NOTSET)
