"""A reader of LMDB's file format that checks every page, to find damage before LMDB does."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Final, NoReturn

from pairbus.store.errors import DamagedStoreError, StoreFailedError
from pairbus.store.keyvalue import LONGEST_KEY_BYTES

META_PAGES: Final = 2
META_BYTES: Final = 152
"""Number of bytes in use of a meta page."""

NO_PAGE: Final = 0xFFFF_FFFF_FFFF_FFFF
"""The root of a tree without pages."""

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
"""The file format of LMDB 0.9; 1.0 writes another."""

META_FLAG: Final = 0x08
"""The page flag of a meta page."""

INTEGER_KEY: Final = 0x08
NO_SUBDIRECTORY: Final = 0x4000
"""Flags of the free list's tree: its keys are numbers, and LMDB stores there how the file was first opened."""

# The layout is that of the machine that wrote the file; only 64-bit little-endian files are supported.
PAGE_HEADER: Final = struct.Struct("<QHHHH")
"""Page number, padding, flags, end of the pointers, start of the nodes."""

_FIXED: Final = struct.Struct("<IIQQ")
"""Magic, version, map address, map size."""

_TREE: Final = struct.Struct("<IHHQQQQQ")
_TAIL: Final = struct.Struct("<QQ")
_PAGE_BYTES: Final = struct.Struct("<I")
_FREE_AT: Final = PAGE_HEADER.size + _FIXED.size
_MAIN_AT: Final = _FREE_AT + _TREE.size
_TAIL_AT: Final = _MAIN_AT + _TREE.size


@dataclass(frozen=True, slots=True)
class TreeRoot:
    """A meta page's entry for one of the two trees."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int

    @property
    def pages(self) -> int:
        return self.branch_pages + self.leaf_pages + self.overflow_pages


@dataclass(frozen=True, slots=True)
class Meta:
    """The content of a meta page."""

    page: int
    page_flags: int
    magic: int
    version: int
    free: TreeRoot
    main: TreeRoot
    last_page: int
    transaction: int

    @property
    def page_bytes(self) -> int:
        """Return the page size, which is in a field of the free list's tree that the tree itself does not need."""
        return self.free.pad

    @property
    def used_pages(self) -> int:
        return META_PAGES + self.free.pages + self.main.pages


def read_meta(data: bytes) -> Meta:
    """Parse the first bytes of a meta page, without validating them."""
    page, _pad, page_flags, _lower, _upper = PAGE_HEADER.unpack_from(data)
    magic, version, _address, _map_bytes = _FIXED.unpack_from(data, PAGE_HEADER.size)
    last_page, transaction = _TAIL.unpack_from(data, _TAIL_AT)
    return Meta(
        page=page,
        page_flags=page_flags,
        magic=magic,
        version=version,
        free=TreeRoot(*_TREE.unpack_from(data, _FREE_AT)),
        main=TreeRoot(*_TREE.unpack_from(data, _MAIN_AT)),
        last_page=last_page,
        transaction=transaction,
    )


def meta_page_bytes(data: bytes) -> int:
    """Return the page size that a meta page states."""
    (page_bytes,) = _PAGE_BYTES.unpack_from(data, _FREE_AT)
    return int(page_bytes)


def meta_transaction(data: bytes) -> int:
    """Return the number of the transaction that wrote a meta page: that of the newer one is larger."""
    _last_page, transaction = _TAIL.unpack_from(data, _TAIL_AT)
    return int(transaction)


def predecessor_of(data: bytes) -> bytes:
    """Return the older meta page that matches the newer one: as if a previous transaction had left the same content."""
    meta = read_meta(data)
    changed = bytearray(data)
    PAGE_HEADER.pack_into(changed, 0, 1 - meta.page, 0, META_FLAG, 0, 0)
    _TAIL.pack_into(changed, _TAIL_AT, meta.last_page, max(0, meta.transaction - 1))
    return bytes(changed)


_READ_AHEAD_BYTES: Final = 1 << 20
"""Most bytes that the system reads ahead for one call."""

_MOST_AHEAD_PAGES: Final = 16
"""Most pages that are read with one call."""


