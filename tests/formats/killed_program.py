"""A program that says lines of JSON, until it is killed with everything that it has started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any, Final

from tests.jobs.processes import kill_session, members

_ROOT: Final = Path(__file__).resolve().parents[2]
_LIMIT_S: Final = 300.0
"""Generous: Spark has to start, and may share the processors with many."""


def lines_until(is_last: Callable[[list[Any]], bool], module: str, *arguments: object) -> list[Any]:
    """Run a module, kill it as soon as what it has said is enough, and return that."""
    said: list[Any] = []
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        start_new_session=True,
    ) as process:
        deadline = Timer(_LIMIT_S, kill_session, [process.pid])
        deadline.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(json.loads(line))
                if is_last(said):
                    break
        finally:
            deadline.cancel()
            kill_session(process.pid)
    assert not members(process.pid)
    assert is_last(said), f"{module} has ended before, or not come so far in {_LIMIT_S:.0f} s"
    return said
