"""A6: the size quota of an entity, partitions, and batches."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    HeaderSizeExceededError,
    InvalidMessageError,
    MessageSizeExceededError,
    QuotaExceededError,
)
from pairbus.broker.limits import RELAXED
from pairbus.broker.message import NewMessage
from tests.broker.broker import MINUTE, SECOND, Broker, blob, dead, letter, numbers, texts

MEGABYTE = 1024 * 1024
SHIFT = 48


def partitions(sequences: list[int]) -> list[int]:
    return [sequence >> SHIFT for sequence in sequences]


# Quota


def test_a6_entity_is_filled_to_the_last_byte_and_no_further() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE - 1))
    with pytest.raises(QuotaExceededError) as raised:
        broker.send(queue, blob(2))
    assert raised.value.entity == "queue"
    broker.send(queue, blob(1))
    with pytest.raises(QuotaExceededError):
        broker.send(queue, blob(1))
    assert broker.info(queue).size_bytes == MEGABYTE


@pytest.mark.parametrize("state", ["locked", "deferred", "buried", "scheduled"])
def test_a6_messages_of_every_state_count_towards_the_quota(state: str) -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    if state == "scheduled":
        broker.send(queue, blob(MEGABYTE, scheduled_ms=broker.now_ms + MINUTE))
    else:
        broker.send(queue, blob(MEGABYTE))
        delivery = broker.one(queue)
        if state == "deferred":
            broker.defer(queue, delivery)
        elif state == "buried":
            broker.dead_letter(queue, delivery)
    with pytest.raises(QuotaExceededError):
        broker.send(queue, "x")


def test_a6_removed_messages_free_quota() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    for _ in range(3):
        broker.send(queue, blob(MEGABYTE))
        broker.receive(queue, delete=True)
    broker.send(queue, blob(MEGABYTE))
    broker.dead_letter(queue, broker.one(queue))
    broker.complete(dead(queue), broker.one(dead(queue)))
    broker.send(queue, blob(MEGABYTE, time_to_live_ms=SECOND))
    broker.wait(SECOND)
    assert broker.info(queue).size_bytes == 0


def test_a6_raised_size_frees_quota() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE))
    broker.update(queue, max_size_megabytes=2)
    broker.send(queue, blob(MEGABYTE))
    assert broker.info(queue).size_bytes == 2 * MEGABYTE


def test_a6_size_of_a_topic_includes_its_subscriptions() -> None:
    broker = Broker(RELAXED)
    topic = broker.topic(max_size_megabytes=1)
    one, other = broker.subscription("one"), broker.subscription("other")
    broker.send(topic, blob(MEGABYTE // 2))
    with pytest.raises(QuotaExceededError):
        broker.send(topic, "x")
    broker.receive(one, delete=True)
    broker.send(topic, "x")
    broker.delete(other)
    assert broker.info(topic).size_bytes == broker.info(one).size_bytes == len(letter("x").body)


def test_a6_full_entity_still_delivers() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE))
    broker.abandon(queue, broker.one(queue), more="properties")
    broker.dead_letter(queue, broker.one(queue), reason="r")
    assert len(broker.receive(dead(queue))) == 1


# Partitions


def test_a6_upper_bits_of_a_sequence_number_are_its_partition() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True)
    sequences = [broker.send(queue, str(number))[0] for number in range(32)]
    given = [sequence for sequence in sequences if sequence is not None]
    assert sorted(partitions(given)) == sorted(2 * list(range(16)))
    assert {sequence & ((1 << SHIFT) - 1) for sequence in given} == {1, 2}


@pytest.mark.parametrize("field", ["partition_key", "session_id"])
def test_a6_key_pins_messages_to_a_partition_and_keeps_them_in_order(field: str) -> None:
    broker = Broker()
    key: dict[str, Any] = {field: "k"}
    queue = broker.queue(partitioned=True)
    for number in range(20):
        broker.send(queue, letter(str(number), **key))
        broker.send(queue, "other")
    found = [delivery for delivery in broker.receive(queue) if texts([delivery]) != ["other"]]
    assert texts(found) == [str(number) for number in range(20)]
    assert len(set(partitions(numbers(found)))) == 1


def test_a6_different_keys_are_spread() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True)
    broker.send(queue, *(letter("x", partition_key=str(number)) for number in range(200)))
    assert set(partitions(numbers(broker.peek(queue, 0, 200)))) == set(range(16))


def test_a6_with_duplicate_detection_the_message_id_pins_a_message() -> None:
    broker = Broker()
    one, other = (broker.queue(name, partitioned=True, requires_duplicate_detection=True) for name in ("a", "b"))
    for number in range(20):
        broker.send(one, letter(str(number), message_id=str(number)))
        broker.send(other, letter(str(number), message_id=str(number)), letter("", message_id=f"other {number}"))
    expected = {texts([found])[0]: found.record.sequence >> SHIFT for found in broker.peek(one)}
    for found in broker.peek(other):
        (content,) = texts([found])
        assert not content or found.record.sequence >> SHIFT == expected[content]


def test_a6_with_duplicate_detection_a_scheduled_message_stays_in_its_partition() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True, requires_duplicate_detection=True)
    scheduled = [broker.schedule(queue, str(number), MINUTE, message_id=str(number)) for number in range(20)]
    broker.wait(MINUTE)
    found = broker.peek(queue)
    assert {delivery.record.original_sequence for delivery in found} == set(scheduled)
    for delivery in found:
        assert delivery.record.sequence >> SHIFT == delivery.record.original_sequence >> SHIFT


def test_a6_partition_key_is_the_session_id_where_both_are_given() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, letter("x", session_id="s", partition_key="s"))
    with pytest.raises(InvalidMessageError):
        broker.send(queue, letter("y", session_id="s", partition_key="other"))
    assert broker.take(queue) == ["x"]


def test_a6_partitioned_entity_holds_sixteen_times_as_much() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1, partitioned=True)
    for _ in range(16):
        broker.send(queue, blob(MEGABYTE))
    with pytest.raises(QuotaExceededError):
        broker.send(queue, blob(1))


def test_a6_abandoned_message_keeps_its_number_in_a_partitioned_queue() -> None:
    broker = Broker()
    queue = broker.queue(partitioned=True)
    broker.send(queue, *(letter(str(number), partition_key="k") for number in range(3)))
    first = broker.one(queue)
    broker.abandon(queue, first)
    assert numbers(broker.receive(queue))[0] == first.record.sequence


def test_a6_subscriptions_of_a_partitioned_topic_are_partitioned() -> None:
    broker = Broker()
    topic = broker.topic(partitioned=True)
    subscription = broker.subscription()
    broker.send(topic, *(letter(str(number), partition_key=str(number)) for number in range(40)))
    found = broker.peek(subscription)
    assert len(set(partitions(numbers(found)))) > 1
    for delivery in found:
        assert delivery.record.sequence >> SHIFT == delivery.record.original_sequence >> SHIFT


# Batches


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (blob(256 * 1024 + 1), MessageSizeExceededError),
        (blob(256 * 1024), MessageSizeExceededError),  # fits alone; the batch is too large
        (blob(1, header_bytes=64 * 1024 + 1), HeaderSizeExceededError),
        (blob(1, message_id="m" * 129), InvalidMessageError),
        (blob(1, session_id="s" * 129), InvalidMessageError),
        (blob(1, partition_key="p" * 129), InvalidMessageError),
        (blob(1, session_id="s", partition_key="p"), InvalidMessageError),
        (blob(1, time_to_live_ms=-1), InvalidMessageError),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a6_batch_with_one_bad_message_is_refused_as_a_whole(
    bad: NewMessage, expected: type[BrokerError], position: int
) -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    before = broker.info(queue)
    batch = [letter("a", message_id="a"), letter("b", message_id="b")]
    batch.insert(position, bad)
    broker.wait(1)
    with pytest.raises(expected):
        broker.send(queue, *batch)
    assert broker.info(queue) == before
    assert broker.send(queue, letter("a", message_id="a")) == [1]


def test_a6_batch_that_does_not_fit_is_refused_as_a_whole() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    with pytest.raises(QuotaExceededError):
        broker.send(queue, blob(MEGABYTE), blob(1))
    assert broker.info(queue).message_count == 0


def test_a6_batch_for_a_disabled_entity_is_refused_as_a_whole() -> None:
    broker = Broker()
    queue = broker.queue(status=EntityStatus.SEND_DISABLED)
    with pytest.raises(EntityDisabledError):
        broker.send(queue, "a", "b")
    assert broker.info(queue).message_count == 0


def test_a6_size_of_a_batch_is_the_sum_of_its_messages() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, blob(128 * 1024), blob(128 * 1024))
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, blob(128 * 1024), blob(128 * 1024), blob(1))
    assert broker.info(queue).message_count == 2
