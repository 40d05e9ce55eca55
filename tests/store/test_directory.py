"""The data directory: made whole or finished later, held by one process, and never somebody else's."""

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
    """Open a directory, write, and see that it is there the next time."""
    for value in (b"1", b"2"):
        directory = DataDirectory.open(path, now_ms)
        store = LmdbStore(directory.data_file, step_bytes=1 << 20)
        apply(store, {b"key": value})
        assert store.get(b"key") == value
        store.close()
        directory.close()


def test_a_new_directory_is_made_for_our_eyes_only(tmp_path: Path) -> None:
    path = tmp_path / "above" / "data"
    directory = DataDirectory.open(path, NOW_MS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.data_file.stat().st_mode) == 0o600
    assert set(os.listdir(path)) == {FORMAT_FILE, LOCK_FILE, DATA_FILE}
    assert json.loads((path / FORMAT_FILE).read_text()) == {"format": FORMAT_VERSION, "created_ms": NOW_MS}
    assert (path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    directory.close()
    directory.close()


def test_it_keeps_when_it_was_made(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", NOW_MS).close()
    directory = DataDirectory.open(tmp_path / "data", NOW_MS + 5)
    assert directory.created_ms == NOW_MS
    directory.close()


@pytest.mark.parametrize("names", [[], ["lost+found"]])
def test_an_empty_directory_is_taken(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    use(tmp_path)


def test_a_directory_is_held_by_one_within_a_process_too(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, NOW_MS)
    with pytest.raises(StoreInUseError, match="this very process"):
        DataDirectory.open(tmp_path, NOW_MS)
    directory.close()
    use(tmp_path)


def test_another_process_keeps_us_out_until_it_is_killed(tmp_path: Path) -> None:
    with start("holding_child", tmp_path / "data") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StoreInUseError, match=f"process {child.pid}; stop that one") as caught:
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


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
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
def test_a_format_file_that_says_nothing_is_damage(tmp_path: Path, written: bytes) -> None:
    use(tmp_path)
    (tmp_path / FORMAT_FILE).write_bytes(written)
    before = content(tmp_path)
    with pytest.raises(DamagedStoreError, match=f"{FORMAT_FILE} is damaged"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert content(tmp_path) == before


def test_records_are_not_given_up_because_a_file_is_missing(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / FORMAT_FILE).rename(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path.parent / "kept")
    with pytest.raises(DamagedStoreError, match="there are records"):
        DataDirectory.open(tmp_path, NOW_MS)
    (tmp_path.parent / "kept").rename(tmp_path / FORMAT_FILE)
    (tmp_path / DATA_FILE).unlink()
    with pytest.raises(DamagedStoreError, match=f"{DATA_FILE} is damaged: it is missing"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert not (tmp_path / DATA_FILE).exists()


@pytest.mark.parametrize("name", ["holiday.jpg", ".hidden", "data.mdb.backup"])
def test_a_directory_of_somebody_else_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"theirs")
    (tmp_path / LOCK_FILE).write_bytes(b"theirs too")
    before = content(tmp_path)
    with pytest.raises(NotADataDirectoryError, match=f"{name}.*Name an empty"):
        DataDirectory.open(tmp_path, NOW_MS)
    assert content(tmp_path) == before


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"theirs")
    with pytest.raises(NotADataDirectoryError, match="it is a file"):
        DataDirectory.open(tmp_path / "file", NOW_MS)
    with pytest.raises(StoreFailedError, match="file"):
        DataDirectory.open(tmp_path / "file" / "data", NOW_MS)


def test_our_own_other_files_are_welcome_once_the_directory_is_made(tmp_path: Path) -> None:
    use(tmp_path)
    (tmp_path / "certificate.pem").write_bytes(b"ours")
    use(tmp_path)


def test_a_file_gets_its_name_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[str]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        names.append(os.listdir(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    create_data_file(tmp_path / DATA_FILE)
    assert names == [[DATA_FILE + ".new"], [DATA_FILE]]


HALF_MADE = ["nothing", "lock", "data.new", "torn data.new", "data", "format.new", "torn format.new"]
"""How far the first creation had come when the process ended."""


@pytest.mark.parametrize("reached", HALF_MADE)
def test_a_half_made_directory_is_finished(tmp_path: Path, reached: str) -> None:
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
def test_the_first_creation_can_end_with_every_deed(tmp_path: Path) -> None:
    """Whatever a first creation does to the disk may be the last that the process did."""
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
