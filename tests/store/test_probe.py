"""Whether a store can be written is found out without taking anything back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TypeAlias

import pytest

from pairbus.broker import Message, QueueDescription
from pairbus.store import Keeper, MemoryStore, StoreError
from pairbus.store.errors import StoreFailedError, StoreFullError
from pairbus.store.memory import MemoryCommit
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace, open_keeper

WAIT_S = 60.0
IDENTITY = b"identity"
FAILURE = StoreFailedError("the store", "the test wants it so")

Told: TypeAlias = list[StoreError | None]


def furnished(keeper: Keeper) -> Keeper:
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.namespace.send(QUEUE, [Message(b"one")], NOW)
    keeper.commit(NOW)
    return keeper


def fail_run(store: MemoryStore) -> None:
    store.fail_next_run(FAILURE)


def fail_prepare(store: MemoryStore) -> None:
    store.fail_next_prepare(StoreFullError("the store", "the test wants it so"))


@pytest.mark.parametrize("fail", [fail_run, fail_prepare])
def test_a_probe_that_fails_is_told_and_takes_nothing_back(fail: Callable[[MemoryStore], None]) -> None:
    store = MemoryStore()
    keeper = furnished(Keeper(store, make_namespace, NOW))
    namespace = keeper.namespace
    (locked,) = namespace.receive(QUEUE, 1, NOW)
    keeper.commit(NOW)
    told: Told = []
    fail(store)
    keeper.probe(IDENTITY, told.append)
    assert len(told) == 1
    assert isinstance(told[0], StoreError)
    assert keeper.namespace is namespace
    assert locked.lock_token is not None
    namespace.settle(QUEUE, locked.lock_token, NOW)
    keeper.probe(IDENTITY, told.append)
    assert len(told) == 1, "it waits for what is to be committed"
    keeper.commit(NOW)
    assert told[1:] == [None]
    assert contents(keeper.namespace) == []


def test_a_probe_writes_something_when_nothing_else_is_to_be_written(tmp_path: Path) -> None:
    with furnished(open_keeper(tmp_path)) as keeper:
        told: Told = []
        keeper.probe(IDENTITY, told.append)
        assert told == [None]
        assert keeper.merged(IDENTITY) == {"": 0}
        assert len(contents(keeper.namespace)) == 1


class SlowStore(MemoryStore):
    """Holds each commit up until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def write(self, commit: MemoryCommit) -> None:
        assert self.gate.wait(WAIT_S)
        super().write(commit)


def test_what_is_written_while_a_probe_runs_is_committed_though_the_probe_fails() -> None:
    store = SlowStore()
    store.gate.set()
    wakes: SimpleQueue[object] = SimpleQueue()
    keeper = Keeper(store, make_namespace, NOW, wake=wakes.put)
    furnished(keeper)
    _wake(wakes)
    store.gate.clear()
    store.fail_next_run(FAILURE)
    probed: Told = []
    told: Told = []
    keeper.probe(IDENTITY, probed.append)
    keeper.namespace.send(QUEUE, [Message(b"two")], NOW)
    keeper.when_durable(told.append)
    keeper.commit(NOW)
    store.gate.set()
    _wake(wakes)
    assert (probed, told) == ([FAILURE], [])
    _wake(wakes)
    assert told == [None]
    keeper.close()
    again = Keeper(_reopened(store), make_namespace, NOW)
    assert [found.body for found in contents(again.namespace)] == [b"one", b"two"]


def test_who_waits_for_a_probe_is_told_when_the_keeper_is_closed() -> None:
    store = SlowStore()
    wakes: SimpleQueue[object] = SimpleQueue()
    keeper = Keeper(store, make_namespace, NOW, wake=wakes.put)
    told: Told = []
    keeper.probe(IDENTITY, told.append)
    store.gate.set()
    keeper.close()
    assert told == [None]


def _wake(wakes: SimpleQueue[object]) -> None:
    collect = wakes.get(timeout=WAIT_S)
    assert callable(collect)
    collect()


def _reopened(store: MemoryStore) -> MemoryStore:
    again = MemoryStore()
    again._values = dict(store._values)
    again._sorted = None
    return again
