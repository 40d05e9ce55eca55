"""The files of a side buffer, for the event loop: one thread waits for the disk, and does one task after the other."""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from pairbus.broker import Address, NewMessage
from pairbus.heartbeat import Heartbeat
from pairbus.store import CommitId
from pairbus.store.quarantine import DAMAGED, BufferQuarantine, QuarantinedRecord
from pairbus.store.segment_log import SEGMENT_BYTES, Damage, LogPosition, SegmentLog, framed_size

_VERSION: Final = b"pairbus\x01"
_LENGTH: Final = struct.Struct("<I")


class BatchFormatError(ValueError):
    """The bytes are not a stored batch."""


class BufferedBatch(NamedTuple):
    """Messages that are accepted together or not at all."""

    entity: str
    accepted_ms: int
    messages: Sequence[NewMessage]
    position: int | None = None
    """The first position of a batch that was moved. It keeps its place in its entity, and both copies count as one."""

    commit: CommitId | None = None
    """The commit that has the messages, too, if it succeeds: then the batch does not count."""


def mark_of(identity: bytes) -> bytes:
    """Return the prefix of every stored batch of a buffer, by which the first batch after damage is found.

    Senders do not know the identity, so they cannot forge a batch in the body of a message.
    """
    return _VERSION + identity


def pack_batch(batch: BufferedBatch, mark: bytes) -> bytes:
    """Serialize a batch: the properties of its messages, then their bodies."""
    rows = [(len(message.body), *message[1:]) for message in batch.messages]
    optional = [batch.position, batch.commit]
    while optional and optional[-1] is None:
        optional.pop()
    head = json.dumps([batch.entity, batch.accepted_ms, rows, *optional], separators=(",", ":")).encode()
    return b"".join((mark, _LENGTH.pack(len(head)), head, *(message.body for message in batch.messages)))


def unpack_batch(content: bytes, mark: bytes) -> BufferedBatch:
    """Deserialize a batch. Raise ``BatchFormatError``."""
    if not content.startswith(mark):
        raise BatchFormatError("not a batch of this side buffer")
    try:
        (length,) = _LENGTH.unpack_from(content, len(mark))
        begin = len(mark) + _LENGTH.size
        head: list[Any] = json.loads(content[begin : begin + length])
        entity, accepted_ms, rows, position, commit = head + [None] * (5 - len(head))
        messages = _messages(rows, content, begin + length)
        return BufferedBatch(entity, accepted_ms, messages, position, None if commit is None else CommitId(*commit))
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise BatchFormatError(f"unreadable batch: {error}") from error


def _messages(rows: list[list[Any]], content: bytes, begin: int) -> list[NewMessage]:
    messages = []
    for size, *rest in rows:
        messages.append(NewMessage(content[begin : begin + size], *rest))
        begin += size
    if begin != len(content):
        raise BatchFormatError(f"expected {begin} bytes, got {len(content)}")
    return messages


QUARANTINE_FILE: Final = "set-aside.jsonl"
MIN_SEGMENTS: Final = 8
"""A segment takes at most this share of the buffer's limit, so that space is freed before all of it is merged."""

T = TypeVar("T")

ReadResult: TypeAlias = BufferedBatch | QuarantinedRecord | OSError
"""A batch; a record for the quarantine, if the batch is damaged; or the error of the disk."""


class BufferEntry(NamedTuple):
    """A batch on disk."""

    position: int
    """Its place among the batches of its entity: the position at which it was stored first."""

    stored: LogPosition
    """The place where it is stored now."""

    size: int
    messages: int
    accepted_ms: int = 0
    commit: CommitId | None = None
    """A commit of this process that has the messages, too, if it succeeds: then the batch does not count."""


class NewBatch(NamedTuple):
    """A serialized batch to store, and what its entry says about it."""

    content: bytes
    messages: int
    accepted_ms: int = 0
    commit: CommitId | None = None


