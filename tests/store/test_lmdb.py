"""The specifics of the store on disk: its file, its locks, its space, and LMDB's own errors."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from pairbus.store import (
    CommitOrderError,
    DamagedRecordError,
    DamagedStoreError,
    LmdbStore,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreInUseError,
    apply,
    verify,
)
from pairbus.store.directory import DATA_FILE
from pairbus.store.page_nodes import seal
from tests.store.child import run
from tests.store.opening import EVERYTHING, open_raw

MEBIBYTE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.mdb"


@pytest.fixture
def store(path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    yield store
    store.close()


def test_file_can_be_opened_only_once(store: LmdbStore, path: Path) -> None:
    with pytest.raises(StoreInUseError, match="in use"):
        LmdbStore(path)
    apply(store, {b"a": b"1"})
    store.close()
    LmdbStore(path).close()


def test_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError, match=r"No such file.*Check the disk"):
        LmdbStore(tmp_path / "nowhere" / "data.mdb")
    with pytest.raises(StoreFailedError, match="directory"):
        LmdbStore(tmp_path)


def test_empty_and_foreign_files_are_refused_unchanged(path: Path) -> None:
    for content in (b"", b"SQLite format 3\x00" * 1_000, bytes(20_000)):
        path.write_bytes(content)
        with pytest.raises(DamagedStoreError, match="page 0"):
            LmdbStore(path)
        assert path.read_bytes() == content


def test_file_of_another_lmdb_is_refused(path: Path) -> None:
    with (
        lmdb.Environment(str(path), subdir=False, lock=False, lib_version=1) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"a", b"1")
    with pytest.raises(DamagedStoreError):
        LmdbStore(path)


def test_environment_does_not_choose_the_format(tmp_path: Path) -> None:
    run("holding_child", tmp_path / "data", LMDB_DEFAULT_LIB_VERSION="1")
    assert verify(tmp_path / "data" / DATA_FILE).main.entries == 1


def test_value_under_the_key_of_another_is_noticed(store: LmdbStore, path: Path) -> None:
    store.close()
    with open_raw(path) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"ab", seal(b"a", b"bc")[:4] + b"c")
        transaction.put(b"b", seal(b"a", b"1"))
        transaction.put(b"short", b"123")
        transaction.put(b"empty", b"")
        transaction.put(b"sound", seal(b"sound", b"value"))
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    for key in (b"ab", b"b", b"short", b"empty"):
        with pytest.raises(DamagedRecordError):
            store.get(key)
    reported: dict[bytes, bytes] = {}
    assert dict(store.scan(*EVERYTHING, on_damage=reported.__setitem__)) == {b"sound": b"value"}
    assert reported == {b"ab": seal(b"a", b"bc")[:4] + b"c", b"b": seal(b"a", b"1"), b"short": b"123", b"empty": b""}
    store.close()


def test_space_is_allocated_ahead_and_accepted_by_lmdb(path: Path) -> None:
    store = LmdbStore(path, step_bytes=4 * MEBIBYTE)
    written: dict[bytes, bytes] = {}
    for turn in range(12):
        batch = {b"%02d/%03d" % (turn, number): os.urandom(3_000) for number in range(200)}
        apply(store, batch)
        written |= batch
        facts = path.stat()
        meta = verify(path)
        assert facts.st_size >= meta.used_pages * 4_096 + 4 * MEBIBYTE
        assert facts.st_blocks * 512 >= facts.st_size - 4 * MEBIBYTE
        assert 3 * MEBIBYTE <= store.room() <= facts.st_size
    store.close()
    store = LmdbStore(path, step_bytes=4 * MEBIBYTE)
    assert dict(store.scan(*EVERYTHING)) == written
    store.close()


def test_holes_of_a_copied_file_are_allocated_again(store: LmdbStore, path: Path) -> None:
    apply(store, {b"a": b"1"})
    store.close()
    end = (verify(path).last_page + 1) * 4_096
    length = path.stat().st_size
    os.truncate(path, end)
    os.truncate(path, length)
    assert path.stat().st_blocks * 512 < length
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    assert path.stat().st_blocks * 512 >= length
    assert store.get(b"a") == b"1"
    store.close()


def test_deleted_records_free_space(store: LmdbStore) -> None:
    apply(store, {b"%04d" % number: b"v" * 3_000 for number in range(1_000)})
    before = store.room()
    for first in range(0, 1_000, 100):
        apply(store, {b"%04d" % number: None for number in range(first, first + 100)})
    assert store.room() > before + 2 * MEBIBYTE


def refuse_to_allocate(*_: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "as told")


@pytest.mark.parametrize("known", [False, True])
def test_free_disk_space_counts_if_allocation_is_unsupported(
    path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    if known:
        monkeypatch.setattr(os, "posix_fallocate", refuse_to_allocate)
    else:
        monkeypatch.delattr(os, "posix_fallocate")
    store = LmdbStore(path)
    free = shutil.disk_usage(path).free
    assert free * 0.9 < store.room() < free * 1.1
    apply(store, {b"a": b"1"})
    assert store.get(b"a") == b"1"
    assert path.stat().st_size < MEBIBYTE
    store.close()


def test_store_opens_with_less_address_space(path: Path) -> None:
    assert int(run("cramped_child", path)) < 1 << 36


class Diverted:
    """Temporarily redirects LMDB's writes of pages or meta pages away from its file."""

    def __init__(self, store: LmdbStore, path: Path, *, metas: bool, to: str) -> None:
        (self._descriptor,) = lmdb_descriptors(store, path, metas=metas)
        self._to = to
        self._kept = os.dup(self._descriptor)

    def __enter__(self) -> None:
        other = os.open(self._to, os.O_WRONLY if self._to == "/dev/full" else os.O_RDONLY)
        os.dup2(other, self._descriptor)
        os.close(other)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, self._descriptor)
        os.close(self._kept)


