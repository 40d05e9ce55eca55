"""Verification of all pages: a valid file passes in every state, and damage is named."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.store import DamagedStoreError, LmdbStore, StoreFailedError, apply, verify
from pairbus.store.lmdb import create_data_file
from pairbus.store.pages import NO_PAGE, Meta, PageFile

PAGE_BYTES = 4_096
SHAPES: dict[str, tuple[int, int, list[int]]] = {
    "small": (2_000, 1, [10, 30]),
    "long keys": (300, 480, [0, 40]),
    "on overflow pages": (100, 20, [10, 2_040, 5_000, 30_000]),
    "near the limits": (200, 8, [1_990, 2_000, 2_010, 2_020, 2_030, 2_040]),
}
"""Number of keys, their length, and the lengths of their values."""


@pytest.mark.parametrize("shape", SHAPES)
def test_every_state_of_a_sound_file_passes(tmp_path: Path, shape: str) -> None:
    """Compare with the verifier of py-lmdb, which is slower and checks more than ours needs."""
    theirs = pytest.importorskip("lmdb.verify", reason="only lmdb 3 comes with a verifier")
    count, key_bytes, sizes = SHAPES[shape]
    path = tmp_path / "data.mdb"
    chance = random.Random(shape)  # noqa: S311
    store = LmdbStore(path, step_bytes=1 << 20)
    there: set[bytes] = set()
    for turn in range(60):
        chosen = {b"%06d" % chance.randrange(count) + b"k" * key_bytes for _ in range(chance.choice([1, 20, 200]))}
        if turn % 20 == 19:
            chosen = there.copy()
        deletes = turn % 20 >= 14
        apply(store, {key: None if deletes else chance.randbytes(chance.choice(sizes)) for key in chosen})
        there = there - chosen if deletes else there | chosen
        assert verify(path).main.entries == len(there)
        assert theirs.verify(str(path)) == []
    store.close()


def test_new_file_passes(tmp_path: Path) -> None:
    create_data_file(tmp_path / "data.mdb")
    meta = verify(tmp_path / "data.mdb")
    assert (meta.transaction, meta.main.root, meta.main.entries) == (0, NO_PAGE, 0)


def test_missing_file_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError, match="No such file"):
        verify(tmp_path / "data.mdb")


def root(meta: Meta) -> int:
    return meta.main.root


def newest(meta: Meta) -> int:
    return meta.page


@pytest.mark.parametrize(
    ("page", "at", "octets", "reason"),
    [
        (newest, 10, b"\x00", "not a meta page"),
        (newest, 16, b"\x00", "not a meta page"),
        (newest, 20, b"\x02", "data format 2"),
        (newest, 40, struct.pack("<I", 4_095), "page size of 4095 bytes"),
        (newest, 44, b"\x00", "not of the kind"),
        (newest, 40 + 48 + 6, struct.pack("<H", 1), "page number|flags"),
        (newest, 40 + 48 + 6, struct.pack("<H", 60_000), "60000 levels"),
        (newest, 40 + 48 + 8, struct.pack("<Q", 77), "should have .77,"),
        (newest, 40 + 48 + 32, struct.pack("<Q", 77), "should have .* 77"),
        (newest, 40 + 48 + 40, struct.pack("<Q", 1 << 60), "refers to page 1152921504606846976"),
        (newest, 40 + 48 + 40, struct.pack("<Q", 1), "another page refers to as well"),
        (newest, 136, struct.pack("<Q", 3), "the last one is 3"),
        (newest, 136, struct.pack("<Q", 1 << 60), "no page refers to it"),
        (root, 0, b"\xff", "page number 255"),
        (root, 10, b"\x02", "flags 0x2"),
        (root, 12, b"\x13", "free space is from 19"),
        (root, 14, b"\xff\xff", "to 65535"),
        (root, 16, b"\x05\x00", "a node outside its bounds"),
        (root, 16, b"\xff\x0f", "a node outside its bounds"),
    ],
)
def test_damage_is_named(tmp_path: Path, page: Callable[[Meta], int], at: int, octets: bytes, reason: str) -> None:
    path = tmp_path / "data.mdb"
    store = LmdbStore(path, step_bytes=1 << 16)
    for turn in range(3):
        apply(store, {b"%03d" % number: b"%d" % turn * 300 for number in range(100)})
    store.close()
    number = page(verify(path))
    data = bytearray(path.read_bytes())
    data[number * PAGE_BYTES + at : number * PAGE_BYTES + at + len(octets)] = octets
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=reason) as caught:
        verify(path)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert "restore the data directory from a backup" in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("commits", [1, 2, 3, 4, 7])
def test_no_other_transaction_number_passes(tmp_path: Path, commits: int, emptied: bool) -> None:
    path = tmp_path / "data.mdb"
    store = LmdbStore(path, step_bytes=1 << 16)
    for turn in range(commits):
        apply(store, {b"key": b"%d" % turn, b"%d" % turn: b"more"})
    if emptied:
        apply(store, {b"key": None, **{b"%d" % turn: None for turn in range(commits)}})
    store.close()
    sound = path.read_bytes()
    for page in (0, 1):
        at = page * PAGE_BYTES + 144
        (number,) = struct.unpack_from("<Q", sound, at)
        for wrong in {*range(commits + 6), 2**63, 2**64 - 1} - {number}:
            path.write_bytes(sound[:at] + struct.pack("<Q", wrong) + sound[at + 8 :])
            with pytest.raises(DamagedStoreError):
                verify(path)
    path.write_bytes(sound)
    verify(path)


class Draft:
    """A file whose pages can be written to: one branch, some leaves with large values, and free pages."""

    def __init__(self, path: Path) -> None:
        store = LmdbStore(path, step_bytes=1 << 16)
        for turn in range(4):
            apply(
                store, {b"%03d" % number: b"%d" % turn * (3_000 if number % 25 == 0 else 300) for number in range(100)}
            )
        store.close()
        self.path = path
        self.meta = verify(path)
        self.data = bytearray(path.read_bytes())

    def nodes(self, page: int) -> list[int]:
        """Return the positions of a page's nodes."""
        (lower,) = struct.unpack_from("<H", self.data, page * PAGE_BYTES + 12)
        pointers = struct.unpack_from(f"<{(lower - 16) // 2}H", self.data, page * PAGE_BYTES + 16)
        return [page * PAGE_BYTES + pointer for pointer in pointers]

    def number(self, at: int) -> int:
        return int.from_bytes(self.data[at : at + 8], "little")

    def leaves(self) -> list[int]:
        return [self.number(node) & 0xFFFF_FFFF for node in self.nodes(self.meta.main.root)]

    def key(self, node: int) -> slice:
        return slice(node + 8, node + 8 + self.data[node + 6])

    def big_values(self) -> list[int]:
        """Return the positions of the page numbers of large values."""
        return [self.key(node).stop for leaf in self.leaves() for node in self.nodes(leaf) if self.data[node + 4]]

    def refused(self, reason: str) -> None:
        self.path.write_bytes(self.data)
        with pytest.raises(DamagedStoreError, match=reason):
            verify(self.path)