class PageFile:
    """Reads pages, and tracks which of them have been reached.

    It reads the file instead of mapping it: then a bad sector raises an error instead of killing the process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.length = os.fstat(descriptor).st_size
        self.page_bytes = 0
        self._last_page = 0
        self._descriptor = descriptor
        self._reached = bytearray()
        self._ahead = b""
        self._ahead_from = 0
        self._ahead_pages = 0
        self._free_beyond_end: set[int] = set()
        """LMDB does not write a page that it took from the end and freed again at once: the file may be shorter."""

    def expect(self, last_page: int) -> None:
        """Set the expected number of pages; only the meta pages have been reached so far."""
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
        """Return whether the file has a page of this number that may be in use."""
        return number < len(self._reached)

    def read(self, number: int, source: int | None) -> bytes:
        """Read a whole page; ``source`` is the page that refers to it."""
        if number >= len(self._reached) or self._reached[number]:
            self.stray(number, source)
        self._reached[number] = 1
        ahead = number - self._ahead_from
        if not 0 <= ahead < self._ahead_pages:
            self._read_from(number)
            ahead = 0
        at = ahead * self.page_bytes
        return self._ahead[at : at + self.page_bytes]

    def _read_from(self, number: int) -> None:
        """Read a page, and those behind it if that continues what was read before: twice as many each time."""
        is_next = number == self._ahead_from + self._ahead_pages
        count = min(2 * self._ahead_pages, _MOST_AHEAD_PAGES) if is_next else 1
        self._ahead = os.pread(self._descriptor, count * self.page_bytes, number * self.page_bytes)
        self._ahead_from = number
        self._ahead_pages = len(self._ahead) // self.page_bytes or 1  # fewer before a bad sector, or the end

    def reach(self, start: int, count: int, source: int) -> None:
        """Mark a run of pages as reached."""
        if start + count > len(self._reached) or self._reached.find(1, start, start + count) >= 0:
            self.stray(start, source)
        self._reached[start : start + count] = b"\x01" * count

    def give_up(self, number: int, source: int) -> None:
        """Mark a page as free."""
        if number < len(self._reached):
            self.reach(number, 1, source)
        elif number > self._last_page or number in self._free_beyond_end:
            self.stray(number, source)
        else:
            self._free_beyond_end.add(number)

    def expect_last(self) -> None:
        """Check that the last page has been reached: it was used once, and is still used, or is free."""
        last = self._last_page
        if last not in self._free_beyond_end and not (last < len(self._reached) and self._reached[last]):
            self.damaged(f"page {last} should be the last, but no page refers to it")

    def stray(self, number: int, source: int | None) -> NoReturn:
        """Raise the error for an invalid reference to a page."""
        if number > self._last_page:
            self.damaged(f"it refers to page {number}, but the last one is {self._last_page}", source)
        if number >= len(self._reached):
            self.damaged(f"it refers to page {number}, but the file ends after {self.length} bytes", source)
        self.damaged(f"it refers to page {number}, which another page refers to as well", source)

    def damaged(self, reason: str, page: int | None = None) -> NoReturn:
        raise DamagedStoreError(self.path, reason, page)


_DEEPEST_TREE: Final = 32
"""Longest path that LMDB's cursors hold."""

# Flags of a page, and the only flag that a node of a leaf can have in our files.
BRANCH: Final = 0x01
LEAF: Final = 0x02
OVERFLOW: Final = 0x04
BIG_VALUE: Final = 0x01

HEADER_BYTES: Final = PAGE_HEADER.size
OVERFLOW_HEADER: Final = struct.Struct("<QHHI")
"""Page number, padding, flags, number of consecutive pages: the first page of a large value."""

NODE: Final = struct.Struct("<IHH")
"""In a leaf: size of the value, flags, size of the key. In a branch: page of the child, its high bits, size of the
key."""

NODE_BYTES: Final = NODE.size
PAGE_NUMBER: Final = struct.Struct("<Q")
"""The page number that a leaf holds for a large value."""

_NUMBER_BYTES: Final = PAGE_NUMBER.size
_unpack_header = PAGE_HEADER.unpack_from
_unpack_node = NODE.unpack_from


