"""Python in a separate process, for tests that can kill a process or must not touch ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(module: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a module of these tests; its errors are part of its output."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.store.{module}", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(module: str, *arguments: object, **environment: str) -> str:
    """Run a module of these tests to its end, and return its output."""
    with start(module, *arguments, **environment) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, f"{module} {arguments} ended with {process.returncode}:\n{said[-3_000:]}"
    return said
