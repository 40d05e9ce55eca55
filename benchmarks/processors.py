"""The processor time of processes, as Linux counts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM = 1, 11, 12


def cpu_s(process: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = _fields(process)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def descendants(process: int) -> Iterator[int]:
    """Every process that this one has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for entry in _PROCESSES.iterdir():
        if entry.name.isdecimal():
            try:
                parents.setdefault(int(_fields(int(entry.name))[_PARENT]), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended between the two looks
    waiting = [process]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            waiting.append(child)
            yield child


def command_of(process: int) -> str:
    return (_PROCESSES / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _fields(process: int) -> list[str]:
    """Return the fields after the name, which may contain any character."""
    return (_PROCESSES / str(process) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