def lmdb_descriptors(store: LmdbStore, path: Path, *, metas: bool) -> list[int]:
    """Return LMDB's descriptors. Its file is open twice: writes to the one for the meta pages are synced at once."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and entry.samefile(path) and int(entry.name) != store._file._descriptor:
            flags = int((Path("/proc/self/fdinfo") / entry.name).read_text().split()[3], 8)
            if bool(flags & os.O_DSYNC) == metas:
                found.append(int(entry.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="LMDB's descriptors cannot be found")


@needs_proc
@pytest.mark.parametrize(
    ("metas", "to", "error"),
    [
        (False, "/dev/full", StoreFullError),
        (False, "/dev/null", StoreFailedError),
        (True, "/dev/full", StoreFullError),
        (True, "/dev/null", StoreFailedError),
    ],
)
def test_failed_commit_keeps_the_old_state_and_the_store_stays_usable(
    store: LmdbStore, path: Path, metas: bool, to: str, error: type[Exception]
) -> None:
    apply(store, {b"a": b"1", b"b": b"2"})
    apply(store, {b"a": b"one"})
    before = {b"a": b"one", b"b": b"2"}
    for turn in range(5):
        scan = store.scan(*EVERYTHING)
        next(scan)
        with Diverted(store, path, metas=metas, to=to):
            commit = store.prepare({b"a": b"other", b"b": None, b"c": b"3" * 9_000})
            with pytest.raises(error):
                commit.run()
        assert dict(store.scan(*EVERYTHING)) == before
        assert [key for key, _ in scan] == sorted(before)[1:]
        apply(store, {b"turn": b"%d" % turn})
        before[b"turn"] = b"%d" % turn
        assert dict(store.scan(*EVERYTHING)) == before
    store.close()
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    assert dict(store.scan(*EVERYTHING)) == before
    store.close()


@needs_proc
@pytest.mark.parametrize("commits", [0, 1, 2, 5])
@pytest.mark.parametrize("to", ["/dev/full", "/dev/null"])
def test_file_is_sound_after_a_commit_whose_meta_page_could_not_be_written(
    store: LmdbStore, path: Path, commits: int, to: str
) -> None:
    for turn in range(commits):
        apply(store, {b"a": b"%d" % turn, b"b": b"v" * 5_000})
    before = dict(store.scan(*EVERYTHING))
    with Diverted(store, path, metas=True, to=to), pytest.raises(StoreError):
        apply(store, {b"a": b"other", b"c": b"3"})
    store.close()
    for turn in range(3):
        store = LmdbStore(path, step_bytes=MEBIBYTE)
        assert dict(store.scan(*EVERYTHING)) == before
        apply(store, {b"turn": b"%d" % turn})
        before[b"turn"] = b"%d" % turn
        store.close()


@needs_proc
def test_store_that_cannot_be_reopened_raises_until_it_can(
    store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(store, {b"a": b"1"})
    with Diverted(store, path, metas=True, to="/dev/null"), pytest.raises(StoreFailedError):
        apply(store, {b"a": b"2"})
    hidden = path.with_name("hidden")
    path.rename(hidden)
    path.mkdir()
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            store.get(b"a")
    path.rmdir()
    hidden.rename(path)
    assert store.get(b"a") == b"1"
    apply(store, {b"a": b"3"})
    assert store.get(b"a") == b"3"


def test_store_is_not_closed_under_a_commit_that_runs(store: LmdbStore) -> None:
    commit = store.prepare({b"a": b"1"})
    transaction = commit._take()  # as if it ran on another thread
    with pytest.raises(CommitOrderError, match="is running"):
        store.close()
    store.write(transaction)
    assert store.get(b"a") == b"1"


def test_lmdb_never_writes_to_a_page_that_a_read_still_sees(path: Path) -> None:
    """Check the guarantee that LMDB's own locks would give, under batches that use every free page."""
    chance = random.Random(1)  # noqa: S311
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    state = {b"%03d" % number: chance.randbytes(600) for number in range(400)}
    apply(store, state)
    for _ in range(150):
        batch: dict[bytes, bytes | None] = {
            key: chance.choice([None, chance.randbytes(chance.choice([10, 600, 5_000]))])
            for key in chance.sample(sorted(state), len(state) // 4)
        }
        batch |= {b"%03d" % chance.randrange(400): chance.randbytes(600) for _ in range(50)}
        commit = store.prepare(batch)
        held = store._snapshot
        assert held is not None
        assert {key: raw[4:] for key, raw in held.cursor()} == state
        commit.run()
        # The commit has ended, but the snapshot of the reads is still open.
        assert {key: raw[4:] for key, raw in held.cursor()} == state
        state = {key: value for key, value in (state | batch).items() if value is not None}
    store.close()


def test_commit_beside_many_leaves_that_are_nearly_empty_reads_few_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appended records leave such leaves behind. Only those are checked that LMDB can get to."""
    path = tmp_path / "data.mdb"
    store = LmdbStore(path)
    for number in range(0, 8_000, 1_000):
        numbers = range(number, number + 1_000)
        apply(store, {b"b%06d" % each: b"x" * 8 for each in numbers} | {b"r%06d" % each: b"x" * 90 for each in numbers})
    store.close()
    store = LmdbStore(path)
    reads, pread = [0], os.pread

    def counted(*arguments: Any) -> bytes:
        reads[0] += 1
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", counted)
    apply(store, {b"b008000": b"x" * 8, b"r008000": b"x" * 90})
    assert reads[0] < 60
    store.close()


def test_file_has_nothing_of_what_the_process_had_in_memory(tmp_path: Path) -> None:
    """A rebuild would take records of another namespace in the gaps of damaged pages for those of this one."""
    marker = b"of another namespace"

    def fill(name: str, value: bytes) -> Path:
        store = LmdbStore(tmp_path / name, step_bytes=MEBIBYTE)
        for start in range(0, 20_000, 1_000):
            store.prepare({b"%08d" % number: value for number in range(start, start + 1_000)}).run()
        store.close()
        return store.path

    assert marker in fill("other.mdb", marker * 10).read_bytes()
    assert marker not in fill("data.mdb", b"own" * 100).read_bytes()


META_FIELDS = {
    "a larger transaction number": (144, 2**40),
    "a later last page": (136, 2**52),
    "another root": (128, 2**40),
    "another kind of page": (8, 2**40),
    "another format": (16, 7),
}
"""Eight bytes of a meta page: their offset, and what others write there."""


def _change_meta(path: Path, number: int, field: str) -> None:
    at, value = META_FIELDS[field]
    with path.open("r+b") as file:
        file.seek(number * 4096 + at)
        file.write(value.to_bytes(8, "little"))


def _newest_meta(path: Path) -> int:
    data = path.read_bytes()[:8192]
    transactions = [int.from_bytes(data[page + 144 : page + 152], "little") for page in (0, 4096)]
    return transactions.index(max(transactions))


@pytest.mark.parametrize("is_newer", [True, False], ids=["newer", "older"])
@pytest.mark.parametrize("field", META_FIELDS)
def test_commit_survives_a_meta_page_that_is_changed_while_it_is_written(
    store: LmdbStore, path: Path, field: str, is_newer: bool
) -> None:
    for number in range(5):
        apply(store, {b"M%d" % number: b"before"})
    length = path.stat().st_size
    commit = store.prepare({b"M5": b"confirmed"})
    newest = _newest_meta(path)
    _change_meta(path, newest if is_newer else 1 - newest, field)
    commit.run()
    assert store.get(b"M5") == b"confirmed"
    apply(store, {b"M6": b"after"})
    assert [store.get(b"M%d" % number) for number in range(7)] == [*[b"before"] * 5, b"confirmed", b"after"]
    assert path.stat().st_size == length
    store.close()
    verify(path)


@pytest.mark.parametrize("field", META_FIELDS)
def test_meta_page_that_is_changed_between_commits_is_restored_before_it_is_used(
    store: LmdbStore, path: Path, field: str
) -> None:
    for number in range(50):  # faster than the regular check of the file
        _change_meta(path, number % 2, field)
        apply(store, {b"M%02d" % number: b"kept"})
        assert store.get(b"M%02d" % number) == b"kept"
    assert sum(value == b"kept" for _, value in store.scan(*EVERYTHING)) == 50
    store.close()
    verify(path)


def test_commit_whose_own_meta_page_is_changed_fails_and_leaves_the_state_before(
    store: LmdbStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(store, {b"a": b"before"})
    commit = store.prepare({b"a": b"lost"})
    note = store._file.note_commit

    def damage_and_note(transaction: int) -> list[str]:
        _change_meta(path, transaction % 2, "a larger transaction number")
        return note(transaction)

    monkeypatch.setattr(store._file, "note_commit", damage_and_note)
    with pytest.raises(StoreFailedError, match="meta page"):
        commit.run()
    monkeypatch.undo()
    assert store.get(b"a") == b"before"
    apply(store, {b"a": b"after"})
    assert store.get(b"a") == b"after"
    store.close()
    verify(path)
