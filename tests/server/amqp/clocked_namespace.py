"""A namespace that runs beside a test, with a clock that the test can set."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pairbus.server import NamespaceServer, Settings
from pairbus.testing import RunningNamespace


class SettableClock:
    """The time of day, shifted by a test."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, ms: int) -> None:
        self._ahead_ms += ms

    def stop_before_the_second(self, ms: int) -> int:
        """Advance to that long before a full second; return that second. Tokens expire at full seconds."""
        self.advance((1_000 - ms - self()) % 1_000)
        return self() // 1_000 + 1


class ClockedNamespace(RunningNamespace):
    """A real server with a clock of the test."""

    def __init__(self, settings: Settings, clock: SettableClock) -> None:
        super().__init__(settings)
        self.clock = clock

    async def _start(self) -> None:
        server = NamespaceServer(self._settings, clock=self.clock)
        await server.start()
        server.host.deny = self._deny
        self._settings = replace(self._settings, port=server.ports)
        self._server = server


@contextmanager
def clocked_namespace(**settings: Any) -> Iterator[ClockedNamespace]:
    with tempfile.TemporaryDirectory(prefix="pairbus-") as directory:
        namespace = ClockedNamespace(
            Settings(**{"data": Path(directory) / "data", "name": "contoso", "port": (0,), **settings}), SettableClock()
        )
        try:
            namespace.start()
            yield namespace
        finally:
            namespace.close()
