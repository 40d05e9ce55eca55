"""The side buffer of a namespace, and its metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pairbus.backoff import Backoff
from pairbus.broker import Address
from pairbus.heartbeat import Heartbeat
from pairbus.server.settings import SettingsError
from pairbus.server.side_buffer.archive import BufferArchive
from pairbus.server.side_buffer.compactor import RateLimitedLog, SegmentCompactor
from pairbus.server.side_buffer.entity_buffers import BufferCounts, EntityBuffers
from pairbus.server.side_buffer.replayer import MERGE_BACKOFF, BufferMerge, Replayer
from pairbus.server.side_buffer.writer import BufferWriter, MergeTarget
from pairbus.server.supervision.supervisor import Problem, SupervisedTask
from pairbus.store import BufferOwnerError, StoreFailedError
from pairbus.store.buffer_directory import BufferDirectory

_log = logging.getLogger(__name__)

MERGE_WITHIN_S: Final = 15 * 60.0
"""Time within which a message has to be merged; after it, the buffer raises an alarm."""

_CHECK_S: Final = 5.0
"""Interval of checks whether a message is overdue."""


def warn_of_unset_buffer(target: MergeTarget) -> None:
    """Log a warning if a namespace without a side buffer has had one: its messages are not merged now."""
    if any(target.merged(b"").values()):
        _log.warning(
            "side buffer unset, confirmed messages may be left in it"
            ' action="set side_buffer to its directory until pairbus_side_buffer_messages is 0"'
        )


class SideBuffer:
    """An open side buffer. It belongs to the event loop; a thread waits for the disk."""

    def __init__(self, directory: BufferDirectory, target: MergeTarget, max_bytes: int, backoff: Backoff) -> None:
        """Use ``open`` to create an instance."""
        self.counts = BufferCounts()
        self._directory = directory
        self._buffers = EntityBuffers()
        identity = directory.identity
        self._archive = BufferArchive(directory.path, identity, target.merged(identity), max_bytes, target.is_committed)
        errors = RateLimitedLog()
        self._compactor = SegmentCompactor(self._archive, self._buffers, errors)
        self.writer = BufferWriter(
            self._archive, self._compactor, target, self._buffers, self.counts, str(directory.path), max_bytes
        )
        merge = BufferMerge(identity, self._archive, target, self._buffers, self.writer, self.counts, errors)
        self.replayer = Replayer(
            identity, target, self._buffers, self.writer, merge, self._compactor, self.counts, backoff
        )
        self._replaying = SupervisedTask("pairbus-side-buffer", self.replayer.run, self.replayer.heartbeat)
        self._target = target
        self.merge_within_s = MERGE_WITHIN_S
        self._is_overdue = False
        self._check: asyncio.TimerHandle | None = None
        self._recover()
        self._compactor.delete_unneeded_now()

    @classmethod
    def open(cls, path: Path, name: str, target: MergeTarget, max_bytes: int, backoff: Backoff = MERGE_BACKOFF) -> Self:
        """Open the side buffer of a namespace, and recover its content. Raise ``StoreError`` or ``SettingsError``."""
        try:
            directory = BufferDirectory.open(path, name)
        except BufferOwnerError as error:
            raise SettingsError(f"side_buffer: {error}") from error
        try:
            return cls(directory, target, max_bytes, backoff)
        except OSError as error:
            directory.close()
            raise StoreFailedError(str(path), str(error)) from error
        except BaseException:
            directory.close()
            raise

    def _recover(self) -> None:
        found, self.counts.set_aside = self._archive.recover()
        for address, entry in found:
            self._buffers.add(address, entry)
            self.counts.held += entry.messages
        if self.counts.set_aside:
            _log.error(
                "side buffer damaged, places quarantined that may have been confirmed places=%d path=%s",
                self.counts.set_aside,
                self._archive.quarantine_path,
            )
        if self._buffers:
            _log.warning("merging side buffer messages=%d path=%s", self.counts.held, self._directory.path)

    def start(self) -> None:
        """Start to merge, or start it again."""
        self._replaying.start()
        self._stop_check()
        self._check = self._target.loop.call_later(_CHECK_S, self.check_overdue)

    def _stop_check(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def problem(self) -> Problem | None:
        """Return why merging has ended; ``None`` while it goes on."""
        return self._replaying.problem()

    @property
    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of the task that merges."""
        return self._replaying.heartbeat

    def disk_silent_s(self) -> float:
        """Return for how long the thread that waits for the disk has not answered, and ask it again."""
        return self._archive.silent_s()

    def stop(self) -> None:
        """Merge no more: sends are still buffered, and stay in the buffer."""
        self._replaying.stop()

    @property
    def oldest_s(self) -> float:
        """Return for how long the oldest message has been waiting to be merged; 0 if there is none."""
        oldest_ms = self._buffers.oldest_ms()
        return 0.0 if oldest_ms is None else max(0.0, (self._target.now_ms() - oldest_ms) / 1_000)

    @property
    def overdue_s(self) -> float | None:
        """Return for how long the oldest message has been waiting, if that is too long; else ``None``."""
        oldest_s = self.oldest_s
        return oldest_s if oldest_s > self.merge_within_s else None

    def check_overdue(self) -> None:
        """Log once that messages are overdue, and once that they are not any more; check again in a while."""
        overdue_s = self.overdue_s
        if overdue_s is not None and not self._is_overdue:
            _log.error(
                "side buffer overdue messages=%d oldest_seconds=%.0f path=%s",
                self.counts.held,
                overdue_s,
                self._directory.path,
            )
        elif overdue_s is None and self._is_overdue:
            _log.warning("side buffer no longer overdue messages=%d path=%s", self.counts.held, self._directory.path)
        self._is_overdue = overdue_s is not None
        if self._check is not None:
            self._check.cancel()
            self._check = self._target.loop.call_later(_CHECK_S, self.check_overdue)

    def holds(self, address: Address) -> bool:
        """Return whether sends to an entity have to be buffered, behind what is there."""
        return address in self._buffers

    @property
    def is_stalled(self) -> bool:
        """Return whether the disk of the buffer does not answer."""
        return self.writer.is_stalled

    @property
    def used_bytes(self) -> int:
        return self._archive.used_bytes

    async def close(self, within_s: float | None = None) -> None:
        """Wait for the writes in progress; buffered messages stay in the buffer.

        Raise ``TimeoutError`` if the disk does not answer in time. The directory stays locked until it does.
        """
        self._stop_check()
        if (problem := self._replaying.problem()) is not None:
            _log.error("side buffer merge had ended messages=%d", self.counts.held, exc_info=problem.error)
        await self._replaying.close()
        async with asyncio.timeout(within_s):
            try:
                await self.writer.close()
                await self._compactor.close()
            finally:
                closed = asyncio.wrap_future(self._archive.close(self._directory.close))
            await asyncio.shield(closed)


class SideBufferMetrics(Collector):
    """Metrics of a side buffer, read on demand."""

    def __init__(self, counts: BufferCounts, oldest_s: Callable[[], float] = float) -> None:
        self._counts = counts
        self._oldest_s = oldest_s

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield GaugeMetricFamily(
            "pairbus_side_buffer_oldest_seconds",
            "Age of the oldest message in the side buffer that is not merged yet",
            value=self._oldest_s(),
        )
        yield GaugeMetricFamily(
            "pairbus_side_buffer_messages", "Messages in the side buffer that are not merged yet", value=counts.held
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_taken", "Messages taken into the side buffer instead of the store", value=counts.taken
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_merged", "Messages merged from the side buffer into the store", value=counts.merged
        )
        yield CounterMetricFamily(
            "pairbus_side_buffer_set_aside",
            "Messages of the side buffer that could not be merged, and damaged places in it",
            value=counts.set_aside,
        )
