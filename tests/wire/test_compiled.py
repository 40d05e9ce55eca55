"""The compiled build behaves like the plain one: the same tests pass against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


BUILD = ROOT / "build" / "compiled"
"""Where ``make compiled`` puts the compiled build; CI makes it before the tests."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wire_tests_pass_with_compiled_build(tmp_path: Path) -> None:
    build = BUILD if is_current(BUILD / ".ready") else compiled(tmp_path / "compiled")
    # The plain build is tested with many more examples, and what these find is in the sources.
    environment = {**os.environ, "PYTHONPATH": str(build), "PAIRBUS_EXPECT_COMPILED": "1", "CI": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "tests/wire", "tests/peers"]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def is_current(mark: Path) -> bool:
    """Return whether nothing has changed since the compiled build."""
    sources = (ROOT / "src").rglob("*.py")
    return mark.exists() and mark.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def compiled(build: Path) -> Path:
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--target", str(build)]
    environment = {**os.environ, "PAIRBUS_COMPILE": "1"}
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(ROOT)], env=environment, check=True)
    return build


def test_requested_build_is_tested() -> None:
    from pairbus.wire import connection

    compiled = not str(connection.__file__).endswith(".py")
    assert compiled == (os.environ.get("PAIRBUS_EXPECT_COMPILED") == "1")
