"""E1: stores that fail at the worst moment, messages that come round, listeners that raise, and much to do at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.broker import (
    RELAXED,
    STANDARD,
    Address,
    InvalidRequestError,
    RuleDescription,
    SessionLockedError,
    SqlFilterDescription,
)
from pairbus.store import KeyValueStore, MemoryStore, StoreError, StoreFailedError, StoreFullError
from pairbus.store.directory import DataDirectory
from pairbus.store.journal import LAST_ENTITY
from pairbus.store.keyvalue import DamageListener
from tests.broker.broker import MINUTE, START, Broker, dead, letter, texts

BROKEN = StoreFailedError("disk", "broken")


class Flaky(MemoryStore):
    """A store that cannot be read for a while."""

    fails = False

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        if self.fails:
            raise BROKEN
        return super().scan(start, end, on_damage)


class Unreadable(MemoryStore):
    """A store whose records cannot be read for a while."""

    fails = False

    def get(self, key: bytes) -> bytes | None:
        if self.fails:
            raise BROKEN
        return super().get(key)


class Lasting(MemoryStore):
    """A store that can be looked at when its keeper has closed it."""

    def close(self) -> None:
        pass


def fail_to_commit(broker: Broker, error: StoreError = BROKEN) -> None:
    assert isinstance(broker.store, MemoryStore)
    broker.store.fail_next_run(error)
    with suppress(StoreError):
        broker.commit()


# A commit fails


def test_e1_a_store_that_cannot_be_read_again_leaves_no_empty_namespace_behind() -> None:
    store = Flaky()
    broker = Broker(store=store)
    queue = broker.queue()
    broker.send(queue, "precious")
    broker.commit()
    broker.send(queue, "lost")
    store.fails = True
    fail_to_commit(broker)
    with pytest.raises(StoreFailedError):
        broker.queue("new")
    broker.commit()  # there is nothing to commit
    store.fails = False
    assert texts(broker.peek(queue)) == ["precious"]
    broker.queue("new")
    broker.restart()
    assert broker.take(queue) == ["precious"]


def test_e1_what_was_found_damaged_is_set_aside_with_the_first_commit_and_not_before() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    queue = broker.queue()
    broker.send(queue, "damaged", "sound")
    broker.commit()
    (key,) = [key for key, _ in store.scan(b"R", b"S")][:1]
    store.damage(key)
    broker.crash()
    assert broker.keeper.recovery.damaged == [key]
    assert broker.take(queue) == ["sound"]
    assert list(store.scan(b"X", b"Y")) == []
    broker.restart()
    assert [aside for aside, _ in store.scan(b"X", b"Y")] == [b"X" + key]
    assert broker.keeper.recovery.damaged == []


def test_e1_after_a_full_store_nothing_is_taken_in_before_there_is_more_room() -> None:
    store = MemoryStore(max_bytes=10_000_000)
    broker = Broker(store=store)
    queue = broker.queue()
    broker.send(queue, letter("old" * 10_000))
    broker.commit()
    broker.send(queue, "x")
    fail_to_commit(broker, StoreFullError("disk", "no run of pages is long enough"))
    with pytest.raises(StoreFullError):
        broker.send(queue, "y")
    broker.take(queue)
    broker.commit()
    assert broker.send(queue, "z") != []


def test_e1_room_is_judged_by_all_copies_of_a_message() -> None:
    store = MemoryStore(max_bytes=6_000_000)
    broker = Broker(limits=RELAXED, store=store)
    topic = broker.topic()
    for number in range(1_000):
        broker.subscription(f"s{number}")
        broker.commit()
    for _ in range(1_000):
        try:
            broker.send(topic, "x")
        except StoreFullError:
            break
    broker.commit()  # what was taken in has room
    with pytest.raises(StoreFullError):
        broker.send(topic, "x", "y", "z")


# Those who are told


def test_e1_a_listener_that_raises_stops_nothing() -> None:
    def complain(_error: StoreError | None) -> None:
        raise RuntimeError("no time")

    pending: list[object] = []
    broker = Broker(store=Lasting(), wake=pending.append)
    queue = broker.queue()
    broker.keeper.when_durable(complain)
    told: list[StoreError | None] = []
    broker.keeper.when_durable(told.append)
    broker.commit()
    broker.send(queue, "x")
    broker.keeper.when_durable(told.append)
    with pytest.raises(RuntimeError, match="no time"):
        broker.keeper.close()
    assert told == [None, None]
    broker.crash()
    assert broker.take(queue) == ["x"]
    broker.keeper.close()


def test_e1_what_a_listener_writes_while_the_keeper_closes_is_kept() -> None:
    broker = Broker(store=Lasting(), wake=lambda _function: None)
    queue = broker.queue()
    told: list[StoreError | None] = []

    def send_one_more(_error: StoreError | None) -> None:
        broker.send(queue, "one more")
        broker.keeper.when_durable(told.append)

    broker.keeper.when_durable(send_one_more)
    broker.keeper.close()
    assert told == [None]
    assert broker.store.get(b"M" + b"last body id") is not None


def test_e1_a_listener_may_commit_again_and_again() -> None:
    broker = Broker()
    queue = broker.queue()
    left = 2_000

    def go_on(_error: StoreError | None) -> None:
        nonlocal left
        left -= 1
        if left:
            broker.send(queue, "x")
            broker.keeper.when_durable(go_on)

    broker.keeper.when_durable(go_on)
    while left:
        broker.commit()
    assert broker.info(queue).message_count == 1_999


# Numbers that are never given twice


def test_e1_a_damaged_counter_gives_no_entity_the_number_of_a_deleted_one() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    old = broker.queue("old")
    broker.send(old, "a", "b", "c")
    broker.delete(old)
    broker.commit()
    store.damage(LAST_ENTITY)
    broker.crash()
    new = broker.queue("new")
    broker.send(new, "1", "2", "3")
    broker.tidy()
    broker.restart()
    assert broker.take(new) == ["1", "2", "3"]


def test_a1_the_counters_of_a_deleted_entity_go_with_it() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    queue = broker.queue(partitioned=True)
    broker.send(queue, *map(str, range(40)))
    broker.commit()
    broker.delete(queue)
    broker.tidy()
    broker.commit()
    assert [key for key, _ in store.scan(b"A", b"Z") if not key.startswith(b"M")] == []


def test_e3_rules_and_entities_outlive_a_change_of_the_limits() -> None:
    store = MemoryStore()
    broker = Broker(limits=RELAXED, store=store)
    broker.topic()
    expression = " OR ".join(["a = 1"] * 400)
    broker.subscription(rule=RuleDescription(filter=SqlFilterDescription(expression)))
    broker.restart()
    broker.limits = STANDARD
    broker.crash()
    broker.send(Address.of("topic"), letter("x", user={"a": 1}))
    assert broker.take(Address.of("topic", "sub")) == ["x"]


# Ways that lead in a circle


def test_a6_a_dead_letter_that_is_sent_round_is_not_taken_for_its_own_duplicate() -> None:
    broker = Broker()
    retry = broker.queue("retry")
    work = broker.queue(
        "work", requires_duplicate_detection=True, max_delivery_count=1, forward_dead_letters_to="retry"
    )
    broker.update(retry, forward_to="work")
    broker.send(work, letter("x", message_id="m"))
    broker.abandon(work, broker.one(work))
    (found,) = broker.peek(dead(retry))
    assert found.record.amendments is not None
    assert found.record.amendments.user["DeadLetterReason"] == "ForwardedInCircle"


def test_a6_a_circle_of_forwards_with_duplicate_detection_loses_nothing() -> None:
    broker = Broker()
    a = broker.queue("a", requires_duplicate_detection=True)
    b = broker.queue("b", forward_to="a")
    broker.update(a, forward_to="b")
    assert broker.send(a, letter("x", message_id="m")) == [1]
    assert sum(broker.info(queue).message_count for queue in (a, b)) == 1


def test_a6_a_real_duplicate_that_is_forwarded_vanishes() -> None:
    broker = Broker()
    end = broker.queue("end", requires_duplicate_detection=True)
    first = broker.queue("first", forward_to="end")
    broker.send(first, letter("x", message_id="m"), letter("again", message_id="m"))
    assert broker.take(end) == ["x"]
    assert broker.info(first).message_count == 0


def test_a6_what_arrives_lines_up_behind_what_waits_to_be_forwarded() -> None:
    broker = Broker()
    end, first = broker.queue("end"), broker.queue("first")
    broker.send(first, "0", "1", "2")
    broker.update(first, forward_to="end")
    broker.send(first, "3")
    broker.tidy()
    assert broker.take(end) == ["0", "1", "2", "3"]
    broker.send(first, "4")
    assert broker.take(end) == ["4"]


def test_e3_topics_that_forward_to_each_other_do_not_multiply_without_end() -> None:
    broker = Broker(limits=replace(STANDARD, forwards_per_message=500))
    topic = broker.topic()
    for number in range(20):
        broker.subscription(f"s{number}", forward_to="topic")
    assert broker.send(topic, "x") == [1]
    copies = sum(info.dead_letter_count for info in broker.namespace.subscriptions("topic", START))
    assert 0 < copies < 1_000


# Much to do at once


def test_a5_a_session_whose_lock_has_run_out_has_one_new_holder_however_much_is_due() -> None:
    broker = Broker()
    sessions = broker.queue("sessions", requires_session=True)
    first = broker.accept(sessions, "s")
    other = broker.queue("other", default_time_to_live_ms=1_000)
    for _ in range(110):
        broker.send(other, *["x"] * 100)
    broker.now_ms += MINUTE
    second = broker.accept(sessions, "s")
    assert second != first
    broker.send(sessions, letter("x", session_id="s"))
    with pytest.raises(SessionLockedError):
        broker.accept(sessions, "s")
    assert broker.take(sessions, session_token=second) == ["x"]


def test_e3_a_receiver_does_not_wait_for_all_that_has_expired() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=1_000)
    for _ in range(350):
        broker.send(queue, *["x"] * 100)
    broker.now_ms += 1_000
    before = broker.info(queue).message_count
    assert broker.receive(queue, 1) == []
    assert before > broker.namespace._catalogue.queue(queue).ready_count > 0


def test_e3_what_is_planned_and_dropped_again_does_not_pile_up() -> None:
    broker = Broker()
    queue = broker.queue()
    for number in range(5_000):
        broker.namespace.cancel_scheduled(queue, [broker.schedule(queue, "x", 10_000_000 - number)], broker.now_ms)
    for number in range(300):
        broker.delete(broker.queue(f"q{number}", auto_delete_on_idle_ms=10 * MINUTE))
    assert len(broker.namespace._context.agenda) < 1_000


def test_e1_a_message_that_cannot_be_read_now_is_not_forgotten() -> None:
    store = Unreadable()
    broker = Broker(store=store)
    queue = broker.queue()
    broker.send(queue, "a", "b")
    broker.commit()
    store.fails = True
    with pytest.raises(StoreFailedError):
        broker.receive(queue)
    store.fails = False
    assert broker.take(queue) == ["a", "b"]


# Games with the data directory


@pytest.mark.parametrize("name", ["pairbus.lock", "format.new"])
def test_e3_a_link_in_the_data_directory_leads_nowhere(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / name).symlink_to(victim)
    with suppress(StoreError):
        DataDirectory.open(directory, START).close()
    assert victim.read_text() == "precious"


def test_the_stores_are_what_a_keeper_needs() -> None:
    store: KeyValueStore = MemoryStore()
    assert store.place


def test_e1_what_is_due_while_the_store_cannot_be_read_is_done_later() -> None:
    store = Unreadable()
    broker = Broker(store=store)
    queue, other = broker.queue(), broker.queue("other")
    broker.schedule(queue, "scheduled", MINUTE)
    broker.send(other, letter("expires", time_to_live_ms=MINUTE))
    broker.commit()
    store.fails = True
    with pytest.raises(StoreFailedError):
        broker.wait(2 * MINUTE)
    store.fails = False
    assert broker.take(queue) == ["scheduled"]
    assert broker.info(other).message_count == 0


def test_e1_a_deferred_message_that_cannot_be_read_now_stays_deferred() -> None:
    store = Unreadable()
    broker = Broker(store=store)
    queue = broker.queue()
    broker.send(queue, "x")
    sequence = broker.defer(queue, broker.one(queue))
    broker.commit()
    store.fails = True
    with pytest.raises(StoreFailedError):
        broker.deferred(queue, sequence)
    store.fails = False
    assert texts(broker.deferred(queue, sequence)) == ["x"]


def test_e1_a_pump_loses_nothing_that_it_cannot_read_now() -> None:
    store = Unreadable()
    broker = Broker(store=store)
    end, first = broker.queue("end"), broker.queue("first")
    broker.send(first, "a", "b")
    broker.commit()
    broker.update(first, forward_to="end")
    store.fails = True
    with pytest.raises(StoreFailedError):
        broker.tidy()
    store.fails = False
    broker.tidy()
    assert broker.take(end) == ["a", "b"]


def test_e1_whoever_waits_is_told_even_if_no_namespace_can_be_made_any_more() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.commit()
    broker.send(queue, "x")
    told: list[StoreError | None] = []
    broker.keeper.when_durable(told.append)
    make, broker.keeper._make_namespace = broker.keeper._make_namespace, lambda _records: 1 / 0  # type: ignore[assignment,return-value]
    fail_to_commit(broker)
    assert told == [BROKEN]
    broker.keeper._make_namespace = make
    assert broker.take(queue) == []


def test_e3_the_reason_of_a_dead_letter_is_as_limited_as_other_properties() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    with pytest.raises(InvalidRequestError):
        broker.dead_letter(queue, delivery, reason="x" * 100_000)
    broker.dead_letter(queue, delivery, reason="short")
    assert broker.take(dead(queue)) == ["x"]


def test_e3_many_forwards_of_one_message_are_not_held_against_the_next() -> None:
    broker = Broker(limits=replace(STANDARD, forwards_per_message=5))
    topic = broker.topic()
    for number in range(5):
        broker.subscription(f"s{number}", forward_to="topic")
    broker.send(topic, "many")
    end = broker.queue("end")
    first = broker.queue("first", forward_to="end")
    broker.send(first, "one")
    assert broker.take(end) == ["one"]
