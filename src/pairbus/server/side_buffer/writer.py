"""Writes sends to a side buffer, and lets them pass to the broker once the buffer of their entity is empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from pairbus.broker import Address, BrokerError, Namespace, NewMessage
from pairbus.server.side_buffer.archive import BufferArchive, BufferedBatch, NewBatch
from pairbus.server.side_buffer.compactor import SegmentCompactor
from pairbus.server.side_buffer.entity_buffers import (
    BufferCounts,
    EntityBuffer,
    EntityBuffers,
    EntityBufferState,
    PendingSend,
    Transition,
)
from pairbus.store import CommitId, CommitInDoubtError, StoreError, StoreFailedError, StoreFullError, StoreStalledError
from pairbus.store.datafile import NO_SPACE
from pairbus.store.segment_log import framed_size

_log = logging.getLogger(__name__)

Done = Callable[[Exception | None], object]
"""Called once messages are durable, in the buffer or in the store, or with the error."""

OVERDUE_S: Final = 2.0
"""Default time that a write may take before the disk of the buffer counts as stalled."""

TRANSIENT_ERRORS: Final = (StoreFullError, StoreFailedError)
"""Errors of the store that may pass: the send is buffered. All others are returned to the sender."""


def _wait() -> None:
    """Do nothing about an overdue write, but wait for its end."""


class MergeTarget(Protocol):
    """The namespace beside a side buffer: its broker, its clock, and how far its store has merged the buffer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def is_stalled(self) -> bool:
        """Return whether the store does not answer: sends do not wait for earlier writes then."""

    def use_namespace(self) -> Namespace:
        """Return the broker for an operation, which is committed soon."""

    def now_ms(self) -> int: ...

    def when_durable(
        self, done: Callable[[StoreError | None], object], overdue: Callable[[CommitId], object] | None = None
    ) -> None:
        """Call ``done`` once everything written so far is durable, or with the error; ``overdue`` if it stalls."""

    def is_committed(self, commit: CommitId) -> bool | None:
        """Return whether a commit has succeeded; ``None`` while that is unknown."""

    def probe(self, identity: bytes, done: Callable[[StoreError | None], object]) -> None:
        """Call ``done`` with ``None`` if the store can be written, else with the error. A failure undoes nothing."""

    def merged(self, identity: bytes) -> Mapping[str, int]:
        """Return the position up to which a buffer was merged into the store, by entity."""

    def put_merged(self, identity: bytes, entity: str, position: int) -> None:
        """Store that position with the commit that holds the messages."""


