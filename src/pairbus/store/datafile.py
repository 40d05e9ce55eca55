"""The file that LMDB writes, allocated ahead of its use, so that a commit does not meet a full disk half-way."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from pairbus.store.errors import StoreFailedError, StoreInUseError
from pairbus.store.lock import try_lock
from pairbus.store.meta import META_BYTES, Meta, predecessor_of, read_meta

MEBIBYTE: Final = 1 << 20
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when a file cannot grow."""

_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV})
"""What it says when the file system allocates nothing ahead."""

_SMALLER_STEPS: Final = (1, 4, 16, 64)
_KEPT_BACK_BYTES: Final = 16 * MEBIBYTE


class DataFile:
    """Keeps the file to ourselves, knows how much of it is in use, and makes it longer in steps.

    LMDB does not mind a file that is longer than its last page; it goes by the meta pages alone.
    """

    def __init__(self, path: Path, *, step_bytes: int) -> None:
        self._path = path
        self._max_bytes = 0
        self._step_bytes = step_bytes
        self.used_bytes = 0
        self._allocated_bytes = 0
        self._allocates = hasattr(os, "posix_fallocate")
        """Where nothing can be allocated ahead, the free space of the disk has to be good enough."""
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreFailedError(str(path), str(error)) from error
        if not try_lock(self._descriptor):
            self.close()
            raise StoreInUseError(path, None)

    @property
    def kept_back_bytes(self) -> int:
        """What is left to batches that make the store smaller: LMDB writes pages even to delete."""
        return min(_KEPT_BACK_BYTES, self._step_bytes // 4, self._max_bytes // 8)

    @property
    def free_bytes(self) -> int:
        """What is there for LMDB to use, as far as we know."""
        return self._allocated_bytes - self.used_bytes

    def set_limit(self, max_bytes: int) -> None:
        """Say how long the file may become at the most, and begin to measure."""
        self._max_bytes = max_bytes
        self._fill_holes()
        self.measure()

    def measure(self) -> None:
        """Look how much is in use, and allocate more when less than a step is left."""
        try:
            meta = self._newest_meta()
            self.used_bytes = meta.used_pages * meta.page_bytes
            self._count()
        except OSError:  # then what we knew before has to do
            return
        if self.free_bytes < self._step_bytes:
            self.grow()

    def grow(self) -> bool:
        """Allocate a step more, or what can still be had of it."""
        before = self._allocated_bytes
        for part in _SMALLER_STEPS:
            if self._allocate(self._step_bytes // part) is None:
                break
        self._count()
        return self._allocated_bytes > before

    def is_stuck(self) -> bool:
        """Tell whether the file cannot grow for want of space."""
        error = self._allocate(self._step_bytes // _SMALLER_STEPS[-1])
        return error is not None and error.errno in NO_SPACE

    def mend_metas(self) -> None:
        """Give the older meta page a sound content again, after LMDB could not write it.

        LMDB takes back the transaction number but leaves the new roots; ``verify`` could not tell that from damage.
        """
        with suppress(OSError):
            newest = self._newest_meta_data()
            older = predecessor_of(newest)
            os.pwrite(self._descriptor, older, read_meta(older).page * read_meta(newest).page_bytes)
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _allocate(self, more: int) -> OSError | None:
        start = os.fstat(self._descriptor).st_size
        more = min(more, self._max_bytes - start)
        if more <= 0 or not self._allocates:
            return None
        try:
            os.posix_fallocate(self._descriptor, start, more)
        except OSError as error:
            self._allocates = error.errno not in _UNSUPPORTED
            return error
        return None

    def _fill_holes(self) -> None:
        # What was allocated ahead is a hole in a file that was copied or restored.
        with suppress(OSError):
            meta = self._newest_meta()
            end = (meta.last_page + 1) * meta.page_bytes
            slack = os.fstat(self._descriptor).st_size - end
            if slack > 0 and self._allocates:
                os.posix_fallocate(self._descriptor, end, slack)

    def _count(self) -> None:
        length = os.fstat(self._descriptor).st_size
        if not self._allocates:
            disk = os.statvfs(self._path)
            length += disk.f_bavail * disk.f_frsize
        self._allocated_bytes = min(length, self._max_bytes)

    def _newest_meta(self) -> Meta:
        return read_meta(self._newest_meta_data())

    def _newest_meta_data(self) -> bytes:
        first = os.pread(self._descriptor, META_BYTES, 0)
        second = os.pread(self._descriptor, META_BYTES, read_meta(first).page_bytes)
        return max(first, second, key=lambda data: read_meta(data).transaction)
