"""A walk through one of the two trees of an LMDB file: every page, every node, keys in order."""

from __future__ import annotations

import struct
from functools import cache
from typing import ClassVar, Final

from pairbus.store.keyvalue import LONGEST_KEY_BYTES
from pairbus.store.meta import NO_PAGE, PAGE_HEADER, Tree
from pairbus.store.pagefile import PageFile

_DEEPEST_TREE: Final = 32
"""LMDB's cursors hold no longer path."""

# Flags of a page, and the only one that a node of a leaf can have in our files.
_BRANCH: Final = 0x01
LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
BIG_VALUE: Final = 0x01

HEADER_BYTES: Final = PAGE_HEADER.size
_OVERFLOW_HEADER: Final = struct.Struct("<QHHI")
"""Page number, padding, flags, how many pages belong together: the first page of a big value."""

NODE: Final = struct.Struct("<IHH")
"""In a leaf: size of the value, flags, size of the key. In a branch: page of the child, its high bits, size of the
key."""

NODE_BYTES: Final = NODE.size
PAGE_NUMBER: Final = struct.Struct("<Q")
"""All that a leaf holds of a big value."""


class TreeWalk:
    """Goes through a tree from its root, and compares it with what the meta page says of it."""

    name: ClassVar[str] = "tree of the records"
    fewest_children: ClassVar[int] = 2
    numbers: ClassVar[bool] = False
    """Whether the keys are numbers, in the machine's order of bytes."""

    def __init__(self, pages: PageFile, tree: Tree) -> None:
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
        said = (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries)
        if found != said:
            self._pages.damaged(
                f"the {self.name} has {found} branch, leaf and overflow pages and entries, and should have {said}"
            )

    def _walk_page(self, number: int, source: int | None, low: bytes, high: bytes | None, levels: int) -> None:
        page = self._pages.read(number, source)
        if levels:
            self._walk_branch(number, page, low, high, levels)
        else:
            self._walk_leaf(number, page, low, high)

    def _walk_branch(self, number: int, page: bytes, low: bytes, high: bytes | None, levels: int) -> None:
        self._branch_pages += 1
        bounds = []
        children = []
        size = 0
        for at in self.pointers(number, page, _BRANCH):
            child, child_high, key_bytes = NODE.unpack_from(page, at)
            key_at = at + NODE_BYTES
            bounds.append(self._key(page[key_at : key_at + key_bytes]))
            children.append(child | child_high << 32)
            size += NODE_BYTES + key_bytes + (key_bytes & 1)
        if len(children) < self.fewest_children:
            self._pages.damaged("it is a branch that does not branch", number)
        # LMDB does not look at the first key: what is lower than the second belongs to the first child. That the bounds
        # are in order shows further down, where every leaf has a key between two of them.
        bounds[0] = low
        self._check_extent(number, page, size, bounds[-1], high)
        for child, first, end in zip(children, bounds, [*bounds[1:], high], strict=True):
            self._walk_page(child, number, first, end, levels - 1)

    def _walk_leaf(self, number: int, page: bytes, low: bytes, high: bytes | None) -> None:
        # The one loop that runs for every record: all that is needed stands in it, and nothing else.
        unpack = NODE.unpack_from
        numbers = self.numbers
        pointers = self.pointers(number, page, LEAF)
        previous = b""
        size = 0
        for at in pointers:
            value_bytes, flags, key_bytes = unpack(page, at)
            key_at = at + NODE_BYTES
            value_at = key_at + key_bytes
            key = page[key_at:value_at]
            if numbers:
                key = key[::-1]
            if key <= previous or key < low or key_bytes > LONGEST_KEY_BYTES:
                self._out_of_order(number)
            previous = key
            if flags:
                self._reach_big_value(number, page, value_at, value_bytes, flags)
                value_bytes = PAGE_NUMBER.size
            node_bytes = NODE_BYTES + key_bytes + value_bytes
            size += node_bytes + (node_bytes & 1)
        self._leaf_pages += 1
        self._entries += len(pointers)
        self._check_extent(number, page, size, previous, high)

    def _reach_big_value(self, number: int, page: bytes, at: int, value_bytes: int, flags: int) -> None:
        if flags != BIG_VALUE or at + PAGE_NUMBER.size > len(page):
            self._pages.damaged(f"it has a node with the flags {flags:#x} at {at}", number)
        (start,) = PAGE_NUMBER.unpack_from(page, at)
        if not self._pages.holds(start):
            self._pages.stray(start, number)
        stored, _pad, kind, count = _OVERFLOW_HEADER.unpack(self._pages.start_of(start, _OVERFLOW_HEADER.size))
        # LMDB may keep more pages than a value needs when it is rewritten within a transaction, but never fewer.
        if stored != start or kind != _OVERFLOW or HEADER_BYTES + value_bytes > count * len(page):
            self._pages.damaged(f"it does not hold the value of {value_bytes} bytes that page {number} says", start)
        self._pages.reach(start, count, number)
        self._overflow_pages += count

    def pointers(self, number: int, page: bytes, kind: int) -> tuple[int, ...]:
        stored, _pad, flags, lower, upper = PAGE_HEADER.unpack_from(page)
        if stored != number or flags != kind:
            self._pages.damaged(f"its header has the page number {stored} and the flags {flags:#x}", number)
        if lower & 1 or not HEADER_BYTES < lower <= upper <= len(page):
            self._pages.damaged(f"its free space goes from {lower} to {upper}", number)
        pointers: tuple[int, ...] = _pointer_array((lower - HEADER_BYTES) // 2).unpack_from(page, HEADER_BYTES)
        if min(pointers) < upper or max(pointers) > len(page) - NODE_BYTES:
            self._pages.damaged("a node lies outside of it", number)
        return pointers

    def _check_extent(self, number: int, page: bytes, size: int, last: bytes, high: bytes | None) -> None:
        """See that the nodes fill the page from ``upper`` to its end, as LMDB packs them, and end below the bound."""
        upper = PAGE_HEADER.unpack_from(page)[-1]
        if size != len(page) - upper:
            self._pages.damaged(f"its nodes have {size} bytes, and should have {len(page) - upper}", number)
        if high is not None and last >= high:
            self._out_of_order(number)

    def _out_of_order(self, number: int) -> None:
        self._pages.damaged("its keys are not in order, or not in the range in which they are looked for", number)

    def _key(self, stored: bytes) -> bytes:
        return stored[::-1] if self.numbers else stored


@cache
def _pointer_array(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")
