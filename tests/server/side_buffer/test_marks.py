"""B3: the positions up to which a side buffer is merged, and the checks of a send that is not stored."""

from __future__ import annotations

import pytest

from pairbus.broker import EntityNotFoundError, MessageSizeExceededError, NewMessage, QueueDescription
from pairbus.store import GroupCommitter, MemoryStore, StoreError, keys
from pairbus.store.errors import StoreFailedError
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace

ONE, OTHER = b"identity", b"\xff" * 8


def keeper_on(store: MemoryStore) -> GroupCommitter:
    keeper = GroupCommitter(store, make_namespace, NOW)
    keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
    keeper.commit(NOW)
    return keeper


def test_b3_merged_position_is_committed_with_the_messages() -> None:
    store = MemoryStore()
    keeper = keeper_on(store)
    keeper.use_namespace().send(QUEUE, [NewMessage(b"lost")], NOW)
    keeper.put_merged(ONE, "orders", 7)
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        keeper.commit(NOW)
    assert (keeper.merged(ONE), contents(keeper.use_namespace())) == ({}, [])
    keeper.use_namespace().send(QUEUE, [NewMessage(b"kept")], NOW)
    keeper.put_merged(ONE, "orders", 7)
    keeper.commit(NOW)
    assert keeper.merged(ONE) == {"orders": 7}


def test_b3_positions_are_kept_by_buffer_and_entity() -> None:
    keeper = keeper_on(MemoryStore())
    long = "x" * 600
    for identity, entity, position in ((ONE, "orders", 1), (ONE, long, 2), (OTHER, "orders", 3), (ONE, "", 0)):
        keeper.put_merged(identity, entity, position)
    keeper.commit(NOW)
    assert keeper.merged(ONE) == {"orders": 1, long: 2, "": 0}
    assert keeper.merged(OTHER) == {"orders": 3}


@pytest.mark.parametrize("is_garbled", [False, True], ids=["damaged", "not understood"])
def test_b3_damaged_position_is_quarantined_and_others_are_kept(is_garbled: bool) -> None:
    store = MemoryStore()
    keeper = keeper_on(store)
    keeper.put_merged(ONE, "orders", 1)
    keeper.put_merged(ONE, "visits", 2)
    keeper.commit(NOW)
    key = keys.merged_key(ONE, "orders")
    if is_garbled:
        store.prepare({key: b"?"}).run()
    else:
        store.damage(key)
    assert keeper.merged(ONE) == {"visits": 2}
    assert keeper.damaged == [key]
    keeper.commit(NOW)
    assert store.get(keys.aside_key(key)) is not None
    assert keeper.merged(ONE) == {"visits": 2}


def test_b3_check_send_raises_the_usual_errors_and_stores_nothing() -> None:
    store = MemoryStore()
    keeper = keeper_on(store)
    keeper.use_namespace().check_send(QUEUE, [NewMessage(b"fine")], NOW)
    with pytest.raises(MessageSizeExceededError):
        keeper.use_namespace().check_send(QUEUE, [NewMessage(bytes(200_000_000))], NOW)
    keeper.use_namespace().delete(QUEUE, NOW)
    with pytest.raises(EntityNotFoundError):
        keeper.use_namespace().check_send(QUEUE, [NewMessage(b"fine")], NOW)
    keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
    keeper.use_namespace().check_send(QUEUE, [NewMessage(b"fine")], NOW)
    assert contents(keeper.use_namespace()) == []
    store.max_bytes = 1
    keeper.use_namespace().check_send(QUEUE, [NewMessage(b"whatever room there is")], NOW)
    store.max_bytes = None
    assert keeper.use_namespace().send(QUEUE, [NewMessage(b"and then sends go on")], NOW) == [1]
