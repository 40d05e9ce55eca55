"""Creates a data directory, and exits before one of the calls that change the disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairbus.store import DataDirectory

ENDED_EARLY = 77
DEEDS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "ftruncate"),
    (os, "write"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "write_text"),
]


class Deeds:
    """Counts calls down to the exit."""

    def __init__(self, left: int) -> None:
        self.left = left

    def counted(self, deed: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                os._exit(ENDED_EARLY)
            self.left -= 1
            return deed(*arguments, **options)

        return counted


if __name__ == "__main__":
    deeds = Deeds(int(sys.argv[2]))
    for owner, name in DEEDS:
        setattr(owner, name, deeds.counted(getattr(owner, name)))
    DataDirectory.open(Path(sys.argv[1]), now_ms=1)
