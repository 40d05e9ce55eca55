"""Processes that belong together: what one of them has started goes with it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def members(session: int, word: str = "") -> list[int]:
    """The processes of a session, as the system calls it, that have a word in their command."""
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if _session_of(path) == session and word in _command_of(path)
    ]


def kill(process: int) -> None:
    """SIGKILL: it has no time to say or to write anything."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def kill_session(session: int) -> None:
    """All processes of a session at once, and those that are started meanwhile."""
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
