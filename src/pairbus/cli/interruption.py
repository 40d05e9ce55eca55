"""Commands that are stopped before their end: by Ctrl-C, or by who sends SIGTERM."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

import typer

from pairbus.cli.connection import STOPPED
from pairbus.cli.failure import fail

TERMINATED: Final = 143
"""By SIGTERM, as shells have it."""

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


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """A job on Spark ends with one line. A terminal ends Java as well, of which Python would tell in pages."""
    code: int | None = None

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal code
        code = _CODES[number]
        logging.disable()  # Py4J has much to say of it
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _CODES}
    try:
        yield
    except (KeyboardInterrupt, typer.Exit):
        if code is None:
            raise
        fail("stopped", code)
    finally:
        logging.disable(logging.NOTSET)
        for number, handler in before.items():
            signal.signal(number, handler)
