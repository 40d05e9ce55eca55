"""The sources of readings: the loop, the process, the file of the store and its disk."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from pairbus.store.directory import DATA_FILE

_KEPT: Final = 6
"""Samples that are kept: five seconds of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """One call of the timer: when it was due, when it ran, and the processor time of the loop's thread until then."""

    due_s: float
    at_s: float
    cpu_s: float


class LoopLag:
    """The recent lag of a loop.

    Two numbers, because neither is enough. A loop that is always busy may work well: it reads as fast as it works, and
    its senders are held back by their sockets. A loop that has hardly anything to do may be in trouble, when other
    processes take the processor. Clients notice the delay; the processor share shows whose work causes it.
    """

    def __init__(self) -> None:
        self._beats: deque[LagSample] = deque(maxlen=_KEPT)

    def beat(self, beat: LagSample) -> None:
        self._beats.append(beat)

    @property
    def processor(self) -> float:
        """Return the share of one processor that the loop has used."""
        if len(self._beats) < 2:
            return 0.0
        first, last = self._beats[0], self._beats[-1]
        return max(0.0, last.cpu_s - first.cpu_s) / max(last.at_s - first.at_s, 0.001)

    @property
    def delay_s(self) -> float:
        """Return how late the loop is: the median, since a machine that was asleep is late only once."""
        return max(0.0, median(beat.at_s - beat.due_s for beat in self._beats)) if self._beats else 0.0


_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The readings of one server. ``None`` for a reading that the system does not offer, or not now."""

    data: Path
    """The data directory."""

    used_bytes: Callable[[], int]
    """Returns the bytes in use of the store's file."""

    connection_count: Callable[[], int]
    loop_lag: LoopLag

    def memory_bytes(self) -> int | None:
        """Return the memory that the process has for itself.

        Cached pages of the store's file are left out: the system reclaims them when it needs memory. Without ``/proc``
        there is only the peak, which never falls again.
        """
        with suppress(OSError, ValueError, IndexError):
            pages = _STATM.read_text(encoding="ascii").split()
            return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
        return None

    def disk_bytes(self) -> int | None:
        """Return the bytes that can still be written: the free space of the disk, and the spare space in the store's
        file.
        """
        with suppress(OSError):
            spare = (self.data / DATA_FILE).stat().st_size - self.used_bytes()
            return shutil.disk_usage(self.data).free + max(0, spare)
        return None