class TreeWalk:
    """Walks a tree from its root, and compares it with its entry in the meta page."""

    name: ClassVar[str] = "tree of the records"
    fewest_children: ClassVar[int] = 2
    numbers: ClassVar[bool] = False
    """True if the keys are numbers, in the machine's byte order."""

    def __init__(self, pages: PageFile, tree: TreeRoot) -> None:
        self._pages = pages
        self._tree = tree
        self._branch_pages = 0
        self._leaf_pages = 0
        self._overflow_pages = 0
        self._entries = 0

    def walk(self) -> None:
        tree = self._tree
        if tree.depth > _DEEPEST_TREE or (tree.root == NO_PAGE) != (tree.depth == 0):
            self._pages.damaged(f"the {self.name} has {tree.depth} levels and the root {tree.root}")
        if tree.depth:
            self._walk_page(tree.root, None, b"", None, tree.depth - 1)
        found = (self._branch_pages, self._leaf_pages, self._overflow_pages, self._entries)
        expected = (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        if found != expected:
            self._pages.damaged(
                f"the {self.name} has {found} branch, leaf and overflow pages and entries, but should have {expected}"
            )

    def _walk_page(self, number: int, source: int | None, low: bytes, high: bytes | None, levels: int) -> None:
        page = self._pages.read(number, source)
        if levels:
            self._walk_branch(number, page, low, high, levels)
        else:
            self._walk_leaf(number, page, low, high)

    def _walk_branch(self, number: int, page: bytes, low: bytes, high: bytes | None, levels: int) -> None:
        self._branch_pages += 1
        bounds: list[bytes] = []
        children: list[int] = []
        size = 0
        at: int
        child: int
        child_high: int
        key_bytes: int
        for at in self.pointers(number, page, BRANCH):
            child, child_high, key_bytes = _unpack_node(page, at)
            key_at = at + NODE_BYTES
            bounds.append(self._key(page[key_at : key_at + key_bytes]))
            children.append(child | child_high << 32)
            size += NODE_BYTES + key_bytes + (key_bytes & 1)
        if len(children) < self.fewest_children:
            self._pages.damaged("it is a branch with fewer than two children", number)
        # LMDB ignores the first key: keys lower than the second belong to the first child. That the bounds are in order
        # is checked further down, where every leaf has a key between two of them.
        bounds[0] = low
        self._check_extent(number, page, size, bounds[-1], high)
        for child, first, end in zip(children, bounds, [*bounds[1:], high], strict=True):
            self._walk_page(child, number, first, end, levels - 1)

    def _walk_leaf(self, number: int, page: bytes, low: bytes, high: bytes | None) -> None:
        pointers = self.pointers(number, page, LEAF)
        numbers = self.numbers
        first = previous = b""
        size = 0
        at: int  # with these types, the compiled loop does its arithmetic without objects
        value_bytes: int
        flags: int
        key_bytes: int
        # The one loop that runs for every record: it holds all that is needed, and nothing else.
        for at in pointers:
            value_bytes, flags, key_bytes = _unpack_node(page, at)
            value_at = at + NODE_BYTES + key_bytes
            key = page[at + NODE_BYTES : value_at]
            if numbers:
                key = key[::-1]
            if key <= previous or key_bytes > LONGEST_KEY_BYTES:
                self._out_of_order(number)
            previous = key
            if flags:
                self._reach_big_value(number, page, value_at, value_bytes, flags)
                value_bytes = _NUMBER_BYTES
            size += (NODE_BYTES + key_bytes + value_bytes + 1) & ~1
            if not first:
                first = key
        if first < low:
            self._out_of_order(number)
        self._leaf_pages += 1
        self._entries += len(pointers)
        self._check_extent(number, page, size, previous, high)

    def _reach_big_value(self, number: int, page: bytes, at: int, value_bytes: int, flags: int) -> None:
        if flags != BIG_VALUE or at + PAGE_NUMBER.size > len(page):
            self._pages.damaged(f"it has a node with the flags {flags:#x} at {at}", number)
        (start,) = PAGE_NUMBER.unpack_from(page, at)
        if not self._pages.holds(start):
            self._pages.stray(start, number)
        stored, _pad, kind, count = OVERFLOW_HEADER.unpack(self._pages.start_of(start, OVERFLOW_HEADER.size))
        # LMDB may keep more pages than a value needs when it is rewritten within a transaction, but never fewer.
        if stored != start or kind != OVERFLOW or HEADER_BYTES + value_bytes > count * len(page):
            self._pages.damaged(
                f"it does not hold the value of {value_bytes} bytes that page {number} refers to", start
            )
        self._pages.reach(start, count, number)
        self._overflow_pages += count

    def pointers(self, number: int, page: bytes, kind: int) -> tuple[int, ...]:
        stored: int
        flags: int
        lower: int
        upper: int
        stored, _pad, flags, lower, upper = _unpack_header(page)
        if stored != number or flags != kind:
            self._pages.damaged(f"its header has the page number {stored} and the flags {flags:#x}", number)
        if lower & 1 or not HEADER_BYTES < lower <= upper <= len(page):
            self._pages.damaged(f"its free space is from {lower} to {upper}", number)
        pointers: tuple[int, ...] = pointer_array((lower - HEADER_BYTES) // 2).unpack_from(page, HEADER_BYTES)
        if min(pointers) < upper or max(pointers) > len(page) - NODE_BYTES:
            self._pages.damaged("it has a node outside its bounds", number)
        return pointers

    def _check_extent(self, number: int, page: bytes, size: int, last: bytes, high: bytes | None) -> None:
        """Check that the nodes fill the page from ``upper`` to its end, as LMDB packs them, and end below the bound."""
        upper: int = _unpack_header(page)[-1]
        if size != len(page) - upper:
            self._pages.damaged(f"its nodes have {size} bytes, but should have {len(page) - upper}", number)
        if high is not None and last >= high:
            self._out_of_order(number)

    def _out_of_order(self, number: int) -> None:
        self._pages.damaged("its keys are out of order, or outside the range that leads to it", number)

    def _key(self, stored: bytes) -> bytes:
        return stored[::-1] if self.numbers else stored


@cache
def pointer_array(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


class FreeListWalk(TreeWalk):
    """Walks the free list, and checks that it contains no page that is in use."""

    name: ClassVar[str] = "free list"
    fewest_children: ClassVar[int] = 1
    numbers: ClassVar[bool] = True

    def __init__(self, pages: PageFile, meta: Meta) -> None:
        super().__init__(pages, meta.free)
        self._transaction = meta.transaction
        self._lists: list[tuple[int, tuple[int, ...]]] = []
        self.freed_last: frozenset[int] = frozenset()
        """The pages that the newest transaction freed."""

    @property
    def free_pages(self) -> frozenset[int]:
        return frozenset(number for _, numbers in self._lists for number in numbers)

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
        """Return the page numbers of a list, from the highest to the lowest; the list starts with their count."""
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


def walk_free_list(path: Path, descriptor: int, meta: Meta) -> frozenset[int]:
    """Return the pages that are free in the state of a meta page; raises ``DamagedStoreError`` and ``OSError``."""
    file = PageFile(path, descriptor)
    file.page_bytes = meta.page_bytes
    file.expect(meta.last_page)
    walk = FreeListWalk(file, meta)
    walk.walk()
    return walk.free_pages


def free_pages(path: Path, descriptor: int, meta: Meta) -> frozenset[int] | None:
    """Return the pages that are free in the state of a meta page; ``None`` if the list of them is damaged."""
    try:
        return walk_free_list(path, descriptor, meta)
    except (DamagedStoreError, OSError):
        return None


# Verification of all pages of an LMDB file before LMDB reads them.
#
# LMDB has no checksums and trusts what it reads: a damaged page can crash the process, or hide a range of keys. So
# every page that it could follow is checked here first. Values are not: they have checksums of our own.

PAGE_SIZES: Final = frozenset(1 << shift for shift in range(9, 17))
"""The page sizes that LMDB supports."""


def verify(path: Path) -> Meta:
    """Verify everything that LMDB could follow in the file; return the meta page that it will use.

    Raises DamagedStoreError if anything differs from what LMDB would have written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _verify(PageFile(path, descriptor))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreFailedError(str(path), str(error)) from error


def _verify(pages: PageFile) -> Meta:
    # A meta page is smaller than a sector, so it is never half-written; and LMDB opens no file with an invalid one.
    metas = [_meta(pages, number) for number in range(META_PAGES)]
    older, newest = sorted(metas, key=lambda meta: meta.transaction)
    pages.expect(newest.last_page)
    pages.read_ahead()
    TreeWalk(pages, newest.main).walk()
    free_list = FreeListWalk(pages, newest)
    free_list.walk()
    pages.expect_last()
    _check_succession(pages, older, newest, free_list.freed_last)
    return newest


def _meta(pages: PageFile, number: int) -> Meta:
    data = pages.start_of(number, META_BYTES)
    if len(data) < META_BYTES:
        pages.damaged(f"the file ends after {pages.length} bytes", number)
    meta = read_meta(data)
    if (meta.page, meta.page_flags, meta.magic) != (number, META_FLAG, MAGIC):
        pages.damaged("it is not a meta page of an LMDB file", number)
    if meta.version != DATA_VERSION:
        pages.damaged(f"it has LMDB's data format {meta.version}, but should have {DATA_VERSION}", number)
    if meta.page_bytes not in PAGE_SIZES or pages.page_bytes not in {0, meta.page_bytes}:
        pages.damaged(f"it has an invalid page size of {meta.page_bytes} bytes", number)
    if (meta.free.flags, meta.main.flags, meta.main.pad) != (INTEGER_KEY | NO_SUBDIRECTORY, 0, 0):
        pages.damaged("its trees are not of the kind that pairbus creates", number)
    pages.page_bytes = meta.page_bytes
    return meta


def _check_succession(pages: PageFile, older: Meta, newest: Meta, freed_last: frozenset[int]) -> None:
    """Check that the newer meta page was written right after the older one.

    With a damaged transaction number the older one could pass for the newer, and the last commit would be lost
    silently. But every commit frees the roots that it found, and the free list shows which pages those were.
    """
    if newest.transaction == 0:
        if any(tree.root != NO_PAGE for meta in (older, newest) for tree in (meta.main, meta.free)):
            pages.damaged("it has records but no transaction number", newest.page)
        return
    if newest.transaction != older.transaction + 1:
        pages.damaged(f"it has transaction {newest.transaction} after {older.transaction}", newest.page)
    if (older.main.root, older.free.root) == (newest.main.root, newest.free.root):
        return  # repaired after a commit that failed
    if older.main.root not in {NO_PAGE, *freed_last} or older.free.root not in {
        NO_PAGE,
        newest.free.root,
        *freed_last,
    }:
        pages.damaged(f"its transaction {newest.transaction} does not follow from the other meta page", newest.page)
