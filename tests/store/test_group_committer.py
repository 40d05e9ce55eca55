"""The committer's interface: its shared state, its listeners, and the namespace after a failed commit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from pairbus.broker import NewMessage, QueueDescription
from pairbus.broker.namespace import Namespace
from pairbus.broker.ports import Records
from pairbus.store import GroupCommitter, MemoryStore, NamespaceLoadingError, StoreFailedError
from pairbus.store.group_committer import CommitThreadState
from pairbus.store.recovery import Recovery
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace

SOURCE = Path(__file__).parents[2] / "src" / "pairbus" / "store" / "group_committer.py"
BROKEN = StoreFailedError("the disk", "it is broken")


class Maker:
    """Makes namespaces, and fails so many times first."""

    def __init__(self) -> None:
        self.failures = 0
        self.attempts = 0

    def __call__(self, records: Records) -> Namespace:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise BROKEN
        return make_namespace(records)


def send(committer: GroupCommitter, body: bytes) -> None:
    committer.use_namespace().send(QUEUE, [NewMessage(body)], NOW)


def bodies(namespace: Namespace) -> list[bytes]:
    return [found.body for found in contents(namespace)]


def test_table_of_shared_state_lists_every_field() -> None:
    rows = re.findall(r"^ *\| (``.*?) \| \w", SOURCE.read_text("utf-8"), re.MULTILINE)  # compiled: no docstrings
    listed = [name for row in rows for name in re.findall(r"``(\w+)``", row)]
    assert sorted(listed) == sorted(fields_of(CommitThreadState()))


def fields_of(state: CommitThreadState) -> list[str]:
    """Return the names of the fields; those of a compiled class are descriptors."""
    if hasattr(state, "__dict__"):
        return [*vars(state)]
    return [name for name, value in vars(type(state)).items() if inspect.isgetsetdescriptor(value)]


def test_namespace_that_cannot_be_read_is_read_again_only_by_use_namespace() -> None:
    store, maker = MemoryStore(), Maker()
    committer = GroupCommitter(store, maker, NOW)
    committer.use_namespace().create_queue("orders", QueueDescription(), NOW)
    send(committer, b"kept")
    committer.commit(NOW)
    heard: list[Recovery] = []
    committer.rebuilt.add(heard.append)
    send(committer, b"lost")
    store.fail_next_run(BROKEN)
    maker.failures = 2
    with pytest.raises(StoreFailedError, match="it is broken"):
        committer.commit(NOW)
    attempts = maker.attempts
    with pytest.raises(StoreFailedError, match="it is broken"):
        _ = committer.namespace
    assert maker.attempts == attempts
    with pytest.raises(StoreFailedError, match="it is broken"):
        committer.use_namespace()
    assert bodies(committer.use_namespace()) == [b"kept"]
    assert maker.attempts == attempts + 2
    assert committer.namespace is committer.use_namespace()
    assert [recovery.messages for recovery in heard] == [1]
    committer.close()


def test_commit_thread_reads_namespace_again_only_for_use_namespace() -> None:
    store, maker = MemoryStore(), Maker()
    woken: SimpleQueue[Callable[[], None]] = SimpleQueue()
    committer = GroupCommitter(store, maker, NOW, woken.put)
    committer.use_namespace().create_queue("orders", QueueDescription(), NOW)
    committer.commit(NOW)
    woken.get(timeout=60)()
    send(committer, b"lost")
    store.fail_next_run(BROKEN)
    maker.failures = 1
    committer.commit(NOW)
    for _ in ("the commit", "the load"):
        woken.get(timeout=60)()
    attempts = maker.attempts
    with pytest.raises(StoreFailedError, match="it is broken"):
        _ = committer.namespace
    assert maker.attempts == attempts
    with pytest.raises(StoreFailedError, match="it is broken"):
        committer.use_namespace()
    woken.get(timeout=60)()
    assert bodies(committer.namespace) == []
    committer.close()


def test_namespace_that_is_being_read_raises() -> None:
    store, maker = MemoryStore(), Maker()
    woken: SimpleQueue[Callable[[], None]] = SimpleQueue()
    committer = GroupCommitter(store, maker, NOW, woken.put)
    committer.use_namespace().create_queue("orders", QueueDescription(), NOW)
    store.fail_next_run(BROKEN)
    committer.commit(NOW)
    woken.get(timeout=60)()  # the commit has failed
    for get in (committer.use_namespace, lambda: committer.namespace):
        with pytest.raises(NamespaceLoadingError):
            get()
    woken.get(timeout=60)()
    assert committer.use_namespace().queues(NOW) == []
    committer.close()


def test_function_that_is_assigned_to_rebuilt_is_called_with_warning() -> None:
    store = MemoryStore()
    committer = GroupCommitter(store, make_namespace, NOW)
    heard: list[Recovery] = []
    with pytest.warns(DeprecationWarning, match=r"rebuilt\.add"):
        committer.rebuilt = heard.append
    committer.use_namespace().create_queue("orders", QueueDescription(), NOW)
    store.fail_next_run(BROKEN)
    with pytest.raises(StoreFailedError):
        committer.commit(NOW)
    assert [recovery.entities for recovery in heard] == [0]
    committer.close()
