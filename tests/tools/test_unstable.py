"""Tests that are run again: when a failure counts, and when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.unstable import MOST, TIMES, failed_tests, report


class Runs:
    """Runs of tests with the given results."""

    def __init__(self, *results: bool) -> None:
        self.results = list(results)
        self.tests: list[Sequence[str]] = []

    def __call__(self, tests: Sequence[str]) -> bool:
        self.tests.append(tests)
        return self.results.pop(0)


def test_test_that_passes_each_time_alone_is_named_and_does_not_fail_the_run() -> None:
    runs = Runs(*[True] * TIMES)
    passed, text = report(["a.py::test"], runs)
    assert passed
    assert "a.py::test" in text
    assert runs.tests == [["a.py::test"]] * TIMES


@pytest.mark.parametrize("passed_before", range(TIMES))
def test_test_that_fails_again_fails_the_run(passed_before: int) -> None:
    assert report(["a.py::test"], Runs(*[True] * passed_before, False)) == (False, "a test has failed again")


def test_many_failures_are_not_run_again() -> None:
    runs = Runs()
    assert not report([f"a.py::test[{number}]" for number in range(MOST + 1)], runs)[0]
    assert not runs.tests


def test_run_that_names_no_failed_test_fails() -> None:
    assert not report([], Runs())[0]


def test_failed_tests_are_read_from_the_cache_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('text', ['a b', 'c'])\ndef test(text): assert text == 'c'\n"
    )
    options = ["-p", "no:looptime_plugin", "--numprocesses", "1", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, "test_one.py"]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 1
    assert failed_tests(tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed") == ["test_one.py::test[a b]"]


def test_missing_cache_names_no_test(tmp_path: Path) -> None:
    assert failed_tests(tmp_path / "lastfailed") == []


def test_cache_with_all_failures_is_sorted(tmp_path: Path) -> None:
    (tmp_path / "lastfailed").write_text(json.dumps({"b": True, "a": True}))
    assert failed_tests(tmp_path / "lastfailed") == ["a", "b"]
