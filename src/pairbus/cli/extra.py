"""What the commands need besides the client, which may not be installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra_needed() -> Iterator[None]:
    """Say what to install if something cannot be imported, and end."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("pairbus"):
            raise  # that would be our own mistake
        print(f"pairbus: {error}; install pairbus with its extra, 'pairbus[server]'", file=sys.stderr)
        sys.exit(1)
