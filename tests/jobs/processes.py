"""Process groups: a process and all that it has started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def members(session: int, word: str = "") -> list[int]:
    """Return the processes of a session, in the sense of the system, whose command contains a word."""
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if _session_of(path) == session and word in _command_of(path)
    ]


def kill(process: int) -> None:
    """Send SIGKILL, which leaves no time to clean up."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def kill_session(session: int) -> None:
    """Kill all processes of a session, including those started meanwhile."""
    while alive := members(session):
        for process in alive:
            kill(process)
        time.sleep(0.01)


def _session_of(path: Path) -> int | None:
    try:
        state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(session)


def _command_of(path: Path) -> str:
    try:
        return (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
