"""Probes of the store, which revert nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import pytest

from pairbus.broker import NewMessage, QueueDescription
from pairbus.store import GroupCommitter, MemoryStore, StoreError
from pairbus.store.errors import StoreFailedError, StoreFullError
from pairbus.store.memory import MemoryCommit
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace, open_keeper

WAIT_S = 60.0
IDENTITY = b"identity"
FAILURE = StoreFailedError("the store", "the test wants it so")

Reported: TypeAlias = list[StoreError | None]


def furnished(keeper: GroupCommitter) -> GroupCommitter:
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.namespace.send(QUEUE, [NewMessage(b"one")], NOW)
    keeper.commit(NOW)
    return keeper


def fail_run(store: MemoryStore) -> None:
    store.fail_next_run(FAILURE)


def fail_prepare(store: MemoryStore) -> None:
    store.fail_next_prepare(StoreFullError("the store", "the test wants it so"))


@pytest.mark.parametrize("fail", [fail_run, fail_prepare])
def test_failed_probe_is_reported_and_reverts_nothing(fail: Callable[[MemoryStore], None]) -> None:
    store = MemoryStore()
    keeper = furnished(GroupCommitter(store, make_namespace, NOW))
    namespace = keeper.namespace
    (locked,) = namespace.receive(QUEUE, 1, NOW)
    keeper.commit(NOW)
    reported: Reported = []
    fail(store)
    keeper.probe(IDENTITY, reported.append)
    assert len(reported) == 1
    assert isinstance(reported[0], StoreError)
    assert keeper.namespace is namespace
    assert locked.lock_token is not None
    namespace.settle(QUEUE, locked.lock_token, NOW)
    keeper.probe(IDENTITY, reported.append)
    assert len(reported) == 1, "it waits for what is to be committed"
    keeper.commit(NOW)
    assert reported[1:] == [None]
    assert contents(keeper.namespace) == []


def test_probe_writes_a_record_if_there_is_nothing_to_commit(tmp_path: Path) -> None:
    with furnished(open_keeper(tmp_path)) as keeper:
        reported: Reported = []
        keeper.probe(IDENTITY, reported.append)
        assert reported == [None]
        assert keeper.merged(IDENTITY) == {"": 0}
        assert len(contents(keeper.namespace)) == 1


class SlowStore(MemoryStore):
    """A store that delays each commit until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, commit: MemoryCommit) -> None:
        assert self.gate.wait(WAIT_S)
        super().write(commit)


def test_writes_during_a_failed_probe_are_committed() -> None:
    store = SlowStore()
    store.gate.set()
    wakes: SimpleQueue[object] = SimpleQueue()
    keeper = GroupCommitter(store, make_namespace, NOW, wake=wakes.put)
    furnished(keeper)
    _wake(wakes)
    store.gate.clear()
    store.fail_next_run(FAILURE)
    probed: Reported = []
    reported: Reported = []
    keeper.probe(IDENTITY, probed.append)
    keeper.namespace.send(QUEUE, [NewMessage(b"two")], NOW)
    keeper.when_durable(reported.append)
    keeper.commit(NOW)
    store.gate.set()
    _wake(wakes)
    assert (probed, reported) == ([FAILURE], [])
    _wake(wakes)
    assert reported == [None]
    keeper.close()
    again = GroupCommitter(_reopened(store), make_namespace, NOW)
    assert [found.body for found in contents(again.namespace)] == [b"one", b"two"]


def test_callback_of_a_probe_is_called_when_the_committer_is_closed() -> None:
    store = SlowStore()
    wakes: SimpleQueue[object] = SimpleQueue()
    keeper = GroupCommitter(store, make_namespace, NOW, wake=wakes.put)
    reported: Reported = []
    keeper.probe(IDENTITY, reported.append)
    store.gate.set()
    keeper.close()
    assert reported == [None]


def test_simultaneous_probes_share_one_commit_and_revert_nothing() -> None:
    store = SlowStore()
    store.gate.set()
    wakes: SimpleQueue[object] = SimpleQueue()
    keeper = GroupCommitter(store, make_namespace, NOW, wake=wakes.put)
    furnished(keeper)
    _wake(wakes)
    store.gate.clear()
    namespace = keeper.namespace
    store.fail_next_run(FAILURE)
    probed: Reported = []
    reported: Reported = []
    keeper.probe(IDENTITY, probed.append)
    keeper.probe(IDENTITY, probed.append)
    keeper.when_durable(reported.append)
    store.gate.set()
    _wake(wakes)
    assert probed == [FAILURE, FAILURE]
    assert reported == [None], "all that was written is durable"
    assert keeper.is_idle
    assert keeper.namespace is namespace


def _wake(wakes: SimpleQueue[object]) -> None:
    collect = wakes.get(timeout=WAIT_S)
    assert callable(collect)
    collect()


def _reopened(store: MemoryStore) -> MemoryStore:
    again = MemoryStore()
    again._values = dict(store._values)
    again._sorted = None
    return again
