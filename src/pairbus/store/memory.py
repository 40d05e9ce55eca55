"""A store in memory: for tests, and for data that need not survive."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator
from threading import Lock
from typing import Final

from pairbus.store.errors import CommitOrderError, DamagedRecordError, StoreClosedError, StoreError, StoreFullError
from pairbus.store.keyvalue import Batch, DamageListener, check_key, check_keys

_PLACE: Final = "the store in memory"


class MemoryStore:
    """Stores everything in a dictionary, and can be made to fail, so that users can test their own code with it."""

    place: Final = _PLACE

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        """Maximum size of keys and values together; may be changed at any time."""
        self._values: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = []
        """The keys in order, until a batch adds or removes one."""
        self._used = 0
        self._damaged: set[bytes] = set()
        self._pending: MemoryCommit | None = None
        self._prepare_error: StoreError | None = None
        self._run_error: StoreError | None = None
        self._closed = False
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        return self._used

    def get(self, key: bytes) -> bytes | None:
        check_key(key)
        self._expect_open()
        with self._lock:
            value = self._values.get(key)
            if key in self._damaged:
                raise DamagedRecordError(key, _PLACE)
            return value

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        self._expect_open()
        for key, value, damaged in self._between(start, end):
            self._expect_open()
            if not damaged:
                yield key, value
            elif on_damage is None:
                raise DamagedRecordError(key, _PLACE)
            else:
                on_damage(key, value)

    def prepare(self, batch: Batch) -> MemoryCommit:
        self._expect_open()
        if self._pending is not None:
            raise CommitOrderError("another commit is prepared; run or abandon it first")
        check_keys(batch.keys())
        if self._prepare_error is not None:
            error, self._prepare_error = self._prepare_error, None
            raise error
        growth = self._growth(batch)
        if self.max_bytes is not None and growth > 0 and self._used + growth > self.max_bytes:
            raise StoreFullError(_PLACE, f"{growth} more bytes would exceed its maximum of {self.max_bytes}")
        self._pending = MemoryCommit(self, dict(batch))
        return self._pending

    def room(self, wanted_bytes: int = 0) -> int:  # noqa: ARG002
        self._expect_open()
        if self.max_bytes is None:
            return sys.maxsize
        with self._lock:
            pending = 0 if self._pending is None else max(0, self._growth(self._pending.batch))
            return max(0, self.max_bytes - self._used - pending)

    def close(self) -> None:
        if self._pending is not None:
            self._pending.abandon()
        self._closed = True

    def fail_next_prepare(self, error: StoreError) -> None:
        """Make the next ``prepare`` raise this error."""
        self._prepare_error = error

    def fail_next_run(self, error: StoreError) -> None:
        """Make the next ``run`` of a commit raise this error."""
        self._run_error = error

    def damage(self, key: bytes) -> None:
        """Make the record under this key appear damaged until it is written or deleted again."""
        if key not in self._values:
            raise KeyError(key)
        self._damaged.add(key)

    def write(self, commit: MemoryCommit) -> None:
        """Run a commit."""
        self._expect_pending(commit)
        try:
            if self._run_error is not None:
                error, self._run_error = self._run_error, None
                raise error
            with self._lock:
                self._used += self._growth(commit.batch)
                for key, value in commit.batch.items():
                    self._set(key, value)
        finally:
            self._pending = None

    def drop(self, commit: MemoryCommit) -> None:
        """Abandon a commit."""
        self._expect_pending(commit)
        self._pending = None

    def _set(self, key: bytes, value: bytes | None) -> None:
        self._damaged.discard(key)
        if (value is None) == (key in self._values):
            self._sorted = None
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def _expect_pending(self, commit: MemoryCommit) -> None:
        if self._pending is not commit:
            raise CommitOrderError("this commit was already run or abandoned")

    def _growth(self, batch: Batch) -> int:
        return sum(_size(key, value) - _size(key, self._values.get(key)) for key, value in batch.items())

    def _between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes, bool]]:
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._values)
            keys = self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, end)]
            return [(key, self._values[key], key in self._damaged) for key in keys]

    def _expect_open(self) -> None:
        if self._closed:
            raise StoreClosedError(_PLACE)


class MemoryCommit:
    """A batch for a store in memory."""

    __slots__ = ("_store", "batch")

    def __init__(self, store: MemoryStore, batch: Batch) -> None:
        self._store = store
        self.batch = batch

    def run(self) -> None:
        self._store.write(self)

    def abandon(self) -> None:
        self._store.drop(self)


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