class BufferArchive:
    """Serializes batches and stores them. Failures of the disk raise ``OSError``."""

    def __init__(
        self,
        directory: Path,
        identity: bytes,
        merged: Mapping[str, int],
        max_bytes: int,
        is_committed: Callable[[CommitId], bool | None] = lambda _commit: False,
    ) -> None:
        """``merged`` holds the position up to which batches are in the store, by entity."""
        self._mark = mark_of(identity)
        self._merged = merged
        self._is_committed = is_committed
        self._quarantine = BufferQuarantine(directory / QUARANTINE_FILE)
        first = max([self._quarantine.end, *merged.values()])
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // MIN_SEGMENTS)
        self._segment_log = SegmentLog(directory, self._mark, first, self._segment_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pairbus-side-buffer")
        self._heartbeat = Heartbeat()
        self._probe: Future[None] | None = None
        self._appending = 0
        self.sizes = self._segment_log.sizes
        """Sizes of all segments by their bases, as far as the loop knows; appends go to the last one."""

    @property
    def quarantine_path(self) -> Path:
        return self._quarantine.path

    @property
    def used_bytes(self) -> int:
        return sum(self.sizes.values())

    def idle_segments(self) -> list[int]:
        """Return the bases of the segments without an append in progress."""
        bases = [*self.sizes]
        return bases[:-1] if self._appending else bases

    def complete_segments(self) -> list[int]:
        """Return the bases of the segments that get no more appends."""
        last = next(reversed(self.sizes), None)
        return [base for base in self.idle_segments() if base != last or self.sizes[base] >= self._segment_bytes]

    def pack(self, batch: BufferedBatch) -> bytes:
        return pack_batch(batch, self._mark)

    def recover(self) -> tuple[list[tuple[Address, BufferEntry]], int]:
        """Read all segments at the start, on the caller's thread.

        Return the batches to merge, in order, and how many messages and damaged places were put into quarantine.
        """
        found: dict[int, tuple[Address, BufferEntry]] = {}
        rejected: list[QuarantinedRecord] = []
        for each in self._segment_log.scan():
            if isinstance(each, Damage):
                rejected.append(_damaged(each.position, each.raw))
                continue
            stored, content = each
            batch = self._unpack(stored.position, content)
            if isinstance(batch, QuarantinedRecord):
                rejected.append(batch)
                continue
            position = stored.position if batch.position is None else batch.position
            if position >= self._merged.get(batch.entity, 0) and not self._is_in_store(batch):
                # A batch that was moved replaces the original, which a kill may have left.
                entry = BufferEntry(position, stored, len(content), len(batch.messages), batch.accepted_ms)
                found[position] = Address.of(batch.entity), entry
        quarantined = self._quarantine.add(rejected)
        self.sizes = self._segment_log.sizes
        return [found[position] for position in sorted(found)], quarantined

    def _is_in_store(self, batch: BufferedBatch) -> bool:
        """Return whether the commit of a batch has succeeded, in an earlier process."""
        return batch.commit is not None and bool(self._is_committed(batch.commit))

    async def append(self, batches: Sequence[NewBatch]) -> list[BufferEntry]:
        """Store batches durably, all or none."""
        stored = await self._append([batch.content for batch in batches])
        return [
            BufferEntry(place.position, place, len(batch.content), batch.messages, batch.accepted_ms, batch.commit)
            for place, batch in zip(stored, batches, strict=True)
        ]

    async def read(self, entries: Sequence[BufferEntry]) -> list[ReadResult]:
        positions = [entry.stored.position for entry in entries]
        return await self._run(lambda: [*map(self._read, positions)])

    async def move(self, entries: Sequence[BufferEntry]) -> dict[BufferEntry, BufferEntry]:
        """Append copies of batches, and return the new entries by the old ones. Unreadable batches are left out."""
        results = zip(entries, await self.read(entries), strict=True)
        batches = {entry: batch for entry, batch in results if isinstance(batch, BufferedBatch)}
        contents = [self.pack(batch._replace(position=entry.position)) for entry, batch in batches.items()]
        stored = await self._append(contents) if contents else []
        return {
            entry: entry._replace(stored=place, size=len(content))
            for entry, place, content in zip(batches, stored, contents, strict=True)
        }

    async def quarantine(self, records: Sequence[QuarantinedRecord]) -> int:
        """Store records in the quarantine, and return how many messages or damaged places were new."""
        return await self._run(lambda: self._quarantine.add(records))

    async def delete(self, base: int) -> None:
        await self._run(lambda: self._segment_log.delete(base))
        self.sizes.pop(base, None)

    def delete_now(self, base: int) -> None:
        """Delete a segment at the start, on the caller's thread."""
        self._segment_log.delete(base)
        self.sizes.pop(base, None)

    def close(self, then: Callable[[], object] = lambda: None) -> Future[None]:
        """Close the files after all tasks in progress, then call ``then``."""

        def close_files() -> None:
            self._segment_log.close()
            then()

        future = self._thread.submit(close_files)
        self._thread.shutdown(wait=False)
        return future

    def silent_s(self) -> float:
        """Return for how long the thread has not answered, because its disk does not or it has ended; ask it again."""
        if self._probe is None or self._probe.done():
            self._heartbeat.beat()
            self._probe = self._thread.submit(self._heartbeat.rest)
        return self._heartbeat.silent_s

    async def _run(self, task: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, task)

    async def _append(self, contents: Sequence[bytes]) -> list[LogPosition]:
        """Append frames. Until the caller has their positions, no segment is idle: what it holds is not known yet."""
        self._appending += 1
        loop = asyncio.get_running_loop()
        appending = loop.run_in_executor(self._thread, self._segment_log.append, contents)
        ended = partial(self._appended, framed_size(contents), appending)
        try:
            stored = await asyncio.shield(appending)
        except asyncio.CancelledError:
            appending.add_done_callback(ended)  # it goes on, and counts
            raise
        except BaseException:
            ended()
            raise
        ended()  # in the step in which the caller notes what is stored: else the segment could be deleted before it
        return stored

    def _appended(self, size: int, appending: asyncio.Future[list[LogPosition]], *_: object) -> None:
        self._appending -= 1
        if not appending.cancelled() and appending.exception() is None:
            base = appending.result()[0].base
            self.sizes[base] = self.sizes.get(base, 0) + size

    def _read(self, position: int) -> ReadResult:
        try:
            return self._unpack(position, self._segment_log.read(position))
        except OSError as error:
            return error

    def _unpack(self, position: int, found: bytes | Damage) -> BufferedBatch | QuarantinedRecord:
        if isinstance(found, Damage):
            return _damaged(position, found.raw)
        try:
            return unpack_batch(found, self._mark)
        except BatchFormatError as error:
            return _damaged(position, found, str(error))


def _damaged(position: int, raw: bytes, reason: str = DAMAGED) -> QuarantinedRecord:
    return QuarantinedRecord(position, reason, {DAMAGED: b64encode(raw).decode()})


def quarantined_batch(position: int, reason: str, batch: BufferedBatch) -> QuarantinedRecord:
    """Return the quarantine record of a readable batch."""
    messages = [
        {
            "message_id": message.message_id,
            "session_id": message.session_id,
            "body": b64encode(message.body).decode(),
        }
        for message in batch.messages
    ]
    content = {"entity": batch.entity, "accepted_ms": batch.accepted_ms, "messages": messages}
    return QuarantinedRecord(position, reason, content, len(messages))
