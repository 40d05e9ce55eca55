"""What can go wrong in a store, one class a kind; each says what happened, to what, and what to do.

::

    StoreError
    ├── InvalidKeyError           a key that no store takes
    ├── CommitOrderError          a commit while another is prepared, or one that was used up
    ├── StoreClosedError          the store was closed before
    ├── NamespaceReplacedError    a failed commit has taken this namespace back
    ├── UnsupportedSystemError    an operating system on which no file can be kept safe yet
    ├── StoreFullError            no room; nothing has changed
    ├── StoreFailedError          the disk or the system refused; nothing has changed
    ├── DamagedRecordError        one value is not what was written
    ├── DamagedStoreError         the file or the directory as a whole cannot be trusted
    ├── StoreInUseError           another process has it open
    ├── NewerFormatError          a later pairbus wrote it
    └── NotADataDirectoryError    a directory with something else in it
"""

from __future__ import annotations

import os
from pathlib import Path


class StoreError(Exception):
    """Something that a store could not do."""


class InvalidKeyError(StoreError, ValueError):
    """A key that no store takes."""

    def __init__(self, key: bytes, longest: int) -> None:
        super().__init__(f"a key of {len(key)} bytes, where 1 to {longest} are possible: {readable(key)}")
        self.key = key


class CommitOrderError(StoreError, RuntimeError):
    """A commit was prepared while another one is, or is asked for what it cannot do any more."""


class StoreClosedError(StoreError, RuntimeError):
    """The store was closed; open it again to use it."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is closed; open it again to use it")


class NamespaceReplacedError(StoreError, RuntimeError):
    """A commit has failed, and what this namespace believes is not so."""

    def __init__(self) -> None:
        super().__init__("a failed commit has taken this namespace back: use the keeper's `namespace` as it is now")


class UnsupportedSystemError(StoreError):
    """An operating system on which the store on disk does not work yet."""

    def __init__(self, system: str) -> None:
        super().__init__(f"the store on disk needs a POSIX system, and this is {system}; use the store in memory")


class StoreFullError(StoreError):
    """There is no room; nothing has changed."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"no room in {place}: {reason}; nothing was written."
            " Free space on its disk, raise its limit, or remove records; then it goes on by itself"
        )
        self.place = place
        self.reason = reason


class StoreFailedError(StoreError):
    """The disk or the operating system refused; nothing has changed."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"{place} could not be read or written: {reason}; nothing was changed."
            " Look at the disk and the system's log, then try again"
        )
        self.place = place
        self.reason = reason


class DamagedRecordError(StoreError):
    """The value that is stored under a key is not what was written there."""

    def __init__(self, key: bytes, place: str) -> None:
        super().__init__(
            f"the record {readable(key)} in {place} is damaged: its checksum is wrong."
            " Restore it from a backup, or write or delete it anew"
        )
        self.key = key
        self.place = place


class DamagedStoreError(StoreError):
    """A file or a directory cannot be trusted; it has not been touched. ``page`` says where, when that is known."""

    def __init__(self, path: Path, reason: str, page: int | None = None) -> None:
        where = f"{path}" if page is None else f"{path}, page {page}"
        super().__init__(
            f"{where} is damaged: {reason}. It was left as it is."
            " Check the disk, then restore the data directory from a backup or start with an empty one"
        )
        self.path = path
        self.reason = reason
        self.page = page


class StoreInUseError(StoreError):
    """Another process has it open; ``holder`` is its process id, when that is known."""

    def __init__(self, path: Path, holder: int | None) -> None:
        if holder == os.getpid():
            super().__init__(f"{path} is in use by this very process; close what has it open first")
        else:
            by = "another process" if holder is None else f"process {holder}"
            super().__init__(f"{path} is in use by {by}; stop that one first, or use another directory")
        self.path = path
        self.holder = holder


class NewerFormatError(StoreError):
    """A later pairbus wrote the directory; it has not been touched."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, and this pairbus knows formats up to {known}. It was left as it is."
            " Use the pairbus that wrote it, or a later one"
        )
        self.path = path
        self.found = found
        self.known = known


class NotADataDirectoryError(StoreError):
    """A path that holds something else than our data; it has not been touched."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is no data directory of pairbus: {reason}. Name an empty or a new directory")
        self.path = path
        self.reason = reason


def readable(key: bytes) -> str:
    """Show a key in an error's text, shortened when it is long."""
    return repr(key) if len(key) <= 64 else f"{key[:64]!r}… ({len(key)} bytes)"
