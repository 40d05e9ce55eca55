"""Ctrl-C in a command whose job runs on Spark: one line, and nothing of Java's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.ledger.written import operation, write
from tests.ledger.entries import eventually

PATIENCE_S = 60


def has_java(pid: int) -> bool:
    """Whether a process has started Java, or what will become Java."""
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("later_s", [0.0, 7.0], ids=["while Spark starts", "at work"])
def test_e4_ctrl_c_ends_it_and_the_java_that_it_has_started(tmp_path: Path, later_s: float) -> None:
    """Java has the ends of the pipes as well, so they are closed when it is gone, too."""
    write(tmp_path, [operation(f"2026-03-{day:02}T{hour:02}:00") for day in range(1, 29) for hour in range(24)])
    command = [sys.executable, "-m", "pairbus", "cost", "--ledger", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            eventually(lambda: has_java(process.pid))
            time.sleep(later_s)
            os.killpg(process.pid, signal.SIGINT)
            out, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    if not later_s:  # else it may have come between Spark's start and ours, where Spark has its own way to tell it
        assert said == "pairbus: stopped\n"
