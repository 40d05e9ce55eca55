"""Has what other programs complain about go to a file, so that it does not spoil the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STDERR: Final = 2


@contextmanager
def errors_to(file: Path) -> Iterator[None]:
    """Send standard error there, of this process and of those that it starts: Java does not ask Python."""
    sys.stderr.flush()
    before = os.dup(_STDERR)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), _STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        os.close(before)
