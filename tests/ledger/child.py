"""Python child processes, for tests that kill a process or must not affect this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a module of these tests, with stderr redirected to stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.ledger.{module}", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(module: str, *arguments: object, deadline_s: float = 120.0) -> str:
    """Run a module of these tests to its end, and return its output."""
    with start(module, *arguments) as process:
        try:
            said, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, f"{module} {arguments} ended with {process.returncode}:\n{said[-3_000:]}"
    return said
