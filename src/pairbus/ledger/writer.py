"""Writes queued rows to the files of a ledger, and retries while the disk fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pairbus.ledger.columns import LIVES, OPERATIONS
from pairbus.ledger.files import LedgerFiles
from pairbus.ledger.schema import RowBatch, row_batches
from pairbus.ledger.write_queue import QueuedRows, WriteQueue

_log = logging.getLogger(__name__)

_ROUNDS: Final = 16
"""Maximum number of times that rows are taken and written before journals that are due are converted."""

_LAST_ROUNDS: Final = 1_000


class LedgerWriter:
    """Writes a ledger in turns. A turn never raises: it stores its failure in ``error``, and the next one retries."""

    def __init__(self, files: LedgerFiles, queue: WriteQueue, namespace: str, pause: Callable[[], object]) -> None:
        """``pause`` is called between conversions, so that other threads can run."""
        self.operations_written = 0
        self.lives_written = 0
        self.hand_overs_written = 0
        """All hand-overs of events up to this one are on disk, or can never be written."""

        self.error: str | None = None
        self._files = files
        self._queue = queue
        self.namespace = namespace
        self._pause = pause
        self.on_step: Callable[[], object] = lambda: None
        """Called between the steps of a turn."""

        self._unwritten: deque[RowBatch] = deque()
        """Converted rows that are not on disk yet."""

        self._taken: QueuedRows | None = None
        """Rows taken from the queue that are not converted yet."""

        self._taken_hand_over = 0

    def turn(self, now_ms: int) -> None:
        """Write the queued rows, and convert the journals that are due."""
        self._attempt(lambda: self._write(now_ms, _ROUNDS), lambda: self._files.close_due(now_ms))

    def finish(self, now_ms: int) -> None:
        """Write the remaining rows, and convert all journals; rows that cannot be written now are lost."""
        self._attempt(lambda: self._write(now_ms, _LAST_ROUNDS), self._files.close)
        unconverted = 0 if self._taken is None else len(self._taken.operations)
        lost = (
            self._queue.lives + unconverted + sum(batch.row_count for batch in self._unwritten if batch.table != LIVES)
        )
        if lost:
            _log.error("ledger closed with unwritten rows directory=%s rows=%d", self._files.directory, lost)

    def _attempt(self, *steps: Callable[[], object]) -> None:
        """Run each step, even if another fails: a journal that cannot be converted must not block writes."""
        failures = [failure for failure in map(_failure_of, steps) if failure is not None]
        before, self.error = self.error, str(failures[0]) or repr(failures[0]) if failures else None
        if failures and before is None:
            defect = None if isinstance(failures[0], OSError) else failures[0]
            text = 'ledger write failed, queueing in memory directory=%s error="%s"'
            _log.error(text, self._files.directory, self.error, exc_info=defect)
        elif before is not None and not failures:
            _log.warning("ledger writes resumed directory=%s", self._files.directory)

    def _write(self, now_ms: int, rounds: int) -> None:
        """Take and write rows up to ``rounds`` times.

        Take no more while rows are unwritten: in the queue they are merged, and bounded.
        """
        for _ in range(rounds):
            while self._unwritten:
                self._append(self._unwritten[0], now_ms)
                self._unwritten.popleft()
            self.hand_overs_written = self._taken_hand_over
            if self._taken is None:
                self._taken = self._queue.take()
            taken = self._taken
            if taken is None:
                return
            self._convert(taken, now_ms)
            self._taken = None
            self._taken_hand_over = taken.hand_over

    def _convert(self, taken: QueuedRows, now_ms: int) -> None:
        """Convert all taken rows, or raise and convert none. Invalid rows are a defect, and are not retried."""
        lives = row_batches(LIVES, self.namespace, taken.lives, self._take_pause)
        operations = row_batches(OPERATIONS, self.namespace, taken.operations, self._take_pause)
        self._unwritten += [*lives.row_batches, *operations.row_batches]
        if lives.refused:
            _log.error("ledger events rejected events=%d", len(lives.refused), exc_info=lives.failure)
            self._queue.give_up(lives.refused, now_ms)
        if operations.refused:
            count = len(operations.refused)
            _log.error("ledger operation rows rejected rows=%d", count, exc_info=operations.failure)

    def _take_pause(self) -> None:
        self.on_step()
        self._pause()

    def _append(self, batch: RowBatch, now_ms: int) -> None:
        self.on_step()
        rows = batch.row_count
        self._files.append(batch, now_ms)
        if batch.table == LIVES:
            self.lives_written += rows
            self._queue.done(rows)
        else:
            self.operations_written += rows


def _failure_of(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as failure:  # noqa: BLE001 (the next turn retries after any error)
        return failure
    return None
