"""A log of lines in a bounded number of files, such as the audit log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.durable import OURS_ALONE, OWNER_ONLY, make_directory, sync_content, sync_directory

_NEWLINE: Final = b"\n"


class RotatingLog:
    """Appends lines to a file; one that is full is renamed: ``audit.jsonl`` to ``audit.1.jsonl``, and so on.

    All methods block on the disk. Only its owner can read the files.
    """

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        """Keep at most ``max_files`` files of ``max_bytes`` each, including ``path``; a longer line has its own."""
        self.path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._descriptor: int | None = None
        self._size = 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines and sync them, all or none; raise ``OSError``. The next call opens the file again after one."""
        content = b"".join(line + _NEWLINE for line in lines)
        try:
            descriptor = self._open()
            if self._size and self._size + len(content) > self._max_bytes:
                self._rotate()
                descriptor = self._open()
            self._write(descriptor, content)
        except BaseException:
            self.close()
            raise

    def last(self, part: bytes) -> bytes | None:
        """Return the last line that contains ``part``, in the newest two files; raise ``OSError``."""
        for path in (self.path, self._numbered(1)):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in reversed(lines):
                if part in line:
                    return line
        return None

    def close(self) -> None:
        """Close the file. Closing twice is allowed, and so is appending afterwards."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            make_directory(self.path.parent, OURS_ALONE)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = descriptor = os.open(self.path, flags, OWNER_ONLY)
            self._size = os.fstat(descriptor).st_size
            if self._size and os.pread(descriptor, 1, self._size - 1) != _NEWLINE:  # killed in the middle of a line
                self._write(descriptor, _NEWLINE)
        return self._descriptor

    def _write(self, descriptor: int, content: bytes) -> None:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            sync_content(descriptor)
        except OSError:
            with suppress(OSError):  # or the lines that fitted would be there twice after another attempt
                os.ftruncate(descriptor, self._size)
            raise
        self._size += len(content)

    def _rotate(self) -> None:
        self.close()
        for number, path in sorted(self._numbered_files(), reverse=True):
            if number + 1 >= self._max_files:
                path.unlink()
            else:
                path.rename(self._numbered(number + 1))
        if self._max_files > 1:
            self.path.rename(self._numbered(1))
        else:
            self.path.unlink()
        sync_directory(self.path.parent)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")

    def _numbered_files(self) -> Iterator[tuple[int, Path]]:
        name = re.compile(rf"{re.escape(self.path.stem)}\.([1-9][0-9]{{0,5}}){re.escape(self.path.suffix)}")
        for path in self.path.parent.iterdir():
            found = name.fullmatch(path.name)
            if found is not None:
                yield int(found[1]), path
