"""Refusal of sends for lack of space."""

from __future__ import annotations

import pytest

from pairbus.broker import NewMessage, QueueDescription
from pairbus.store import GroupCommitter, MemoryStore
from pairbus.store.errors import StoreFullError
from pairbus.store.write_batch import RESERVE_BYTES
from tests.durability.namespace import NOW, QUEUE, make_namespace

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("left", "refused", "lacks"),
    [
        (100_000, 200_000, True),
        (100_000, 10_000, False),
        (3 * MEBIBYTE, 8 * MEBIBYTE, False),
    ],
    ids=["refused as a whole", "taken", "only an unusually large one is refused"],
)
def test_store_lacks_space_while_the_refused_message_does_not_fit(left: int, refused: int, lacks: bool) -> None:
    store = MemoryStore()
    keeper = GroupCommitter(store, make_namespace, NOW)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.commit(NOW)
    store.max_bytes = store.used_bytes + RESERVE_BYTES + left
    try:
        keeper.namespace.send(QUEUE, [NewMessage(bytes(refused))], NOW)
    except StoreFullError:
        assert keeper.lacks_room() is lacks
    else:
        assert not lacks
    keeper.namespace.send(QUEUE, [NewMessage(b"small")], NOW)
    assert keeper.lacks_room() is lacks, "it does not change with each send"
    store.max_bytes = None
    assert not keeper.lacks_room()


def test_store_lacks_space_after_a_failed_commit_until_there_is_more() -> None:
    store = MemoryStore(max_bytes=2 * RESERVE_BYTES)
    keeper = GroupCommitter(store, make_namespace, NOW)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    store.fail_next_run(StoreFullError("the store", "the test wants it so"))
    with pytest.raises(StoreFullError):
        keeper.commit(NOW)
    for _ in range(2):
        assert keeper.lacks_room()
        with pytest.raises(StoreFullError):
            keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    store.max_bytes = 3 * RESERVE_BYTES
    assert not keeper.lacks_room()
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
