"""Run the tests again that have failed in the last run, alone: part of ``.ci/run``.

Many tests start servers, clients and Spark, and four of them share two processors. One that fails beside the others,
and passes each time alone, is *unstable*: it is named, and does not fail the run. Exits with 1 if a test fails again,
or if so many have failed that the change itself must be the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

MOST: Final = 5
"""With more failures than this nothing is run again."""

TIMES: Final = 3
"""Number of times that a test has to pass alone."""

_FAILED: Final = Path(".pytest_cache") / "v" / "cache" / "lastfailed"


def failed_tests(cache: Path = _FAILED) -> list[str]:
    """Return the tests that failed in the last run."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def report(failed: Sequence[str], passes: Callable[[Sequence[str]], bool]) -> tuple[bool, str]:
    """Return whether all failed tests are only unstable, and what to print; ``passes`` runs tests."""
    if not failed:
        return False, "tests not run again: the run has ended without naming a test that failed"
    if len(failed) > MOST:
        return False, f"tests not run again: {len(failed)} have failed, more than {MOST}"
    if not all(passes(failed) for _ in range(TIMES)):
        return False, "a test has failed again"
    names = "\n".join(f"  {name}" for name in failed)
    return True, f"unstable, failed once and passed {TIMES} times alone; each is a defect to find:\n{names}"


def _passes(tests: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    is_unstable_only, text = report(failed_tests(), _passes)
    print(text)
    sys.exit(not is_unstable_only)
