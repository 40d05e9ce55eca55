"""The data directory: created completely or completed later, locked by one process, and never a foreign one."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from pairbus.store import (
    FORMAT_VERSION,
    DamagedStoreError,
    DataDirectory,
    LmdbStore,
    NewerFormatError,
    NotADataDirectoryError,
    StoreFailedError,
    StoreInUseError,
    apply,
)
from pairbus.store.directory import DATA_FILE, FORMAT_FILE, LOCK_FILE
from pairbus.store.lmdb import create_data_file
from tests.store.child import start
from tests.store.creating_child import ENDED_EARLY

NOW_MS = 1_700_000_000_000


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def use(path: Path, now_ms: int = NOW_MS) -> None:
    """Open a directory, write, and check that it is there the next time."""
    for value in (b"1", b"2"):
        directory = DataDirectory.open(path, now_ms)
        store = LmdbStore(directory.data_file, step_bytes=1 << 20)
        apply(store, {b"key": value})
        assert store.get(b"key") == value
        store.close()
        directory.close()


def test_new_directory_is_private(tmp_path: Path) -> None:
    path = tmp_path / "above" / "data"
    directory = DataDirectory.open(path, NOW_MS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.data_file.stat().st_mode) == 0o600
    assert set(os.listdir(path)) == {FORMAT_FILE, LOCK_FILE, DATA_FILE}
    assert json.loads((path / FORMAT_FILE).read_text()) == {"format": FORMAT_VERSION, "created_ms": NOW_MS}
    assert (path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    directory.close()
    directory.close()


def test_directory_records_its_creation_time(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", NOW_MS).close()
    directory = DataDirectory.open(tmp_path / "data", NOW_MS + 5)
    assert directory.created_ms == NOW_MS
    directory.close()


@pytest.mark.parametrize("names", [[], ["lost+found"]])
def test_empty_directory_is_accepted(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    use(tmp_path)


def test_directory_is_locked_within_a_process(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, NOW_MS)
    with pytest.raises(StoreInUseError, match="already open in this process"):
        DataDirectory.open(tmp_path, NOW_MS)
    directory.close()
    use(tmp_path)


def test_directory_is_locked_by_another_process_until_it_is_killed(tmp_path: Path) -> None:
    with start("holding_child", tmp_path / "data") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StoreInUseError, match=f"process {child.pid}; stop that process") as caught:
            DataDirectory.open(tmp_path / "data", NOW_MS)
        assert caught.value.holder == child.pid
        with pytest.raises(StoreInUseError):
            LmdbStore(tmp_path / "data" / DATA_FILE)
        child.kill()
    directory = DataDirectory.open(tmp_path / "data", NOW_MS)
    assert directory.created_ms == 2
    store = LmdbStore(directory.data_file, step_bytes=1 << 20)
    assert store.get(b"from") == b"the child"
    store.close()
    directory.close()


def test_newer_format_is_refused_unchanged(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / FORMAT_FILE).write_text(json.dumps({"format": FORMAT_VERSION + 1, "created_ms": 1, "more": []}))
    before = content(tmp_path)
    with pytest.raises(
        NewerFormatError, match=rf"format {FORMAT_VERSION + 1}.* up to {FORMAT_VERSION}.*later"
    ) as caught:
        DataDirectory.open(tmp_path, NOW_MS)
    assert (caught.value.found, caught.value.known) == (FORMAT_VERSION + 1, FORMAT_VERSION)
    assert content(tmp_path) == before


SAYS_NOTHING = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[" * 100_000,
    b"[]",
    b"1",
    b"{}",
    b'{"format": 1}',
    b'{"format": "1", "created_ms": 1}',
    b'{"format": 0, "created_ms": 1}',
    b'{"format": true, "created_ms": 1}',
]


@pytest.mark.parametrize("written", SAYS_NOTHING, ids=range(len(SAYS_NOTHING)))
def test_invalid_format_file_is_damage(tmp_path: Path, written: bytes) -> None:
    use(tmp_path)
    (tmp_path / FORMAT_FILE).write_bytes(written)
    before = content(tmp_path)
    with pytest.raises(DamagedStoreError, match=f"{FORMAT_FILE} is damaged"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert content(tmp_path) == before


def test_missing_format_file_does_not_discard_records(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / FORMAT_FILE).rename(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path.parent / "kept")
    with pytest.raises(DamagedStoreError, match="has records"):
        DataDirectory.open(tmp_path, NOW_MS)
    (tmp_path.parent / "kept").rename(tmp_path / FORMAT_FILE)
    (tmp_path / DATA_FILE).unlink()
    with pytest.raises(DamagedStoreError, match=f"{DATA_FILE} is damaged: it is missing"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert not (tmp_path / DATA_FILE).exists()


@pytest.mark.parametrize("name", ["holiday.jpg", ".hidden", "data.mdb.backup"])
def test_foreign_directory_is_refused_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"theirs")
    (tmp_path / LOCK_FILE).write_bytes(b"theirs too")
    before = content(tmp_path)
    with pytest.raises(NotADataDirectoryError, match=f"{name}.*Use an empty"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert content(tmp_path) == before


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"theirs")
    with pytest.raises(NotADataDirectoryError, match="it is a file"):
        DataDirectory.open(tmp_path / "file", NOW_MS)
    with pytest.raises(StoreFailedError, match="file"):
        DataDirectory.open(tmp_path / "file" / "data", NOW_MS)


def test_other_files_are_accepted_in_an_existing_directory(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / "certificate.pem").write_bytes(b"ours")
    use(tmp_path)


def test_file_is_renamed_once_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[str]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        names.append(os.listdir(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    create_data_file(tmp_path / DATA_FILE)
    assert names == [[DATA_FILE + ".new"], [DATA_FILE]]


HALF_MADE = ["nothing", "lock", "data.new", "torn data.new", "data", "format.new", "torn format.new"]
"""States of an interrupted creation."""


@pytest.mark.parametrize("reached", HALF_MADE)
def test_incomplete_directory_is_completed(tmp_path: Path, reached: str) -> None:
    stage = HALF_MADE.index(reached)
    if stage >= HALF_MADE.index("lock"):
        (tmp_path / LOCK_FILE).write_bytes(b"99999999\n" if stage % 2 else b"")
    if reached == "data.new":
        create_data_file(tmp_path / DATA_FILE)
        (tmp_path / DATA_FILE).rename(tmp_path / (DATA_FILE + ".new"))
    if reached == "torn data.new":
        (tmp_path / (DATA_FILE + ".new")).write_bytes(bytes(5_000))
    if stage >= HALF_MADE.index("data"):
        create_data_file(tmp_path / DATA_FILE)
    if reached == "format.new":
        (tmp_path / (FORMAT_FILE + ".new")).write_text('{"format": 1, "created_ms": 1}')
    if reached == "torn format.new":
        (tmp_path / (FORMAT_FILE + ".new")).write_bytes(b"{")
    use(tmp_path)
    assert set(os.listdir(tmp_path)) == {FORMAT_FILE, LOCK_FILE, DATA_FILE}


@pytest.mark.slow
def test_creation_survives_a_crash_at_every_step(tmp_path: Path) -> None:
    """Crash after each call with which a creation changes the disk."""
    survived = 0
    ended = True
    while ended:
        path = tmp_path / f"{survived}"
        with start("creating_child", path, survived) as child:
            child.communicate()
        ended = child.returncode == ENDED_EARLY
        assert ended or child.returncode == 0
        use(path)
        survived += 1
    assert survived > 8
