"""The first signal stops a command, the second one ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from pairbus.jobs.capture.stop_signals import stopped_by_signals

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_heard_once_and_all_is_as_before_then(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stopped_by_signals() as stopped:
        assert not stopped.is_set()
        signal.raise_signal(number)
        assert stopped.is_set()
        assert [signal.getsignal(one) for one in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(one) for one in SIGNALS] == before


_TWICE = """
import signal
from pairbus.jobs.capture.stop_signals import stopped_by_signals
with stopped_by_signals() as stopped:
    ours = signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, ours)
    print(stopped.is_set(), flush=True)
    signal.raise_signal(signal.SIGINT)
    print("went on")
"""


def test_the_second_signal_ends_it_also_if_the_first_came_while_spark_was_starting() -> None:
    """What was set before Spark was started is set again then."""
    done = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "True\n")
