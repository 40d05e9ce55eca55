"""The data directory: everything that a namespace stores, for one process at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from pairbus.durable import put_in_place
from pairbus.store.datafile import DirectoryLock, disk_errors_as_store_errors
from pairbus.store.errors import (
    DamagedStoreError,
    NewerFormatError,
    NotADataDirectoryError,
)
from pairbus.store.lmdb import create_data_file
from pairbus.store.pages import verify

FORMAT_VERSION: Final = 1
"""The format that this version writes. A format that older code cannot read has a higher number."""

FORMAT_FILE: Final = "format"
LOCK_FILE: Final = "pairbus.lock"
DATA_FILE: Final = "data.mdb"

_NEW_FORMAT_FILE: Final = FORMAT_FILE + ".new"
_INCOMPLETE: Final = frozenset({LOCK_FILE, DATA_FILE, DATA_FILE + ".new", _NEW_FORMAT_FILE})
"""Files that may exist if the process ended before the format file, which is created last, existed."""

_SYSTEM_ENTRIES: Final = frozenset({"lost+found"})
"""Entries that even an empty disk has."""


class DataDirectory:
    """A data directory, locked by this process until it is closed; use ``open`` to create one."""

    def __init__(self, path: Path, lock: DirectoryLock, created_ms: int) -> None:
        self.path = path
        self.created_ms = created_ms
        self._lock = lock

    @classmethod
    def open(cls, path: Path, now_ms: int) -> DataDirectory:
        """Lock a data directory; create it, or complete its creation, if it is new.

        Raises StoreInUseError, NotADataDirectoryError, NewerFormatError, DamagedStoreError or StoreFailedError.
        """
        with disk_errors_as_store_errors(path):
            _check_not_foreign(path)
        with DirectoryLock.taken(path, LOCK_FILE) as lock:
            return cls(path, lock, _complete(path, now_ms))

    @property
    def data_file(self) -> Path:
        """Return the path of the data file, which exists."""
        return self.path / DATA_FILE

    def close(self) -> None:
        """Release the directory. Closing twice is allowed."""
        self._lock.close()


def _check_not_foreign(path: Path) -> None:
    """Raise ``NotADataDirectoryError`` for a foreign directory, before anything is touched."""
    if not path.exists():
        return
    if not path.is_dir():
        raise NotADataDirectoryError(path, "it is a file")
    names = set(os.listdir(path))
    if FORMAT_FILE not in names and (foreign := names - _INCOMPLETE - _SYSTEM_ENTRIES):
        raise NotADataDirectoryError(path, f"it contains {min(foreign)!r} and no file {FORMAT_FILE!r}")


def _complete(path: Path, now_ms: int) -> int:
    """Create missing files, and return the time at which the directory was created."""
    format_file = path / FORMAT_FILE
    data_file = path / DATA_FILE
    if format_file.exists():
        created_ms = read_format(path, format_file)
        if not data_file.exists():
            raise DamagedStoreError(data_file, "it is missing")
        return created_ms
    create_data_file(data_file)
    if verify(data_file).transaction:
        raise DamagedStoreError(format_file, f"it is missing, but {DATA_FILE} has records")
    write_format(path, now_ms)
    return now_ms


def write_format(path: Path, created_ms: int) -> None:
    """Create the format file of a directory: the last step of its creation."""
    temporary = path / _NEW_FORMAT_FILE
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT_VERSION, "created_ms": created_ms}) + "\n")
    put_in_place(temporary, path / FORMAT_FILE)


def read_format(path: Path, format_file: Path) -> int:
    """Return the time at which a directory was created. Raises ``DamagedStoreError`` or ``NewerFormatError``."""
    try:
        content: Any = json.loads(format_file.read_bytes())
        version, created_ms = content["format"], content["created_ms"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedStoreError(format_file, f"it does not name a format ({error!r})") from error
    if type(version) is not int or type(created_ms) is not int or version < 1:
        raise DamagedStoreError(format_file, f"it has {version!r} and {created_ms!r} instead of two numbers")
    if version > FORMAT_VERSION:
        raise NewerFormatError(path, version, FORMAT_VERSION)
    return created_ms
