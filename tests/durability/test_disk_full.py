"""E1, E3: without room a send fails with an error of its own, nothing is lost, and service resumes by itself."""

from __future__ import annotations

import resource
from multiprocessing import get_context
from pathlib import Path

import pytest

from pairbus.broker import Namespace, NewMessage, QueueDescription
from pairbus.store import GroupCommitter, StoreError, StoreFailedError, StoreFullError
from pairbus.store.memory import MemoryStore
from tests.durability.namespace import ALL, NOW, QUEUE, contents, make_namespace, open_keeper

MEGABYTE = 1024 * 1024


def fill(keeper: GroupCommitter) -> list[str]:
    """Send until there is no room; the ids of what was confirmed."""
    confirmed: list[str] = []
    for number in range(100_000):
        try:
            keeper.use_namespace().send(QUEUE, [NewMessage(bytes(20_000), str(number))], NOW)
        except StoreFullError:
            return confirmed
        outcome: list[StoreError | None] = []
        keeper.when_durable(outcome.append)
        keeper.commit(NOW)
        assert outcome == [None]
        confirmed.append(str(number))
    raise AssertionError("there was room without end")


def drain(namespace: Namespace) -> list[str]:
    """Receive and complete everything."""
    deliveries = namespace.receive(QUEUE, ALL, NOW)
    for delivery in deliveries:
        assert delivery.lock_token is not None
        namespace.settle(QUEUE, delivery.lock_token, NOW)
    return [delivery.record.message_id for delivery in deliveries]


def meet_a_full_disk(path: Path) -> None:
    """A limit on the size of files gives the same errors as a full disk, and no other process notices."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 * MEGABYTE, resource.RLIM_INFINITY))
    keeper = open_keeper(path)
    keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
    confirmed = fill(keeper)
    assert len(confirmed) > 100
    assert [delivery.record.message_id for delivery in contents(keeper.use_namespace())] == confirmed

    assert drain(keeper.use_namespace()) == confirmed, "settling needs no room that is not there"
    outcome: list[StoreError | None] = []
    keeper.when_durable(outcome.append)
    keeper.commit(NOW)
    assert outcome == [None]
    again = fill(keeper)
    assert len(again) > 0.8 * len(confirmed), "the room of what was settled is used again"

    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * MEGABYTE, resource.RLIM_INFINITY))
    assert len(fill(keeper)) > 100, "service resumes by itself when there is room"
    keeper.close()


def test_e1_full_disk_refuses_sends_and_loses_nothing(tmp_path: Path) -> None:
    process = get_context("spawn").Process(target=meet_a_full_disk, args=(tmp_path / "data",))
    process.start()
    process.join()
    assert process.exitcode == 0
    keeper = open_keeper(tmp_path / "data")
    found = [delivery.record.message_id for delivery in contents(keeper.use_namespace())]
    assert len(found) > 200
    assert len(found) == keeper.recovery.messages
    keeper.close()


@pytest.mark.parametrize("error", [StoreFullError("disk", "full"), StoreFailedError("disk", "input/output error")])
def test_failed_commit_reverts_everything_and_raises(error: StoreError) -> None:
    store = MemoryStore()
    keeper = GroupCommitter(store, make_namespace, NOW)
    keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
    keeper.use_namespace().send(QUEUE, [NewMessage(b"kept", "kept")], NOW)
    keeper.commit(NOW)
    (kept,) = keeper.use_namespace().receive(QUEUE, 1, NOW)
    assert kept.lock_token is not None
    keeper.use_namespace().settle(QUEUE, kept.lock_token, NOW)
    keeper.use_namespace().send(QUEUE, [NewMessage(b"lost", "lost")], NOW)
    outcome: list[StoreError | None] = []
    keeper.when_durable(outcome.append)
    store.fail_next_run(error)
    with pytest.raises(type(error)):
        keeper.commit(NOW)
    assert outcome == [error]
    assert [delivery.body for delivery in contents(keeper.use_namespace())] == [b"kept"]
    assert keeper.use_namespace().send(QUEUE, [NewMessage(b"next", "next")], NOW) == [2]
