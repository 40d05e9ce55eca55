"""Whatever goes wrong, nothing that was confirmed is lost: many runs, each with several outages by its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.__main__ import main
from tests.simulation.checks import CHECKS
from tests.simulation.plan import make_plan
from tests.simulation.planned_fault import Kind
from tests.simulation.report import simulate
from tests.simulation.simulation import Run
from tests.thoroughness import times

GROUP = 5
RUNS = times(160)
SOON = 20


def groups() -> Iterator[Any]:
    for first in range(0, RUNS, GROUP):
        yield pytest.param(first, marks=pytest.mark.slow if first >= SOON else ())


@pytest.mark.parametrize("first", [*groups()])
def test_no_message_is_lost_in_any_simulated_outage(first: int) -> None:
    reports = [simulate(seed) for seed in range(first, first + GROUP)]
    failed = [str(report) for report in reports if report.problems]
    assert not failed, "\n".join(failed)


def test_hundreds_of_outages_of_every_kind_are_simulated() -> None:
    plans = [make_plan(seed) for seed in range(400)]
    kinds = [Counter(planned.kind for planned in plan.planned_faults) for plan in plans]
    assert sum(one.total() for one in kinds[:RUNS]) >= 200
    assert {*sum(kinds, Counter[Kind]())} == {*Kind}


# The same seed, the same run.


def test_run_with_the_same_seed_is_identical() -> None:
    assert simulate(7).digest == simulate(7).digest
    assert simulate(7).digest != simulate(8).digest


@pytest.mark.slow
def test_run_with_the_same_seed_is_identical_in_every_process() -> None:
    assert _reported("11", "1") == _reported("11", "2")


def _reported(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", seed]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
    )
    return done.stdout.rpartition("digest: ")[2]


# The command.


def test_one_run_is_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    reported = capsys.readouterr().out
    assert "all is well" in reported
    assert "*** begins:" in reported
    assert reported.endswith("nothing is wrong\n")


@pytest.mark.slow
def test_many_runs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "20", "--seeds", "2", "--jobs", "1"]) == 0
    reported = capsys.readouterr()
    assert reported.out.startswith("2 runs: ")
    assert reported.out.endswith("none failed\n")
    assert "2 of 2" in reported.err


@pytest.mark.slow
def test_failed_run_prints_the_cause_and_how_to_repeat_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_run: Run) -> list[str]:
        return ["the test wants it"]

    monkeypatch.setattr("tests.simulation.checks.CHECKS", (*CHECKS, never))
    assert main(["--first", "20", "--seeds", "1", "--jobs", "1"]) == 1
    reported = capsys.readouterr().out
    assert "wrong: 9. the test wants it" in reported
    assert "make simulate SEED=20" in reported
    assert all(str(planned) in reported for planned in make_plan(20).planned_faults)
    assert reported.endswith("1 failed: [20]\n")
