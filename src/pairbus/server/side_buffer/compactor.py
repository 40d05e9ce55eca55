"""Frees the disk space of merged batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pairbus.background_tasks import BackgroundTasks
from pairbus.server.side_buffer.archive import BufferArchive
from pairbus.server.side_buffer.entity_buffers import EntityBuffers, first_of

_log = logging.getLogger(__name__)

_COMPACT_BELOW: Final = 4
"""A segment is compacted once a fourth of it or less is needed: moving that costs little, and frees much."""

_DELETE: Final = "delete"
_COMPACT: Final = "compact"


class RateLimitedLog:
    """Logs the error of each subject when it changes, and not each time that it occurs."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def error(self, subject: str, line: str, *facts: object, cause: BaseException | None = None) -> None:
        """Log a line with its facts, unless it was the last one of its subject; with the traceback of ``cause``."""
        text = line % facts
        if self._last.get(subject) != text:
            self._last[subject] = text
            _log.error(line, *facts, exc_info=cause)

    def resolve(self, subject: str) -> None:
        """Forget the error of a subject: the next one is logged again."""
        self._last.pop(subject, None)


class SegmentCompactor:
    """Deletes the segments without unmerged batches, and compacts those with few."""

    def __init__(self, archive: BufferArchive, buffers: EntityBuffers, errors: RateLimitedLog) -> None:
        self._archive = archive
        self._buffers = buffers
        self._errors = errors
        self._tasks = BackgroundTasks("side buffer compactor")
        self._deleting: asyncio.Task[None] | None = None
        self.on_step: Callable[[], object] = lambda: None
        """Called between the steps of a compaction."""

    @property
    def unneeded_bytes(self) -> int:
        """Return the size of the segments that can be deleted."""
        return sum(self._archive.sizes[base] for base in self._unneeded())

    def delete_unneeded_now(self) -> None:
        """Delete segments at the start: a kill may have come between a commit and the deletion."""
        try:
            for base in self._unneeded():
                self._archive.delete_now(base)
        except OSError as error:
            self._report(error)

    def delete_unneeded_soon(self) -> None:
        if self._deleting is None or self._deleting.done():
            self._deleting = self._tasks.start(self.delete_unneeded())

    async def delete_unneeded(self) -> None:
        try:
            # Computed again each time: while one segment is being deleted, an append may reach the next one.
            while unneeded := self._unneeded():
                await self._archive.delete(unneeded[0])
                self._buffers.forget(unneeded[0])
        except OSError as error:
            self._report(error)
        else:
            self._errors.resolve(_DELETE)

    async def compact(self) -> None:
        """Append copies of the few batches that are needed of a segment, and delete the segment.

        A kill between the two leaves both: a copy states the position of its original, so they count as one.
        """
        await self.delete_unneeded()
        try:
            for base in self._mostly_merged():
                await self._move_batches(base)
        except OSError as error:
            self._errors.error(_COMPACT, 'side buffer compaction failed error="%s"', error)
        else:
            self._errors.resolve(_COMPACT)
        await self.delete_unneeded()

    async def close(self) -> None:
        await self._tasks.close()

    def _unneeded(self) -> list[int]:
        return [base for base in self._archive.idle_segments() if self._buffers.needed_bytes(base) <= 0]

    def _mostly_merged(self) -> list[int]:
        return [
            base
            for base in self._archive.complete_segments()
            if 0 < self._buffers.needed_bytes(base) * _COMPACT_BELOW <= self._archive.sizes[base]
        ]

    async def _move_batches(self, base: int) -> None:
        entries = self._buffers.in_segment(base)
        while entries:
            self.on_step()
            first = first_of(entries)
            self._buffers.replace(await self._archive.move(first))
            entries = entries[len(first) :]

    def _report(self, error: OSError) -> None:
        self._errors.error(_DELETE, 'side buffer segment not deleted error="%s"', error)
