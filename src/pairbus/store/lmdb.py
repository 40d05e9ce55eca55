"""The store on disk: one LMDB file, durable with every commit."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Final

from pairbus.callbacks import Callbacks
from pairbus.durable import put_in_place, sync_directory
from pairbus.store.datafile import BEYOND_LAST_PAGE_BYTES, MEBIBYTE, NO_SPACE, DataFile
from pairbus.store.errors import (
    CommitOrderError,
    DamagedRecordError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    UnconfinedDamageError,
)
from pairbus.store.keys import after
from pairbus.store.keyvalue import (
    LONGEST_KEY_BYTES,
    PREFIXES,
    Batch,
    DamageListener,
    check_key,
    check_keys,
    moved,
    original,
    put_back_moved,
)
from pairbus.store.page_guard import (
    Fences,
    Found,
    Leaf,
    LivePages,
    PathReader,
    RecentlySound,
    doubtful_leaves,
    unconfined,
    unwritable_leaves,
)
from pairbus.store.page_nodes import CHECKSUM_BYTES, LostPage, seal, unseal
from pairbus.store.pages import free_pages, verify

try:
    import lmdb
except ImportError as error:
    raise ImportError("the store on disk needs lmdb: pip install 'pairbus[server]'") from error

DEFAULT_MAX_BYTES: Final = 1 << 40
"""Address space; it takes neither memory nor disk."""

_SMALLEST_MAP_BYTES: Final = MEBIBYTE
_MOST_FENCED: Final = 8
"""Number of damaged ranges that are fenced before the file is rebuilt: many damaged pages suggest more."""

CHECKED_S: Final = 0.1
"""Time for which the pages of a range of keys count as sound after a check."""

_DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.MapResizedError,
    lmdb.InvalidError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
    lmdb.IncompatibleError,
    lmdb.BadValsizeError,
)
"""Errors that LMDB raises if its file was changed by anything else."""

_STEP_BYTES: Final = 64 * MEBIBYTE
_FIRST_RECORDS: Final = 16
_CHUNK_RECORDS: Final = 1_000
_CHUNK_BYTES: Final = MEBIBYTE
_CHUNK_LEAVES: Final = 4
_RECORD_BYTES: Final = CHECKSUM_BYTES + 10
"""Overhead of a record beside its key and its value: our checksum, and LMDB's node with the pointer to it."""


