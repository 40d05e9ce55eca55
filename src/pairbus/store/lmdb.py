"""The store on disk: one LMDB file, durable with every commit."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

try:
    import lmdb
except ImportError as error:
    raise ImportError("the store on disk needs lmdb: pip install 'pairbus[server]'") from error

from pairbus.durable import put_in_place
from pairbus.store.checksum import CHECKSUM_BYTES, seal, unseal
from pairbus.store.datafile import MEBIBYTE, NO_SPACE, DataFile
from pairbus.store.errors import (
    CommitOrderError,
    DamagedRecordError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from pairbus.store.keyvalue import Batch, DamageListener, check_key, check_keys
from pairbus.store.pages import verify

DEFAULT_MAX_BYTES: Final = 1 << 40
"""Address space; it takes neither memory nor disk."""

_SMALLEST_MAP_BYTES: Final = MEBIBYTE
_STEP_BYTES: Final = 64 * MEBIBYTE
_CHUNK_RECORDS: Final = 1_000
_CHUNK_BYTES: Final = MEBIBYTE
_RECORD_BYTES: Final = CHECKSUM_BYTES + 10
"""What a record takes beside its key and its value: our checksum, and LMDB's node with the pointer to it."""


class LmdbStore:
    """An LMDB file that this process alone has open. It is made when it is missing, and looked through when it is not.

    Raises DamagedStoreError, StoreInUseError or StoreFailedError. ``max_bytes`` is how large the file may become; less
    when the system does not give that much address space. ``step_bytes`` is how much is allocated at once.
    """

    def __init__(self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, step_bytes: int = _STEP_BYTES) -> None:
        if max_bytes < _SMALLEST_MAP_BYTES:
            raise ValueError(f"max_bytes is {max_bytes}; it has to be at least {_SMALLEST_MAP_BYTES}")
        self._path = path
        self.place = str(path)
        self._snapshot: lmdb.Transaction[bytes] | None = None
        """What all reads see. It stays open while the next batch is written and no longer; LMDB, which does not know
        of it without its locks, takes no page of a state before the second batch after it."""
        self._snapshot_is_old = False
        self._environment_is_doubtful = False
        self._pending: LmdbCommit | None = None
        self._pending_bytes = 0
        self._closed = False
        create_data_file(path)
        self._file = DataFile(path, step_bytes=step_bytes)
        try:
            verify(path)
            self._environment, self.max_bytes = _open_largest(path, max_bytes)
        except StoreError:
            self._file.close()
            raise
        self._file.set_limit(self.max_bytes)

    @property
    def used_bytes(self) -> int:
        return self._file.used_bytes

    def get(self, key: bytes) -> bytes | None:
        check_key(key)
        try:
            raw = self._newest().get(key)
        except lmdb.Error as error:
            raise self._translated(error) from error
        if raw is None:
            return None
        value = unseal(key, raw)
        if value is None:
            raise DamagedRecordError(key, self.place)
        return value

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        position: bytes | None = start
        while position is not None:
            try:
                records, position = self._chunk(position, end)
            except lmdb.Error as error:
                raise self._translated(error) from error
            for key, raw in records:
                value = unseal(key, raw)
                if value is not None:
                    yield key, value
                elif on_damage is None:
                    raise DamagedRecordError(key, self.place)
                else:
                    on_damage(key, raw)

    def prepare(self, batch: Batch) -> LmdbCommit:
        snapshot = self._newest()
        if self._pending is not None:
            raise CommitOrderError("another commit is prepared; run or abandon it first")
        check_keys(batch.keys())
        needed = _needed_bytes(batch)
        self._expect_room(needed, batch, snapshot)
        transaction = self._begin(write=True)
        try:
            _write(transaction, batch)
        except BaseException as error:
            transaction.abort()
            if isinstance(error, lmdb.Error):
                raise self._translated(error) from error
            raise
        self._pending_bytes = needed
        self._pending = LmdbCommit(self, transaction)
        return self._pending

    def room(self, wanted_bytes: int = 0) -> int:
        self._expect_open()
        if self._pending is None:
            self._file.measure()
        while self._free_bytes() < wanted_bytes and self._file.grow():
            pass
        return max(0, self._free_bytes())

    def _free_bytes(self) -> int:
        return self._file.free_bytes - self._file.kept_back_bytes - self._pending_bytes

    def close(self) -> None:
        if self._closed:
            return
        if self._pending is not None:
            self._pending.abandon()
        self._closed = True
        self._close_environment()
        self._file.close()

    def write(self, transaction: lmdb.Transaction[bytes]) -> None:
        """What a commit does when it runs: the only part of the store that may be on another thread."""
        try:
            transaction.commit()
            self._file.measure()
        except lmdb.Error as error:
            self._look_after_failure()
            raise self._translated(error) from error
        finally:
            self._snapshot_is_old = True
            self._pending_bytes = 0
            self._pending = None

    def drop(self, transaction: lmdb.Transaction[bytes]) -> None:
        """What a commit does when it is abandoned."""
        transaction.abort()
        self._pending_bytes = 0
        self._pending = None

    def _look_after_failure(self) -> None:
        """See whether it was the meta page that could not be written: then LMDB has to be opened anew."""
        try:
            self._environment.begin(write=True).abort()
        except lmdb.Error:
            self._file.mend_metas()
            self._environment_is_doubtful = True

    def _newest(self) -> lmdb.Transaction[bytes]:
        if self._snapshot is None or self._snapshot_is_old:
            self._expect_open()
            if self._environment_is_doubtful:
                self._reopen()
            self._give_up_snapshot()
            self._snapshot = self._begin(write=False)
            self._snapshot_is_old = False
        return self._snapshot

    def _begin(self, *, write: bool) -> lmdb.Transaction[bytes]:
        try:
            return self._environment.begin(write=write)
        except lmdb.Error as error:
            raise self._translated(error) from error

    def _chunk(self, start: bytes, end: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Read some records, and where to go on; between two chunks the snapshot may become another."""
        records: list[tuple[bytes, bytes]] = []
        size = 0
        with self._newest().cursor() as cursor:
            if cursor.set_range(start):
                for key, raw in cursor.iternext():
                    if key >= end:
                        break
                    records.append((key, raw))
                    size += len(raw)
                    if len(records) >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
                        return records, key + b"\x00"
        return records, None

    def _expect_room(self, needed: int, batch: Batch, snapshot: lmdb.Transaction[bytes]) -> None:
        file = self._file
        while needed + file.kept_back_bytes > file.free_bytes:
            if not file.grow():
                if _growth(batch, snapshot) <= 0:
                    return
                raise StoreFullError(self.place, f"{needed} bytes are needed, and {self.room()} are left")

    def _reopen(self) -> None:
        self._close_environment()
        try:
            self._environment = _open(self._path, self.max_bytes)
        except lmdb.Error as error:
            raise self._translated(error) from error
        self._environment_is_doubtful = False

    def _close_environment(self) -> None:
        self._give_up_snapshot()
        self._environment.close()

    def _give_up_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.abort()
            self._snapshot = None

    def _expect_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self.place)

    def _translated(self, error: lmdb.Error) -> StoreError:
        if isinstance(error, lmdb.MapFullError):
            return StoreFullError(self.place, f"its limit of {self.max_bytes} bytes is reached")
        if error.code in NO_SPACE:
            return StoreFullError(self.place, os.strerror(error.code))
        # LMDB reports a write that a full disk cut short as an error of the device.
        if error.code == errno.EIO and self._file.is_stuck():
            return StoreFullError(self.place, os.strerror(errno.ENOSPC))
        return StoreFailedError(self.place, str(error))


class LmdbCommit:
    """A batch that stands in a transaction of LMDB; what is left is to write its pages."""

    __slots__ = ("_store", "_transaction")

    def __init__(self, store: LmdbStore, transaction: lmdb.Transaction[bytes]) -> None:
        self._store = store
        self._transaction: lmdb.Transaction[bytes] | None = transaction

    def run(self) -> None:
        self._store.write(self._take())

    def abandon(self) -> None:
        self._store.drop(self._take())

    def _take(self) -> lmdb.Transaction[bytes]:
        if self._transaction is None:
            raise CommitOrderError("this commit is running, or was run or abandoned before")
        transaction, self._transaction = self._transaction, None
        return transaction


def create_data_file(path: Path) -> None:
    """Make an empty file, unless there is one; under its name there is a complete one or none."""
    temporary = path.with_name(path.name + ".new")
    try:
        if path.exists():
            return
        temporary.unlink(missing_ok=True)
        _open(temporary, _SMALLEST_MAP_BYTES).close()
        put_in_place(temporary, path)
    except (OSError, lmdb.Error) as error:
        raise StoreFailedError(str(path), str(error)) from error


def _write(transaction: lmdb.Transaction[bytes], batch: Batch) -> None:
    for key, value in batch.items():
        if value is None:
            transaction.delete(key)
    with transaction.cursor() as cursor:
        cursor.putmulti((key, seal(key, value)) for key, value in batch.items() if value is not None)


def _needed_bytes(batch: Batch) -> int:
    """What the values of a batch take at the least."""
    values = [value for value in batch.values() if value is not None]
    return sum(map(len, batch)) + sum(map(len, values)) + len(values) * _RECORD_BYTES


def _growth(batch: Batch, snapshot: lmdb.Transaction[bytes]) -> int:
    """How many bytes more than before the values of a batch will take."""
    growth = 0
    for key, value in batch.items():
        before = snapshot.get(key)
        growth += 0 if value is None else _RECORD_BYTES + len(key) + len(value)
        growth -= 0 if before is None else _RECORD_BYTES + len(key) + len(before) - CHECKSUM_BYTES
    return growth


def _open_largest(path: Path, max_bytes: int) -> tuple[lmdb.Environment, int]:
    """Open the file with as much address space as is wanted, or the most that the system gives."""
    while True:
        try:
            return _open(path, max_bytes), max_bytes
        except (lmdb.MemoryError, OverflowError) as error:
            if max_bytes <= _SMALLEST_MAP_BYTES:
                raise StoreFailedError(str(path), str(error)) from error
            max_bytes //= 2
        except lmdb.Error as error:
            raise StoreFailedError(str(path), str(error)) from error


def _open(path: Path, max_bytes: int) -> lmdb.Environment:
    # Without LMDB's locks a transaction may begin on one thread and be committed on another. What they are for, we see
    # to: one process, one batch at a time, and no read of a state that is older than the one before it.
    return lmdb.Environment(
        str(path),
        map_size=max_bytes,
        subdir=False,
        mode=0o600,
        lock=False,
        readahead=False,
        meminit=False,
        max_dbs=0,
        max_spare_txns=1,
        lib_version=0,
    )
