"""Reads the facets of a node again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from pairbus.server.settings import SettingsError
from pairbus.server.throttle.facets import FACETS
from pairbus.server.throttle.gauges import Gauges
from pairbus.server.throttle.pulse import Beat
from pairbus.server.throttle.throttle import Throttle

_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0


class ThrottleTimer:
    """Runs on the loop that it watches: that it comes late is a reading, too."""

    def __init__(self, throttle: Throttle, gauges: Gauges, loop: asyncio.AbstractEventLoop) -> None:
        self._throttle = throttle
        self._gauges = gauges
        self._loop = loop
        self._due_s = loop.time()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Read for the first time; raises ``SettingsError`` for a threshold of what cannot be read here."""
        self._tick()
        for status in self._throttle.statuses:
            if status.threshold is not None and status.reading is None:
                facet = status.facet
                raise SettingsError(f"{facet.setting}: the system does not tell '{facet.name}', so it has no threshold")

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._gauges.pulse.beat(Beat(due_s=self._due_s, at_s=now_s, cpu_s=time.thread_time()))
        self._due_s = now_s + _EVERY_S
        self._handle = self._loop.call_at(self._due_s, self._tick)
        for status in self._throttle.update({facet.name: facet.read(self._gauges) for facet in FACETS}):
            if status.is_denying:
                _log.warning("requests are denied: %s", status.reason)
            else:
                _log.info("'%s' is at %s: requests are not denied for it", status.facet.name, status.shown_reading)
