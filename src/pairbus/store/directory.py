"""The data directory: where everything of a namespace is kept, for one process at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from pairbus.durable import put_in_place
from pairbus.store.errors import (
    DamagedStoreError,
    NewerFormatError,
    NotADataDirectoryError,
)
from pairbus.store.lmdb import create_data_file
from pairbus.store.lock import DirectoryLock, disk_failures_told
from pairbus.store.pages import verify

FORMAT_VERSION: Final = 1
"""The way in which we write today. One that older code cannot read has a higher number."""

FORMAT_FILE: Final = "format"
LOCK_FILE: Final = "pairbus.lock"
DATA_FILE: Final = "data.mdb"

_NEW_FORMAT_FILE: Final = FORMAT_FILE + ".new"
_HALF_MADE: Final = frozenset({LOCK_FILE, DATA_FILE, DATA_FILE + ".new", _NEW_FORMAT_FILE})
"""What can be there when the process ended before the format file, which is made last, was there."""

_MADE_BY_THE_SYSTEM: Final = frozenset({"lost+found"})
"""What even an empty disk holds."""


class DataDirectory:
    """A directory that is ours until it is closed; ``open`` makes one."""

    def __init__(self, path: Path, lock: DirectoryLock, created_ms: int) -> None:
        self.path = path
        self.created_ms = created_ms
        self._lock = lock

    @classmethod
    def open(cls, path: Path, now_ms: int) -> DataDirectory:
        """Take a data directory, and make it, or finish making it, when it is new.

        Raises StoreInUseError, NotADataDirectoryError, NewerFormatError, DamagedStoreError or StoreFailedError.
        """
        with disk_failures_told(path):
            _expect_ours(path)
        with DirectoryLock.taken(path, LOCK_FILE) as lock:
            return cls(path, lock, _complete(path, now_ms))

    @property
    def data_file(self) -> Path:
        """Where the records are; it is there."""
        return self.path / DATA_FILE

    def close(self) -> None:
        """Let go of the directory; to close twice is fine."""
        self._lock.close()


def _expect_ours(path: Path) -> None:
    """Refuse what belongs to somebody else, before anything is touched."""
    if not path.exists():
        return
    if not path.is_dir():
        raise NotADataDirectoryError(path, "it is a file")
    names = set(os.listdir(path))
    if FORMAT_FILE not in names and (strangers := names - _HALF_MADE - _MADE_BY_THE_SYSTEM):
        raise NotADataDirectoryError(path, f"there is {min(strangers)!r} in it, and no file {FORMAT_FILE!r}")


def _complete(path: Path, now_ms: int) -> int:
    """See that everything is there, and return when the directory was made."""
    format_file = path / FORMAT_FILE
    data_file = path / DATA_FILE
    if format_file.exists():
        created_ms = _read_format(path, format_file)
        if not data_file.exists():
            raise DamagedStoreError(data_file, "it is missing")
        return created_ms
    create_data_file(data_file)
    if verify(data_file).transaction:
        raise DamagedStoreError(format_file, f"it is missing, and there are records in {DATA_FILE}")
    temporary = path / _NEW_FORMAT_FILE
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT_VERSION, "created_ms": now_ms}) + "\n")
    put_in_place(temporary, format_file)
    return now_ms


def _read_format(path: Path, format_file: Path) -> int:
    try:
        content: Any = json.loads(format_file.read_bytes())
        version, created_ms = content["format"], content["created_ms"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedStoreError(format_file, f"it does not say which format this is ({error!r})") from error
    if type(version) is not int or type(created_ms) is not int or version < 1:
        raise DamagedStoreError(format_file, f"it says {version!r} and {created_ms!r} instead of two numbers")
    if version > FORMAT_VERSION:
        raise NewerFormatError(path, version, FORMAT_VERSION)
    return created_ms
