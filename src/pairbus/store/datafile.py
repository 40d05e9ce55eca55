"""The file that LMDB writes, allocated ahead of its use, so that a commit does not run into a full disk half-way."""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Final, Self, TypeAlias

from pairbus.durable import OURS_ALONE, make_directory
from pairbus.durable import try_lock as lock_file
from pairbus.store.errors import StoreFailedError, StoreInUseError, StoreStalledError, UnsupportedSystemError
from pairbus.store.page_nodes import PageSource, is_sound, linked_pages
from pairbus.store.pages import (
    META_BYTES,
    META_PAGES,
    NO_PAGE,
    PAGE_HEADER,
    Meta,
    meta_page_bytes,
    meta_transaction,
    predecessor_of,
    read_meta,
)

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""Do not follow a symbolic link in place of our file: it would redirect writes to another file."""


class DirectoryLock:
    """An exclusive lock of this process on a directory, until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    @contextmanager
    def taken(cls, path: Path, name: str) -> Iterator[Self]:
        """Create a directory if it does not exist, and lock it by a file in it. If the block fails, release the lock.

        Raises ``StoreInUseError``, and ``StoreFailedError`` for disk errors, here or in the block.
        """
        with disk_errors_as_store_errors(path):
            make_directory(path, OURS_ALONE)
            lock = cls(_take_lock(path / name))
            try:
                yield lock
            except BaseException:
                lock.close()
                raise

    def close(self) -> None:
        """Release the lock. Closing twice is allowed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def disk_errors_as_store_errors(path: Path) -> Iterator[None]:
    """Turn disk errors of the block into ``StoreFailedError``."""
    try:
        yield
    except OSError as error:
        raise StoreFailedError(str(path), str(error)) from error


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return ``False`` if another process has locked it."""
    if sys.platform == "win32":
        raise UnsupportedSystemError(sys.platform)
    return lock_file(descriptor)


def _take_lock(path: Path) -> int:
    """Lock the directory of a file until the descriptor is closed. Raises ``StoreInUseError``, ``OSError``."""
    # The file stays after the lock is released: removing it would let two processes lock two files of the same name.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NO_FOLLOW, 0o600)
    if not try_lock(descriptor):
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StoreInUseError(path.parent, holder)
    with suppress(OSError):  # only used in the other process's error, and the disk may be full
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor


def _holder(descriptor: int) -> int | None:
    with suppress(ValueError):
        return int(os.pread(descriptor, 32, 0))
    return None


MEBIBYTE: Final = 1 << 20
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""System errors of a file that cannot grow."""

_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV})
"""System errors of a file system that cannot allocate space ahead."""

GROW_WITHIN_S: Final = 0.25
"""Timeout for growing the file, which takes milliseconds. The event loop waits for it."""

BEYOND_LAST_PAGE_BYTES: Final = 256 * 1024
"""The bytes behind the last page that must be readable: LMDB's offsets in a damaged page reach no further."""

_META: Final = "meta page"
_UNWRITTEN_BYTES: Final = PAGE_HEADER.size + 16
"""The bytes at the start of a meta page that no commit writes: its number and flags, and the format of the file."""

_KEPT_PAGES: Final = 64
"""Most pages whose content is kept in memory."""

_SMALLER_STEPS: Final = (1, 4, 16, 64)
_KEPT_BACK_BYTES: Final = 16 * MEBIBYTE


_Kept: TypeAlias = tuple[str, int, bytes]
"""A page with its kind, its position in the file, and its content."""


