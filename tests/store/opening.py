"""Ways to open a store, so that one suite runs on every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import lmdb

from pairbus.store import KeyValueStore, LmdbStore, MemoryStore
from pairbus.store.faulty import FaultyStore

STEP_BYTES = 1 << 20
EVERYTHING = (b"", b"\xff" * 600)


class Opening(Protocol):
    """A location for records, and the store that is open there."""

    def open(self, max_bytes: int | None = None) -> KeyValueStore:
        """Open the store in a new location."""

    def reopen(self) -> KeyValueStore:
        """Close it, and open it in the same location."""

    def damage(self, key: bytes) -> KeyValueStore:
        """Change the stored bytes of one value, and return the store that sees it."""

    def close(self) -> None:
        """Close everything."""


class MemoryOpening:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def open(self, max_bytes: int | None = None) -> MemoryStore:
        self.store = MemoryStore(max_bytes=max_bytes)
        return self.store

    def reopen(self) -> MemoryStore:
        return self.store

    def damage(self, key: bytes) -> MemoryStore:
        self.store.damage(key)
        return self.store

    def close(self) -> None:
        self.store.close()


class LmdbOpening:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened = 0
        self.store: LmdbStore | None = None

    @property
    def path(self) -> Path:
        return self.directory / f"{self.opened}.mdb"

    def open(self, max_bytes: int | None = None) -> LmdbStore:
        self.close()
        self.opened += 1
        if max_bytes is None:
            self.store = LmdbStore(self.path, step_bytes=STEP_BYTES)
        else:
            self.store = LmdbStore(self.path, step_bytes=STEP_BYTES, max_bytes=max_bytes)
        return self.store

    def reopen(self) -> LmdbStore:
        self.close()
        self.store = LmdbStore(self.path, step_bytes=STEP_BYTES)
        return self.store

    def damage(self, key: bytes) -> LmdbStore:
        self.close()
        with open_raw(self.path) as environment, environment.begin(write=True) as transaction:
            stored = bytearray(transaction.get(key, b""))
            stored[-1] ^= 1
            transaction.put(key, bytes(stored))
        return self.reopen()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def open_raw(path: Path) -> lmdb.Environment:
    """Open the file of a store without the store."""
    return lmdb.Environment(str(path), subdir=False, lock=False, map_size=1 << 30, lib_version=0)


class FaultyOpening(MemoryOpening):
    """A store that could be made to fail, and is not: it must not differ from the one behind it."""

    def open(self, max_bytes: int | None = None) -> KeyValueStore:  # type: ignore[override]
        return FaultyStore(super().open(max_bytes), lambda: None)

    def reopen(self) -> KeyValueStore:  # type: ignore[override]
        return FaultyStore(super().reopen(), lambda: None)

    def damage(self, key: bytes) -> KeyValueStore:  # type: ignore[override]
        return FaultyStore(super().damage(key), lambda: None)
