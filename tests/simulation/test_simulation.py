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
from tests.simulation.mishap import Kind
from tests.simulation.plan import make_plan
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
def test_nothing_is_lost_whatever_goes_wrong(first: int) -> None:
    reports = [simulate(seed) for seed in range(first, first + GROUP)]
    failed = [str(report) for report in reports if report.problems]
    assert not failed, "\n".join(failed)


def test_there_are_hundreds_of_outages_of_every_kind() -> None:
    plans = [make_plan(seed) for seed in range(400)]
    kinds = [Counter(mishap.kind for mishap in plan.mishaps) for plan in plans]
    assert sum(one.total() for one in kinds[:RUNS]) >= 200
    assert {*sum(kinds, Counter[Kind]())} == {*Kind}


# The same seed, the same run.


def test_a_seed_plays_the_same_each_time() -> None:
    assert simulate(7).digest == simulate(7).digest
    assert simulate(7).digest != simulate(8).digest


@pytest.mark.slow
def test_a_seed_plays_the_same_in_every_process() -> None:
    assert _told("11", "1") == _told("11", "2")


def _told(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", seed]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False
    )
    return done.stdout.rpartition("digest: ")[2]


# The command.


def test_one_run_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "all is well" in told
    assert "*** begins:" in told
    assert told.endswith("nothing is wrong\n")


@pytest.mark.slow
def test_many_runs_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "20", "--seeds", "2", "--jobs", "1"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 runs: ")
    assert told.out.endswith("none failed\n")
    assert "2 of 2" in told.err


@pytest.mark.slow
def test_a_run_that_fails_tells_what_went_wrong_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_run: Run) -> list[str]:
        return ["the test wants it"]

    monkeypatch.setattr("tests.simulation.checks.CHECKS", (*CHECKS, never))
    assert main(["--first", "20", "--seeds", "1", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "wrong: 9. the test wants it" in told
    assert "make simulate SEED=20" in told
    assert all(str(mishap) in told for mishap in make_plan(20).mishaps)
    assert told.endswith("1 failed: [20]\n")
