"""The signals that stop a command, heard in its main thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """An event that the first signal sets; then the signals do what they always do."""
    stopped = Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if stopped.is_set():  # while Spark was starting, which has put this back since then
            signal.raise_signal(number)
        stopped.set()

    before = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
