"""The first signal stops a command, the second one ends it immediately."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pairbus.jobs.capture.command import stopped_by_signals

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_sets_event_and_handlers_are_restored(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stopped_by_signals() as stopped:
        assert not stopped.is_set()
        signal.raise_signal(number)
        assert stopped.is_set()
        assert [signal.getsignal(one) for one in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(one) for one in SIGNALS] == before


_TWICE = """
import signal
from pairbus.jobs.capture.command import stopped_by_signals
with stopped_by_signals() as stopped:
    ours = signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, ours)
    print(stopped.is_set(), flush=True)
    signal.raise_signal(signal.SIGINT)
    print("went on")
"""


def test_second_signal_ends_process_after_first_during_spark_start() -> None:
    """The handlers installed before Spark was started are restored after that."""
    done = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "True\n")
