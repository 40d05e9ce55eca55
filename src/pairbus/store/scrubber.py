"""Reads all records of a file that is in use, a slice at a time, to find damage before they are needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from pairbus.store.page_guard import Leaf, PathReader
from pairbus.store.page_nodes import PageSource, has_flags, is_in_order
from pairbus.store.pages import META_BYTES, Meta, meta_page_bytes, meta_transaction, read_meta

FIRST_KEY: Final = b"\0"


class ScrubSlice(NamedTuple):
    """The result of reading a slice."""

    next_key: bytes | None
    """The first key of the next slice; ``None`` at the end."""

    records: int
    size_bytes: int
    """Size of the pages that were read; a large value counts with its own size."""

    suspects: tuple[bytes, ...]
    """Keys of records that are damaged, or in pages that are; to be checked again by the owner of the store."""


def scrub_slice(path: Path, start: bytes, max_bytes: int) -> ScrubSlice:
    """Read some records and verify their checksums; may be called on any thread, at any time. Raises ``OSError``.

    It takes no part in LMDB's transactions, so it holds no page back. If commits reuse a page while it is read, a sound
    record can look damaged: that is why a suspect is only a suspect.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        newest = _newest_meta(descriptor)
        pages = PageSource(descriptor, newest.page_bytes)
        return _read(pages, PathReader(pages, newest.main), start, max_bytes)
    finally:
        os.close(descriptor)


def _newest_meta(descriptor: int) -> Meta:
    first = os.pread(descriptor, META_BYTES, 0)
    second = os.pread(descriptor, META_BYTES, meta_page_bytes(first))
    return read_meta(max(first, second, key=meta_transaction))


def _read(pages: PageSource, path: PathReader, start: bytes, max_bytes: int) -> ScrubSlice:
    suspects: list[bytes] = []
    records = size = 0
    position: bytes | None = start
    while position is not None and size < max_bytes:
        leaf = path.leaf(position)
        if leaf is None:
            return ScrubSlice(None, records, size, tuple(suspects))
        size += pages.page_bytes
        if isinstance(leaf, Leaf) and is_in_order(leaf.data, leaf.pointers, leaf.low, leaf.high):
            for at in leaf.pointers:
                node = pages.node(leaf.page, leaf.data, at)
                if node is None or node.value is None:
                    suspects.append(position if node is None else node.key)
                else:
                    records += 1
                    size += len(node.raw) if has_flags(leaf.data, at) else 0  # a small value is in the page
        else:
            suspects.append(position)
        position = leaf.high if leaf.high is None or leaf.high > position else None
    return ScrubSlice(position, records, size, tuple(suspects))
