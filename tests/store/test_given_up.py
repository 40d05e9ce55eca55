"""A store that does not answer is abandoned: no caller waits for it, and it is closed when it has answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import pytest

from pairbus.broker import NewMessage, QueueDescription
from pairbus.store import CommitInDoubtError, GroupCommitter
from pairbus.store.errors import StoreClosedError, StoreInUseError
from pairbus.store.faulty import FaultyStore, StoreTrouble
from pairbus.store.keyvalue import KeyValueStore
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace
from tests.store.test_probe import FAILURE, WAIT_S, Reported, SlowStore


class Woken:
    """Runs the calls of the commit thread when the test wants it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.is_closed = False
        """True if calls raise, as on a closed loop."""

    def __call__(self, call: Callable[[], None]) -> None:
        if self.is_closed:
            raise RuntimeError("the loop is closed")
        self._calls.put(call)

    def wake(self) -> None:
        self._calls.get(timeout=WAIT_S)()


Stage: TypeAlias = tuple[GroupCommitter, SlowStore, Woken]


@pytest.fixture
def stage() -> Stage:
    """Return a committer with a durable queue; from now on, commits wait."""
    store, woken = SlowStore(), Woken()
    store.gate.set()
    keeper = GroupCommitter(store, make_namespace, NOW, wake=woken)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.commit(NOW)
    woken.wake()
    assert keeper.is_idle
    store.gate.clear()
    return keeper, store, woken


def send(keeper: GroupCommitter, body: bytes, reported: Reported) -> None:
    keeper.namespace.send(QUEUE, [NewMessage(body)], NOW)
    keeper.when_durable(reported.append)


def test_abandoned_commit_is_reported_when_it_ends_and_then_the_store_is_closed(stage: Stage) -> None:
    keeper, store, woken = stage
    running: Reported = []
    waiting: Reported = []
    send(keeper, b"one", running)
    keeper.commit(NOW)
    send(keeper, b"two", waiting)
    assert not keeper.is_idle
    keeper.give_up()
    keeper.give_up()
    keeper.close()
    assert (running, waiting) == ([], []), "nobody knows"
    store.gate.set()
    woken.wake()
    assert running == [None]
    assert [type(error) for error in waiting] == [StoreClosedError]
    with pytest.raises(StoreClosedError):
        store.get(b"key")


def test_callback_of_an_abandoned_commit_is_called_with_its_outcome(stage: Stage) -> None:
    keeper, store, woken = stage
    reported: Reported = []
    send(keeper, b"one", reported)
    keeper.commit(NOW)
    keeper.when_durable(reported.append)
    keeper.give_up()
    store.gate.set()
    woken.wake()
    assert reported == [None, None]


def test_abandoned_commit_that_fails_is_reported_as_failed(stage: Stage) -> None:
    keeper, store, woken = stage
    reported: Reported = []
    send(keeper, b"one", reported)
    store.fail_next_run(FAILURE)
    keeper.commit(NOW)
    send(keeper, b"two", reported)
    keeper.give_up()
    store.gate.set()
    woken.wake()
    doubtful, failure = reported
    assert isinstance(doubtful, CommitInDoubtError)  # the store is closed, and cannot be asked
    assert failure is FAILURE
    with pytest.raises(StoreClosedError):
        store.get(b"key")


def test_committer_abandoned_while_no_commit_runs_is_closed_at_once(stage: Stage) -> None:
    keeper, store, _ = stage
    namespace = keeper.namespace
    keeper.give_up()
    with pytest.raises(StoreClosedError):
        store.get(b"key")
    with pytest.raises(StoreClosedError):
        namespace.send(QUEUE, [NewMessage(b"late")], NOW)


def test_directory_is_unlocked_when_the_commit_ends_after_the_loop(tmp_path: Path) -> None:
    woken = Woken()
    stores: list[FaultyStore] = []

    def stalling(store: KeyValueStore) -> KeyValueStore:
        stores.append(FaultyStore(store, lambda: StoreTrouble.STALL))
        return stores[0]

    keeper = GroupCommitter.open(tmp_path, make_namespace, NOW, wake=woken, wrap_store=stalling)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.namespace.send(QUEUE, [NewMessage(b"one")], NOW)
    keeper.commit(NOW)
    keeper.give_up()
    woken.is_closed = True
    with pytest.raises(StoreInUseError):
        GroupCommitter.open(tmp_path, make_namespace, NOW)
    stores[0].resume()
    assert keeper._commit_thread is not None
    keeper._commit_thread.join(WAIT_S)
    with GroupCommitter.open(tmp_path, make_namespace, NOW) as again:
        assert [found.body for found in contents(again.namespace)] == [b"one"]
