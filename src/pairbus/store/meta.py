"""The two meta pages of an LMDB file: which trees the file holds, and as of which transaction."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

META_PAGES: Final = 2
META_BYTES: Final = 152
"""What of a meta page is in use."""

NO_PAGE: Final = 0xFFFF_FFFF_FFFF_FFFF
"""The root of a tree without pages."""

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
"""The file format of LMDB 0.9; 1.0 writes another."""

META_FLAG: Final = 0x08
"""What a page header's flags say of a meta page."""

INTEGER_KEY: Final = 0x08
NO_SUBDIRECTORY: Final = 0x4000
"""Flags of the free list's tree: its keys are numbers, and LMDB keeps there how the file was first opened."""

# The layout is that of the machine that wrote the file; ours are little-endian with 64 bits, and others are refused.
PAGE_HEADER: Final = struct.Struct("<QHHHH")
"""Page number, padding, flags, end of the pointers, start of the nodes."""

_FIXED: Final = struct.Struct("<IIQQ")
"""Magic, version, map address, map size."""

_TREE: Final = struct.Struct("<IHHQQQQQ")
_TAIL: Final = struct.Struct("<QQ")
_FREE_AT: Final = PAGE_HEADER.size + _FIXED.size
_MAIN_AT: Final = _FREE_AT + _TREE.size
_TAIL_AT: Final = _MAIN_AT + _TREE.size


@dataclass(frozen=True, slots=True)
class Tree:
    """What a meta page says of one of the two trees."""

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
    """One meta page."""

    page: int
    page_flags: int
    magic: int
    version: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int

    @property
    def page_bytes(self) -> int:
        """The page size, for which the free list's tree has the field that it does not need itself."""
        return self.free.pad

    @property
    def used_pages(self) -> int:
        return META_PAGES + self.free.pages + self.main.pages


def read_meta(data: bytes) -> Meta:
    """Read the first bytes of a meta page, whatever they hold."""
    page, _pad, page_flags, _lower, _upper = PAGE_HEADER.unpack_from(data)
    magic, version, _address, _map_bytes = _FIXED.unpack_from(data, PAGE_HEADER.size)
    last_page, transaction = _TAIL.unpack_from(data, _TAIL_AT)
    return Meta(
        page=page,
        page_flags=page_flags,
        magic=magic,
        version=version,
        free=Tree(*_TREE.unpack_from(data, _FREE_AT)),
        main=Tree(*_TREE.unpack_from(data, _MAIN_AT)),
        last_page=last_page,
        transaction=transaction,
    )


def predecessor_of(data: bytes) -> bytes:
    """Make the other meta page from the newer one: as if a transaction before it had left the same behind."""
    meta = read_meta(data)
    changed = bytearray(data)
    PAGE_HEADER.pack_into(changed, 0, 1 - meta.page, 0, META_FLAG, 0, 0)
    _TAIL.pack_into(changed, _TAIL_AT, meta.last_page, max(0, meta.transaction - 1))
    return bytes(changed)
