"""A file that grows chunk by chunk until it becomes a Parquet file."""

from __future__ import annotations

import os
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import pyarrow as pa

from pairbus.durable import make_directory, sync_content, sync_directory, try_lock
from pairbus.ledger.chunk import head_of, read_chunks
from pairbus.ledger.columns import VERSION, VERSION_KEY
from pairbus.ledger.page import Page
from pairbus.ledger.schema import SCHEMAS
from pairbus.ledger.stem import Stem

OPEN: Final = "open"
"""The directory of journals, beside those of the tables."""

SUFFIX: Final = ".journal"
UNLOCKED_SUFFIX: Final = ".new"
"""Of a journal that has just been made, and is not locked yet."""


class NewerJournalError(Exception):
    """A journal was written by a later pairbus."""


class Content(NamedTuple):
    """What a journal holds."""

    tables: list[Any]
    trusted_bytes: int
    """How far it can be trusted."""


class Journal:
    """One that this process has for itself: it is locked, so that nobody takes it for one that was left behind."""

    def __init__(self, path: Path, stem: Stem, descriptor: int, opened_ms: int) -> None:
        self.path = path
        self.stem = stem
        self.opened_ms = opened_ms
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._is_ragged = False
        """Whether there may be something behind the last chunk that is known to be on disk."""

    @classmethod
    def create(cls, directory: Path, stem: Stem, now_ms: int) -> Self:
        """Begin one in the directory of a ledger. It has its name, by which others find it, when it is locked."""
        place = directory / OPEN
        make_directory(place)
        path, unlocked = place / (stem.name + SUFFIX), place / (stem.name + UNLOCKED_SUFFIX)
        descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if not try_lock(descriptor):
                raise BlockingIOError(f"somebody else has {unlocked}, and removes it")  # noqa: TRY301
            unlocked.rename(path)
            sync_directory(place)
        except BaseException:
            os.close(descriptor)
            for each in (unlocked, path):
                each.unlink(missing_ok=True)
            raise
        return cls(path, stem, descriptor, now_ms)

    @classmethod
    def sweep(cls, directory: Path) -> None:
        """Remove what a process has left that was killed before its journal had a name."""
        for path in (directory / OPEN).glob("*" + UNLOCKED_SUFFIX):
            descriptor = _opened(path)
            if descriptor is not None:
                if try_lock(descriptor):
                    path.unlink(missing_ok=True)
                os.close(descriptor)

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Take one that a process has left behind; nothing if somebody has it, or it is none, or gone."""
        stem = Stem.parse(path.stem)
        descriptor = None if stem is None else _opened(path)
        if stem is None or descriptor is None:
            return None
        if try_lock(descriptor) and os.fstat(descriptor).st_nlink:  # else somebody was faster, and is done with it
            return cls(path, stem, descriptor, 0)
        os.close(descriptor)
        return None

    @property
    def has_its_name(self) -> bool:
        """Whether it is still where it was made; somebody may have removed the directory, or moved it."""
        try:
            return self.path.stat().st_ino == os.fstat(self._descriptor).st_ino
        except FileNotFoundError:
            return False

    def append(self, page: Page) -> None:
        """Put a page on disk, or raise ``OSError``: then it is as it was, or will be before anything else is done."""
        self.trim()
        content = page.content()
        end = self.size
        self._is_ragged = True
        try:
            for part in (memoryview(head_of(content)), content):
                end = self._write(part, end)
            sync_content(self._descriptor)
        except OSError:
            with suppress(OSError):
                self.trim()
            raise
        self._is_ragged = False
        self.size = end

    def trim(self) -> None:
        """Cut off what an append has left that failed: else its rows could be there twice in the end."""
        if self._is_ragged:
            os.ftruncate(self._descriptor, self.size)
            sync_content(self._descriptor)
            self._is_ragged = False

    def read(self) -> Content:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            return _read(file, self.stem.table)

    def remove(self) -> None:
        """Its rows are elsewhere."""
        self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Leave it to whoever comes next."""
        os.close(self._descriptor)

    def _write(self, part: memoryview, end: int) -> int:
        while part:
            written = os.pwrite(self._descriptor, part, end)
            part, end = part[written:], end + written
        return end


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def read_journal(path: Path, stem: Stem) -> Content:
    """What is in a journal that may be somebody else's, and may grow meanwhile. Raises ``OSError``."""
    return _read(BytesIO(path.read_bytes()), stem.table)


def _read(file: BinaryIO, table: str) -> Content:
    """Raises ``NewerJournalError``; what cannot be read for other reasons is not trusted."""
    tables: list[Any] = []
    trusted_bytes = 0
    for chunk in read_chunks(file):
        try:
            found = pa.ipc.open_stream(chunk).read_all()
        except (pa.ArrowException, OSError):
            break
        _expect_known(found.schema)
        if not found.schema.equals(SCHEMAS[table]):
            break
        tables.append(found)
        trusted_bytes = file.tell()
    return Content(tables, trusted_bytes)


def _expect_known(schema: Any) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY.encode(), b"")
    if version.isdigit() and int(version) > VERSION:
        raise NewerJournalError(f"it has version {int(version)} of the columns, and this pairbus knows {VERSION}")
