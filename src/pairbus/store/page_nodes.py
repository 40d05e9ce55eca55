"""The checksum in front of every stored value, and single pages of an LMDB file that may be damaged.

Nothing in such a page is trusted, and nothing raises. Pages are read, not mapped: a bad sector, or a file that was cut
off, then yields empty pages instead of a signal that kills the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterator
from typing import Final, NamedTuple
from zlib import crc32

from pairbus.store.keyvalue import LONGEST_KEY_BYTES
from pairbus.store.pages import (
    BIG_VALUE,
    BRANCH,
    HEADER_BYTES,
    LEAF,
    NO_PAGE,
    NODE,
    NODE_BYTES,
    OVERFLOW,
    OVERFLOW_HEADER,
    PAGE_HEADER,
    PAGE_NUMBER,
    pointer_array,
)

_CHECKSUM: Final = struct.Struct(">I")
CHECKSUM_BYTES: Final = _CHECKSUM.size


def seal(key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum in front."""
    return _CHECKSUM.pack(_checksum(key, value)) + value


def unseal(key: bytes, raw: bytes) -> bytes | None:
    """Return a value without its checksum; ``None`` if this is not what was stored under this key."""
    value = raw[CHECKSUM_BYTES:]
    checksum = crc32(value, crc32(key, len(key)))  # as _checksum: a start does this for every record
    return value if raw[:CHECKSUM_BYTES] == checksum.to_bytes(CHECKSUM_BYTES, "big") else None


def _checksum(key: bytes, value: bytes) -> int:
    # Starts with the key's length, so that a byte cannot move from the key to the value unnoticed.
    return crc32(value, crc32(key, len(key)))


_MOST_BYTES: Final = 1 << 62
"""More than any file has."""

_FLAGS_AT: Final = 10
_NODE_FLAGS_AT: Final = 4
_KEY_BYTES_AT: Final = 6
_unpack_node = NODE.unpack_from


class PageNode(NamedTuple):
    """A record as it was found in a leaf, with its checksum in front of its value."""

    key: bytes
    raw: bytes
    page: int
    offset: int

    @property
    def value(self) -> bytes | None:
        """Return the value; ``None`` if it is damaged."""
        return unseal(self.key, self.raw)


class Child(NamedTuple):
    """An entry of a branch: a page, and the range of the keys that belong there."""

    page: int
    low: bytes
    high: bytes | None
    """The first key after the range; ``None`` if there is none."""


class LostPage(NamedTuple):
    """A page that cannot be used as it is, and the range of keys that it should hold."""

    page: int
    reason: str
    low: bytes
    high: bytes | None
    is_branch: bool = False
    """True if it is known that the page should be a branch."""

    value_page: int | None = None
    """The page that is damaged, if that is one of a large value to which this page refers."""

    def covers(self, key: bytes) -> bool:
        return self.low <= key and (self.high is None or key < self.high)


