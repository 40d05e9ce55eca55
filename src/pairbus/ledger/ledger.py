"""The ledger of a namespace: whoever has something for it hands it over, and goes on."""

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

from pairbus.ledger.errors import LedgerDirectoryError, PyArrowMissingError, UnsupportedSystemError
from pairbus.ledger.life import Life
from pairbus.ledger.operation import Sort, Tally
from pairbus.ledger.settings import LedgerSettings
from pairbus.ledger.status import LedgerStatus
from pairbus.ledger.waiting import Second, Waiting

if TYPE_CHECKING:
    from pairbus.ledger.book import Book
    from pairbus.ledger.writer import Writer

_PAUSE_S: Final = 0.0005
_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What is over when somebody has made room; it does not keep a namespace from being opened."""

_DEFAULTS: Final = LedgerSettings()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Ledger:
    """One that is open. Nothing that it is asked to write raises, or waits for the disk."""

    def __init__(
        self, book: Book, writer: Writer, waiting: Waiting, settings: LedgerSettings, clock: Callable[[], int]
    ) -> None:
        """``open`` makes one."""
        self._book = book
        self._writer = writer
        self._waiting = waiting
        self._settings = settings
        self._clock = clock
        self._closing = Flag()
        self._thread = Thread(target=self._run, name="pairbus-ledger", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        namespace: str,
        settings: LedgerSettings = _DEFAULTS,
        *,
        clock: Callable[[], int] = _wall_ms,
    ) -> Ledger:
        """Open the ledger in a directory, which is made if it is not there, and save what a killed process has left.

        Several processes can have one directory; each writes files of its own. ``clock`` gives milliseconds in UTC.
        Raises ``LedgerDirectoryError``, ``PyArrowMissingError`` or ``UnsupportedSystemError``.
        """
        if sys.platform == "win32":
            raise UnsupportedSystemError(sys.platform)
        _expect_pyarrow()
        from pairbus.ledger.book import Book  # noqa: PLC0415 (it needs pyarrow, which is not everywhere)
        from pairbus.ledger.page import well_formed  # noqa: PLC0415
        from pairbus.ledger.writer import Writer  # noqa: PLC0415

        book = Book(directory, settings)
        for step in (book.prepare, book.expect_writable, book.adopt):
            try:
                step()
            except OSError as error:
                if error.errno not in _PASSING:
                    raise LedgerDirectoryError(directory, error.strerror or str(error)) from error
        waiting = Waiting(settings.most_waiting, settings.most_operations)
        writer = Writer(book, waiting, well_formed(namespace), lambda: time.sleep(_PAUSE_S))
        writer.turn(clock())
        return cls(book, writer, waiting, settings, clock)

    def write_operations(self, second_ms: int, rows: Sequence[tuple[Sort, Tally]], connections: int) -> None:
        """Hand over what was done within a second, and the most connections there were, if that is to be recorded.

        The rows are the ledger's from now on: whoever has made them counts in others.
        """
        self._waiting.add_operations(Second(second_ms, rows, connections))

    def write_lives(self, lives: Sequence[Life]) -> int:
        """Hand over what has happened to messages; the sequence is the ledger's from now on.

        Returns the number of the hand-over: when ``hand_overs_written`` has reached it, it is on disk.
        """
        return self._waiting.add_lives(lives)

    @property
    def hand_overs_written(self) -> int:
        return self._writer.hand_overs_written

    @property
    def lives_room(self) -> int:
        """How many more events it takes that can as well wait elsewhere; the rest of its memory is for the others."""
        return max(0, (self._settings.most_waiting + 1) // 2 - self._waiting.lives)

    def ordinals_from(self, first: Life) -> AbstractSet[int]:
        """Which events of this namespace are on disk, from one on, as far as that can be read."""
        from pairbus.ledger.recorded import recorded_ordinals  # noqa: PLC0415 (it needs pyarrow)

        return recorded_ordinals(self._book.directory, self._writer.namespace, first)

    @property
    def status(self) -> LedgerStatus:
        return LedgerStatus(
            operations_written=self._writer.operations_written,
            lives_written=self._writer.lives_written,
            lives_waiting=self._waiting.lives,
            lives_missed=self._waiting.lives_missed,
            files_closed=self._book.files_closed,
            error=self._writer.error,
        )

    def close(self) -> None:
        """Write the rest, make Parquet files of the journals, and wait until that is done. To close twice is fine."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        settings = self._settings
        while not self._closing.wait(settings.flush_s if self._writer.error is None else settings.retry_s):
            self._writer.turn(self._clock())
        self._writer.finish(self._clock())


def read_open(directory: Path, table: str) -> Mapping[str, Any]:
    """What is in the journals of a table that are no Parquet files yet, as ``pyarrow.Table`` by the stem of their name.

    That is the last minutes of a ledger that is being written. A journal may become a Parquet file at any time. Whoever
    wants each row once reads the journals first, lists the Parquet files then, and where both have the same stem leaves
    one of them out: the journal, since rows may have come after it was read, and others after these.
    Raises ``PyArrowMissingError`` and ``OSError``; what a later version has written is left out.
    """
    _expect_pyarrow()
    from pairbus.ledger.open_journals import read_open_journals  # noqa: PLC0415

    return read_open_journals(directory, table)


def _expect_pyarrow() -> None:
    try:
        import pyarrow as pa  # noqa: F401, PLC0415 (it takes its time, and is not everywhere)
    except ImportError as error:
        raise PyArrowMissingError from error
