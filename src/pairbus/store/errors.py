"""Errors of the store, one class per kind; each says what happened, to what, and what to do.

::

    StoreError
    ├── InvalidKeyError           a key that no store accepts
    ├── CommitOrderError          a commit while another is prepared, or one that was already used
    ├── StoreClosedError          the store is closed
    ├── NamespaceReplacedError    a failed commit has replaced this namespace
    ├── NamespaceLoadingError     the namespace is being loaded again, after a failed commit
    ├── UnsupportedSystemError    an operating system that the store on disk does not support
    ├── StoreFullError            no space; nothing has changed
    ├── StoreFailedError          the disk or the system failed; nothing has changed
    │   ├── StoreStalledError     the disk does not answer; nothing has changed
    │   ├── UnconfinedDamageError damage on which other pages depend; nothing has changed
    │   └── CommitInDoubtError    the disk failed, and does not say what it has written
    ├── DamagedRecordError        one value is not what was written
    ├── DamagedStoreError         the file or the directory as a whole cannot be trusted
    ├── StoreInUseError           another process has it open
    ├── NewerFormatError          a later pairbus wrote it
    ├── NotADataDirectoryError    a directory with other content
    ├── RepairTargetError         a directory that a repair must not write to
    └── BufferOwnerError          the side buffer of another namespace
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path


class StoreError(Exception):
    """Base class of the store's errors."""


class InvalidKeyError(StoreError, ValueError):
    """The key is one that no store accepts."""

    def __init__(self, key: bytes, longest: int) -> None:
        super().__init__(f"a key must have 1 to {longest} bytes, got {len(key)}: {readable(key)}")
        self.key = key


class CommitOrderError(StoreError, RuntimeError):
    """A commit was prepared while another one is, or was used after it was run or abandoned."""


class StoreClosedError(StoreError, RuntimeError):
    """The store is closed; open it again to use it."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is closed; open it again to use it")


class NamespaceReplacedError(StoreError, RuntimeError):
    """A commit has failed, and the state of this namespace is no longer valid."""

    def __init__(self) -> None:
        super().__init__(
            "a failed commit has replaced this namespace: use the current `namespace` of the group committer"
        )


class NamespaceLoadingError(StoreError):
    """The namespace is being loaded again, because a commit has failed or was withdrawn."""

    def __init__(self) -> None:
        super().__init__("the namespace is being loaded again after a failed write; try again in a moment")


class UnsupportedSystemError(StoreError):
    """The store on disk does not support this operating system."""

    def __init__(self, system: str) -> None:
        super().__init__(f"the store on disk needs a POSIX system, but this is {system}; use the store in memory")


class StoreFullError(StoreError):
    """There is no space; nothing has changed."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"no space in {place}: {reason}; nothing was written. Free space on its disk, raise its limit, or"
            " remove records; then it resumes automatically"
        )
        self.place = place
        self.reason = reason


class StoreFailedError(StoreError):
    """The disk or the operating system failed; nothing has changed."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"{place} could not be read or written: {reason}; nothing was changed. Check the disk and the"
            " system's log, then try again"
        )
        self.place = place
        self.reason = reason


class StoreStalledError(StoreFailedError):
    """The disk does not answer; nothing has changed."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "the storage does not answer")


class UnconfinedDamageError(StoreFailedError):
    """The file is damaged in a place on which other pages depend; nothing has changed. It has to be rebuilt."""

    def __init__(self, place: str, reason: str) -> None:
        Exception.__init__(
            self,
            f"{place} is damaged: {reason}; nothing was changed. A served namespace rebuilds the file, and then resumes"
            " automatically; if it does not, stop it, check the disk, and run pairbus repair",
        )
        self.place = place
        self.reason = reason


class DamagedRecordError(StoreError):
    """The value stored under a key is not what was written there.

    ``page`` is the page of its value, ``offset`` the position of the value in the file, in bytes, and ``referred_from``
    the page that refers to that of a large value, if known.
    """

    def __init__(
        self,
        key: bytes,
        place: str,
        page: int | None = None,
        offset: int | None = None,
        referred_from: int | None = None,
    ) -> None:
        where = place if page is None else f"{place}, page {page},"
        super().__init__(
            f"the record {readable(key)} in {where} is damaged: its checksum is wrong. Restore it from a"
            " backup, or write or delete it again"
        )
        self.key = key
        self.place = place
        self.page = page
        self.offset = offset
        self.referred_from = referred_from


class DamagedStoreError(StoreError):
    """A file or a directory cannot be trusted; it was not changed. ``page`` is the location, if known."""

    def __init__(self, path: Path, reason: str, page: int | None = None) -> None:
        where = f"{path}" if page is None else f"{path}, page {page}"
        super().__init__(
            f"{where} is damaged: {reason}. It was not changed. Check the disk, then copy everything that can be read"
            f" to a new directory with: pairbus repair --data {_quoted(path.parent)} --to NEW_DIRECTORY"
            " (or restore the data directory from a backup)"
        )
        self.path = path
        self.reason = reason
        self.page = page


class StoreInUseError(StoreError):
    """Another process has it open; ``holder`` is its process id, if known."""

    def __init__(self, path: Path, holder: int | None) -> None:
        if holder == os.getpid():
            super().__init__(f"{path} is already open in this process; close it first")
        else:
            by = "another process" if holder is None else f"process {holder}"
            super().__init__(f"{path} is in use by {by}; stop that process first, or use another directory")
        self.path = path
        self.holder = holder


class NewerFormatError(StoreError):
    """A later pairbus wrote the directory; it was not changed."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, but this pairbus supports formats up to {known}. It was not changed."
            " Use the pairbus that wrote it, or a later one"
        )
        self.path = path
        self.found = found
        self.known = known


class NotADataDirectoryError(StoreError):
    """The path has other content than our data; it was not changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a data directory of pairbus: {reason}. Use an empty or a new directory")
        self.path = path
        self.reason = reason


class RepairTargetError(StoreError):
    """A repair cannot write to this directory; it was not changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot take the repaired data: {reason}; name a new or an empty directory")
        self.path = path
        self.reason = reason


class BufferOwnerError(StoreError):
    """The directory of a side buffer belongs to another namespace, or does not name its owner; it was not changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{reason}; use another directory for the side buffer")
        self.path = path
        self.reason = reason


def _quoted(path: Path) -> str:
    """Return a path as a word of a command line."""
    return shlex.quote(str(path))


def readable(key: bytes) -> str:
    """Return a key for an error text, shortened if it is long."""
    return repr(key) if len(key) <= 64 else f"{key[:64]!r}… ({len(key)} bytes)"