class BufferWriter:
    """Writes sends in groups: one fsync serves all that have arrived meanwhile."""

    def __init__(
        self,
        archive: BufferArchive,
        compactor: SegmentCompactor,
        target: MergeTarget,
        buffers: EntityBuffers,
        counts: BufferCounts,
        path: str,
        max_bytes: int,
    ) -> None:
        self._archive = archive
        self._compactor = compactor
        self._target = target
        self._buffers = buffers
        self._counts = counts
        self._path = path
        self._max_bytes = max_bytes
        self._pending: list[PendingSend] = []
        self._pending_bytes = 0
        """Size on disk of all sends that wait or are being written."""

        self._writing: asyncio.Task[None] | None = None
        self.overdue_s = OVERDUE_S
        self._watchdog: asyncio.TimerHandle | None = None
        self.is_stalled = False
        """True if a write is overdue: sends are refused until the disk answers."""

        self._has_failed = False
        self._rejected_bytes: int | None = None
        """Size of the last send that was rejected for lack of space."""

        self._is_closed = False
        self.changed: Callable[[], object] = lambda: None
        """Called when there is something to merge, or fewer sends are being written."""

    def is_quiet(self) -> bool:
        """Return whether no send is being written, or waits for the buffer or the broker."""
        return self._writing is None and not self._pending and not any(buffer.arrivals for buffer in self._buffers)

    def takes_sends(self) -> bool:
        """Return whether the last send was not rejected, or would not be rejected again for lack of space."""
        if self._rejected_bytes is not None and self._has_room(self._rejected_bytes):
            self._rejected_bytes = None
        return self._rejected_bytes is None and not self._has_failed and not self.is_stalled

    async def close(self) -> None:
        """Reject new sends, and wait until the others are on disk or rejected."""
        self._is_closed = True
        try:
            while self._writing is not None:
                await asyncio.wait([self._writing])
        except asyncio.CancelledError:
            self._pending.clear()  # these were not confirmed, and the files are closed after the current write
            raise

    def divert(
        self,
        address: Address,
        messages: Sequence[NewMessage],
        done: Done,
        cause: StoreError | None,
        overdue: Callable[[], object] = _wait,
    ) -> None:
        """Buffer a send after all earlier writes to the store: those that fail are buffered before it.

        While the store does not answer, the earlier ones are in the buffer already.
        """
        send = self._pending_send(address, messages, done, cause, overdue)
        if send is None:
            return
        buffer = self._buffers.get(address)
        buffer.arrivals.append(send)
        if self._target.is_stalled:
            self._stop_waiting(buffer)
        elif buffer.state is EntityBufferState.CLOSING:
            send.is_ready = True  # no earlier send can reach the buffer now
        else:
            self._target.when_durable(lambda _error: self._set_ready(buffer, send))

    def rescue(
        self,
        address: Address,
        messages: Sequence[NewMessage],
        done: Done,
        cause: StoreError,
        overdue: Callable[[], object] = _wait,
    ) -> None:
        """Buffer a send whose commit has failed, before all sends that wait for its outcome.

        If it is not known whether it has failed, the send counts only if it has.
        """
        commit = cause.commit if isinstance(cause, CommitInDoubtError) else None
        send = self._pending_send(address, messages, done, cause, overdue, commit)
        if send is not None:
            self._enqueue(self._buffers.get(address), send)
            self._write()

    def copy(
        self,
        address: Address,
        messages: Sequence[NewMessage],
        done: Done,
        commit: CommitId,
        overdue: Callable[[], object] = _wait,
    ) -> None:
        """Buffer a send whose commit is overdue; it counts only if that commit fails."""
        send = self._pending_send(address, messages, done, None, overdue, commit)
        if send is not None:
            self._enqueue(self._buffers.get(address), send)
            self._write()

    def stop_waiting(self) -> None:
        """Write all sends that wait for earlier ones: the store does not answer, and copies of those are written."""
        for buffer in self._buffers:
            self._stop_waiting(buffer)

    def _stop_waiting(self, buffer: EntityBuffer) -> None:
        if buffer.state is EntityBufferState.CLOSING:
            buffer.move_to(Transition.BLOCKED)
        for send in buffer.arrivals:
            send.is_ready = True
        self.resume(buffer)

    def resume(self, buffer: EntityBuffer) -> None:
        """Write the sends that wait, if the buffer of their entity holds sends (again)."""
        while (send := buffer.pop_ready()) is not None:
            self._enqueue(buffer, send)
        self._write()

    def release(self, buffer: EntityBuffer) -> None:
        """Pass the sends that wait to the broker, in order: the buffer of their entity is open."""
        self._buffers.remove(buffer.address)
        while buffer.arrivals:
            send = buffer.arrivals.popleft()
            self._pending_bytes -= framed_size([send.content])
            self._send(send)

    def _pending_send(
        self,
        address: Address,
        messages: Sequence[NewMessage],
        done: Done,
        cause: StoreError | None,
        overdue: Callable[[], object],
        commit: CommitId | None = None,
    ) -> PendingSend | None:
        """Return the send, or call ``done`` with an error and return ``None`` if it cannot be buffered."""
        if self._is_closed:
            done(cause or StoreFailedError(self._path, "the server is stopping"))
            return None
        if self.is_stalled:
            done(cause or StoreStalledError(self._path))
            return None
        now_ms = self._target.now_ms()
        content = self._archive.pack(BufferedBatch(address.entity, now_ms, messages, commit=commit))
        size = framed_size([content])
        if not self._has_room(size):
            self._rejected_bytes = size
            done(
                cause or StoreFullError(self._path, f"the side buffer has reached its limit of {self._max_bytes} bytes")
            )
            return None
        self._pending_bytes += size
        return PendingSend(
            address=address,
            messages=messages,
            done=done,
            cause=cause,
            content=content,
            accepted_ms=now_ms,
            commit=commit,
            overdue=overdue,
            is_ready=False,
        )

    def _has_room(self, size: int) -> bool:
        """Return whether a send fits. Merged segments do not count, up to the limit: deleting them may fail."""
        used = self._archive.used_bytes + self._pending_bytes + size
        if used <= self._max_bytes:
            return True
        unneeded = self._compactor.unneeded_bytes
        if unneeded:
            self._compactor.delete_unneeded_soon()
        return used - min(unneeded, self._max_bytes) <= self._max_bytes

    def _set_ready(self, buffer: EntityBuffer, send: PendingSend) -> None:
        send.is_ready = True
        if self._buffers.is_current(buffer):
            self.resume(buffer)

    def _enqueue(self, buffer: EntityBuffer, send: PendingSend) -> None:
        buffer.writing += 1
        self._pending.append(send)

    def _finish(self, buffer: EntityBuffer, send: PendingSend) -> None:
        buffer.writing -= 1
        self._pending_bytes -= framed_size([send.content])

    # Writing

    def _write(self) -> None:
        if self.is_stalled:
            self._reject_pending()
        if self._writing is None and self._pending:
            group, self._pending = self._pending, []
            self._writing = self._target.loop.create_task(self._write_group(group))
            self._writing.add_done_callback(self._written)
            self._watchdog = self._target.loop.call_later(self.overdue_s, self._stall, group)

    def _stall(self, group: Sequence[PendingSend]) -> None:
        """Refuse sends: the disk of the buffer does not answer. Those being written are in doubt until it does."""
        self.is_stalled = True
        _log.error('side buffer stalled path=%s consequence="sends are refused"', self._path)
        for send in group:
            send.overdue()
        self._reject_pending()

    def _reject_pending(self) -> None:
        """Reject the sends of which nothing was written yet."""
        pending, self._pending = self._pending, []
        self._reject(pending, StoreStalledError(self._path))

    async def _write_group(self, group: Sequence[PendingSend]) -> None:
        try:
            entries = await self._archive.append(
                [NewBatch(send.content, len(send.messages), send.accepted_ms, send.commit) for send in group]
            )
        except OSError as error:
            self._fail(group, error)
            return
        self._has_failed = False
        for send, entry in zip(group, entries, strict=True):
            self._finish(self._buffers.get(send.address), send)
            self._buffers.add(send.address, entry)
            self._counts.held += entry.messages
            self._counts.taken += entry.messages
        for send in group:
            send.done(None)

    def _fail(self, group: Sequence[PendingSend], error: OSError) -> None:
        if not self._has_failed:
            _log.error('side buffer write failed path=%s error="%s"', self._path, error)
        self._has_failed = True
        kind = StoreFullError if error.errno in NO_SPACE else StoreFailedError
        self._reject(group, kind(self._path, str(error)))

    def _reject(self, group: Sequence[PendingSend], error: StoreError) -> None:
        for send in group:
            buffer = self._buffers.get(send.address)
            self._finish(buffer, send)
            self._buffers.remove_if_empty(buffer)
        for send in group:
            send.done(send.cause or error)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self.is_stalled:
            self.is_stalled = False
            _log.warning("side buffer recovered path=%s", self._path)
        self._write()
        self.changed()
        if not task.cancelled():
            task.result()  # a defect reaches the exception handler of the loop

    # Past the buffer

    def _send(self, send: PendingSend) -> None:
        target = self._target
        if send.address in self._buffers:  # an earlier send was buffered again
            self.divert(send.address, send.messages, send.done, send.cause, send.overdue)
            return
        try:
            target.use_namespace().send(send.address, send.messages, target.now_ms())
        except TRANSIENT_ERRORS as error:
            self.divert(send.address, send.messages, send.done, error, send.overdue)
        except (BrokerError, StoreError) as error:
            send.done(error)
        else:
            target.when_durable(partial(self._sent, send), partial(self._overdue, send))

    def _overdue(self, send: PendingSend, commit: CommitId) -> None:
        send.commit = commit
        self.copy(send.address, send.messages, send.done, commit, send.overdue)

    def _sent(self, send: PendingSend, error: StoreError | None) -> None:
        if send.commit is not None:
            return  # the copy in the buffer is its answer
        if isinstance(error, TRANSIENT_ERRORS):
            self.rescue(send.address, send.messages, send.done, error, send.overdue)
        else:
            send.done(error)
