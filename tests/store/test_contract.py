"""The contract of all stores, on every kind of store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, Self

import pytest

from pairbus.store import (
    LONGEST_KEY_BYTES,
    Commit,
    CommitOrderError,
    DamagedRecordError,
    InvalidKeyError,
    KeyValueStore,
    StoreClosedError,
    StoreError,
    StoreFullError,
    apply,
)
from tests.store.opening import EVERYTHING, Opening

LONGEST = b"k" * LONGEST_KEY_BYTES


def records(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store.scan(*EVERYTHING))


def numbered(numbers: range, value: bytes = b"value") -> dict[bytes, bytes]:
    return {b"%08d" % number: value + b"%d" % number for number in numbers}


@pytest.mark.parametrize("value", [b"", b"v", b"v" * 2_000, b"v" * 2_100, b"v" * 4_096, b"v" * 100_000])
@pytest.mark.parametrize("key", [b"\x00", b"key", LONGEST], ids=["shortest", "short", "longest"])
def test_written_records_are_read_after_a_restart(opening: Opening, key: bytes, value: bytes) -> None:
    store = opening.open()
    apply(store, {key: value})
    assert store.get(key) == value
    assert records(store) == {key: value}
    assert opening.reopen().get(key) == value


def test_missing_key_returns_none(opening: Opening) -> None:
    store = opening.open()
    assert store.get(b"key") is None
    assert records(store) == {}
    apply(store, {b"key": b"value"})
    assert store.get(b"ke") is None
    assert store.get(b"key\x00") is None


def test_batch_overwrites_and_deletes(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1", b"b": b"2", b"c": b"3"})
    apply(store, {b"a": None, b"b": b"two" * 2_000, b"d": b"4", b"never there": None})
    expected = {b"b": b"two" * 2_000, b"c": b"3", b"d": b"4"}
    assert records(store) == expected
    assert store.get(b"a") is None
    assert records(opening.reopen()) == expected


def test_batch_becomes_visible_as_a_whole_when_it_has_run(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1", b"b": b"2"})
    commit = store.prepare({b"a": b"new", b"b": None, b"c": b"3"})
    assert records(store) == {b"a": b"1", b"b": b"2"}
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c")) == (b"1", b"2", None)
    commit.run()
    assert records(store) == {b"a": b"new", b"c": b"3"}
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c")) == (b"new", None, b"3")


def test_batch_that_is_changed_after_it_was_prepared_is_written_as_it_was(opening: Opening) -> None:
    store = opening.open()
    batch: dict[bytes, bytes | None] = {b"a": b"1"}
    commit = store.prepare(batch)
    batch[b"a"] = b"2"
    batch[b"b"] = b"2"
    commit.run()
    assert records(store) == {b"a": b"1"}


def test_empty_batch_changes_nothing(opening: Opening) -> None:
    store = opening.open()
    apply(store, {})
    apply(store, {b"never there": None})
    assert records(opening.reopen()) == {}


def test_abandoned_batch_leaves_nothing_and_the_next_one_is_written(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1"})
    store.prepare({b"a": None, b"b": b"2"}).abandon()
    assert records(store) == {b"a": b"1"}
    apply(store, {b"c": b"3"})
    assert records(opening.reopen()) == {b"a": b"1", b"c": b"3"}


def test_only_one_commit_is_prepared_at_a_time(opening: Opening) -> None:
    store = opening.open()
    commit = store.prepare({b"a": b"1"})
    with pytest.raises(CommitOrderError, match="another commit"):
        store.prepare({b"b": b"2"})
    commit.run()
    apply(store, {b"c": b"3"})
    assert records(store) == {b"a": b"1", b"c": b"3"}


@pytest.mark.parametrize("first", ["run", "abandon"])
@pytest.mark.parametrize("second", ["run", "abandon"])
def test_second_use_of_a_commit_is_refused(opening: Opening, first: str, second: str) -> None:
    store = opening.open()
    commit = store.prepare({b"a": b"1"})
    getattr(commit, first)()
    before = records(store)
    with pytest.raises(CommitOrderError, match="already run or abandoned"):
        getattr(commit, second)()
    assert records(store) == before
    apply(store, {b"b": b"2"})


@pytest.mark.parametrize("key", [b"", LONGEST + b"k"], ids=["empty", "too long"])
def test_invalid_key_is_refused_and_changes_nothing(opening: Opening, key: bytes) -> None:
    store = opening.open()
    with pytest.raises(InvalidKeyError, match="1 to 511"):
        store.prepare({b"a": b"1", key: b"2"})
    with pytest.raises(InvalidKeyError):
        store.get(key)
    apply(store, {b"b": b"2"})
    assert records(store) == {b"b": b"2"}


def test_scan_goes_from_start_to_just_before_end(opening: Opening) -> None:
    store = opening.open()
    keys = [b"\x00", b"a", b"a\x00", b"a\x00\xff", b"ab", b"b", b"\xff", b"\xff\xff", LONGEST]
    apply(store, dict.fromkeys(keys, b"value"))

    def scanned(start: bytes, end: bytes) -> list[bytes]:
        return [key for key, _ in store.scan(start, end)]

    bounds = [b"", *keys, b"a\x00\x00", b"c", b"\xff" * 600]
    for start in bounds:
        for end in bounds:
            assert scanned(start, end) == sorted(key for key in keys if start <= key < end), (start, end)


def test_scan_returns_any_number_of_records(opening: Opening) -> None:
    store = opening.open()
    expected = numbered(range(2_500)) | numbered(range(5_000, 5_005), b"v" * 400_000)
    apply(store, expected)
    assert list(store.scan(*EVERYTHING)) == sorted(expected.items())


def test_batches_during_a_scan_do_not_disturb_it(opening: Opening) -> None:
    """Check that unchanged records are returned once, with their values, however often the pages around them are
    reused.
    """
    store = opening.open()
    stays = numbered(range(0, 6_000, 2), b"stays" * 20)
    changes = numbered(range(1, 6_000, 2), b"changes" * 20)
    apply(store, stays | changes)
    met = []
    for count, (key, value) in enumerate(store.scan(*EVERYTHING)):
        if key in stays:
            met.append((key, value))
        else:
            assert value.startswith(b"changes") or value == b"anew" * 30
        if count % 250 == 0:
            apply(store, dict.fromkeys(islice(changes, count, count + 500)))
            apply(store, dict.fromkeys(islice(changes, count, count + 500), b"anew" * 30))
    assert met == sorted(stays.items())


def test_reads_during_a_commit_on_another_thread_see_what_was_there_before(opening: Opening) -> None:
    store = opening.open()
    apply(store, numbered(range(2_000), b"round 00 "))
    for turn in range(1, 15):
        before, after = b"round %02d " % (turn - 1), b"round %02d " % turn
        commit = store.prepare(numbered(range(2_000), after))
        with Running(commit) as running:
            while not running.ended.is_set():
                first = store.get(b"00000000") or b""
                last = store.get(b"00001999") or b""
                assert first[:-1] in {before, after}
                assert last[:-4] in {before, after}
                assert (first[:-1], last[:-4]) != (after, before)
                scanned = {value[: len(after)] for _, value in store.scan(b"00000990", b"00001010")}
                assert scanned in ({before}, {after})
        assert store.get(b"00000000") == after + b"0"


def test_commit_on_another_thread_is_followed_by_the_next(opening: Opening) -> None:
    store = opening.open()
    for turn in range(20):
        with Running(store.prepare(numbered(range(turn * 10, turn * 10 + 10)))):
            pass
    assert records(opening.reopen()) == numbered(range(200))


class Running:
    """A commit that runs on a separate thread, which starts when both threads are ready."""

    def __init__(self, commit: Commit) -> None:
        self.ended = threading.Event()
        self.errors: list[StoreError] = []
        self._commit = commit
        self._start = threading.Barrier(2)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._start.wait()
        try:
            self._commit.run()
        except StoreError as error:
            self.errors.append(error)
        finally:
            self.ended.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._start.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert not self.errors


def test_damaged_record_raises_on_every_read(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1", b"b": b"2", b"c": b"3"})
    store = opening.damage(b"b")
    assert store.get(b"a") == b"1"
    with pytest.raises(DamagedRecordError, match="b'b'") as caught:
        store.get(b"b")
    assert caught.value.key == b"b"
    scan = store.scan(*EVERYTHING)
    assert next(scan) == (b"a", b"1")
    with pytest.raises(DamagedRecordError):
        next(scan)


def test_scan_continues_after_a_damaged_record_with_a_listener(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1", b"b": b"2", b"c": b"3"})
    store = opening.damage(b"b")
    reported: list[bytes] = []
    found = dict(store.scan(*EVERYTHING, on_damage=lambda key, _: reported.append(key)))
    assert found == {b"a": b"1", b"c": b"3"}
    assert reported == [b"b"]


@pytest.mark.parametrize("value", [None, b"new"])
def test_damaged_record_can_be_written_and_deleted(opening: Opening, value: bytes | None) -> None:
    store = opening.open()
    apply(store, {b"a": b"1"})
    store = opening.damage(b"a")
    apply(store, {b"a": value})
    assert store.get(b"a") == value


def fill(store: KeyValueStore, written: dict[bytes, bytes]) -> None:
    while True:
        batch = numbered(range(len(written), len(written) + 50), b"v" * 1_000)
        apply(store, batch)
        written |= batch


def test_full_store_refuses_batches_until_there_is_space(opening: Opening) -> None:
    store = opening.open(max_bytes=4 << 20)
    written: dict[bytes, bytes] = {}
    with pytest.raises(StoreFullError, match="remove records"):
        fill(store, written)
    assert len(written) > 1_000
    assert records(store) == written
    assert store.room() < 100_000
    for _ in range(30):
        batch = dict.fromkeys(islice(written, 20))
        apply(store, batch)
        for key in batch:
            del written[key]
    assert store.room() > 400_000
    apply(store, numbered(range(90_000, 90_100), b"v" * 1_000))
    assert records(store) == written | numbered(range(90_000, 90_100), b"v" * 1_000)


def test_batch_that_cannot_fit_changes_nothing(opening: Opening) -> None:
    store = opening.open(max_bytes=4 << 20)
    apply(store, {b"a": b"1"})
    with pytest.raises(StoreFullError):
        store.prepare({b"a": None, b"b": b"v" * (8 << 20)})
    assert records(store) == {b"a": b"1"}
    apply(store, {b"c": b"3"})
    assert records(opening.reopen()) == {b"a": b"1", b"c": b"3"}


def test_new_store_has_free_space(opening: Opening) -> None:
    assert opening.open().room() > 100_000


def test_prepared_batch_reduces_the_free_space(opening: Opening) -> None:
    store = opening.open(max_bytes=16 << 20)
    before = store.room()
    commit = store.prepare({b"a": b"v" * 200_000})
    assert before - 220_000 < store.room() <= before - 200_000
    commit.abandon()
    assert store.room() >= before
    apply(store, {b"a": b"v" * 200_000})


def test_batch_with_values_other_than_bytes_changes_nothing(opening: Opening) -> None:
    store = opening.open()
    batch: dict[Any, Any] = {b"a": b"1", b"b": 2}
    with pytest.raises(TypeError) as kept:
        store.prepare(batch)
    apply(store, {b"c": b"3"})
    assert records(store) == {b"c": b"3"}
    del kept


def test_close_abandons_the_prepared_commit_and_later_use_raises(opening: Opening) -> None:
    store = opening.open()
    apply(store, {b"a": b"1"})
    commit = store.prepare({b"b": b"2"})
    scan = store.scan(*EVERYTHING)
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.get(b"a"),
        lambda: next(scan),
        lambda: store.prepare({b"b": b"2"}),
        store.room,
    ]
    for use in uses:
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises(CommitOrderError):
        commit.run()