class PageSource:
    """The pages of a file. What cannot be read is zero."""

    def __init__(self, descriptor: int, page_bytes: int) -> None:
        self._descriptor = descriptor
        self.page_bytes = page_bytes

    @property
    def length(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def count(self) -> int:
        """Return the number of pages, an incomplete one at the end included."""
        return -(-self.length // self.page_bytes)

    def read(self, number: int) -> bytes:
        data = self._bytes(number * self.page_bytes, self.page_bytes)
        return data if len(data) == self.page_bytes else data.ljust(self.page_bytes, b"\0")

    def node(self, number: int, page: bytes, at: int) -> PageNode | None:
        """Return the record at an offset of a leaf; ``None`` if there cannot be one."""
        if not HEADER_BYTES <= at <= len(page) - NODE_BYTES:
            return None
        value_bytes, flags, key_bytes = _unpack_node(page, at)
        value_at = at + NODE_BYTES + key_bytes
        if not 0 < key_bytes <= LONGEST_KEY_BYTES or flags & ~BIG_VALUE:
            return None
        key = page[at + NODE_BYTES : value_at]
        if not flags:
            return PageNode(key, page[value_at : value_at + value_bytes], number, at) if value_at <= len(page) else None
        if value_at + PAGE_NUMBER.size > len(page):
            return None
        (start,) = PAGE_NUMBER.unpack_from(page, value_at)
        return PageNode(key, self._big_value(start, value_bytes), number, at)

    def lost_value_page(self, page: bytes, at: int) -> int | None:
        """Return the first page of the large value of a sound leaf's node, unless its pages are its own, so that LMDB
        can free them.

        ``None`` for a node without a large value.
        """
        value_bytes, flags, key_bytes = _unpack_node(page, at)
        if not flags:
            return None
        (start,) = PAGE_NUMBER.unpack_from(page, at + NODE_BYTES + key_bytes)
        header = self._bytes(start * self.page_bytes, OVERFLOW_HEADER.size)
        if len(header) < OVERFLOW_HEADER.size:
            return int(start)
        stored, _pad, kind, count = OVERFLOW_HEADER.unpack(header)
        is_its_own = (stored, kind, count) == (start, OVERFLOW, -(-(HEADER_BYTES + value_bytes) // self.page_bytes))
        return None if is_its_own else int(start)

    def value_position(self, number: int, at: int) -> int:
        """Return the position in the file of the value of a record, as far as the offset of its node tells."""
        page = self.read(number)
        _, flags, key_bytes = _unpack_node(page, at)
        value_at: int = at + NODE_BYTES + key_bytes
        if flags != BIG_VALUE or value_at + PAGE_NUMBER.size > len(page):
            return number * self.page_bytes + value_at
        (start,) = PAGE_NUMBER.unpack_from(page, value_at)
        return int(start) * self.page_bytes + HEADER_BYTES

    def _big_value(self, start: int, value_bytes: int) -> bytes:
        position = start * self.page_bytes + HEADER_BYTES
        return self._bytes(position, value_bytes) if position + value_bytes <= self.length else b""

    def _bytes(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, position) if position < _MOST_BYTES else b""
        except OSError as error:
            return self.fail(error)

    def fail(self, _error: OSError) -> bytes:
        """Return what a bad sector holds: nothing."""
        return b""


def page_kind(page: bytes) -> int:
    """Return the flags of a page, which say what it is."""
    return int.from_bytes(page[_FLAGS_AT : _FLAGS_AT + 2], "little")


def plausible_pointers(number: int, page: bytes, kind: int) -> tuple[int, ...] | None:
    """Return where the nodes of a page are, if it looks sound, without looking at the nodes; otherwise ``None``."""
    stored, _pad, flags, lower, upper = PAGE_HEADER.unpack_from(page)
    if stored != number or flags != kind or lower & 1 or not HEADER_BYTES < lower <= upper <= len(page):
        return None
    pointers: tuple[int, ...] = pointer_array((lower - HEADER_BYTES) // 2).unpack_from(page, HEADER_BYTES)
    return None if min(pointers) < upper or max(pointers) > len(page) - NODE_BYTES else pointers


def sound_pointers(number: int, page: bytes, kind: int) -> tuple[int, ...] | None:
    """Return where the nodes of a page are; ``None`` unless LMDB can follow and change the page without harm."""
    pointers = plausible_pointers(number, page, kind)
    if pointers is None:
        return None
    # LMDB packs the nodes without gaps from ``upper`` to the end of the page.
    size = _branch_bytes(page, pointers) if kind == BRANCH else _leaf_bytes(page, pointers)
    return pointers if size == len(page) - PAGE_HEADER.unpack_from(page)[4] else None


class PlainLeaf:
    """The essence of a sound leaf whose keys are in order, and which has no large values."""

    __slots__ = ("first_key", "last_key", "used_bytes")

    def __init__(self, first_key: bytes, last_key: bytes, used_bytes: int) -> None:
        self.first_key = first_key
        self.last_key = last_key
        self.used_bytes = used_bytes


def plain_leaf(number: int, page: bytes) -> PlainLeaf | None:
    """Check the usual kind of leaf in one pass; ``None`` if it takes a closer look to tell whether a leaf is sound.

    A commit calls this for each leaf that it changes.
    """
    pointers = plausible_pointers(number, page, LEAF)
    if pointers is None:
        return None
    nodes_bytes = 0
    first_key = last_key = b""
    for at in pointers:
        value_bytes, flags, key_bytes = _unpack_node(page, at)
        key = page[at + NODE_BYTES : at + NODE_BYTES + key_bytes]
        if flags or key <= last_key:
            return None
        first_key, last_key = first_key or key, key
        nodes_bytes += (NODE_BYTES + key_bytes + value_bytes + 1) & ~1
    # LMDB packs the nodes without gaps from the lowest to the end of the page.
    if nodes_bytes != len(page) - PAGE_HEADER.unpack_from(page)[4]:
        return None
    return PlainLeaf(first_key, last_key, HEADER_BYTES + 2 * len(pointers) + nodes_bytes)


def is_sound(number: int, page: bytes) -> bool:
    """Return whether LMDB can follow and change a page of a tree without harm."""
    kind = page_kind(page)
    return kind in (LEAF, BRANCH) and sound_pointers(number, page, kind) is not None


def _leaf_bytes(page: bytes, pointers: tuple[int, ...]) -> int:
    """Return the size of the nodes of a leaf; a commit calls this for each leaf that it changes."""
    size = 0
    for at in pointers:
        value_bytes, flags, key_bytes = _unpack_node(page, at)
        if flags:
            if flags > BIG_VALUE:
                return -1  # flags that we do not use count as damage
            value_bytes = PAGE_NUMBER.size
        size += (NODE_BYTES + key_bytes + value_bytes + 1) & ~1
    return size


def _branch_bytes(page: bytes, pointers: tuple[int, ...]) -> int:
    return sum([(NODE_BYTES + _unpack_node(page, at)[2] + 1) & ~1 for at in pointers])


def has_flags(page: bytes, at: int) -> bool:
    """Return whether a node is not just a key and a value: of a sound leaf, one that has a large value."""
    return page[at + _NODE_FLAGS_AT] != 0


def node_key(page: bytes, at: int) -> bytes:
    key_bytes = _unpack_node(page, at)[2]
    return page[at + NODE_BYTES : at + NODE_BYTES + key_bytes]


def children(page: bytes, pointers: tuple[int, ...], low: bytes, high: bytes | None) -> Iterator[Child]:
    """Iterate over the children of a sound branch."""
    # LMDB ignores the first key: keys lower than the second belong to the first child.
    bounds: list[bytes | None] = [low, *(node_key(page, at) for at in pointers[1:]), high]
    for index, at in enumerate(pointers):
        yield Child(child_page(page, at), bounds[index] or b"", bounds[index + 1])


def child_page(page: bytes, at: int) -> int:
    child, child_high, _ = _unpack_node(page, at)
    return int(child | child_high << 32)


def linked_pages(number: int, page: bytes) -> list[int]:
    """Return the pages that a sound page leads to: its children, or all pages of its large values."""
    pointers = sound_pointers(number, page, BRANCH)
    if pointers is not None:
        return [child_page(page, at) for at in pointers]
    linked: list[int] = []
    for at in sound_pointers(number, page, LEAF) or ():
        value_bytes, flags, key_bytes = _unpack_node(page, at)
        if flags:
            (start,) = PAGE_NUMBER.unpack_from(page, at + NODE_BYTES + key_bytes)
            linked += range(start, start - (-(HEADER_BYTES + value_bytes) // len(page)))
    return linked


def child_for(
    page: bytes, pointers: tuple[int, ...], key: bytes, low: bytes, high: bytes | None, *, before: bool = False
) -> Child:
    """Return the child of a sound branch that a key belongs to; with ``before``, the one of the keys before it."""
    index = node_index(page, pointers, key, 1, before=before) - 1
    return child_at(page, pointers, index, low, high)


def node_index(page: bytes, pointers: tuple[int, ...], key: bytes, start: int = 0, *, before: bool = False) -> int:
    """Return how many nodes of a sound page have keys up to this one, or with ``before``, lower keys.

    The first ``start`` nodes count without being compared.
    """
    end = len(pointers)
    while start < end:
        middle = (start + end) // 2
        found = node_key(page, pointers[middle])
        if found < key or (found == key and not before):
            start = middle + 1
        else:
            end = middle
    return start


def child_at(page: bytes, pointers: tuple[int, ...], index: int, low: bytes, high: bytes | None) -> Child:
    """Return a child of a sound branch by its index."""
    return Child(
        child_page(page, pointers[index]),
        low if index == 0 else node_key(page, pointers[index]),
        high if index + 1 == len(pointers) else node_key(page, pointers[index + 1]),
    )


def is_in_order(page: bytes, pointers: tuple[int, ...], low: bytes, high: bytes | None) -> bool:
    """Return whether the keys of a sound leaf are in order, and in the range that leads to it."""
    # As ``node_key`` does; a commit calls this for each leaf that it changes.
    keys = [
        page[at + NODE_BYTES : at + NODE_BYTES + page[at + _KEY_BYTES_AT] + (page[at + _KEY_BYTES_AT + 1] << 8)]
        for at in pointers
    ]
    in_range = low <= keys[0] and (high is None or keys[-1] < high)
    return in_range and all(map(bytes.__lt__, keys, keys[1:]))


def leaf_nodes(source: PageSource, number: int, page: bytes) -> list[PageNode]:
    """Return the records of a leaf, damaged or not.

    If the structure of the page is damaged, too, every place in it is tried, and what has a valid checksum is returned;
    besides, with a damaged value, what its pointers lead to.
    """
    pointers = sound_pointers(number, page, LEAF)
    if pointers is not None:
        return [node for at in pointers if (node := source.node(number, page, at)) is not None]
    lower, upper = struct.unpack_from("<HH", page, HEADER_BYTES - 4)
    is_plausible = HEADER_BYTES < lower <= upper <= len(page) and not lower & 1
    # Below ``upper`` there may be remains of records that were deleted.
    begin = upper + (upper & 1) if is_plausible else HEADER_BYTES
    end = lower if is_plausible else len(page)
    listed = struct.unpack_from(f"<{(end - HEADER_BYTES) // 2}H", page, HEADER_BYTES)
    found: dict[bytes, PageNode] = {}
    for at in dict.fromkeys([*(at for at in listed if at >= begin), *range(begin, len(page) - NODE_BYTES + 1, 2)]):
        node = source.node(number, page, at)
        if node is not None and node.key not in found and node.value is not None:
            found[node.key] = node
    if is_plausible and PAGE_HEADER.unpack_from(page)[2] != BRANCH:
        for at in listed:
            node = source.node(number, page, at)
            if node is not None:
                found.setdefault(node.key, node)
    return list(found.values())


def packed_nodes(source: PageSource, number: int, page: bytes) -> list[PageNode]:
    """Return the records of a page without a usable header, if it is a leaf: those packed without gaps up to its end.

    What is before them in a page, or in a branch, may be remains of anything that was in the memory of a process.
    """
    begins = {len(page)}
    found = []
    for at in range(len(page) - NODE_BYTES, HEADER_BYTES - 1, -2):
        node = source.node(number, page, at)
        if node is None:
            continue
        stored_bytes = PAGE_NUMBER.size if has_flags(page, at) else len(node.raw)
        if (at + NODE_BYTES + len(node.key) + stored_bytes + 1) & ~1 in begins:
            begins.add(at)
            found.append(node)
    return found


class LenientWalk:
    """Walks a tree, or the part of it that holds a range of keys, around its damaged pages."""

    def __init__(
        self,
        pages: PageSource,
        reached: bytearray,
        free: Container[int] = frozenset(),
        lost_pages: list[LostPage] | None = None,
        *,
        follows: bool = False,
    ) -> None:
        """``reached`` marks the pages that were visited; ``free`` are those that hold no valid records.

        With ``follows``, the pages that a damaged branch still refers to are read, too; ``free`` must be complete then.
        """
        self._pages = pages
        self._reached = reached
        self._free = free
        self._follows = follows
        self._doubtful: list[int] = []
        self.lost_pages = [] if lost_pages is None else lost_pages
        self.leaves: set[int] = set()
        """The sound leaves."""

    def records(self, root: int, low: bytes = b"", high: bytes | None = None) -> Iterator[PageNode]:
        """Iterate over the records below a root, damaged ones included; those of sound pages first."""
        if root != NO_PAGE:
            yield from self._walk(Child(root, b"", None), None, low, high)
        for number in self._doubtful:
            yield from leaf_nodes(self._pages, number, self._pages.read(number))

    def _walk(self, child: Child, source: int | None, low: bytes, high: bytes | None) -> Iterator[PageNode]:
        number = child.page
        if number >= len(self._reached):
            self._lose(child, f"it is missing: the file ends after {self._pages.length} bytes")
            return
        if self._reached[number]:
            self._lose(child, f"page {source} refers to it, but another page does, too")
            return
        page = self._pages.read(number)
        branch = sound_pointers(number, page, BRANCH)
        leaf = sound_pointers(number, page, LEAF)
        if branch is not None:
            self._reached[number] = 1
            for each in children(page, branch, child.low, child.high):
                if (high is None or each.low < high) and (each.high is None or low < each.high):
                    yield from self._walk(each, number, low, high)
        elif leaf is not None and number not in self._free and is_in_order(page, leaf, child.low, child.high):
            self._reached[number] = 1
            self.leaves.add(number)
            for at in leaf:
                node = self._pages.node(number, page, at)
                if node is not None:
                    yield node
        else:
            self._lose(child, "its structure is damaged, or it is not the page that should be here")
            if number not in self._free:  # otherwise a damaged number has led here
                self._reached[number] = 1
                self._doubtful.append(number)
                if self._follows:
                    yield from self._below_damaged(number, page, child, low, high)

    def _below_damaged(
        self, source: int, page: bytes, lost: Child, low: bytes, high: bytes | None
    ) -> Iterator[PageNode]:
        """Iterate over the records of sound pages that a damaged branch refers to at any place of it.

        A page that is not free, and whose keys belong below the branch, can only be one of its children.
        """
        for at in range(HEADER_BYTES, len(page) - NODE_BYTES + 1, 2):
            number = child_page(page, at)
            if number >= len(self._reached) or self._reached[number] or number in self._free:
                continue
            if self._belongs_below(number, lost):
                yield from self._walk(Child(number, lost.low, lost.high), source, low, high)

    def _belongs_below(self, number: int, lost: Child) -> bool:
        page = self._pages.read(number)
        branch = sound_pointers(number, page, BRANCH)
        if branch is not None:
            # LMDB ignores the first key of a branch.
            return len(branch) > 1 and is_in_order(page, branch[1:], lost.low, lost.high)
        leaf = sound_pointers(number, page, LEAF)
        if leaf is None or not is_in_order(page, leaf, lost.low, lost.high):
            return False
        # The leaves of LMDB's free list have none of our checksums.
        nodes = (self._pages.node(number, page, at) for at in leaf)
        return any(node is not None and node.value is not None for node in nodes)

    def _lose(self, child: Child, reason: str) -> None:
        self.lost_pages.append(LostPage(child.page, reason, child.low, child.high))