@pytest.fixture
def draft(tmp_path: Path) -> Draft:
    return Draft(tmp_path / "data.mdb")


def test_key_beyond_the_range_of_its_leaf_is_found(draft: Draft) -> None:
    first, second = draft.leaves()[:2]
    draft.data[draft.key(draft.nodes(first)[-1])] = draft.data[draft.key(draft.nodes(second)[0])]
    draft.refused("out of order, or outside the range")


def test_key_below_the_range_of_its_leaf_is_found(draft: Draft) -> None:
    second = draft.leaves()[1]
    draft.data[draft.key(draft.nodes(second)[0])] = b"000"
    draft.refused("out of order, or outside the range")


def test_bounds_in_the_wrong_order_are_found(draft: Draft) -> None:
    at = draft.meta.main.root * PAGE_BYTES + 18
    draft.data[at : at + 4] = draft.data[at + 2 : at + 4] + draft.data[at : at + 2]
    draft.refused("out of order, or outside the range")


def test_two_references_to_one_large_value_are_found(draft: Draft) -> None:
    first, second = draft.big_values()[:2]
    draft.data[second : second + 8] = draft.data[first : first + 8]
    draft.refused("another page refers to as well")


def test_free_page_that_is_in_use_is_found(draft: Draft) -> None:
    """Check what LMDB would overwrite with the next commits."""
    in_use = {draft.meta.main.root, *draft.leaves(), *map(draft.number, draft.big_values())}
    tried = 0
    for node in draft.nodes(draft.meta.free.root):
        first = draft.key(node).stop + 8
        last = first + 8 * (draft.number(first - 8) - 1)
        for page in in_use:
            if page < draft.number(last):
                kept = draft.data[last : last + 8]
                draft.data[last : last + 8] = struct.pack("<Q", page)
                draft.refused("another page refers to as well")
                draft.data[last : last + 8] = kept
                tried += 1
    assert tried


def test_free_pages_that_are_out_of_order_are_found(draft: Draft) -> None:
    node = max(draft.nodes(draft.meta.free.root), key=lambda node: draft.number(draft.key(node).stop))
    at = draft.key(node).stop + 8
    draft.data[at : at + 16] = draft.data[at + 8 : at + 16] + draft.data[at : at + 8]
    draft.refused("not in order")


def test_free_page_beyond_the_end_is_free_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 * PAGE_BYTES))
    with path.open("rb") as file:
        pages = PageFile(path, file.fileno())
        pages.page_bytes = PAGE_BYTES
        pages.expect(last_page=10)
        pages.give_up(10, source=2)
        pages.expect_last()
        with pytest.raises(DamagedStoreError, match=r"page 2 is damaged.*page 10"):
            pages.give_up(10, source=2)
        with pytest.raises(DamagedStoreError, match="the last one is 10"):
            pages.give_up(11, source=2)
        with pytest.raises(DamagedStoreError, match="the file ends after 16384 bytes"):
            pages.read(4, source=2)
