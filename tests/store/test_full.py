"""No space: nothing is lost, nothing is half-written, and the store resumes when there is space again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.store import LmdbStore, StoreFullError, apply
from tests.store.child import run
from tests.store.filling_child import SCENES, expect, fill, records_from

MEBIBYTE = 1 << 20


@pytest.mark.parametrize("scene", SCENES)
def test_full_disk_is_reported_and_recovers(tmp_path: Path, scene: str) -> None:
    run("filling_child", scene, tmp_path / "data.mdb")


@pytest.mark.parametrize("max_bytes", [MEBIBYTE, 3 * MEBIBYTE, 5 * MEBIBYTE + 4_097])
def test_size_limit_is_reported_and_recovers(tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "data.mdb"
    store = LmdbStore(path, max_bytes=max_bytes, step_bytes=MEBIBYTE)
    written: dict[bytes, bytes] = {}
    fill(store, written)
    assert max_bytes * 0.5 < sum(map(len, written.values())) < max_bytes
    expect(store, written)
    for first in range(0, len(written), 20):
        apply(store, dict.fromkeys(key for key in records_from(first, 20) if key in written))
    expect(store, {})
    written.clear()
    fill(store, written)
    store.close()
    assert path.stat().st_size <= max_bytes
    store = LmdbStore(path, max_bytes=2 * max_bytes, step_bytes=MEBIBYTE)
    before = len(written)
    fill(store, written)
    assert len(written) > before * 1.5
    expect(store, written)
    store.close()


def test_lmdb_out_of_space_is_reported(tmp_path: Path) -> None:
    """Check writes that our estimate lets pass and LMDB refuses, during the prepare or the run."""
    store = LmdbStore(tmp_path / "data.mdb", max_bytes=MEBIBYTE, step_bytes=MEBIBYTE)
    written = {b"%04d" % number: b"v" * 2_300 for number in range(100)}
    apply(store, written)
    refused = []
    for turn in range(1, 60):
        batch = {b"%04d" % number: b"%c" % turn * 2_300 for number in range(0, 100, 1 + turn % 5)}
        try:
            apply(store, batch)
        except StoreFullError as error:
            refused.append(error)  # with everything that its traceback references
        else:
            written |= batch
        expect(store, written)
    assert 0 < len(refused) < 59
    store.close()
