"""Where the readings come from: the loop, the process, the file of the store and its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.server.throttle.pulse import Pulse
from pairbus.store.directory import DATA_FILE

_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What can be read of one server. ``None`` is what the system does not tell, or not now."""

    data: Path
    """The data directory."""

    used_bytes: Callable[[], int]
    """What is in use of the store's file."""

    connection_count: Callable[[], int]
    pulse: Pulse

    def memory_bytes(self) -> int | None:
        """What the process has for itself.

        The pages of the store's file that happen to be in memory are left out: the system takes them back when it
        needs them. Where there is no ``/proc`` there is only the most that there ever was, which never falls again.
        """
        with suppress(OSError, ValueError, IndexError):
            pages = _STATM.read_text(encoding="ascii").split()
            return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
        return None

    def disk_bytes(self) -> int | None:
        """What can still be written: the free space of the disk, and what the store's file has to spare."""
        with suppress(OSError):
            spare = (self.data / DATA_FILE).stat().st_size - self.used_bytes()
            return shutil.disk_usage(self.data).free + max(0, spare)
        return None
