"""Ctrl-C while a job runs on Spark."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from pairbus.cli.connection import STOPPED
from pairbus.cli.failure import fail


@contextmanager
def stopped_by_ctrl_c() -> Iterator[None]:
    """End with one line. A terminal ends Java as well, of which Python would tell in pages."""
    is_stopped = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True
        logging.disable()  # Py4J has much to say of it
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except (KeyboardInterrupt, typer.Exit):
        if not is_stopped:
            raise
        fail("stopped", STOPPED)
    finally:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGINT, before)
