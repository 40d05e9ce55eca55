"""A6: duplicate detection by message id inside a time window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.broker.errors import MessageSizeExceededError
from pairbus.broker.limits import STANDARD
from pairbus.broker.message import Address
from pairbus.store import MemoryStore, StoreError, StoreFailedError, keys
from tests.broker.broker import MINUTE, SECOND, Broker, blob, letter, texts

WINDOW = 20 * SECOND


def test_a6_message_with_an_id_that_was_seen_is_accepted_and_dropped() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    assert broker.send(queue, letter("a", message_id="m")) == [1]
    assert broker.send(queue, letter("b", message_id="m")) == [None]
    assert broker.send(queue, letter("c", message_id="M")) == [2]
    assert broker.take(queue) == ["a", "c"]


def test_a6_repeated_id_is_accepted_without_duplicate_detection() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.send(queue, letter("a", message_id="m"), letter("b", message_id="m")) == [1, 2]


def test_a6_id_is_a_duplicate_within_its_batch_too() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    assert broker.send(queue, *(letter("x", message_id=name) for name in "aba")) == [1, 2, None]


def test_a6_id_is_forgotten_at_exactly_the_end_of_the_window() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("first", message_id="m"))
    broker.wait(WINDOW - 1)
    assert broker.send(queue, letter("again", message_id="m")) == [None]
    broker.wait(1)
    assert broker.send(queue, letter("new", message_id="m")) == [2]


def test_a6_window_counts_from_the_first_message_with_the_id() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    for _ in range(4):  # 0, 7, 14 and 21 seconds
        broker.send(queue, letter(str(broker.now_ms), message_id="m"))
        broker.wait(7 * SECOND)
    assert len(broker.peek(queue)) == 2


def test_a6_id_is_remembered_after_its_message_was_removed() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    broker.send(queue, letter("a", message_id="m"))
    broker.take(queue)
    assert broker.send(queue, letter("b", message_id="m")) == [None]


def test_a6_id_is_remembered_across_a_restart_and_forgotten_at_its_time() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("a", message_id="m"))
    broker.wait(5 * SECOND)
    broker.send(queue, letter("b", message_id="n"))
    broker.restart()
    broker.wait(WINDOW - 5 * SECOND - 1)
    assert broker.send(queue, letter("x", message_id="m")) == [None]
    broker.wait(1)
    assert broker.send(queue, letter("y", message_id="m"), letter("z", message_id="n")) == [3, None]


def test_a6_id_is_forgotten_in_the_store_too() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("a", message_id="m"))
    broker.commit()
    assert list(broker.store.scan(b"D", b"E"))
    broker.wait(WINDOW)
    broker.commit()
    assert not list(broker.store.scan(b"D", b"E"))


def test_a6_shorter_window_forgets_at_once() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=10 * MINUTE)
    broker.send(queue, letter("a", message_id="m"))
    broker.wait(MINUTE)
    broker.update(queue, duplicate_window_ms=WINDOW)
    assert broker.send(queue, letter("b", message_id="m")) == [2]


def test_a6_longer_window_remembers_longer() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("a", message_id="m"))
    broker.update(queue, duplicate_window_ms=2 * WINDOW)
    broker.wait(2 * WINDOW - 1)
    assert broker.send(queue, letter("b", message_id="m")) == [None]


def test_a6_id_is_forgotten_at_its_time_however_much_else_is_due() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    crowded = broker.queue("crowded", default_time_to_live_ms=SECOND)
    broker.send(queue, letter("a", message_id="m"))
    for _ in range(101):
        broker.send(crowded, *["expires"] * 100)
    broker.now_ms += WINDOW
    assert broker.send(queue, letter("must not be lost", message_id="m")) == [2]


def test_a6_id_of_a_message_that_was_refused_is_not_remembered() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, letter("a", message_id="m"), blob(256 * 1024 + 1, message_id="n"))
    assert broker.send(queue, letter("b", message_id="m")) == [1]


def test_a6_scheduled_message_counts_from_when_it_was_scheduled() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.schedule(queue, "scheduled", MINUTE, message_id="m")
    assert broker.send(queue, letter("at once", message_id="m")) == [None]
    broker.wait(WINDOW)
    assert broker.send(queue, letter("later", message_id="m")) == [2]
    broker.wait(MINUTE)
    assert broker.take(queue) == ["later", "scheduled"]


def test_a6_topic_detects_duplicates_for_all_its_subscriptions() -> None:
    broker = Broker()
    topic = broker.topic(requires_duplicate_detection=True)
    one, other = broker.subscription("one"), broker.subscription("other")
    broker.send(topic, letter("a", message_id="m"), letter("b", message_id="m"))
    assert (broker.take(one), broker.take(other)) == (["a"], ["a"])


def test_a6_message_that_is_forwarded_twice_is_a_duplicate_where_it_arrives() -> None:
    broker = Broker()
    target = broker.queue("target", requires_duplicate_detection=True)
    source = broker.queue("source", forward_to="target")
    broker.send(source, letter("a", message_id="m"), letter("b", message_id="m"))
    assert broker.take(target) == ["a"]
    assert broker.info(source).message_count == 0


@pytest.mark.parametrize("partitioned", [True, False])
def test_a6_partition_key_is_part_of_the_id_on_a_partitioned_entity(partitioned: bool) -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, partitioned=partitioned)
    broker.send(
        queue,
        letter("a", message_id="m", partition_key="1"),
        letter("b", message_id="m", partition_key="2"),
        letter("c", message_id="m", session_id="3"),
        letter("d", message_id="m"),
        letter("e", message_id="m", partition_key="1"),
        letter("f", message_id="m", session_id="3", partition_key="3"),
    )
    assert sorted(texts(broker.peek(queue))) == (["a", "b", "c", "d"] if partitioned else ["a"])


# Ids that are only in the store.

FEW = replace(STANDARD, duplicate_ids_in_memory=3)


def spilling(*, count: int = 10, window_ms: int = WINDOW) -> tuple[Broker, Address]:
    """Return a queue that has seen that many ids, of which memory holds three."""
    broker = Broker(limits=FEW)
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=window_ms)
    for number in range(count):
        broker.send(queue, letter("first", message_id=f"m{number}"))
    return broker, queue


def stored_ids(broker: Broker) -> int:
    broker.commit()
    return len(list(broker.store.scan(b"D", b"E")))


def again(broker: Broker, queue: Address, *numbers: int) -> list[int | None]:
    return broker.send(queue, *(letter("again", message_id=f"m{number}") for number in numbers))


@pytest.mark.parametrize("committed", [False, True])
def test_a6_ids_beyond_the_memory_limit_are_found_in_the_store(committed: bool) -> None:
    broker, queue = spilling()
    if committed:
        broker.commit()
    assert broker.namespace.duplicate_ids_in_memory == 3
    assert again(broker, queue, *range(10)) == [None] * 10
    broker.restart()
    assert broker.namespace.duplicate_ids_in_memory == 3
    assert again(broker, queue, *range(10), 10) == [*[None] * 10, 11]


def test_a6_memory_limit_applies_to_all_entities_together() -> None:
    broker, _ = spilling()
    other = broker.queue("other", requires_duplicate_detection=True)
    for name in "abcab":
        broker.send(other, letter(name, message_id=name))
    assert broker.namespace.duplicate_ids_in_memory == 3
    assert broker.take(other) == ["a", "b", "c"]
    broker.restart()
    assert broker.namespace.duplicate_ids_in_memory == 3
    assert broker.send(other, letter("x", message_id="a")) == [None]


def test_a6_ids_in_the_store_are_forgotten_at_exactly_the_end_of_the_window() -> None:
    broker, queue = spilling()
    broker.wait(WINDOW - 1)
    assert again(broker, queue, 0) == [None]
    broker.wait(1)
    assert again(broker, queue, 0) == [11]
    assert again(broker, queue, 0) == [None]


def test_a6_sweep_removes_ids_from_the_store_step_by_step() -> None:
    broker, queue = spilling(count=100)
    broker.wait(WINDOW // 2)
    broker.send(queue, letter("young", message_id="young"))
    assert stored_ids(broker) == 101
    broker.now_ms += WINDOW // 2 + WINDOW // 8
    assert broker.namespace.tidy(broker.now_ms, 10)
    assert 1 < stored_ids(broker) < 101
    broker.tidy()
    assert stored_ids(broker) == 1
    assert broker.send(queue, letter("x", message_id="young")) == [None]
    broker.wait(10 * WINDOW)
    broker.tidy()
    assert stored_ids(broker) == 0
    assert broker.namespace.next_due_ms() is None


def test_a6_sweep_leaves_an_id_that_was_seen_again() -> None:
    broker, queue = spilling()
    broker.commit()
    broker.wait(WINDOW)
    again(broker, queue, *range(10))
    broker.wait(WINDOW // 8)
    broker.tidy()
    assert again(broker, queue, *range(10)) == [None] * 10
    assert stored_ids(broker) == 10


@pytest.mark.parametrize("restarts", [False, True])
def test_a6_longer_window_does_not_restore_ids_from_the_store(restarts: bool) -> None:
    broker, queue = spilling()
    broker.wait(WINDOW // 2)
    broker.send(queue, *(letter("young", message_id=f"young{number}") for number in range(5)))
    broker.wait(WINDOW // 2)
    broker.update(queue, duplicate_window_ms=10 * WINDOW)
    if restarts:
        broker.restart()
    assert broker.send(queue, letter("x", message_id="young0")) == [None]
    assert again(broker, queue, 0) == [16]
    broker.wait(20 * WINDOW)
    broker.tidy()
    assert stored_ids(broker) == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a6_ids_in_the_store_are_removed_with_their_entity(restarts: bool) -> None:
    broker, queue = spilling()
    broker.delete(queue)
    if restarts:
        broker.restart()
    broker.tidy()
    assert stored_ids(broker) == 0
    assert broker.namespace.duplicate_ids_in_memory == 0


def test_a6_damaged_id_in_the_store_is_reported_and_counts_as_new() -> None:
    broker, queue = spilling()
    broker.commit()
    assert isinstance(broker.store, MemoryStore)
    damaged = keys.duplicate_key(1, "m0")
    broker.store.damage(damaged)
    assert again(broker, queue, 0, 1) == [11, None]
    assert list(broker.keeper.damaged) == [damaged]


class UnreadableStore(MemoryStore):
    """A store whose reads fail from the n-th on."""

    reads_left = 1_000_000

    def get(self, key: bytes) -> bytes | None:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise StoreFailedError("the test", "cannot be read")
        return super().get(key)


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a6_batch_is_refused_as_a_whole_if_the_store_cannot_be_read(kind: str) -> None:
    store = UnreadableStore()
    broker = Broker(limits=FEW, store=store)
    entity = (broker.queue if kind == "queue" else broker.topic)("entity", requires_duplicate_detection=True)
    broker.send(entity, *(letter("first", message_id=f"m{number}") for number in range(10)))
    broker.commit()
    store.reads_left = 1
    with pytest.raises(StoreError):
        again(broker, entity, 20, 21)
    store.reads_left = 1_000_000
    assert again(broker, entity, 20, 21) == [11, 12]
