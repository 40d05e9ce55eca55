"""A store in trouble: commits fail, wait, or find no space, and nothing is lost."""

from __future__ import annotations

import sys
from threading import Thread

import pytest

from pairbus.store import KeyValueStore, StoreFailedError, apply
from pairbus.store.faulty import FaultyStore, StoreTrouble
from tests.store.opening import EVERYTHING, Opening
from tests.waiting import eventually


class TroubledStore(FaultyStore):
    """A store whose trouble the test sets."""

    def __init__(self, store: KeyValueStore) -> None:
        self.trouble: StoreTrouble | None = None
        super().__init__(store, lambda: self.trouble)


@pytest.fixture
def store(opening: Opening) -> TroubledStore:
    made = TroubledStore(opening.open())
    apply(made, {b"one": b"1"})
    return made


def test_commit_fails_when_it_is_run_and_writes_nothing(store: TroubledStore) -> None:
    store.trouble = StoreTrouble.ERROR
    commit = store.prepare({b"two": b"2"})
    with pytest.raises(StoreFailedError, match="Input/output error"):
        commit.run()
    store.prepare({b"two": b"2"}).abandon()
    store.trouble = None
    assert dict(store.scan(*EVERYTHING)) == {b"one": b"1"}
    apply(store, {b"two": b"2"})
    assert store.get(b"two") == b"2"


def test_stalled_commit_is_written_when_the_store_resumes(store: TroubledStore) -> None:
    store.trouble = StoreTrouble.STALL
    commit = store.prepare({b"two": b"2"})
    thread = Thread(target=commit.run)
    thread.start()
    try:
        assert store.get(b"two") is None
        assert thread.is_alive()
    finally:
        store.trouble = None
        store.resume()
        thread.join()
    eventually(lambda: store.get(b"two") == b"2")
    store.resume()
    apply(store, {b"three": b"3"})


def test_stalled_commit_can_be_abandoned(store: TroubledStore) -> None:
    store.trouble = StoreTrouble.STALL
    store.prepare({b"two": b"2"}).abandon()
    store.trouble = None
    apply(store, {b"three": b"3"})
    assert dict(store.scan(*EVERYTHING)) == {b"one": b"1", b"three": b"3"}


def test_full_store_has_no_room_and_still_removes(store: TroubledStore) -> None:
    store.trouble = StoreTrouble.FULL
    assert store.room(1_000) == 0
    apply(store, {b"one": None})
    store.trouble = None
    assert 0 < store.room(1_000) <= sys.maxsize
    assert dict(store.scan(*EVERYTHING)) == {}
