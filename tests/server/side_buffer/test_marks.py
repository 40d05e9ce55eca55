"""B3: what the store knows of a side buffer, and what a send is looked at for without being taken in."""

from __future__ import annotations

import pytest

from pairbus.broker import EntityNotFoundError, Message, MessageSizeExceededError, QueueDescription
from pairbus.store import Keeper, MemoryStore, StoreError, keys
from pairbus.store.errors import StoreFailedError
from tests.durability.namespace import NOW, QUEUE, contents, make_namespace

ONE, OTHER = b"identity", b"\xff" * 8


def keeper_on(store: MemoryStore) -> Keeper:
    keeper = Keeper(store, make_namespace, NOW)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.commit(NOW)
    return keeper


def test_b3_how_far_it_is_merged_is_in_the_commit_that_brings_the_messages() -> None:
    store = MemoryStore()
    keeper = keeper_on(store)
    keeper.namespace.send(QUEUE, [Message(b"lost")], NOW)
    keeper.put_merged(ONE, "orders", 7)
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        keeper.commit(NOW)
    assert (keeper.merged(ONE), contents(keeper.namespace)) == ({}, [])
    keeper.namespace.send(QUEUE, [Message(b"kept")], NOW)
    keeper.put_merged(ONE, "orders", 7)
    keeper.commit(NOW)
    assert keeper.merged(ONE) == {"orders": 7}


def test_b3_buffers_and_entities_are_told_apart() -> None:
    keeper = keeper_on(MemoryStore())
    long = "x" * 600
    for identity, entity, position in ((ONE, "orders", 1), (ONE, long, 2), (OTHER, "orders", 3), (ONE, "", 0)):
        keeper.put_merged(identity, entity, position)
    keeper.commit(NOW)
    assert keeper.merged(ONE) == {"orders": 1, long: 2, "": 0}
    assert keeper.merged(OTHER) == {"orders": 3}


@pytest.mark.parametrize("is_garbled", [False, True], ids=["damaged", "not understood"])
def test_b3_what_is_damaged_is_set_aside_and_the_rest_is_known(is_garbled: bool) -> None:
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


def test_b3_a_send_is_looked_at_as_ever_and_not_taken_in() -> None:
    store = MemoryStore()
    keeper = keeper_on(store)
    keeper.namespace.check_send(QUEUE, [Message(b"fine")], NOW)
    with pytest.raises(MessageSizeExceededError):
        keeper.namespace.check_send(QUEUE, [Message(bytes(200_000_000))], NOW)
    keeper.namespace.delete(QUEUE, NOW)
    with pytest.raises(EntityNotFoundError):
        keeper.namespace.check_send(QUEUE, [Message(b"fine")], NOW)
    keeper.namespace.create_queue("orders", QueueDescription(), NOW)
    keeper.namespace.check_send(QUEUE, [Message(b"fine")], NOW)
    assert contents(keeper.namespace) == []
    store.max_bytes = 1
    keeper.namespace.check_send(QUEUE, [Message(b"whatever room there is")], NOW)
    store.max_bytes = None
    assert keeper.namespace.send(QUEUE, [Message(b"and then sends go on")], NOW) == [1]
