"""Merges a side buffer into the store: in order, entity by entity, for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

from pairbus.backoff import Backoff
from pairbus.broker import Address, BrokerError, EntityDisabledError, EntityNotFoundError, QuotaExceededError
from pairbus.heartbeat import Heartbeat
from pairbus.server.side_buffer.archive import BufferArchive, BufferedBatch, BufferEntry, ReadResult, quarantined_batch
from pairbus.server.side_buffer.compactor import RateLimitedLog, SegmentCompactor
from pairbus.server.side_buffer.entity_buffers import (
    BATCHES_PER_COMMIT,
    BYTES_PER_COMMIT,
    BufferCounts,
    EntityBuffer,
    EntityBuffers,
    EntityBufferState,
    Transition,
)
from pairbus.server.side_buffer.writer import BufferWriter, MergeTarget
from pairbus.store import StoreError, StoreFullError
from pairbus.store.quarantine import QuarantinedRecord

_log = logging.getLogger(__name__)

NEARLY_EMPTY_BATCHES: Final = 2_000
"""Number of batches that are merged so soon that new sends can wait for it."""

_MAX_PASSES: Final = 100
"""Passes over all entities before a round ends: then entities that were blocked are tried again."""

_RETRIED_ERRORS: Final = (EntityDisabledError, QuotaExceededError, StoreFullError)
"""Errors that an operator or a receiver can resolve. A smaller batch may succeed all the same."""


class Obstacle(Enum):
    STORE = auto()
    """The store accepts no writes, from any entity."""

    ENTITY = auto()
    """The entity is blocked for now; others may not be."""


class MergeResult(NamedTuple):
    """Outcome of sending batches of an entity: the number that the broker has accepted, and why it stopped."""

    accepted: int
    obstacle: Obstacle | None = None
    rejected: Sequence[QuarantinedRecord] = ()
    """The batches after them that can never be merged."""


class BufferMerge:
    """Merges batches of several entities with one commit.

    A batch leaves the buffer of its entity in the step in which it is sent, and returns there if the commit fails.
    """

    def __init__(
        self,
        identity: bytes,
        archive: BufferArchive,
        target: MergeTarget,
        buffers: EntityBuffers,
        writer: BufferWriter,
        counts: BufferCounts,
        errors: RateLimitedLog,
    ) -> None:
        self._identity = identity
        self._archive = archive
        self._target = target
        self._buffers = buffers
        self._writer = writer
        self._counts = counts
        self._errors = errors

    async def merge(self, buffers: Sequence[EntityBuffer]) -> Mapping[EntityBuffer, Obstacle]:
        """Merge the first batches of each buffer with one commit, and return what has blocked which of them."""
        batches = [(buffer, buffer.first()) for buffer in buffers]
        for buffer in buffers:
            if len(buffer.entries) <= NEARLY_EMPTY_BATCHES:
                buffer.move_to(Transition.NEARLY_EMPTY)
        found = iter(await self._archive.read([entry for _, entries in batches for entry in entries]))
        # There is no await from here on, so that one commit has all of it.
        results: dict[EntityBuffer, MergeResult] = {}
        outcomes: list[asyncio.Future[bool]] = []
        for buffer, entries in batches:
            results[buffer] = self._send(buffer, entries, [*islice(found, len(entries))])
            outcomes.append(self._take(buffer, results[buffer].accepted, is_merged=True))
            self._update_state(buffer, results[buffer])
            if results[buffer].obstacle is Obstacle.STORE:
                break
        are_durable = [await outcome for outcome in outcomes]
        if not all(are_durable):
            return dict.fromkeys(buffers, Obstacle.STORE)
        obstacles = {buffer: result.obstacle for buffer, result in results.items() if result.obstacle is not None}
        return obstacles | await self._quarantine(
            {buffer: result.rejected for buffer, result in results.items() if result.rejected}
        )

    def block(self, buffer: EntityBuffer) -> None:
        """Let a closing buffer hold sends again: those that wait are written to it."""
        if buffer.state is EntityBufferState.CLOSING:
            buffer.move_to(Transition.BLOCKED)
            self._writer.resume(buffer)

    # To the broker

    def _send(self, buffer: EntityBuffer, entries: Sequence[BufferEntry], found: Sequence[ReadResult]) -> MergeResult:
        """Send batches as if they arrived now. After any error, return how many were sent: none may be sent twice."""
        now_ms = self._target.now_ms()
        for count, (entry, batch) in enumerate(zip(entries, found, strict=True)):
            is_in_store = self._is_in_store(entry)
            if is_in_store is None:
                return MergeResult(count, Obstacle.STORE)
            if is_in_store:
                continue
            if isinstance(batch, OSError):
                return self._blocked(buffer, count, "read", batch)
            if isinstance(batch, QuarantinedRecord):
                return MergeResult(count, rejected=[batch])
            try:
                self._target.use_namespace().send(buffer.address, batch.messages, now_ms)
            except _RETRIED_ERRORS:
                return MergeResult(count, Obstacle.ENTITY)
            except StoreError:
                return MergeResult(count, Obstacle.STORE)
            except BrokerError as error:
                # If the entity was deleted, none of its batches can be merged.
                rest = slice(count, None if isinstance(error, EntityNotFoundError) else count + 1)
                return MergeResult(count, rejected=_rejected(entries[rest], found[rest], str(error)))
            except Exception as error:  # noqa: BLE001 (a defect must not block the other entities)
                return self._blocked(buffer, count, "merge", error, has_traceback=True)
        self._errors.resolve(_subject(buffer))
        return MergeResult(len(found))

    def _blocked(
        self, buffer: EntityBuffer, count: int, step: str, error: Exception, *, has_traceback: bool = False
    ) -> MergeResult:
        line, reason = f'side buffer {step} failed entity=%s error="%s"', str(error) or repr(error)
        self._errors.error(_subject(buffer), line, buffer.address, reason, cause=error if has_traceback else None)
        return MergeResult(count, Obstacle.ENTITY)

    def _take(self, buffer: EntityBuffer, count: int, *, is_merged: bool) -> asyncio.Future[bool]:
        """Remove batches, and store that with the same commit. The result of the future is whether it is durable."""
        entries = buffer.take(count)
        if entries:
            self._target.put_merged(self._identity, buffer.address.entity, entries[-1].position + 1)

        def done(error: StoreError | None) -> None:
            if error is None:
                self._discard(entries, is_merged=is_merged)
            elif entries:
                self._put_back(buffer.address, entries)

        return outcome_of(self._target, self._target.when_durable, done)

    def _is_in_store(self, entry: BufferEntry) -> bool | None:
        """Return whether a batch does not count, because its commit was late and has succeeded; ``None`` if unknown."""
        return False if entry.commit is None else self._target.is_committed(entry.commit)

    def _discard(self, entries: Sequence[BufferEntry], *, is_merged: bool) -> None:
        self._buffers.discard(entries)
        self._counts.held -= sum(entry.messages for entry in entries)
        if is_merged:
            self._counts.merged += sum(entry.messages for entry in entries if not self._is_in_store(entry))

    def _put_back(self, address: Address, entries: Sequence[BufferEntry]) -> None:
        """Put batches back whose commit has failed: they are nowhere else."""
        buffer = self._buffers.get(address)
        buffer.put_back(entries)
        self.block(buffer)

    def _update_state(self, buffer: EntityBuffer, result: MergeResult) -> None:
        if result.obstacle is not None:
            self.block(buffer)
        elif not result.rejected:
            self._release_if_empty(buffer)

    def _release_if_empty(self, buffer: EntityBuffer) -> None:
        if buffer.state is EntityBufferState.CLOSING and not buffer.entries and not buffer.writing:
            buffer.move_to(Transition.EMPTIED)
            self._writer.release(buffer)

    # To the quarantine

    async def _quarantine(
        self, rejected: Mapping[EntityBuffer, Sequence[QuarantinedRecord]]
    ) -> dict[EntityBuffer, Obstacle]:
        """Move batches that can never be merged to the quarantine."""
        if not rejected:
            return {}
        try:
            self._counts.set_aside += await self._archive.quarantine(
                [record for records in rejected.values() for record in records]
            )
        except OSError as error:
            for buffer in rejected:
                self._blocked(buffer, 0, "quarantine", error)
                self.block(buffer)
            return dict.fromkeys(rejected, Obstacle.ENTITY)
        outcomes: list[asyncio.Future[bool]] = []
        for buffer, records in rejected.items():
            self._log_quarantined(buffer, records)
            outcomes.append(self._take(buffer, len(records), is_merged=False))
            self._release_if_empty(buffer)
        are_durable = [await outcome for outcome in outcomes]
        return {} if all(are_durable) else dict.fromkeys(rejected, Obstacle.STORE)

    def _log_quarantined(self, buffer: EntityBuffer, records: Sequence[QuarantinedRecord]) -> None:
        self._errors.resolve(_subject(buffer))
        _log.error(
            'side buffer messages quarantined entity=%s messages=%d path=%s reason="%s"',
            buffer.address,
            sum(record.messages for record in records),
            self._archive.quarantine_path,
            records[0].reason,
        )


def outcome_of(
    target: MergeTarget,
    request: Callable[[Callable[[StoreError | None], object]], object],
    done: Callable[[StoreError | None], object],
) -> asyncio.Future[bool]:
    """Return a future with the success of a request; ``done`` is called before any waiter runs."""
    succeeded: asyncio.Future[bool] = target.loop.create_future()

    def finish(error: StoreError | None) -> None:
        done(error)
        if not succeeded.done():  # else the waiting task was cancelled
            succeeded.set_result(error is None)

    request(finish)
    return succeeded


def _subject(buffer: EntityBuffer) -> str:
    return f"entity {buffer.address}"


def _rejected(entries: Sequence[BufferEntry], found: Sequence[ReadResult], reason: str) -> list[QuarantinedRecord]:
    """Return the records of all batches, up to one that cannot be read now."""
    records: list[QuarantinedRecord] = []
    for entry, batch in zip(entries, found, strict=True):
        if isinstance(batch, OSError):
            break
        if isinstance(batch, BufferedBatch):
            batch = quarantined_batch(entry.position, reason, batch)  # noqa: PLW2901
        records.append(batch)
    return records


# The task


MERGE_BACKOFF: Final = Backoff(1.0, 60.0)
"""Delays before the next round; doubled after rounds that merged nothing."""


class Replayer:
    """Merges all entities in rounds, in one task."""

    def __init__(
        self,
        identity: bytes,
        target: MergeTarget,
        buffers: EntityBuffers,
        writer: BufferWriter,
        merge: BufferMerge,
        compactor: SegmentCompactor,
        counts: BufferCounts,
        backoff: Backoff,
    ) -> None:
        self._identity = identity
        self._target = target
        self._buffers = buffers
        self._merge = merge
        self._compactor = compactor
        self._counts = counts
        self._backoff = backoff
        self._rounds = 0
        self.heartbeat = Heartbeat()
        compactor.on_step = self.heartbeat.beat
        self._changed = asyncio.Event()
        self._hurried = asyncio.Event()
        self.crash_point: Callable[[], object] = lambda: None
        """Called before each round; an injected fault raises here."""
        writer.changed = self._changed.set

    async def run(self) -> None:
        """Merge whenever the buffer holds something, and pause after a round without progress."""
        pause_s = 0.0 if self._buffers else self._backoff.first_s  # batches found at the start have waited long enough
        while True:
            while not self._buffers:
                await self._wait_for_change()
            await self._pause(pause_s)
            self.heartbeat.beat()
            self.crash_point()
            merged = self._counts.merged
            for step in (self._run_round, self._compactor.compact):
                try:
                    await step()
                except Exception:  # noqa: BLE001 (after any error, the buffer must be merged all the same)
                    _log.exception("side buffer merge failed")
            has_progress = self._counts.merged > merged or not self._buffers
            pause_s = self._backoff.first_s if has_progress else self._backoff.after(pause_s)

    def hurry(self) -> None:
        """End the current pause: the store may work again."""
        self._hurried.set()

    async def _pause(self, pause_s: float) -> None:
        self.heartbeat.beat(pause_s)
        self._hurried.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurried.wait()

    async def _run_round(self) -> None:
        if await self._is_store_writable():
            await self._merge_all()

    async def _wait_for_change(self) -> None:
        self.heartbeat.rest()
        self._changed.clear()
        await self._changed.wait()
        self.heartbeat.beat()

    async def _is_store_writable(self) -> bool:
        """Probe the store first: else receivers would see messages that are undone, round after round."""
        return await outcome_of(
            self._target,
            lambda done: self._target.probe(self._identity, done),
            lambda _error: None,  # the namespace logs the trouble of its storage
        )

    async def _merge_all(self) -> None:
        """Merge some batches of each entity in turn, until none is left that can be merged.

        Each round starts with another entity, so that scarce room does not always go to the same one.
        """
        self._rounds += 1
        blocked: set[EntityBuffer] = set()
        try:
            for _ in range(_MAX_PASSES):
                ready = [buffer for buffer in self._buffers.rotated(self._rounds) if _is_ready(buffer, blocked)]
                if not ready:
                    return
                for group in self._groups(ready):
                    if not await self._merge_group(group, blocked):
                        return
                    await self._compactor.delete_unneeded()
        finally:
            for buffer in self._buffers:
                self._merge.block(buffer)
                self._buffers.remove_if_empty(buffer)

    def _groups(self, buffers: Iterable[EntityBuffer]) -> Iterator[Sequence[EntityBuffer]]:
        """Yield buffers to merge with one commit: enough to fill it; the last of them may exceed that."""
        group: list[EntityBuffer] = []
        count = size = 0
        for buffer in filter(self._buffers.is_current, buffers):
            count += len(buffer.entries)
            size += sum(entry.size for entry in buffer.first())
            group.append(buffer)
            if count >= BATCHES_PER_COMMIT or size >= BYTES_PER_COMMIT:
                yield group
                group, count, size = [], 0, 0
        if group:
            yield group

    async def _merge_group(self, group: Iterable[EntityBuffer], blocked: set[EntityBuffer]) -> bool:
        """Merge some batches of a group, and all of those that are closing, since sends wait for them.

        Return whether the store accepts writes.
        """
        while buffers := [each for each in group if self._buffers.is_current(each) and _is_ready(each, blocked)]:
            if all(buffer.writing and not buffer.entries for buffer in buffers):
                await self._wait_for_change()
                continue
            self.heartbeat.beat()
            obstacles = await self._merge.merge(buffers)
            if Obstacle.STORE in obstacles.values():
                return False
            blocked.update(obstacles)
            group = [buffer for buffer in buffers if buffer.state is EntityBufferState.CLOSING]
        return True


def _is_ready(buffer: EntityBuffer, blocked: set[EntityBuffer]) -> bool:
    return buffer not in blocked and (bool(buffer.entries) or buffer.state is EntityBufferState.CLOSING)
