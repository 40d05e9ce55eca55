"""Background scrubbing: reads every record of a namespace within a period, so that damage does not stay unnoticed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from pairbus.broker.message import QueueId
from pairbus.heartbeat import Heartbeat
from pairbus.server.host import NamespaceHost
from pairbus.server.supervision.supervisor import Problem, SupervisedTask
from pairbus.store import StoreError, UnconfinedDamageError
from pairbus.store.keys import BODY, RECORD, describe
from pairbus.store.scrubber import FIRST_KEY, ScrubSlice, scrub_slice

_log = logging.getLogger(__name__)

_SLICE_BYTES: Final = 256 * 1024
_LONGEST_PAUSE_S: Final = 60.0
"""Longest pause between two slices: a small namespace is read much more often than the period asks for."""

_RETRY_S: Final = 60.0
_INSPECTED_AT_ONCE: Final = 50
"""Messages that one turn of the event loop reads after damage was found."""


class ScrubPace:
    """Spreads the slices of a pass over the period. Reading takes time, too: that is part of the period."""

    def __init__(self, period_s: float, now_s: float) -> None:
        self._period_s = period_s
        self._due_s = now_s
        """Time of the next slice."""

    def pause_s(self, read_share: float, now_s: float) -> float:
        """Return how long to wait after a slice, which was some share of the file."""
        self._due_s += min(_LONGEST_PAUSE_S, self._period_s * read_share)
        # After a long interruption the file is not read at full speed for long.
        self._due_s = max(self._due_s, now_s - _LONGEST_PAUSE_S)
        return max(0.0, self._due_s - now_s)


class Scrubber:
    """Reads the file slice by slice on a worker thread, and quarantines what is damaged."""

    def __init__(self, host: NamespaceHost, data_file: Path, period_s: float) -> None:
        self._host = host
        self._data_file = data_file
        self._period_s = period_s
        self.heartbeat = Heartbeat()
        self._task = SupervisedTask("pairbus-scrubber", self._run, self.heartbeat)
        self._reported = set(host.committer.recovery.damaged)
        self.records = 0
        """Number of records that were read since the start."""

        self.passes = 0
        """Number of complete passes since the start."""

        self.progress = 0.0
        """Share of the current pass that is done, about."""

        self.last_pass_ms = 0
        """End of the last complete pass; 0 if there was none."""

    def start(self) -> None:
        """Begin the first pass, or begin again, unless scrubbing is off."""
        if self._period_s > 0:
            self._task.start()

    def problem(self) -> Problem | None:
        """Return why scrubbing has ended; ``None`` while it goes on, or is off."""
        return self._task.problem()

    def stop(self) -> None:
        self._task.stop()

    async def close(self) -> None:
        await self._task.close()

    async def _run(self) -> None:
        await self.heartbeat.sleep(min(_LONGEST_PAUSE_S, self._period_s))  # a start has enough to do
        while True:
            began_s = self._host.loop.time()
            try:
                await self.scrub()
            except (OSError, StoreError) as error:
                _log.warning('scrubbing interrupted namespace=%s error="%s"', self._host.name, error)
                await self.heartbeat.sleep(_RETRY_S)
                continue
            await self.heartbeat.sleep(max(_RETRY_S, began_s + self._period_s - self._host.loop.time()))

    async def scrub(self) -> None:
        """Run one pass. Raises ``OSError`` or ``StoreError`` if the file cannot be read."""
        position: bytes | None = FIRST_KEY
        read_bytes = 0
        pace = ScrubPace(self._period_s, self._host.loop.time())
        while position is not None:
            found = await self.heartbeat.in_thread(scrub_slice, self._data_file, position, _SLICE_BYTES)
            self.records += found.records
            read_bytes += found.size_bytes
            await self._check(found)
            position = found.next_key
            used_bytes = max(self._host.committer.used_bytes, read_bytes, 1)
            self.progress = read_bytes / used_bytes
            if position is not None:
                await self.heartbeat.sleep(pace.pause_s(found.size_bytes / used_bytes, self._host.loop.time()))
        self.passes += 1
        self.progress = 0.0
        self.last_pass_ms = self._host.wall_ms()

    async def _check(self, found: ScrubSlice) -> None:
        """Check suspects again, now that no commit can change a page underneath."""
        await self._host.resumed()  # nothing else may use the store before
        pages = len(self._host.committer.damaged_pages)
        has_damaged_message = False
        for key in found.suspects:
            if key in self._reported or self._check_key(key):
                continue
            self._reported.add(key)
            if key.startswith((RECORD, BODY)):
                has_damaged_message = True
            else:
                self._host.report_damage(**describe(key))
        if has_damaged_message or len(self._host.committer.damaged_pages) > pages:
            await self._inspect()

    def _check_key(self, key: bytes) -> bool:
        """Return whether a record can be read, is gone, or will be checked: everything is, if the file is rebuilt."""
        try:
            return self._host.committer.check_key(key)
        except UnconfinedDamageError:
            return True

    async def _inspect(self) -> None:
        """Read all messages, a few at a time: those that cannot be read are quarantined, with a stub of each."""
        position: tuple[QueueId, int] | None = None
        while True:
            await self._host.resumed()  # nothing else may use the store before
            host = self._host
            position = host.use_namespace().inspect(host.now_ms(), position, _INSPECTED_AT_ONCE)
            if position is None:
                return
            await self.heartbeat.sleep(0)
