"""A6: duplicate detection by message id inside a time window."""

from __future__ import annotations

import pytest

from pairbus.broker.errors import MessageSizeExceededError
from tests.broker.broker import MINUTE, SECOND, Broker, blob, letter, texts

WINDOW = 20 * SECOND


def test_a6_a_message_with_an_id_that_was_seen_is_accepted_and_dropped() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    assert broker.send(queue, letter("a", message_id="m")) == [1]
    assert broker.send(queue, letter("b", message_id="m")) == [None]
    assert broker.send(queue, letter("c", message_id="M")) == [2]
    assert broker.take(queue) == ["a", "c"]


def test_a6_without_duplicate_detection_an_id_may_come_again() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.send(queue, letter("a", message_id="m"), letter("b", message_id="m")) == [1, 2]


def test_a6_an_id_is_a_duplicate_within_its_batch_too() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    assert broker.send(queue, *(letter("x", message_id=name) for name in "aba")) == [1, 2, None]


def test_a6_an_id_is_forgotten_at_exactly_the_end_of_the_window() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("first", message_id="m"))
    broker.wait(WINDOW - 1)
    assert broker.send(queue, letter("again", message_id="m")) == [None]
    broker.wait(1)
    assert broker.send(queue, letter("new", message_id="m")) == [2]


def test_a6_the_window_counts_from_the_first_message_with_the_id() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    for _ in range(4):  # 0, 7, 14 and 21 seconds
        broker.send(queue, letter(str(broker.now_ms), message_id="m"))
        broker.wait(7 * SECOND)
    assert len(broker.peek(queue)) == 2


def test_a6_an_id_is_remembered_when_its_message_is_gone() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    broker.send(queue, letter("a", message_id="m"))
    broker.take(queue)
    assert broker.send(queue, letter("b", message_id="m")) == [None]


def test_a6_an_id_is_remembered_across_a_restart_and_forgotten_at_its_time() -> None:
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


def test_a6_an_id_is_forgotten_in_the_store_too() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("a", message_id="m"))
    broker.commit()
    assert list(broker.store.scan(b"D", b"E"))
    broker.wait(WINDOW)
    broker.commit()
    assert not list(broker.store.scan(b"D", b"E"))


def test_a6_a_shorter_window_forgets_at_once() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=10 * MINUTE)
    broker.send(queue, letter("a", message_id="m"))
    broker.wait(MINUTE)
    broker.update(queue, duplicate_window_ms=WINDOW)
    assert broker.send(queue, letter("b", message_id="m")) == [2]


def test_a6_a_longer_window_remembers_longer() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.send(queue, letter("a", message_id="m"))
    broker.update(queue, duplicate_window_ms=2 * WINDOW)
    broker.wait(2 * WINDOW - 1)
    assert broker.send(queue, letter("b", message_id="m")) == [None]


def test_a6_an_id_is_forgotten_at_its_time_however_much_else_is_due() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    crowded = broker.queue("crowded", default_time_to_live_ms=SECOND)
    broker.send(queue, letter("a", message_id="m"))
    for _ in range(101):
        broker.send(crowded, *["expires"] * 100)
    broker.now_ms += WINDOW
    assert broker.send(queue, letter("must not be lost", message_id="m")) == [2]


def test_a6_an_id_of_a_message_that_was_refused_is_not_remembered() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    with pytest.raises(MessageSizeExceededError):
        broker.send(queue, letter("a", message_id="m"), blob(256 * 1024 + 1, message_id="n"))
    assert broker.send(queue, letter("b", message_id="m")) == [1]


def test_a6_a_scheduled_message_counts_from_when_it_was_scheduled() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True, duplicate_window_ms=WINDOW)
    broker.schedule(queue, "scheduled", MINUTE, message_id="m")
    assert broker.send(queue, letter("at once", message_id="m")) == [None]
    broker.wait(WINDOW)
    assert broker.send(queue, letter("later", message_id="m")) == [2]
    broker.wait(MINUTE)
    assert broker.take(queue) == ["later", "scheduled"]


def test_a6_a_topic_detects_duplicates_for_all_its_subscriptions() -> None:
    broker = Broker()
    topic = broker.topic(requires_duplicate_detection=True)
    one, other = broker.subscription("one"), broker.subscription("other")
    broker.send(topic, letter("a", message_id="m"), letter("b", message_id="m"))
    assert (broker.take(one), broker.take(other)) == (["a"], ["a"])


def test_a6_a_message_that_is_forwarded_twice_is_a_duplicate_where_it_arrives() -> None:
    broker = Broker()
    target = broker.queue("target", requires_duplicate_detection=True)
    source = broker.queue("source", forward_to="target")
    broker.send(source, letter("a", message_id="m"), letter("b", message_id="m"))
    assert broker.take(target) == ["a"]
    assert broker.info(source).message_count == 0


@pytest.mark.parametrize("partitioned", [True, False])
def test_a6_on_a_partitioned_entity_the_key_belongs_to_the_id(partitioned: bool) -> None:
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