class LmdbStore:
    """An LMDB file that this process alone has open. It is created if it is missing, and verified otherwise.

    Raises DamagedStoreError, StoreInUseError or StoreFailedError. ``max_bytes`` is the maximum size of the file; less
    if the system does not grant that much address space. ``step_bytes`` is how much is allocated at once.
    An owner that ``rests`` calls ``rest`` when no commit follows for a while: until then, the pages on which all others
    depend cannot be restored. With an owner that does not, each commit reads them.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, step_bytes: int = _STEP_BYTES, rests: bool = False
    ) -> None:
        if max_bytes < _SMALLEST_MAP_BYTES:
            raise ValueError(f"max_bytes must be >= {_SMALLEST_MAP_BYTES}, got {max_bytes}")
        self.path = path
        self.place = str(path)
        self._step_bytes = step_bytes
        self._rests = rests
        self._snapshot: lmdb.Transaction[memoryview[int]] | None = None
        """The snapshot that all reads see. It stays open while the next batch is written and no longer. LMDB, which
        does not know of it without its locks, reuses no page of a state before the second batch after it.
        """
        self._snapshot_is_old = False
        self._environment_is_doubtful = False
        self._pending: LmdbCommit | None = None
        self._pending_bytes = 0
        self._closed = False
        self.is_copy = False
        """True while the file is written for the first time: what LMDB does not find need not be looked for by hand.
        """

        self.unconfined: UnconfinedDamageError | None = None
        """The damage for which the file has to be rebuilt; ``None`` if there is none, or it cannot be rebuilt now."""

        self._may_rebuild: Callable[[], bool] = lambda: False
        self.on_unconfined: Callbacks[[]] = Callbacks()
        """Called when ``unconfined`` was set."""

        create_data_file(path)
        self._open_file(max_bytes)

        self.on_damaged_page: Callbacks[[LostPage]] = Callbacks()
        """Called when a damaged page was found and fenced."""

        self.on_restored: Callbacks[[str]] = Callbacks()
        """Called when a part of the file that was damaged has been restored from memory."""

        put_back_moved(self)

    def _open_file(self, max_bytes: int, *, verifies: bool = True) -> None:
        self._file = DataFile(self.path, step_bytes=self._step_bytes)
        try:
            if verifies:
                verify(self.path)
            self._environment, self.max_bytes = _open_largest(self.path, max_bytes)
        except StoreError:
            self._file.close()
            raise
        self._file.set_limit(self.max_bytes)
        self._pages = LivePages(self._file.descriptor, self._file.newest.page_bytes, self.place)
        self._fences = Fences()
        self._sound = RecentlySound()
        """Pages that were checked at most ``CHECKED_S`` ago."""
        self._sound_until_s = 0.0
        self._is_verified = True
        """True if nothing was written, or found damaged, since the whole file was verified."""

    def allow_rebuild(self, may_rebuild: Callable[[], bool]) -> None:
        """Let the owner rebuild the file once ``unconfined`` is set, if ``may_rebuild`` returns true.

        Otherwise, the readable records of a damaged file are still read.
        """
        self._may_rebuild = may_rebuild

    @property
    def used_bytes(self) -> int:
        return self._file.used_bytes

    def get(self, key: bytes) -> bytes | None:
        if not 0 < len(key) <= LONGEST_KEY_BYTES:
            check_key(key)
        if self._fences and self._fences.covers(key):
            return self._fenced(key)
        failure: lmdb.Error | None = None
        try:
            raw = self._newest().get(key)
            if raw is None and self.is_copy:
                return None
            # The length in a damaged page may reach beyond the file. Reading that would kill the process.
            if raw is not None and len(raw) <= BEYOND_LAST_PAGE_BYTES // 2:
                value = unseal(key, bytes(raw))
                if value is not None:
                    return value
        except lmdb.Error as error:
            failure = error
            self._distrust()
        return self._read_by_hand(key, failure)

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        position: bytes | None = start
        at_once = _FIRST_RECORDS
        while position is not None:
            if self._is_verified:
                records, position = self._chunk(position, end, at_once)
                is_small = sum([len(raw) for _, raw in records]) < _CHUNK_BYTES
                at_once = min(2 * at_once, _CHUNK_RECORDS) if is_small else _FIRST_RECORDS
            else:
                records, position = self._chunk_by_hand(position, end)
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
        if self.unconfined is not None and self._may_rebuild():
            raise self.unconfined
        needed = _needed_bytes(batch)
        self._expect_room(needed, batch, snapshot)
        try:
            transaction = self._written(batch)
        except lmdb.Error:
            self._distrust()  # perhaps a page was damaged since it was checked
            transaction = self._written_or_failed(batch)
        self._is_verified = False
        self._pending_bytes = needed
        self._pending = LmdbCommit(self, transaction)
        return self._pending

    def _written_or_failed(self, batch: Batch) -> lmdb.Transaction[bytes]:
        try:
            return self._written(batch)
        except lmdb.Error as error:
            raise self._translated(error) from error

    def _written(self, batch: Batch) -> lmdb.Transaction[bytes]:
        """Return a transaction that holds a batch."""
        self._expect_sound_file()
        batch = self._around_fences(batch)
        transaction = self._begin_writing()
        try:
            _write(transaction, batch)
        except BaseException:
            transaction.abort()
            raise
        return transaction

    def _begin_writing(self) -> lmdb.Transaction[bytes]:
        """Begin a transaction on the state of the last commit. LMDB takes for that what the meta pages say now."""
        transaction = self._environment.begin(write=True)
        if self._is_on_newest(transaction, self._file.newest.transaction + 1):
            return transaction
        transaction.abort()
        self._distrust()
        self._expect_sound_file()
        return self._environment.begin(write=True)

    def _is_on_newest(self, transaction: lmdb.Transaction[Any], number: int) -> bool:
        """Return whether LMDB has begun a transaction with this number, on meta pages that no other has changed."""
        try:
            return transaction.id() == number and self._file.has_sound_metas()
        except OSError as error:
            transaction.abort()
            raise StoreFailedError(self.place, str(error)) from error

    # Damage in a file that is in use

    def check(self, key: bytes) -> bool:
        """Check the record under a key, and the page around it; return whether the record can be read, or is gone."""
        self._newest()
        if not self._fences.covers(key):
            around = doubtful_leaves(self._path_reader(), key)
            if around:
                self._fence(around)
        try:
            self.get(key)
        except DamagedRecordError:
            return False
        return True

    def _expect_sound_file(self) -> None:
        """Restore what LMDB reads first, if it was changed by others. Only while no commit is running.

        Checking that for each of thousands of commits a second would cost more than the commits themselves.
        """
        now_s = monotonic()
        if now_s < self._sound_until_s:
            return
        self._sound.clear()
        self._sound_until_s = now_s + CHECKED_S
        try:
            problems = self._file.restore()
        except OSError as error:
            raise StoreFailedError(self.place, str(error)) from error
        for problem in problems:
            self.on_restored(problem)

    def _distrust(self) -> None:
        """Check the file again before it is used again: LMDB has failed, and refuses to use the snapshot any more."""
        self._snapshot_is_old = True
        self._sound_until_s = 0.0

    def _path_reader(self) -> PathReader:
        return PathReader(self._pages, self._file.newest.main)

    def _read_by_hand(self, key: bytes, failure: lmdb.Error | None) -> bytes | None:
        """Read a record that LMDB did not find, or found damaged, without LMDB; fence its page if that is damaged."""
        path = self._path_reader()
        around = doubtful_leaves(path, key)
        if around:
            self._fence(around)
            return self._fenced(key)
        leaf = path.leaf(key)
        node = path.node(leaf, key) if isinstance(leaf, Leaf) else None
        if node is not None:
            if node.value is None:
                self._is_verified = False
                raise self._damaged_record(key, (node.page, node.offset))
            return node.value
        if failure is not None:
            raise self._translated(failure) from failure
        return None

    def _fence(self, around: Sequence[Found]) -> None:
        self._is_verified = False
        self._sound.clear()
        if self._pending is None:
            self._distrust()
            self._expect_sound_file()  # the free list first: it tells which pages hold earlier versions of records
        free = free_pages(self.path, self._file.descriptor, self._file.newest)
        around = self._path_reader().widened(around)
        self._expect_confined(around, free)
        for page in self._fences.add(self._pages, self._file.newest.main.root, around, free):
            self.on_damaged_page(page)

    def _expect_confined(self, around: Sequence[Found], free: frozenset[int] | None) -> None:
        """Raise ``UnconfinedDamageError`` if the file is to be rebuilt rather than fenced."""
        reason = unconfined(self._pages, around)
        if free is None:
            reason = "the list of its free pages is damaged"
        if self._fences.count >= _MOST_FENCED:
            reason = f"it has more than {_MOST_FENCED} damaged pages"
        if reason is not None and self._may_rebuild():
            raise self._unconfined(reason)

    def _unconfined(self, reason: str) -> UnconfinedDamageError:
        error = UnconfinedDamageError(self.place, reason)
        if self.unconfined is None and self._may_rebuild():
            self.unconfined = error
            self.on_unconfined()
        return error

    def _fenced(self, key: bytes) -> bytes | None:
        """Return the value of a key in a fenced range."""
        raw = self._fenced_raw(key)
        value = None if raw is None else unseal(key, raw)
        if raw is not None and value is None:
            raise self._damaged_record(key, self._fences.place(key))
        return value

    def _damaged_record(self, key: bytes, place: tuple[int, int] | None) -> DamagedRecordError:
        """Return the error for a record that was found at an offset of a page."""
        if place is None:
            return DamagedRecordError(key, self.place)
        leaf, at = place
        offset = self._pages.value_position(leaf, at)
        page = offset // self._pages.page_bytes
        return DamagedRecordError(key, self.place, page, offset, None if page == leaf else leaf)

    def _fenced_raw(self, key: bytes) -> bytes | None:
        if not key.startswith(PREFIXES) and len(key) < LONGEST_KEY_BYTES:
            for prefix in reversed(PREFIXES):
                replacement = self.get(prefix + key)
                if replacement is not None:
                    value = original(replacement)
                    return None if value is None else seal(key, value)
        place = self._fences.place(key)
        if place is None:
            return None
        page, offset = place
        node = self._pages.node(page, self._pages.read(page), offset)
        return b"" if node is None or node.key != key else node.raw

    def _around_fences(self, batch: Batch) -> Batch:
        """Return a batch that changes no damaged page."""
        while True:
            allowed = self._moved_out_of_fences(batch) if self._fences else batch
            path = PathReader(self._pages, self._file.newest.main, self._sound)
            merges = None in allowed.values() and self._may_rebuild()
            around = unwritable_leaves(path, sorted(allowed), self._sound, merges=merges)
            if not around:
                return allowed
            self._fence(around)

    def _moved_out_of_fences(self, batch: Batch) -> Batch:
        fenced = {key: batch[key] for key in batch if self._fences.covers(key)}
        if not fenced:
            return batch
        rest = {key: batch[key] for key in batch if key not in fenced}
        for prefix in PREFIXES:
            if self._fences.next_in(prefix, after(prefix)) is None:
                return {**rest, **moved(fenced, prefix)}
        raise self._unconfined("too many of its pages are damaged")

    def _chunk_by_hand(self, start: bytes, end: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Read the records of a few leaves, or of a fenced range, and the key to continue at."""
        self._expect_open()
        fence = self._fences.next_in(start, end) if self._fences else None
        if fence is not None and fence[0] == start:
            return self._fenced_chunk(*fence), fence[1] if fence[1] < end else None
        stop = end if fence is None else fence[0]
        path = self._path_reader()
        records: list[tuple[bytes, bytes]] = []
        for _ in range(_CHUNK_LEAVES):
            leaf = path.leaf(start)
            if leaf is None:
                return [], None
            around = doubtful_leaves(path, start)
            if around or isinstance(leaf, LostPage):
                self._fence(around)
                break
            nodes = [self._pages.node(leaf.page, leaf.data, at) for at in leaf.pointers]
            records += [(node.key, node.raw) for node in nodes if node is not None and start <= node.key < stop]
            start = stop if leaf.high is None else min(leaf.high, stop)
            if start == stop:
                break
        return records, start if start < end else None

    def _fenced_chunk(self, low: bytes, high: bytes) -> list[tuple[bytes, bytes]]:
        found = set(self._fences.keys(low, high))
        for prefix in () if low.startswith(PREFIXES) else PREFIXES:
            moved_keys = self.scan(prefix + low, min(prefix + high, after(prefix)), lambda _key, _raw: None)
            found.update(key[1:] for key, _ in moved_keys)
        raws = ((key, self._fenced_raw(key)) for key in sorted(found))
        return [(key, raw) for key, raw in raws if raw is not None]

    def room(self, wanted_bytes: int = 0) -> int:
        self._expect_open()
        if self._pending is None and self._file.measure() and self._file.is_short:
            with suppress(StoreFailedError):  # the space may suffice without growing
                self._file.grow()
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
        """Run a commit: the only part of the store that may be on another thread."""
        number = transaction.id()
        try:
            transaction.commit()
            self._note_commit(number)
            if not self._rests:
                self._file.remember()
            self._file.keep_ahead()
        except lmdb.Error as error:
            self._check_meta_after_failure()
            self._sound_until_s = 0.0
            self._file.note_commit(number, is_durable=False)
            self._file.remember()
            raise self._translated(error) from error
        finally:
            self._snapshot_is_old = True
            self._pending_bytes = 0
            self._pending = None

    def _note_commit(self, number: int) -> None:
        try:
            problems = self._file.note_commit(number)
        except StoreFailedError:
            self._environment_is_doubtful = True  # LMDB remembers the commit that was lost
            raise
        for problem in problems:
            self.on_restored(problem)

    def rest(self) -> None:
        """Remember the pages on which all others depend. Call it on the thread that commits, after the last commit."""
        self._file.remember()

    def drop(self, transaction: lmdb.Transaction[bytes]) -> None:
        """Abandon a commit."""
        transaction.abort()
        self._pending_bytes = 0
        self._pending = None

    def _check_meta_after_failure(self) -> None:
        """Check whether the meta page could not be written: then LMDB has to be reopened."""
        try:
            self._environment.begin(write=True).abort()
        except lmdb.Error:
            self._environment_is_doubtful = True

    def _newest(self) -> lmdb.Transaction[memoryview[int]]:
        if self._snapshot is None or self._snapshot_is_old:
            self._expect_open()
            if self._environment_is_doubtful:
                self._reopen()
            if self._pending is None:
                self._expect_sound_file()
            self._give_up_snapshot()
            self._snapshot = self._begin_reading()
            self._snapshot_is_old = False
        return self._snapshot

    def _begin_reading(self) -> lmdb.Transaction[memoryview[int]]:
        try:
            transaction = self._environment.begin(buffers=True)
            if self._pending is not None or self._is_on_newest(transaction, self._file.newest.transaction):
                return transaction
            transaction.abort()
            self._distrust()
            self._expect_sound_file()
            return self._environment.begin(buffers=True)
        except lmdb.Error as error:
            raise self._translated(error) from error

    def _chunk(self, start: bytes, end: bytes, at_once: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Read some records of a file that was verified just now, and the key to continue at."""
        try:
            return self._chunk_by_cursor(start, end, at_once)
        except lmdb.Error:
            self._is_verified = False
            self._distrust()
            return [], start

    def _chunk_by_cursor(
        self, start: bytes, end: bytes, at_once: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        number = self._newest().id()
        # A transaction that copies what it reads: a start spends less time on that than on a buffer for each value.
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            if transaction.id() != number:
                raise lmdb.InvalidError("another state than that of the last commit")
            if not cursor.set_range(start):
                return [], None
            records = [*islice(cursor.iternext(), at_once)]
        if len(records) == at_once and records[-1][0] < end:
            return records, records[-1][0] + b"\0"
        while records and records[-1][0] >= end:
            del records[-1]
        return records, None

    def _expect_room(self, needed: int, batch: Batch, snapshot: lmdb.Transaction[memoryview[int]]) -> None:
        file = self._file
        while needed + file.kept_back_bytes > file.free_bytes:
            if not file.grow():
                if _growth(batch, snapshot) <= 0:
                    return
                raise StoreFullError(self.place, f"{needed} bytes are needed, but only {self.room()} are left")

    def _reopen(self) -> None:
        self._close_environment()
        try:
            self._environment = _open(self.path, self.max_bytes)
        except lmdb.Error as error:
            raise self._translated(error) from error
        self._environment_is_doubtful = False

    def restore(self) -> None:
        """Write back the pages on which all others depend, before the file is read to be rebuilt."""
        if self._pending is not None:
            self._pending.abandon()
        self._distrust()
        self._expect_sound_file()

    def replace_file(self, new: Path, kept: Path) -> None:
        """Use a new, verified file instead of this one, which is kept under another name.

        If the process ends meanwhile, the next one finds either the old file or the new one under the file's name.
        """
        self._close_environment()
        self._file.close()
        self._environment_is_doubtful = False
        try:
            keep_file(self.path, kept)
            put_in_place(new, self.path)
        except OSError as error:
            self._open_file(self.max_bytes, verifies=False)
            self._is_verified = False
            raise StoreFailedError(self.place, str(error)) from error
        self._open_file(self.max_bytes, verifies=False)
        self.unconfined = None

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
        if isinstance(error, _DAMAGE):
            return self._unconfined(str(error))
        if error.code in NO_SPACE:
            return StoreFullError(self.place, os.strerror(error.code))
        # LMDB reports a write that a full disk cut short as an I/O error.
        if error.code == errno.EIO and self._file.is_stuck():
            return StoreFullError(self.place, os.strerror(errno.ENOSPC))
        return StoreFailedError(self.place, str(error))


class LmdbCommit:
    """A batch in an LMDB transaction, whose pages are yet to be written."""

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
            raise CommitOrderError("this commit is running, or was already run or abandoned")
        transaction, self._transaction = self._transaction, None
        return transaction


def keep_file(path: Path, kept: Path) -> None:
    """Give a file another name besides its own, durably; where files cannot have two names, copy it."""
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, kept)
        with kept.open("rb") as file:
            os.fsync(file.fileno())
    sync_directory(path.parent)


def create_data_file(path: Path) -> None:
    """Create an empty file, unless there is one; under its name there is a complete file or none."""
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
    """Return the minimum space that the values of a batch take."""
    values = [value for value in batch.values() if value is not None]
    return sum(map(len, batch)) + sum(map(len, values)) + len(values) * _RECORD_BYTES


def _growth(batch: Batch, snapshot: lmdb.Transaction[memoryview[int]]) -> int:
    """Return by how many bytes the values of a batch grow the store."""
    growth = 0
    for key, value in batch.items():
        before = snapshot.get(key)
        growth += 0 if value is None else _RECORD_BYTES + len(key) + len(value)
        growth -= 0 if before is None else _RECORD_BYTES + len(key) + len(before) - CHECKSUM_BYTES
    return growth


def _open_largest(path: Path, max_bytes: int) -> tuple[lmdb.Environment, int]:
    """Open the file with the requested address space, or the most that the system grants."""
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
    # Without LMDB's locks a transaction may begin on one thread and be committed on another. We guarantee what the
    # locks are for: one process, one batch at a time, and no read of a state that is older than the previous one.
    return lmdb.Environment(
        str(path),
        map_size=max_bytes,
        subdir=False,
        mode=0o600,
        lock=False,
        readahead=False,
        meminit=True,  # what the process had in memory must not get into the file: a rebuild may find it there
        max_dbs=0,
        max_spare_txns=1,
        lib_version=0,
    )