class DataFile:
    """Locks the data file, tracks how much of it is in use, and extends it in steps.

    LMDB accepts a file that is longer than its last page; it uses the meta pages only.
    """

    def __init__(self, path: Path, *, step_bytes: int) -> None:
        self._path = path
        self._max_bytes = 0
        self._step_bytes = step_bytes
        self.used_bytes = 0
        self._allocated_bytes = 0
        self._page_bytes = 0
        self._allocates = hasattr(os, "posix_fallocate")
        """If space cannot be allocated ahead, the free space of the disk is used instead."""
        self.newest: Meta
        """The meta page of the last commit."""

        self._kept: list[_Kept] = []
        """The pages on which all others depend; the meta pages first. Empty if they are unknown."""

        self._growing: Thread | None = None
        """The thread of an allocation that the disk has not completed in time."""
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreFailedError(str(path), str(error)) from error
        if not try_lock(self._descriptor):
            self.close()
            raise StoreInUseError(path, None)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    @property
    def kept_back_bytes(self) -> int:
        """Return the space reserved for batches that make the store smaller: LMDB writes pages even to delete."""
        return min(_KEPT_BACK_BYTES, self._step_bytes // 4, self._max_bytes // 8)

    @property
    def free_bytes(self) -> int:
        """Return the space that LMDB can use, as far as known."""
        return self._allocated_bytes - self.used_bytes

    @property
    def is_short(self) -> bool:
        """Return whether less than one step of space is left."""
        return self.free_bytes < self._step_bytes

    def set_limit(self, max_bytes: int) -> None:
        """Set the maximum size of the file, and start measuring."""
        self._max_bytes = max_bytes
        self.note_metas()
        self.remember()
        self._fill_holes()
        self.keep_ahead()

    def measure(self) -> bool:
        """Measure the space of the file; return whether that succeeded."""
        try:
            self._count(self._descriptor)
        except OSError:  # keep the last known value
            return False
        return True

    def keep_ahead(self) -> None:
        """Allocate more space when less than a step is left. Blocks on the disk."""
        with suppress(OSError):  # the commit before has succeeded all the same
            if not self._allocates or self.is_short:
                self._count(self._descriptor)
            if self.is_short:
                self._grow(self._descriptor)

    def grow(self, within_s: float = GROW_WITHIN_S) -> bool:
        """Allocate one more step, or as much of it as possible; return whether there is more space.

        A thread does it, because the call does not return while the disk is frozen. Raises ``StoreStalledError`` if the
        disk has not answered in time, and for as long as it does not.
        """
        if self._growing is not None and self._growing.is_alive():
            raise self._silent()
        before = self._allocated_bytes
        if not self._can_grow():
            self._count(self._descriptor)
            return self._allocated_bytes > before
        # With a separate descriptor: the file may be closed before the disk answers.
        descriptor = os.dup(self._descriptor)
        self._growing = Thread(target=self._grow_apart, args=(descriptor,), name="pairbus-growth", daemon=True)
        self._growing.start()
        self._growing.join(within_s)
        if self._growing.is_alive():
            raise self._silent()
        return self._allocated_bytes > before

    def _silent(self) -> StoreStalledError:
        return StoreStalledError(str(self._path))

    def _can_grow(self) -> bool:
        """Return whether growth is worth starting a thread: neither the limit nor the disk is exhausted."""
        disk = os.statvfs(self._path)
        least = self._step_bytes // _SMALLER_STEPS[-1]
        return self._allocates and self._allocated_bytes < self._max_bytes and disk.f_bfree * disk.f_frsize >= least

    def _grow_apart(self, descriptor: int) -> None:
        try:
            with suppress(OSError):
                self._grow(descriptor)
        finally:
            os.close(descriptor)

    def _grow(self, descriptor: int) -> None:
        for part in _SMALLER_STEPS:
            if self._allocate(descriptor, self._step_bytes // part) is None:
                break
        self._count(descriptor)

    def is_stuck(self) -> bool:
        """Return whether the file cannot grow for lack of space."""
        error = self._allocate(self._descriptor, self._step_bytes // _SMALLER_STEPS[-1])
        return error is not None and error.errno in NO_SPACE

    def note_metas(self) -> None:
        """Take the meta pages as they are: those of a file that was just opened, or that could not be read before.

        It reads once: each read may cost the thread that commits its turn of the interpreter.
        """
        self._kept = []
        with suppress(OSError):
            self._take(self._read_metas())

    def note_commit(self, transaction: int, *, is_durable: bool = True) -> list[str]:
        """Note the newest meta page and the space in use, after LMDB has committed, or failed to.

        What LMDB has not written must be as before: if others have changed it meanwhile, LMDB would take the page with
        the larger number for the newest, and forget this commit. Return what was restored. If the page of a successful
        commit is damaged, the state before it is restored, and ``StoreFailedError`` raised.
        """
        before = [data for _, _, data in self._kept[:META_PAGES]]
        self._kept = []  # they are those of an earlier commit: restoring them would damage the file
        if not before:
            self.note_metas()
            return []
        try:
            found = self._read_metas()
        except OSError:
            return []
        written = transaction % META_PAGES
        wanted = [*before]
        is_lost = False
        if self._is_of(transaction, found[written], before[written]):
            wanted[written] = before[written][:_UNWRITTEN_BYTES] + found[written][_UNWRITTEN_BYTES:]
        elif found[written] != before[written]:  # a failed LMDB reverts the number, and leaves the new roots
            wanted[written] = predecessor_of(before[1 - written])
            is_lost = is_durable  # an empty batch, for which LMDB writes nothing, is not
        changed = self._put_metas(found, wanted)
        self._take(wanted)
        if is_lost:
            raise StoreFailedError(str(self._path), "the meta page of a commit was damaged while it was written")
        return [_META for number in changed if is_durable or number != written]

    def _is_of(self, transaction: int, data: bytes, before: bytes) -> bool:
        """Return whether a meta page is that of a commit, as far as its fields show."""
        meta, most = read_meta(before[:_UNWRITTEN_BYTES] + data[_UNWRITTEN_BYTES:]), self._max_bytes
        is_plausible = meta.page_bytes == self._page_bytes and meta.used_pages <= meta.last_page + 1
        return is_plausible and meta.transaction == transaction and (meta.last_page + 1) * self._page_bytes <= most

    def _put_metas(self, found: list[bytes], wanted: list[bytes]) -> list[int]:
        """Write the meta pages that are not as wanted; return their numbers."""
        changed = [number for number, data in enumerate(found) if data != wanted[number]]
        if changed:
            with suppress(OSError):  # the next read or commit will find that the disk has failed
                for number in changed:
                    os.pwrite(self._descriptor, wanted[number], number * self._page_bytes)
                os.fsync(self._descriptor)
        return changed

    def _read_metas(self) -> list[bytes]:
        page_bytes = self._page_bytes or meta_page_bytes(os.pread(self._descriptor, META_BYTES, 0))
        data = os.pread(self._descriptor, page_bytes + META_BYTES, 0)
        self._page_bytes = page_bytes
        return [data[:META_BYTES], data[page_bytes:]]

    def _take(self, metas: list[bytes]) -> None:
        self.newest = read_meta(max(metas, key=meta_transaction))
        self.used_bytes = self.newest.used_pages * self._page_bytes
        self._kept = [(_META, number * self._page_bytes, data) for number, data in enumerate(metas)]

    def has_sound_metas(self) -> bool:
        """Return whether the meta pages are as the last commit has left them, as far as that is known."""
        kept = [data for _, _, data in self._kept[:META_PAGES]]
        return not kept or self._read_metas() == kept

    def remember(self) -> None:
        """Note the content of the pages on which all others depend, after the meta pages were noted.

        These are the meta pages, the root, and the free list; of a very long one, its first pages. What is damaged by
        now is not among them. Call it only while LMDB writes nothing, and on the thread that commits.
        """
        if not self._kept:  # the meta pages could not be read
            return
        with suppress(OSError, struct.error):
            kept = self._kept[:META_PAGES]
            pages = PageSource(self._descriptor, self._page_bytes)
            root, free = self.newest.main.root, self.newest.free.root
            if root != NO_PAGE and is_sound(root, page := pages.read(root)):
                kept.append(("root page", root * self._page_bytes, page))
            pending = [free] if free != NO_PAGE and is_sound(free, pages.read(free)) else []
            while pending and len(kept) < _KEPT_PAGES:
                number = pending.pop()
                page = pages.read(number)
                kept.append(("free list", number * self._page_bytes, page))
                pending += linked_pages(number, page)
            self._kept = kept

    def restore(self) -> list[str]:
        """Write back the pages on which all others depend, and the length of the file, if others have changed them.

        Call it only while LMDB writes nothing. Return what was wrong.
        """
        problems = []
        for what, at, data in self._kept:
            if os.pread(self._descriptor, len(data), at) != data:
                os.pwrite(self._descriptor, data, at)
                problems.append(what)
        if problems:
            os.fsync(self._descriptor)
        end = (self.newest.last_page + 1) * self.newest.page_bytes
        length = os.fstat(self._descriptor).st_size
        if length < end:
            problems.append("end of the file")
        wanted = max(end, min(end + BEYOND_LAST_PAGE_BYTES, self._max_bytes))  # LMDB maps no more than that
        if length < wanted:
            os.ftruncate(self._descriptor, wanted)
        return problems

    def close(self) -> None:
        os.close(self._descriptor)

    def _allocate(self, descriptor: int, more: int) -> OSError | None:
        start = os.fstat(descriptor).st_size
        more = min(more, self._max_bytes - start)
        if more <= 0 or not self._allocates:
            return None
        try:
            os.posix_fallocate(descriptor, start, more)
        except OSError as error:
            self._allocates = error.errno not in _UNSUPPORTED
            return error
        return None

    def _fill_holes(self) -> None:
        # Space that was allocated ahead is a hole in a file that was copied or restored.
        with suppress(OSError):
            end = (self.newest.last_page + 1) * self.newest.page_bytes
            slack = os.fstat(self._descriptor).st_size - end
            if slack > 0 and self._allocates:
                os.posix_fallocate(self._descriptor, end, slack)

    def _count(self, descriptor: int) -> None:
        length = os.fstat(descriptor).st_size
        if not self._allocates:
            disk = os.statvfs(self._path)
            length += disk.f_bavail * disk.f_frsize
        self._allocated_bytes = min(length, self._max_bytes)
