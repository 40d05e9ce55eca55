"""The failure injection of the store in memory, for the tests of users."""

from __future__ import annotations

import sys

import pytest

from pairbus.store import DamagedRecordError, MemoryStore, StoreFailedError, StoreFullError, apply


def test_next_prepare_fails_and_the_one_after_it_does_not() -> None:
    store = MemoryStore()
    store.fail_next_prepare(StoreFullError("memory", "as told"))
    with pytest.raises(StoreFullError, match="as told"):
        store.prepare({b"a": b"1"})
    assert store.get(b"a") is None
    apply(store, {b"a": b"2"})
    assert store.get(b"a") == b"2"


def test_next_run_fails_and_nothing_of_its_batch_is_written() -> None:
    store = MemoryStore()
    store.fail_next_run(StoreFailedError("memory", "as told"))
    commit = store.prepare({b"a": b"1"})
    with pytest.raises(StoreFailedError, match="as told"):
        commit.run()
    assert store.get(b"a") is None
    apply(store, {b"a": b"2"})
    assert store.get(b"a") == b"2"


def test_abandoned_commit_does_not_consume_the_failure() -> None:
    store = MemoryStore()
    store.fail_next_run(StoreFailedError("memory", "as told"))
    store.prepare({b"a": b"1"}).abandon()
    with pytest.raises(StoreFailedError):
        apply(store, {b"a": b"1"})


def test_damaging_a_missing_record_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(KeyError):
        store.damage(b"a")
    apply(store, {b"a": b"1"})
    store.damage(b"a")
    with pytest.raises(DamagedRecordError):
        store.get(b"a")


def test_free_space_is_the_rest_of_the_limit_which_can_be_raised() -> None:
    assert MemoryStore().room() == sys.maxsize
    store = MemoryStore(max_bytes=10)
    assert store.room() == 10
    apply(store, {b"key": b"1234567"})
    assert store.room() == 0
    with pytest.raises(StoreFullError):
        store.prepare({b"k": b""})
    apply(store, {b"key": b"7654321"})
    apply(store, {b"key": b"1"})
    assert store.room() == 6
    store.max_bytes = 3
    assert store.room() == 0
    apply(store, {b"key": b"2"})
    store.max_bytes = 20
    apply(store, {b"more": b"12345"})
    assert store.room() == 7
