"""The acts of the demo, one after the other, with how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pairbus.cli.demo.screen import Screen


class Acts:
    """Keeps the times."""

    def __init__(self, screen: Screen) -> None:
        self.seconds: dict[str, float] = {}
        self._screen = screen

    @contextmanager
    def act(self, title: str) -> Iterator[None]:
        """One act; one that fails has no end."""
        began_s = time.monotonic()
        self._screen.begin(title)
        yield
        self.seconds[title] = seconds = time.monotonic() - began_s
        self._screen.end(title, seconds)
