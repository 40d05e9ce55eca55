"""Finds every readable record in a damaged LMDB file, with or without the pages that lead to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pairbus.store.errors import DamagedStoreError
from pairbus.store.page_nodes import (
    Child,
    LenientWalk,
    LostPage,
    PageNode,
    PageSource,
    child_for,
    children,
    leaf_nodes,
    packed_nodes,
    sound_pointers,
)
from pairbus.store.pages import (
    BRANCH,
    DATA_VERSION,
    LEAF,
    MAGIC,
    META_BYTES,
    META_FLAG,
    META_PAGES,
    NO_PAGE,
    OVERFLOW,
    OVERFLOW_HEADER,
    PAGE_HEADER,
    PAGE_SIZES,
    Meta,
    read_meta,
    walk_free_list,
)
from pairbus.store.records import RecordFormatError, decode_number
from pairbus.store.write_batch import LAST_BODY

_SAMPLE_PAGES: Final = 1_024


class DamagedFile:
    """An LMDB file that LMDB may refuse, or may be killed by. It is only read.

    ``records`` walks the tree of the newest state; ``loose_records`` then looks through all other pages.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        metas = [_read_meta(descriptor, number) for number in range(META_PAGES)]
        self.pages = PageSource(descriptor, _page_bytes(descriptor, metas))
        self._reached = bytearray(self.pages.count)
        self._reached[:META_PAGES] = b"\x01" * META_PAGES
        self.lost_pages: list[LostPage] = []
        self.root = NO_PAGE
        self.free: frozenset[int] = frozenset()
        self.has_free_list = False
        """True if it is known which pages hold outdated records."""

        self._last_page = 0
        """The last page in use; those after it have never been committed."""

        self._expected_leaves = 0
        self._leaves: set[int] = set()

        self.is_newest_lost = False
        """True if the records of the last commit may be in none of the pages that the root leads to."""

        self._choose_root(sorted((meta for meta in metas if meta is not None), key=lambda meta: -meta.transaction))

    # The root

    def _choose_root(self, metas: list[Meta]) -> None:
        if len(metas) == META_PAGES and (metas[0].transaction - metas[1].transaction == 1 or not metas[0].transaction):
            self._use(metas[0])
            return
        self.is_newest_lost = True
        for number in set(range(META_PAGES)) - {meta.page for meta in metas}:
            self.lost_pages.append(LostPage(number, "the meta page is damaged", b"", b""))
        if len(metas) == META_PAGES:
            self.lost_pages.append(LostPage(metas[0].page, "one of the two meta pages is damaged", b"", b""))
        # LMDB never overwrites the state before the newest one: the newest whole tree is one of the two.
        roots = {*(meta.main.root for meta in metas), *self._unnamed_roots()}
        newest = max(map(self._last_body, roots), default=-1)
        counts = {root: self._count(root) for root in roots if self._last_body(root) == newest}
        # Of trees that hold the same last message, the one with the fewest records is the newest: others were removed.
        whole = {root: count for root, count in counts.items() if count is not None}
        self.root = min(whole or counts, key=lambda root: whole.get(root, 0), default=NO_PAGE)
        meta = next((meta for meta in metas if meta.main.root == self.root), None)
        if meta is not None:
            self._use(meta)
            self.has_free_list = False  # it may be that of the previous state

    def _count(self, root: int) -> int | None:
        """Return the number of records below a root; ``None`` if a page is damaged."""
        count = 0
        pending = [root]
        for _ in range(len(self._reached)):
            if not pending:
                break
            number = pending.pop()
            page = self._page(number) if number < len(self._reached) else b"\0" * self.pages.page_bytes
            branch = sound_pointers(number, page, BRANCH)
            leaf = sound_pointers(number, page, LEAF)
            if branch is not None:
                pending.extend(child.page for child in children(page, branch, b"", None))
            elif leaf is not None:
                count += len(leaf)
            else:
                return None
        return None if pending else count

    def _use(self, meta: Meta) -> None:
        self.root = meta.main.root
        self.free, self.has_free_list = self._free_pages(meta)
        self._last_page = meta.last_page
        self._expected_leaves = meta.main.leaf_pages + meta.free.leaf_pages

    def is_sound(self, page: int) -> bool:
        """Return whether a page that was read is a sound leaf; others may hold remains of removed records."""
        return page in self._leaves

    @property
    def has_all_leaves(self) -> bool:
        """Return whether every leaf was found, after both iterations: then nothing that is outdated is missing."""
        return self.has_free_list and len(self._leaves) >= self._expected_leaves

    def _free_pages(self, meta: Meta) -> tuple[frozenset[int], bool]:
        try:
            return walk_free_list(self._path, self._descriptor, meta), True
        except (DamagedStoreError, OSError) as error:
            reason = error.reason if isinstance(error, DamagedStoreError) else str(error)
            page = error.page if isinstance(error, DamagedStoreError) and error.page is not None else meta.page
            self.lost_pages.append(LostPage(page, f"the list of free pages is damaged: {reason}", b"", b""))
            return frozenset(), False

    def _unnamed_roots(self) -> Iterator[int]:
        """Iterate over the pages that could be a root: sound ones to which no sound page refers."""
        referred: set[int] = set()
        sound: list[int] = []
        for number in range(META_PAGES, len(self._reached)):
            page = self._page(number)
            pointers = sound_pointers(number, page, BRANCH)
            if pointers is not None:
                sound.append(number)
                referred.update(child.page for child in children(page, pointers, b"", None))
            elif sound_pointers(number, page, LEAF) is not None:
                sound.append(number)
        return (number for number in sound if number not in referred)

    def _last_body(self, root: int) -> int:
        """Return the last body id that was assigned in the state of a root: the higher, the newer."""
        found = self._find(root, LAST_BODY)
        try:
            return -1 if found is None else decode_number(found)
        except RecordFormatError:
            return -1

    def _find(self, root: int, key: bytes) -> bytes | None:
        child = Child(root, b"", None)
        for _ in range(64):
            if child.page >= len(self._reached):
                return None
            page = self._page(child.page)
            pointers = sound_pointers(child.page, page, BRANCH)
            if pointers is None:
                nodes = leaf_nodes(self.pages, child.page, page)
                return next((node.value for node in nodes if node.key == key), None)
            child = child_for(page, pointers, key, child.low, child.high)
        return None

    # Records

    def records(self) -> Iterator[PageNode]:
        """Iterate over the records of the newest state, damaged ones included; sound pages first."""
        walk = LenientWalk(self.pages, self._reached, self.free, self.lost_pages)
        self._leaves = walk.leaves
        yield from walk.records(self.root)

    def loose_records(self) -> Iterator[tuple[PageNode, bool]]:
        """Iterate over the readable records of pages that nothing leads to, each with whether it may be outdated.

        A page that is neither free nor part of a large value may be a leaf whose header is damaged, which may hold
        remains of records that were removed.
        """
        end_of_value = 0
        for number in range(len(self._reached)):
            if self._reached[number]:
                continue
            page = self._page(number)
            is_leaf = PAGE_HEADER.unpack_from(page)[2] == LEAF
            is_current = self.has_free_list and number <= self._last_page and number not in self.free
            if is_current and number >= end_of_value:
                end_of_value = self._end_of_value(number, page)
            if is_current and sound_pointers(number, page, LEAF) is not None:
                self._leaves.add(number)
            if is_leaf:
                found = leaf_nodes(self.pages, number, page)
            elif is_current and number >= end_of_value:
                found = packed_nodes(self.pages, number, page)
            else:
                continue
            for node in found:
                if node.value is not None:
                    yield node, not (is_current and is_leaf)

    def _end_of_value(self, number: int, page: bytes) -> int:
        """Return the page after a large value that begins at a page; 0 if none does, or its header is damaged."""
        stored, _pad, kind, count = OVERFLOW_HEADER.unpack_from(page)
        run = range(number, number + count)
        if (stored, kind) != (number, OVERFLOW) or run.stop > len(self._reached):
            return 0
        return 0 if any(self._reached[each] or each in self.free for each in run) else run.stop

    def _page(self, number: int) -> bytes:
        return self.pages.read(number)


def _read_meta(descriptor: int, number: int) -> Meta | None:
    """Return a meta page if it looks like one. The position of the second one depends on the page size."""
    for page_bytes in sorted(PAGE_SIZES) if number else (0,):
        try:
            data = os.pread(descriptor, META_BYTES, number * page_bytes)
        except OSError:
            continue
        if len(data) == META_BYTES:
            meta = read_meta(data)
            expected = (number, META_FLAG, MAGIC, DATA_VERSION)
            if (meta.page, meta.page_flags, meta.magic, meta.version) == expected and meta.page_bytes in PAGE_SIZES:
                return meta
    return None


def _page_bytes(descriptor: int, metas: list[Meta | None]) -> int:
    """Return the page size; without a meta page, the one for which most pages have their own number in their header."""
    for meta in metas:
        if meta is not None:
            return meta.page_bytes
    return max(sorted(PAGE_SIZES), key=lambda size: _numbered_pages(PageSource(descriptor, size)))


def _numbered_pages(pages: PageSource) -> int:
    numbers = range(META_PAGES, min(pages.count, _SAMPLE_PAGES))
    return sum(PAGE_HEADER.unpack_from(pages.read(number))[0] == number for number in numbers)
