"""The directory that a capture writes into, with a part that readers do not see."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, Final

from pairbus.durable import make_directory, try_lock
from pairbus.jobs.capture.book import Book
from pairbus.jobs.capture.captured_file import CapturedFile
from pairbus.jobs.capture.errors import CaptureDamagedError, CaptureError, CaptureInUseError
from pairbus.jobs.capture.whole_file import whole_file
from pairbus.jobs.capture.window import Window

_HIDDEN: Final = "_capture"
"""Spark and Arrow pass over names that begin like this."""


class CaptureDirectory:
    """One capture has it at a time, until it is closed or its process ends."""

    def __init__(self, root: Path) -> None:
        """Raises ``CaptureInUseError``, and ``OSError`` if it cannot be written."""
        self.root = root.absolute()
        hidden = self.root / _HIDDEN
        self.pieces: Final = hidden / "pieces"
        self.checkpoint: Final = hidden / "checkpoint"
        self._book = hidden / "book.json"
        make_directory(self.pieces)
        self._lock = _locked(hidden / "lock", self.root)

    def read(self) -> Book:
        """What was kept last. Raises ``CaptureDamagedError``."""
        try:
            return Book.from_text(self._book.read_text("utf-8"))
        except FileNotFoundError:
            return Book()
        except (CaptureDamagedError, UnicodeDecodeError) as error:
            raise CaptureDamagedError(
                f"{self._book} says which messages are captured, and {error};"
                " bring it back, or capture into another directory"
            ) from error

    def keep(self, book: Book) -> None:
        with whole_file(self._book) as file:
            file.write(book.to_text().encode())

    def write(self, window: Window) -> CapturedFile:
        """The file of a closed window."""
        return CapturedFile.written(window, self.root, self.pieces)

    def sweep(self, book: Book) -> None:
        """Remove the pieces that nobody needs: their windows have files, or their tasks were killed or run twice."""
        needed = book.pieces
        for path in self.pieces.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()


def _locked(path: Path, root: Path) -> BinaryIO:
    """A lock ends with the process, however that ends."""
    if sys.platform == "win32":
        raise CaptureError("a capture needs a system with locks on files such as Linux or macOS")
    file = path.open("wb")
    if not try_lock(file.fileno()):
        file.close()
        raise CaptureInUseError(
            f"another capture writes into {root}; give each a directory of its own, or name all entities to one"
        )
    return file
