"""The files of a ledger: open journals, the Parquet files they are converted to, and the writer of queued rows."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairbus.durable import OURS_ALONE, make_directory, put_in_place, sync_directory
from pairbus.ledger.events import COLUMNS, LIVES, OPERATIONS, TEXT, LifecycleEvent
from pairbus.ledger.journal import OPEN, SUFFIX, LedgerJournal, NewerJournalError, open_journals, tables_of
from pairbus.ledger.schema import LedgerFileName, RowBatch, hour_of, row_batches
from pairbus.ledger.settings import LedgerSettings
from pairbus.ledger.write_queue import QueuedRows, WriteQueue

_ROW_GROUP: Final = 128 * 1024
"""Rows of a row group: a query for one minute skips the other groups."""

_ORDER: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    OPERATIONS: [("at", "ascending")],
    LIVES: [("at", "ascending"), ("ordinal", "ascending")],
}

_UNIQUE: Final = "message_id"
"""Not dictionary-encoded: its values are unique, and a dictionary would only take space."""

_DICTIONARIES: Final = {
    table: [name for name, kind in columns.items() if kind == TEXT and name != _UNIQUE]
    for table, columns in COLUMNS.items()
}


def write_parquet(path: Path, table: str, tables: Sequence[Any]) -> None:
    """Write a Parquet file, which gets its final name once it is complete. Raise ``OSError``."""
    rows = pa.concat_tables(tables).sort_by(_ORDER[table])
    make_directory(path.parent)
    temporary = path.with_name(f"_{path.stem}.writing")  # Spark ignores names that start with an underscore
    try:
        pq.write_table(
            rows, temporary, row_group_size=_ROW_GROUP, compression="zstd", use_dictionary=_DICTIONARIES[table]
        )
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_log = logging.getLogger(__name__)


class LedgerFiles:
    """The journals and Parquet files of a ledger, with one journal for each table and hour.

    Failed operations raise ``OSError`` and can be retried: no row is lost by that, and none is written twice.
    """

    def __init__(self, directory: Path, settings: LedgerSettings) -> None:
        self.directory = directory
        self.files_closed = 0
        self.leaves_journals = False
        """True if the next process is to convert the journals to Parquet files; any thread may set it."""
        self.on_step: Callable[[], object] = lambda: None
        """Called between the steps of a conversion."""
        self._settings = settings
        self._journals: dict[tuple[str, str], LedgerJournal] = {}
        self._closing: list[LedgerJournal] = []
        """Journals that are complete, but not converted to Parquet yet."""

    def prepare(self) -> None:
        """Create the directories. Permissions of an existing directory are not changed."""
        make_directory(self.directory, OURS_ALONE)
        for name in (OPEN, *COLUMNS):
            make_directory(self.directory / name)

    def expect_writable(self) -> None:
        """Raise ``OSError`` unless files can be created."""
        probe = self.directory / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink(missing_ok=True)

    def adopt(self) -> None:
        """Lock the journals that killed processes have left behind; they are converted with the next ones due."""
        LedgerJournal.sweep(self.directory)
        for path in sorted((self.directory / OPEN).glob("*" + SUFFIX)):
            journal = LedgerJournal.adopt(path)
            if journal is not None:
                self._closing.append(journal)

    def append(self, batch: RowBatch, now_ms: int) -> None:
        """Write rows durably."""
        key = batch.table, batch.hour
        journal = self._journals.get(key)
        if journal is None:
            file_name = LedgerFileName.of_hour(batch.table, batch.hour, now_ms)
            journal = self._journals[key] = LedgerJournal.create(self.directory, file_name, now_ms)
        journal.append(batch)

    def close_due(self, now_ms: int) -> None:
        """Convert the journals that are old or large enough, or whose hour has passed."""
        for key, journal in [*self._journals.items()]:
            if self._is_due(journal, now_ms):
                self._closing.append(self._journals.pop(key))
        self._close()

    def close(self) -> None:
        """Convert all journals, and unlock those that cannot be converted now."""
        self._closing += self._journals.values()
        self._journals.clear()
        try:
            self._close()
        finally:
            for journal in self._closing:
                journal.release()
            self._closing.clear()

    def _is_due(self, journal: LedgerJournal, now_ms: int) -> bool:
        age_ms = now_ms - journal.opened_ms
        return (
            journal.segment.size >= self._settings.close_bytes
            or journal.file_name.is_over(now_ms)
            or not journal.segment.is_at_its_path
            or not 0 <= age_ms < self._settings.close_s * 1_000  # the clock may be set back
        )

    def _close(self) -> None:
        """Try to convert all complete journals, then raise the last error, if any."""
        failure: OSError | None = None
        for journal in [*self._closing]:
            if self.leaves_journals:
                break
            try:
                self._convert(journal)
            except OSError as error:
                failure = error
            else:
                self._closing.remove(journal)
        if failure is not None:
            raise failure

    def _convert(self, journal: LedgerJournal) -> None:
        """Convert a journal. If the file exists, a process was killed before it deleted the journal, so only delete."""
        self.on_step()
        journal.segment.trim()  # otherwise the rows of a failed append could end up in the journal twice
        path = journal.file_name.parquet_file(self.directory)
        if path.exists():
            sync_directory(path.parent)
        elif not self._write(journal, path):
            return
        journal.remove()

    def _write(self, journal: LedgerJournal, path: Path) -> bool:
        """Write the file, and return whether the journal can be deleted."""
        try:
            content = journal.read()
        except NewerJournalError as error:
            _log.warning('journal left unchanged path=%s reason="%s"', journal.segment.path, error)
            journal.release()
            return False
        if content.trusted_bytes < journal.segment.size:
            _log.warning(
                'journal partly readable path=%s valid_bytes=%d total_bytes=%d reason="incomplete or damaged frame"',
                journal.segment.path,
                content.trusted_bytes,
                journal.segment.size,
            )
        if content.tables:
            self.on_step()
            write_parquet(path, journal.file_name.table, content.tables)
            self.files_closed += 1
        return True


def recorded_ordinals(directory: Path, namespace: str, first: LifecycleEvent) -> AbstractSet[int]:
    """Return the ordinals of a namespace's durable events, starting at ``first``. Files of earlier hours are skipped.

    Unreadable files are skipped, too: the namespace must start, and an event recorded twice is the lesser evil.
    """
    found: set[int] = set()
    for path, read in _files(directory, first):
        try:
            for table in read():
                found.update(_ordinals(table, namespace, first.ordinal))
        except Exception as error:  # noqa: BLE001 (a damaged file can raise any error)
            _log.warning('ledger file skipped, its events may be recorded again path=%s error="%s"', path, error)
    return found


def _files(directory: Path, first: LifecycleEvent) -> Iterator[tuple[Path, Callable[[], list[Any]]]]:
    """Yield the files to read. A journal converted meanwhile is read twice rather than not at all."""
    for path, journal_name in open_journals(directory, LIVES):
        yield path, partial(tables_of, path, journal_name)
    since = hour_of(first.at_ms)
    for path in sorted((directory / LIVES).glob("day=*/hour=*/*.parquet")):
        file_name = LedgerFileName.parse(path.stem)
        if file_name is not None and f"{file_name.day}T{file_name.hour}" >= since:
            yield path, partial(_table_from, path, first.ordinal)


def _table_from(path: Path, ordinal: int) -> list[Any]:
    columns = ["namespace", "ordinal"]
    return [pq.read_table(path, columns=columns, filters=[("ordinal", ">=", ordinal)], partitioning=None)]


def _ordinals(table: Any, namespace: str, first: int) -> list[int]:
    is_wanted = pc.and_(pc.equal(table["namespace"], namespace), pc.greater_equal(table["ordinal"], first))
    found: list[int] = table["ordinal"].filter(is_wanted).to_pylist()
    return found


_ROUNDS: Final = 16
"""Maximum number of times that rows are taken and written before journals that are due are converted."""

_LAST_ROUNDS: Final = 1_000


class LedgerWriter:
    """Writes a ledger in turns. A turn never raises: it stores its failure in ``error``, and the next one retries."""

    def __init__(self, files: LedgerFiles, queue: WriteQueue, namespace: str, pause: Callable[[], object]) -> None:
        """``pause`` is called between conversions, so that other threads can run."""
        self.operations_written = 0
        self.events_written = 0
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
            self._queue.events + unconverted + sum(batch.row_count for batch in self._unwritten if batch.table != LIVES)
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
        events = row_batches(LIVES, self.namespace, taken.events, self._take_pause)
        operations = row_batches(OPERATIONS, self.namespace, taken.operations, self._take_pause)
        self._unwritten += [*events.row_batches, *operations.row_batches]
        if events.refused:
            _log.error("ledger events rejected events=%d", len(events.refused), exc_info=events.failure)
            self._queue.give_up(events.refused, now_ms)
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
            self.events_written += rows
            self._queue.done(rows)
        else:
            self.operations_written += rows


def _failure_of(step: Callable[[], object]) -> Exception | None:
    try:
        step()
    except Exception as failure:  # noqa: BLE001 (the next turn retries after any error)
        return failure
    return None
