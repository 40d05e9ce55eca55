"""Fills a store until the system lets no file grow any more, and checks what still works.

The limit on the size of files is that of the process, so the errors are the system's, and no other process is affected.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

from pairbus.store import LmdbStore, StoreFullError, apply
from tests.store.opening import EVERYTHING

MEBIBYTE = 1 << 20
STEP_BYTES = MEBIBYTE


def limit_files(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def no_limit() -> None:
    limit_files(resource.RLIM_INFINITY)


def records_from(first: int, count: int = 50, size: int = 1_000) -> dict[bytes, bytes]:
    return {b"%08d" % number: b"%d " % number * (size // 8) for number in range(first, first + count)}


def fill(store: LmdbStore, written: dict[bytes, bytes], at_once: int = 50) -> None:
    """Write until there is no space."""
    while True:
        batch = records_from(len(written), at_once)
        try:
            apply(store, batch)
        except StoreFullError:
            return
        written |= batch


def expect(store: LmdbStore, written: dict[bytes, bytes]) -> None:
    assert dict(store.scan(*EVERYTHING)) == written


def full_disk(path: Path) -> None:
    """Check that everything written stays, that deletes work, and that then writes work."""
    limit_files(8 * MEBIBYTE)
    store = LmdbStore(path, step_bytes=STEP_BYTES)
    written: dict[bytes, bytes] = {}
    fill(store, written, 200)
    assert len(written) > 4_000
    assert store.room() < 400_000
    expect(store, written)
    apply(store, {b"00000007": written[b"00000007"]})
    for first in range(0, len(written), 100):
        apply(store, dict.fromkeys(key for key in records_from(first, 100) if key in written))
    expect(store, {})
    written.clear()
    fill(store, written, 200)
    assert len(written) > 4_000
    store.close()
    expect(LmdbStore(path, step_bytes=STEP_BYTES), written)


def space_comes_back(path: Path) -> None:
    """Check that the store resumes when the disk has space again."""
    limit_files(4 * MEBIBYTE)
    store = LmdbStore(path, step_bytes=STEP_BYTES)
    written: dict[bytes, bytes] = {}
    fill(store, written, 200)
    limit_files(6 * MEBIBYTE)
    assert store.room() > MEBIBYTE // 2
    before = len(written)
    fill(store, written, 200)
    assert len(written) > before + 1_000
    no_limit()
    for _ in range(20):
        batch = records_from(len(written), 500)
        apply(store, batch)
        written |= batch
    expect(store, written)


def commit_meets_the_end(path: Path) -> None:
    """Check that a commit that the system refuses half-way leaves the old state, however often that happens."""
    store = LmdbStore(path, step_bytes=STEP_BYTES)
    written = records_from(0, 500)
    apply(store, written)
    for size in (200, 1_000, 3_000, 20_000, 100_000):
        for limit in range(0, 2_000_000, 170_000):
            commit = store.prepare(records_from(10_000, 600_000 // size, size) | {b"00000001": b"changed"})
            limit_files(limit)
            try:
                commit.run()
            except StoreFullError:
                expect(store, written)
            else:
                no_limit()
                assert store.get(b"00000001") == b"changed"
                batch = dict.fromkeys(key for key, _ in store.scan(b"00010000", b"1"))
                apply(store, batch | {b"00000001": written[b"00000001"]})
            no_limit()
            expect(store, written)
    apply(store, {b"more": b"1"})
    store.close()
    expect(LmdbStore(path, step_bytes=STEP_BYTES), written | {b"more": b"1"})


SCENES: dict[str, Callable[[Path], None]] = {
    scene.__name__: scene for scene in (full_disk, space_comes_back, commit_meets_the_end)
}

if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[2]))
