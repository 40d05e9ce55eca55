"""The benchmark of an overloaded server reports, and its exit code says whether a goal is missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.overload import QUIET_LOAD, Figures, Phase, Resources, verdict

ROOT = Path(__file__).parents[2]


def figures(overload: int, memory_mb: int, latency_ms: float, failed: int = 0, left: int = 0) -> Figures:
    phases = [
        Phase("peak", 1.0, 100),
        Phase("before", 1.0, 30, latencies_ms={0: [10.0]}),
        Phase("overload", 1.0, overload, failed=failed),
        Phase("after", 1.0, 30, latencies_ms={0: [latency_ms], 14: [latency_ms]}),
    ]
    resources = Resources.__new__(Resources)
    resources.most_bytes = {"peak": 100 << 20, "overload": (100 + memory_mb) << 20}
    return Figures({phase.name: phase for phase in phases}, resources, left, drained_s=0.0)


def test_missed_goals_are_named() -> None:
    assert figures(90, 10, 12.0).missed_goals() == []
    assert figures(70, 10, 12.0).missed_goals() == ["throughput"]
    assert figures(90, 300, 12.0).missed_goals() == ["memory"]
    assert figures(90, 10, 100.0).missed_goals() == ["recovery"]
    assert figures(90, 10, 12.0, failed=1).missed_goals() == ["failed sends"]
    assert figures(90, 10, 12.0, left=1).missed_goals() == ["lost messages"]


def test_peak_without_confirmed_messages_misses_the_throughput() -> None:
    found = figures(0, 10, 12.0)
    found.phases["peak"].confirmed = 0
    assert found.missed_goals() == ["throughput"]


def test_missed_goal_fails_the_benchmark_unless_the_machine_was_busy(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict([], 0.0) == 0
    assert verdict(["memory"], QUIET_LOAD) == 1
    assert verdict(["memory"], QUIET_LOAD + 0.1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "all goals met",
        "goals missed: memory",
        "the machine was too busy to judge: load 0.6 for each core, at most 0.5",
    ]


@pytest.mark.slow
def test_short_run_reports() -> None:
    command = [sys.executable, "-m", "benchmarks.overload", "--seconds", "1", "--scale", "0.2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in {0, 1}, done.stderr
    for start in (
        "warm-up",
        "peak",
        "before",
        "overload",
        "after",
        "throughput under overload",
        "memory under overload",
    ):
        assert any(line.startswith(start) for line in done.stdout.splitlines()), done.stdout
