"""Takes batches into windows, and makes a file of each window that is closed.

Messages are taken every few seconds and their windows kept on disk, instead of being left locked in the queue until a
window ends. Locks have to be renewed all the time, which costs more than to write a message twice; each that ends with
a killed process counts as a delivery; and a stream holds no more messages than one batch of it may have. So a window
may be longer than any lock and larger than any batch, and its size is that of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

from pairbus.jobs.capture.book import Book
from pairbus.jobs.capture.captured_file import CapturedFile
from pairbus.jobs.capture.catch import Catch
from pairbus.jobs.capture.directory import CaptureDirectory
from pairbus.jobs.capture.errors import OtherSourceError
from pairbus.jobs.capture.limits import WindowLimits
from pairbus.jobs.capture.piece_writer import PieceWriter


class Capture:
    """The same step twice is as once, and a process may be killed between any two of them.

    A batch counts from the moment at which the book has it; what its tasks had written before is swept up. A closed
    window stays in the book until its file is in its place, and its pieces until the book is without it.
    """

    def __init__(
        self,
        directory: CaptureDirectory,
        limits: WindowLimits,
        on_file: Callable[[CapturedFile], None],
        source: str = "",
    ) -> None:
        """Go on where the last one has ended. Raises ``CaptureDamagedError`` and ``OtherSourceError``."""
        self._directory = directory
        self._limits = limits
        self._on_file = on_file
        self._lock = Lock()
        """A batch comes in a thread of Spark's."""

        self._book = directory.read()
        self._claim(source)
        self.messages = 0
        """How many have been taken in all."""

        self._write_files()
        directory.sweep(self._book)

    @property
    def pieces(self) -> Path:
        return self._directory.pieces

    def take(self, write: Callable[[PieceWriter], Iterable[Catch]], now_ms: Callable[[], int]) -> None:
        """Take a batch, whose messages ``write`` has written."""
        with self._lock:
            writer = PieceWriter.of(self._directory.pieces, self._limits.size_bytes, self._book.taken)
            try:
                catches = [*write(writer)]
            except Exception:
                self._directory.sweep(self._book)  # on a disk that is full, each attempt would leave less
                raise
            self._keep(self._book.entered(catches, now_ms(), self._limits))
            self.messages += sum(catch.piece.messages for catch in catches if catch.piece is not None)
            self._keep(self._book.closed_when_due(now_ms(), self._limits))
            self._write_files()

    def close_due(self, now_ms: int) -> None:
        """Close the windows whose time is over; a batch under way does that itself."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._keep(self._book.closed_when_due(now_ms, self._limits))
            self._write_files()
        finally:
            self._lock.release()

    @contextmanager
    def at_rest(self) -> Iterator[Book]:
        """Finish what is under way, and have the next batch wait."""
        with self._lock:
            yield self._book

    def close_all(self, now_ms: int) -> None:
        with self._lock:
            self._keep(self._book.closed_all(now_ms))
            self._write_files()

    def _claim(self, source: str) -> None:
        """What is known of one namespace's messages must not be held against those of another."""
        owner = self._book.source
        if owner and source and owner != source:
            raise OtherSourceError(self._directory.root, owner, source)
        self._keep(replace(self._book, source=owner or source))

    def _keep(self, book: Book) -> None:
        if book != self._book:
            self._directory.keep(book)
            self._book = book

    def _write_files(self) -> None:
        for window in self._book.closed:
            file = self._directory.write(window)
            self._keep(self._book.without(window))
            self._directory.sweep(self._book)
            self._on_file(file)
