"""Looks through all pages of an LMDB file before LMDB does.

LMDB keeps no checksums and believes what it reads: a damaged page can end the process, or hide a range of keys. So
everything that it could follow is looked at here first. What the values say is not; they have checksums of ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pairbus.store.errors import StoreFailedError
from pairbus.store.freelist import FreeListWalk
from pairbus.store.meta import (
    DATA_VERSION,
    INTEGER_KEY,
    MAGIC,
    META_BYTES,
    META_FLAG,
    META_PAGES,
    NO_PAGE,
    NO_SUBDIRECTORY,
    Meta,
    read_meta,
)
from pairbus.store.pagefile import PageFile
from pairbus.store.tree import TreeWalk

_PAGE_BYTES: Final = frozenset(1 << shift for shift in range(9, 17))
"""The page sizes that LMDB knows."""


def verify(path: Path) -> Meta:
    """Look at everything that LMDB could follow in the file; returns the meta page that it will go by.

    Raises DamagedStoreError when anything is not as LMDB would have left it.
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
        pages.damaged("it is no meta page of an LMDB file", number)
    if meta.version != DATA_VERSION:
        pages.damaged(f"it has LMDB's data format {meta.version}, and should have {DATA_VERSION}", number)
    if meta.page_bytes not in _PAGE_BYTES or pages.page_bytes not in {0, meta.page_bytes}:
        pages.damaged(f"it says that pages have {meta.page_bytes} bytes", number)
    if (meta.free.flags, meta.main.flags, meta.main.pad) != (INTEGER_KEY | NO_SUBDIRECTORY, 0, 0):
        pages.damaged("its trees are not of the kind that pairbus makes", number)
    pages.page_bytes = meta.page_bytes
    return meta


def _check_succession(pages: PageFile, older: Meta, newest: Meta, freed_last: frozenset[int]) -> None:
    """See that the newer meta page was written right after the older one.

    With a damaged transaction number the older one could pass for the newer, and the last commit would be gone without
    a word. But every commit gives up the roots that it found, and the free list tells which pages those were.
    """
    if newest.transaction == 0:
        if any(tree.root != NO_PAGE for meta in (older, newest) for tree in (meta.main, meta.free)):
            pages.damaged("it has records but no transaction number", newest.page)
        return
    if newest.transaction != older.transaction + 1:
        pages.damaged(f"it has transaction {newest.transaction} after {older.transaction}", newest.page)
    if (older.main.root, older.free.root) == (newest.main.root, newest.free.root):
        return  # mended after a commit that failed
    if older.main.root not in {NO_PAGE, *freed_last} or older.free.root not in {
        NO_PAGE,
        newest.free.root,
        *freed_last,
    }:
        pages.damaged(f"its transaction {newest.transaction} does not follow from the other meta page", newest.page)
