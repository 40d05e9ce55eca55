"""Diagnostic bundles on disk: the newest are kept, others are deleted, and only their names are read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pairbus.store.bundles import BundleDirectory


def name(number: int) -> str:
    return f"20261118T0401{number:02d}.000Z-side-buffer"


def test_newest_bundles_are_kept(tmp_path: Path) -> None:
    directory = BundleDirectory(tmp_path, max_count=3)
    assert directory.list() == []
    for number in range(5):
        directory.write(name(number), b"x" * number)
    assert [(info.name, info.size_bytes) for info in directory.list()] == [(name(n), n) for n in (4, 3, 2)]
    assert directory.read(name(4)) == b"xxxx"
    assert directory.read(name(0)) is None
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.path.iterdir()} == {0o600}


def test_file_of_a_killed_process_is_deleted_with_the_next_bundle(tmp_path: Path) -> None:
    directory = BundleDirectory(tmp_path)
    directory.path.mkdir()
    (directory.path / f"{name(1)}.new").write_bytes(b"half")
    assert directory.list() == []
    directory.write(name(2), b"whole")
    assert [file.name for file in directory.path.iterdir()] == [f"{name(2)}.json"]


@pytest.mark.parametrize("wrong", ["", "../format", "a", "20261118T040122.000Z-", "20261118T040122.000Z-../x"])
def test_other_names_are_neither_read_nor_written(tmp_path: Path, wrong: str) -> None:
    directory = BundleDirectory(tmp_path)
    assert directory.read(wrong) is None
    with pytest.raises(ValueError, match="named by its time"):
        directory.write(wrong, b"x")


def test_bundle_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 3 bytes, got 4"):
        BundleDirectory(tmp_path, max_bytes=3).write(name(1), b"xxxx")
