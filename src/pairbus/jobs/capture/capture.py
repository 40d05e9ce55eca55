"""Takes batches into windows, and writes a file for each closed window.

Messages are received every few seconds and their windows kept on disk, instead of being left locked in the queue until
a window ends. Locks must be renewed all the time, which costs more than writing a message twice; each lock that expires
with a killed process counts as a delivery; and a stream holds no more messages than one batch may have. So a window may
be longer than any lock and larger than any batch, and its size is that of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

from pairbus.jobs.capture.config import OtherSourceError, WindowLimits
from pairbus.jobs.capture.files import CapturedFile, CaptureDirectory, PieceWriter
from pairbus.jobs.capture.window import Catch, OpenWindows


class Capture:
    """A capture whose steps are idempotent: the process may be killed between any two of them.

    A batch counts from the moment it is in the stored state; pieces that its tasks wrote before are deleted. A closed
    window stays in the state until its file is written, and its pieces until the state is stored without it.
    """

    def __init__(
        self,
        directory: CaptureDirectory,
        limits: WindowLimits,
        on_file: Callable[[CapturedFile], None],
        source: str = "",
    ) -> None:
        """Continue where the last capture ended. Raise ``CaptureDamagedError`` and ``OtherSourceError``."""
        self._directory = directory
        self._limits = limits
        self._on_file = on_file
        self._lock = Lock()
        """Batches arrive in a thread of Spark."""

        self._state = directory.read()
        self._claim(source)
        self.messages = 0
        """Number of messages captured by this process."""

        self._write_files()
        directory.sweep(self._state)

    @property
    def pieces(self) -> Path:
        return self._directory.pieces

    def take(self, write: Callable[[PieceWriter], Iterable[Catch]], now_ms: Callable[[], int]) -> None:
        """Take a batch, whose messages ``write`` writes to pieces."""
        with self._lock:
            writer = PieceWriter.of(self._directory.pieces, self._limits.size_bytes, self._state.taken)
            try:
                catches = [*write(writer)]
            except Exception:
                self._directory.sweep(self._state)  # on a full disk, each attempt would leave less space
                raise
            self._keep(self._state.entered(catches, now_ms(), self._limits))
            self.messages += sum(catch.piece.messages for catch in catches if catch.piece is not None)
            self._keep(self._state.closed_when_due(now_ms(), self._limits))
            self._write_files()

    def close_due(self, now_ms: int) -> None:
        """Close the windows that are old enough, unless a batch is in progress, which does that itself."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._keep(self._state.closed_when_due(now_ms, self._limits))
            self._write_files()
        finally:
            self._lock.release()

    @contextmanager
    def at_rest(self) -> Iterator[OpenWindows]:
        """Wait for the batch in progress, and block the next one."""
        with self._lock:
            yield self._state

    def close_all(self, now_ms: int) -> None:
        with self._lock:
            self._keep(self._state.closed_all(now_ms))
            self._write_files()

    def _claim(self, source: str) -> None:
        """Bind the directory to a namespace: sequence numbers of one must not be compared with those of another."""
        owner = self._state.source
        if owner and source and owner != source:
            raise OtherSourceError(self._directory.root, owner, source)
        self._keep(replace(self._state, source=owner or source))

    def _keep(self, state: OpenWindows) -> None:
        if state != self._state:
            self._directory.keep(state)
            self._state = state

    def _write_files(self) -> None:
        for window in self._state.closed:
            file = self._directory.write(window)
            self._keep(self._state.without(window))
            self._directory.sweep(self._state)
            self._on_file(file)
