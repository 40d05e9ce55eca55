"""The free list of an LMDB file: by transaction, the pages that it gave up."""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from pairbus.store.meta import Meta
from pairbus.store.pagefile import PageFile
from pairbus.store.tree import BIG_VALUE, HEADER_BYTES, LEAF, NODE, NODE_BYTES, PAGE_NUMBER, TreeWalk

_NUMBER_BYTES: Final = PAGE_NUMBER.size


class FreeListWalk(TreeWalk):
    """Goes through the free list, and sees that it gives nothing away that is in use."""

    name: ClassVar[str] = "free list"
    fewest_children: ClassVar[int] = 1
    numbers: ClassVar[bool] = True

    def __init__(self, pages: PageFile, meta: Meta) -> None:
        super().__init__(pages, meta.free)
        self._transaction = meta.transaction
        self._lists: list[tuple[int, tuple[int, ...]]] = []
        self.freed_last: frozenset[int] = frozenset()
        """The pages that the newest transaction gave up."""

    def walk(self) -> None:
        super().walk()
        for leaf, numbers in self._lists:
            for number in numbers:
                self._pages.give_up(number, leaf)

    def _walk_leaf(self, number: int, page: bytes, low: bytes, high: bytes | None) -> None:
        super()._walk_leaf(number, page, low, high)
        for at in self.pointers(number, page, LEAF):
            self._take(number, page, at)

    def _take(self, leaf: int, page: bytes, at: int) -> None:
        value_bytes, flags, key_bytes = NODE.unpack_from(page, at)
        if key_bytes != _NUMBER_BYTES:
            self._pages.damaged(f"it has a key of {key_bytes} bytes in the free list", leaf)
        (transaction,) = PAGE_NUMBER.unpack_from(page, at + NODE_BYTES)
        value_at = at + NODE_BYTES + key_bytes
        if flags == BIG_VALUE:
            (start,) = PAGE_NUMBER.unpack_from(page, value_at)
            value = self._pages.start_of(start, HEADER_BYTES + value_bytes)[HEADER_BYTES:]
        else:
            value = page[value_at : value_at + value_bytes]
        numbers = self._numbers_in(leaf, value)
        if transaction == self._transaction:
            self.freed_last = frozenset(numbers)
        self._lists.append((leaf, numbers))

    def _numbers_in(self, leaf: int, value: bytes) -> tuple[int, ...]:
        """Read how many there are, and as many page numbers, from the highest to the lowest."""
        if len(value) < _NUMBER_BYTES or len(value) % _NUMBER_BYTES:
            self._pages.damaged(f"it has a list of free pages of {len(value)} bytes", leaf)
        (count,) = PAGE_NUMBER.unpack_from(value)
        # LMDB may have reserved more than it needed in the end.
        if count >= len(value) // _NUMBER_BYTES:
            self._pages.damaged(f"it has {count} free pages in {len(value)} bytes", leaf)
        numbers: tuple[int, ...] = struct.unpack_from(f"<{count}Q", value, _NUMBER_BYTES)
        if list(numbers) != sorted(set(numbers), reverse=True):
            self._pages.damaged("it has free pages that are not in order", leaf)
        return numbers
