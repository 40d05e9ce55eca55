"""Append-only journals of row batches, each of which is later converted to a Parquet file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import pyarrow as pa

from pairbus.durable import make_directory, sync_directory, try_lock
from pairbus.ledger.events import VERSION, VERSION_KEY
from pairbus.ledger.schema import SCHEMAS, LedgerFileName, RowBatch
from pairbus.store.segment_log import Segment, read_frames

OPEN: Final = "open"
"""The directory of journals, next to those of the tables."""

SUFFIX: Final = ".journal"
UNLOCKED_SUFFIX: Final = ".new"
"""Suffix of a journal that was just created and is not locked yet."""


class NewerJournalError(Exception):
    """A journal was written by a newer version of pairbus."""


class JournalContent(NamedTuple):
    """The readable content of a journal."""

    tables: list[Any]
    trusted_bytes: int
    """Length of the part with valid frames."""


class LedgerJournal:
    """A journal locked by this process, so that no other process treats it as left behind."""

    def __init__(self, file_name: LedgerFileName, segment: Segment, opened_ms: int) -> None:
        self.file_name = file_name
        self.opened_ms = opened_ms
        self.segment = segment
        """The file, which is locked."""

    @classmethod
    def create(cls, directory: Path, file_name: LedgerFileName, now_ms: int) -> Self:
        """Create a journal in the directory of a ledger. It gets the name by which others find it once it is locked."""
        place = directory / OPEN
        make_directory(place)
        path, unlocked = place / (file_name.name + SUFFIX), place / (file_name.name + UNLOCKED_SUFFIX)
        descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if not try_lock(descriptor):
                raise BlockingIOError(f"{unlocked} is locked by another process, which deletes it")  # noqa: TRY301
            unlocked.rename(path)
            sync_directory(place)
        except BaseException:
            os.close(descriptor)
            for each in (unlocked, path):
                each.unlink(missing_ok=True)
            raise
        return cls(file_name, Segment(path, descriptor), now_ms)

    @classmethod
    def sweep(cls, directory: Path) -> None:
        """Delete the files of processes that were killed before their journal was locked."""
        for path in (directory / OPEN).glob("*" + UNLOCKED_SUFFIX):
            descriptor = _open_if_exists(path)
            if descriptor is not None:
                if try_lock(descriptor):
                    path.unlink(missing_ok=True)
                os.close(descriptor)

    @classmethod
    def adopt(cls, path: Path) -> Self | None:
        """Lock and return a journal left behind by a process; ``None`` if it is locked, not a journal, or deleted."""
        file_name = LedgerFileName.parse(path.stem)
        descriptor = None if file_name is None else _open_if_exists(path)
        if file_name is None or descriptor is None:
            return None
        if try_lock(descriptor) and os.fstat(descriptor).st_nlink:  # 0 if another process has converted it meanwhile
            return cls(file_name, Segment(path, descriptor), 0)
        os.close(descriptor)
        return None

    def append(self, batch: RowBatch) -> None:
        """Append a batch durably. On failure raise ``OSError``; the partial frame is cut off before the next write."""
        self.segment.append([batch.content()])

    def read(self) -> JournalContent:
        with self.segment.open() as file:
            return _read(file, self.file_name.table)

    def remove(self) -> None:
        """Delete the journal; its rows are in a Parquet file."""
        self.segment.delete()

    def release(self) -> None:
        """Unlock the journal, so that the next process can adopt it."""
        self.segment.close()


def _open_if_exists(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def read_journal(path: Path, file_name: LedgerFileName) -> JournalContent:
    """Read a journal that another process may own and extend meanwhile. Raise ``OSError``."""
    return _read(BytesIO(path.read_bytes()), file_name.table)


def _read(file: BinaryIO, table: str) -> JournalContent:
    """Read the valid frames. Raise ``NewerJournalError``; reading stops at a frame with any other error."""
    tables: list[Any] = []
    trusted_bytes = 0
    for frame in read_frames(file):
        try:
            found = pa.ipc.open_stream(frame).read_all()
        except (pa.ArrowException, OSError):
            break
        _expect_known(found.schema)
        if not found.schema.equals(SCHEMAS[table]):
            break
        tables.append(found)
        trusted_bytes = file.tell()
    return JournalContent(tables, trusted_bytes)


def _expect_known(schema: Any) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY.encode(), b"")
    if version.isdigit() and int(version) > VERSION:
        raise NewerJournalError(f"column version {int(version)} is newer than the supported version {VERSION}")


_log = logging.getLogger(__name__)


def read_open_journals(directory: Path, table: str) -> Mapping[str, Any]:
    """Return the complete frames of the open journals by file name, without empty journals. Raise ``OSError``."""
    found: dict[str, Any] = {}
    for path, file_name in open_journals(directory, table):
        tables = tables_of(path, file_name)
        if tables:
            found[file_name.name] = pa.concat_tables(tables)
    return found


def open_journals(directory: Path, table: str) -> Iterator[tuple[Path, LedgerFileName]]:
    """Yield the paths and names of the open journals of a table."""
    for path in sorted((directory / OPEN).glob("*" + SUFFIX)):
        file_name = LedgerFileName.parse(path.stem)
        if file_name is not None and file_name.table == table:
            yield path, file_name


def tables_of(path: Path, file_name: LedgerFileName) -> list[Any]:
    """Return the complete frames of a journal. Raise ``OSError``."""
    try:
        return read_journal(path, file_name).tables
    except FileNotFoundError:  # it has just become a Parquet file
        return []
    except NewerJournalError as error:
        _log.warning('journal skipped path=%s reason="%s"', path, error)
        return []
