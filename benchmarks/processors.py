"""The processor time and the memory of processes, and of the whole machine, as Linux counts them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_PROCESSES: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT: Final = 1
_CPU_CLOCK: Final = 2

_KERNEL_THREADS: Final = 2
"""The process id of the parent of all threads of the kernel, unless processes are hidden from this one."""

_IDLE, _IO_WAIT, _STOLEN, _GUEST = 3, 4, 7, 8


def cpu_s(process: int) -> float:
    """Return the processor time of a process so far, in seconds; ``ProcessLookupError`` if there is none.

    Linux has a clock for each process (clock_getcpuclockid(3)), which is exact; /proc/PID/stat counts in hundredths.
    """
    try:
        return time.clock_gettime(~process << 3 | _CPU_CLOCK)
    except OSError as error:
        raise ProcessLookupError(process) from error


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


def private_bytes(process: int) -> int:
    """Return the memory that a process has for itself; pages of files belong to the system's cache."""
    status = (_PROCESSES / str(process) / "status").read_text(encoding="utf-8", errors="replace")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Processor time of the whole machine so far, in seconds."""

    busy_s: float
    """Time of all processes and interrupts. Threads of the kernel do not count: they write files for the processes."""

    stolen_s: float
    """Time that this virtual machine wanted, and the host gave to others."""

    @classmethod
    def now(cls) -> Self:
        kernel_s = 0.0
        if is_kernel_visible():
            kernel_s = sum(_cpu_s_if_alive(thread) for thread in descendants(_KERNEL_THREADS))
        return cls.parsed((_PROCESSES / "stat").read_text(encoding="ascii"), kernel_s)

    @classmethod
    def parsed(cls, stat: str, kernel_s: float) -> Self:
        """Return the times of the first line of ``/proc/stat``."""
        times_s = [int(ticks) / _TICKS for ticks in stat.splitlines()[0].split()[1:]]
        working = (s for number, s in enumerate(times_s[:_GUEST]) if number not in {_IDLE, _IO_WAIT, _STOLEN})
        return cls(sum(working) - kernel_s, times_s[_STOLEN])


def is_kernel_visible() -> bool:
    """Return whether this process sees the threads of the kernel; in a container it does not."""
    try:
        return command_of(_KERNEL_THREADS) == ""
    except FileNotFoundError:
        return False


def _cpu_s_if_alive(process: int) -> float:
    """Return the processor time of a process; 0 if it has ended."""
    try:
        return cpu_s(process)
    except ProcessLookupError:
        return 0.0


def _fields(process: int) -> list[str]:
    """Return the fields after the name, which may contain any character."""
    return (_PROCESSES / str(process) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
