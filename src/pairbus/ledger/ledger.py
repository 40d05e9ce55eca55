"""The ledger of a namespace, which writes in the background: callers hand over rows and never wait for the disk."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from pairbus.heartbeat import Heartbeat
from pairbus.ledger.events import LifecycleEvent, OperationCounts, OperationKey, operation_rows
from pairbus.ledger.settings import (
    LedgerDirectoryError,
    LedgerSettings,
    LedgerStatus,
    LedgerSystemError,
    PyArrowMissingError,
)
from pairbus.ledger.write_queue import WriteQueue

if TYPE_CHECKING:
    from pairbus.ledger.files import LedgerFiles, LedgerWriter

_PAUSE_S: Final = 0.0005
_TEMPORARY: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that pass once disk space is freed; they do not prevent a namespace from opening."""

_DEFAULTS: Final = LedgerSettings()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Ledger:
    """An open ledger. Its write methods neither raise nor wait for the disk."""

    def __init__(
        self,
        files: LedgerFiles,
        writer: LedgerWriter,
        queue: WriteQueue,
        settings: LedgerSettings,
        clock: Callable[[], int],
    ) -> None:
        """Use ``open`` to create an instance."""
        self._files = files
        self._writer = writer
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._closing = Flag()
        self.heartbeat = Heartbeat()
        """Beats at each step of a turn: a batch that was written, or a journal that was converted."""

        writer.on_step = files.on_step = self.heartbeat.beat
        self._start_thread()

    def _start_thread(self) -> None:
        self._writer_thread = Thread(target=self._run, name="pairbus-ledger", daemon=True)
        self._writer_thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        namespace: str,
        settings: LedgerSettings = _DEFAULTS,
        *,
        clock: Callable[[], int] = _wall_ms,
    ) -> Ledger:
        """Open the ledger in a directory, creating it if needed, and recover the journals of killed processes.

        Several processes can share a directory; each writes separate files. ``clock`` returns milliseconds in UTC.
        Raise ``LedgerDirectoryError``, ``PyArrowMissingError`` or ``LedgerSystemError``.
        """
        if sys.platform == "win32":
            raise LedgerSystemError(sys.platform)
        _expect_pyarrow()
        from pairbus.ledger.files import LedgerFiles, LedgerWriter  # noqa: PLC0415 (pyarrow is optional)
        from pairbus.ledger.schema import well_formed  # noqa: PLC0415

        files = LedgerFiles(directory, settings)
        for step in (files.prepare, files.expect_writable, files.adopt):
            try:
                step()
            except OSError as error:
                if error.errno not in _TEMPORARY:
                    raise LedgerDirectoryError(directory, error.strerror or str(error)) from error
        queue = WriteQueue(settings.most_waiting, settings.most_operations)
        writer = LedgerWriter(files, queue, well_formed(namespace), lambda: time.sleep(_PAUSE_S))
        writer.turn(clock())
        return cls(files, writer, queue, settings, clock)

    def write_operations(
        self, second_ms: int, rows: Sequence[tuple[OperationKey, OperationCounts]], connections: int
    ) -> None:
        """Hand over the operations of one second, and the maximum number of connections if that is to be recorded."""
        self._queue.add_operations(operation_rows(second_ms, rows, connections))

    def write_events(self, events: Sequence[LifecycleEvent]) -> int:
        """Hand over events; the ledger owns the sequence from now on.

        Return the number of the hand-over: it is on disk once ``hand_overs_written`` has reached that number.
        """
        return self._queue.add_events(events)

    @property
    def hand_overs_written(self) -> int:
        return self._writer.hand_overs_written

    @property
    def event_room(self) -> int:
        """Room for events whose caller can keep them elsewhere; the other half is reserved for all other events."""
        return max(0, (self._settings.most_waiting + 1) // 2 - self._queue.events)

    def ordinals_from(self, first: LifecycleEvent) -> AbstractSet[int]:
        """Return the ordinals of this namespace's readable, durable events, starting at ``first``."""
        from pairbus.ledger.files import recorded_ordinals  # noqa: PLC0415 (requires pyarrow)

        return recorded_ordinals(self._files.directory, self._writer.namespace, first)

    @property
    def status(self) -> LedgerStatus:
        return LedgerStatus(
            operations_written=self._writer.operations_written,
            events_written=self._writer.events_written,
            events_waiting=self._queue.events,
            events_missed=self._queue.events_missed,
            files_closed=self._files.files_closed,
            error=self._writer.error,
        )

    def close(self) -> None:
        """Write the remaining rows, convert all journals to Parquet, and wait for that. Idempotent."""
        self.begin_close()
        self._writer_thread.join()

    def begin_close(self) -> None:
        """Start to close without waiting; ``is_closed`` is True once it is done."""
        self._closing.set()

    def leave_journals(self) -> None:
        """Convert no more journals to Parquet: the next process that opens the ledger does."""
        self._files.leaves_journals = True

    @property
    def is_closed(self) -> bool:
        return not self._writer_thread.is_alive()

    # Supervision of the thread.

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""
        return not self._writer_thread.is_alive() and not self._closing.is_set()

    def restart(self) -> None:
        """Start another thread, if it has ended: it goes on with the queued rows."""
        if self.has_lost_thread:
            self.heartbeat.rest()
            self._start_thread()

    def _run(self) -> None:
        settings = self._settings
        while not self._closing.wait(settings.flush_s if self._writer.error is None else settings.retry_s):
            self.heartbeat.beat()
            self._writer.turn(self._clock())
            self.heartbeat.rest()
        self._writer.finish(self._clock())


def read_open(directory: Path, table: str) -> Mapping[str, Any]:
    """Return the rows of the open journals of a table, as ``pyarrow.Table`` by the stem of the file name.

    These are the last minutes of a ledger that is being written. A journal may become a Parquet file at any time. To
    read each row once, read the journals first, then list the Parquet files, and where both have the same stem leave
    out the journal: rows may have been appended to it after it was read.
    Raise ``PyArrowMissingError`` and ``OSError``; journals of newer versions are skipped.
    """
    _expect_pyarrow()
    from pairbus.ledger.journal import read_open_journals  # noqa: PLC0415

    return read_open_journals(directory, table)


def _expect_pyarrow() -> None:
    try:
        import pyarrow as pa  # noqa: F401, PLC0415 (slow to import, and an optional dependency)
    except ImportError as error:
        raise PyArrowMissingError from error
