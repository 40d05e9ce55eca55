"""The files of a ledger: journals that are being written, and the Parquet files that they become."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pairbus.durable import OURS_ALONE, make_directory, sync_directory
from pairbus.ledger.columns import COLUMNS
from pairbus.ledger.journal import OPEN, SUFFIX, Journal, NewerJournalError
from pairbus.ledger.page import Page
from pairbus.ledger.parquet import write_parquet
from pairbus.ledger.settings import LedgerSettings
from pairbus.ledger.stem import Stem

_log = logging.getLogger(__name__)


class Book:
    """Has a journal for each table and hour that rows come for.

    What it cannot do raises ``OSError``, and can be tried again: no row is lost by that, and none is written twice.
    """

    def __init__(self, directory: Path, settings: LedgerSettings) -> None:
        self.directory = directory
        self.files_closed = 0
        self._settings = settings
        self._journals: dict[tuple[str, str], Journal] = {}
        self._closing: list[Journal] = []
        """What nothing is added to any more, and is no Parquet file yet."""

    def prepare(self) -> None:
        """Make the directories. One that is there is for whom its owner wants it to be."""
        make_directory(self.directory, OURS_ALONE)
        for name in (OPEN, *COLUMNS):
            make_directory(self.directory / name)

    def expect_writable(self) -> None:
        """Raise ``OSError`` unless files can be made."""
        probe = self.directory / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink(missing_ok=True)

    def adopt(self) -> None:
        """Take over what processes have left behind that were killed; it is closed with the next that is."""
        Journal.sweep(self.directory)
        for path in sorted((self.directory / OPEN).glob("*" + SUFFIX)):
            journal = Journal.adopt(path)
            if journal is not None:
                self._closing.append(journal)

    def append(self, page: Page, now_ms: int) -> None:
        """Put rows on disk."""
        key = page.table, page.hour
        journal = self._journals.get(key)
        if journal is None:
            stem = Stem.of_hour(page.table, page.hour, now_ms)
            journal = self._journals[key] = Journal.create(self.directory, stem, now_ms)
        journal.append(page)

    def close_due(self, now_ms: int) -> None:
        """Make Parquet files of the journals that are old or large enough, or whose hour is over."""
        for key, journal in [*self._journals.items()]:
            if self._is_due(journal, now_ms):
                self._closing.append(self._journals.pop(key))
        self._close()

    def close(self) -> None:
        """Make Parquet files of all journals, and let go of those that cannot become one now."""
        self._closing += self._journals.values()
        self._journals.clear()
        try:
            self._close()
        finally:
            for journal in self._closing:
                journal.let_go()
            self._closing.clear()

    def _is_due(self, journal: Journal, now_ms: int) -> bool:
        age_ms = now_ms - journal.opened_ms
        return (
            journal.size >= self._settings.close_bytes
            or journal.stem.is_over(now_ms)
            or not journal.has_its_name
            or not 0 <= age_ms < self._settings.close_s * 1_000  # a clock may be set back
        )

    def _close(self) -> None:
        """Try all of them, and raise what the last has failed with."""
        failure: OSError | None = None
        for journal in [*self._closing]:
            try:
                self._convert(journal)
            except OSError as error:
                failure = error
            else:
                self._closing.remove(journal)
        if failure is not None:
            raise failure

    def _convert(self, journal: Journal) -> None:
        """If the file is there, a process was killed before it could remove the journal: then only that is left."""
        journal.trim()
        path = journal.stem.parquet_file(self.directory)
        if path.exists():
            sync_directory(path.parent)
        elif not self._write(journal, path):
            return
        journal.remove()

    def _write(self, journal: Journal, path: Path) -> bool:
        """Tells whether the journal is not needed any more."""
        try:
            content = journal.read()
        except NewerJournalError as error:
            _log.warning("%s is left as it is: %s", journal.path, error)
            journal.let_go()
            return False
        if content.trusted_bytes < journal.size:
            _log.warning(
                "%s was cut off at %d of %d bytes: what comes behind is not complete, or damaged",
                journal.path,
                content.trusted_bytes,
                journal.size,
            )
        if content.tables:
            write_parquet(path, journal.stem.table, content.tables)
            self.files_closed += 1
        return True
