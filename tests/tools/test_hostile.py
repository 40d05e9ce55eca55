"""The benchmark of hostile peers names the goals that are missed, and its exit code says whether there are any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hostile import ALONE, GOAL_MS, Row, missed_goals
from benchmarks.overload import QUIET_LOAD

ROOT = Path(__file__).parents[2]


def row(p99_ms: float) -> Row:
    return Row(half_ms=1.0, p99_ms=p99_ms, longest_ms=1_000.0, attempts_per_s=10.0)


def test_missed_goals_are_named_with_their_build() -> None:
    good, bad = row(GOAL_MS - 0.1), row(GOAL_MS)
    assert missed_goals({"plain": {ALONE: good, "noise": good}}) == []
    assert missed_goals({"plain": {"noise": good}, "compiled": {ALONE: good, "noise": bad}}) == ["noise (compiled)"]


@pytest.mark.slow
def test_exit_code_follows_the_goals_unless_the_machine_was_busy() -> None:
    command = [sys.executable, "-m", "benchmarks.hostile", "noise"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == last.startswith("goals missed: "), done.stderr
    assert last == "all goals met" or last.endswith(f"at most {QUIET_LOAD}") or done.returncode, done.stdout
