"""A store whose commits fail, wait or find no space, for practising what happens then."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from enum import Enum

from pairbus.store.errors import StoreFailedError
from pairbus.store.keyvalue import Batch, Commit, DamageListener, KeyValueStore


class StoreTrouble(Enum):
    """The trouble of a store."""

    ERROR = "error"
    """Commits fail as on a disk with I/O errors."""

    STALL = "stall"
    """Commits wait, as on a disk that does not answer."""

    FULL = "full"
    """There is no space for more messages; commits that remove some succeed."""


class FaultyStore:
    """Passes everything on to another store, except while it is in trouble.

    ``trouble`` is asked on the thread that owns the store, and on the one that commits and loads. A commit that stalls
    is written once ``resume`` is called: it is late, not lost.
    """

    def __init__(self, store: KeyValueStore, trouble: Callable[[], StoreTrouble | None]) -> None:
        self._store = store
        self._trouble = trouble
        self._stalled: _StalledCommit | None = None

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def used_bytes(self) -> int:
        return self._store.used_bytes

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(start, end, on_damage)

    def prepare(self, batch: Batch) -> Commit:
        match self._trouble():
            case StoreTrouble.ERROR:
                return _FailingCommit(self.place)
            case StoreTrouble.STALL:
                self._stalled = _StalledCommit(self._store.prepare(batch))
                return self._stalled
        return self._store.prepare(batch)

    def room(self, wanted_bytes: int = 0) -> int:
        return 0 if self._trouble() is StoreTrouble.FULL else self._store.room(wanted_bytes)

    def resume(self) -> None:
        """Let the commit that stalls continue."""
        stalled, self._stalled = self._stalled, None
        if stalled is not None:
            stalled.resume()

    def close(self) -> None:
        self._store.close()


class _FailingCommit:
    """A commit that writes nothing, and fails where a real one would: when it is run."""

    def __init__(self, place: str) -> None:
        self._place = place

    def run(self) -> None:
        raise StoreFailedError(self._place, os.strerror(errno.EIO))

    def abandon(self) -> None:
        """Do nothing: there is nothing to discard."""


class _StalledCommit:
    """A commit that waits before it is written."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._may_run = threading.Event()

    def run(self) -> None:
        self._may_run.wait()
        self._commit.run()

    def abandon(self) -> None:
        self._commit.abandon()

    def resume(self) -> None:
        self._may_run.set()
