"""The pages of an LMDB file, read one by one and none of them twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

from pairbus.store.errors import DamagedStoreError
from pairbus.store.meta import META_PAGES

_READ_AHEAD_BYTES: Final = 1 << 20
"""The system reads only so much for one piece of advice."""


class PageFile:
    """Reads pages, and remembers which of them have a place in the file.

    It reads instead of mapping the file: then a bad sector is an error, and not the end of the process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.length = os.fstat(descriptor).st_size
        self.page_bytes = 0
        self._last_page = 0
        self._descriptor = descriptor
        self._reached = bytearray()
        self._free_beyond_end: set[int] = set()
        """LMDB does not write a page that it took from the end and gave up again at once: the file may be shorter."""

    def expect(self, last_page: int) -> None:
        """Learn how many pages there should be; only the meta pages have been reached yet."""
        self._last_page = last_page
        self._reached = bytearray(min(last_page + 1, self.length // self.page_bytes))
        self._reached[:META_PAGES] = b"\x01" * META_PAGES

    def read_ahead(self) -> None:
        """Ask the system to read the file from front to back: page by page, in the order of keys, takes much longer."""
        if not hasattr(os, "posix_fadvise"):
            return
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        end = min(len(self._reached) * self.page_bytes, memory // 2)
        for start in range(0, end, _READ_AHEAD_BYTES):
            os.posix_fadvise(self._descriptor, start, _READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)

    def start_of(self, number: int, size: int) -> bytes:
        """Read the first bytes of a page, or of a run of pages."""
        return os.pread(self._descriptor, size, number * self.page_bytes)

    def holds(self, number: int) -> bool:
        """Tell whether the file has a page of this number that may be in use."""
        return number < len(self._reached)

    def read(self, number: int, source: int | None) -> bytes:
        """Read a whole page; ``source`` is the page that leads to it."""
        if number >= len(self._reached) or self._reached[number]:
            self.stray(number, source)
        self._reached[number] = 1
        return os.pread(self._descriptor, self.page_bytes, number * self.page_bytes)

    def reach(self, start: int, count: int, source: int) -> None:
        """Take note of a run of pages."""
        if start + count > len(self._reached) or self._reached.find(1, start, start + count) >= 0:
            self.stray(start, source)
        self._reached[start : start + count] = b"\x01" * count

    def give_up(self, number: int, source: int) -> None:
        """Take note of a free page."""
        if number < len(self._reached):
            self.reach(number, 1, source)
        elif number > self._last_page or number in self._free_beyond_end:
            self.stray(number, source)
        else:
            self._free_beyond_end.add(number)

    def expect_last(self) -> None:
        """See that the last page has been reached: it was used once, and is still, or is free."""
        last = self._last_page
        if last not in self._free_beyond_end and not (last < len(self._reached) and self._reached[last]):
            self.damaged(f"page {last} should be the last, and nothing leads to it")

    def stray(self, number: int, source: int | None) -> NoReturn:
        """Complain of a page number."""
        if number > self._last_page:
            self.damaged(f"it leads to page {number}, and the last one is {self._last_page}", source)
        if number >= len(self._reached):
            self.damaged(f"it leads to page {number}, and the file ends after {self.length} bytes", source)
        self.damaged(f"it leads to page {number}, to which something else leads too", source)

    def damaged(self, reason: str, page: int | None = None) -> NoReturn:
        raise DamagedStoreError(self.path, reason, page)
