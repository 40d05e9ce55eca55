"""E1: failing stores, forwarding loops, callbacks that raise, and much due work at once."""

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
from pairbus.store import CommitInDoubtError, KeyValueStore, MemoryStore, StoreError, StoreFailedError, StoreFullError
from pairbus.store.directory import DataDirectory
from pairbus.store.keyvalue import DamageListener
from pairbus.store.write_batch import LAST_ENTITY
from tests.broker.broker import MINUTE, START, Broker, dead, letter, texts

BROKEN = StoreFailedError("disk", "broken")


class Flaky(MemoryStore):
    """A store that is temporarily unreadable."""

    fails = False

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        if self.fails:
            raise BROKEN
        return super().scan(start, end, on_damage)


class Unreadable(MemoryStore):
    """A store whose records are temporarily unreadable."""

    fails = False

    def get(self, key: bytes) -> bytes | None:
        if self.fails:
            raise BROKEN
        return super().get(key)


class Lasting(MemoryStore):
    """A store that can be inspected after its committer has closed it."""

    def close(self) -> None:
        pass


def fail_to_commit(broker: Broker, error: StoreError = BROKEN) -> None:
    assert isinstance(broker.store, MemoryStore)
    broker.store.fail_next_run(error)
    with suppress(StoreError):
        broker.commit()


# Failing commits


def test_e1_unreadable_store_leaves_no_empty_namespace() -> None:
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


def test_e1_damaged_records_are_set_aside_with_the_first_commit() -> None:
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


def test_e1_full_store_rejects_sends_until_there_is_more_space() -> None:
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


def test_e1_free_space_is_checked_for_all_copies_of_a_message() -> None:
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
    broker.commit()  # accepted messages have space
    with pytest.raises(StoreFullError):
        broker.send(topic, "x", "y", "z")


# Callbacks


def test_e1_callback_that_raises_does_not_stop_the_committer() -> None:
    def complain(_error: StoreError | None) -> None:
        raise RuntimeError("no time")

    pending: list[object] = []
    broker = Broker(store=Lasting(), wake=pending.append)
    queue = broker.queue()
    broker.keeper.when_durable(complain)
    reported: list[StoreError | None] = []
    broker.keeper.when_durable(reported.append)
    broker.commit()
    broker.send(queue, "x")
    broker.keeper.when_durable(reported.append)
    with pytest.raises(RuntimeError, match="no time"):
        broker.keeper.close()
    assert reported == [None, None]
    broker.crash()
    assert broker.take(queue) == ["x"]
    broker.keeper.close()


def test_e1_writes_of_a_callback_during_close_are_committed() -> None:
    broker = Broker(store=Lasting(), wake=lambda _function: None)
    queue = broker.queue()
    reported: list[StoreError | None] = []

    def send_one_more(_error: StoreError | None) -> None:
        broker.send(queue, "one more")
        broker.keeper.when_durable(reported.append)

    broker.keeper.when_durable(send_one_more)
    broker.keeper.close()
    assert reported == [None]
    assert broker.store.get(b"M" + b"last body id") is not None


def test_e1_callback_may_commit_repeatedly() -> None:
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


# Unique sequence numbers


def test_e1_damaged_counter_does_not_reuse_the_id_of_a_deleted_entity() -> None:
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


def test_a1_counters_of_a_deleted_entity_are_removed() -> None:
    store = MemoryStore()
    broker = Broker(store=store)
    queue = broker.queue(partitioned=True)
    broker.send(queue, *map(str, range(40)))
    broker.commit()
    broker.delete(queue)
    broker.tidy()
    broker.commit()
    assert [key for key, _ in store.scan(b"A", b"Z") if not key.startswith((b"M", b"T"))] == []


def test_e3_rules_and_entities_survive_lower_limits() -> None:
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


# Forwarding loops


def test_a6_dead_letter_forwarded_in_a_loop_is_not_its_own_duplicate() -> None:
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


def test_a6_forwarding_loop_with_duplicate_detection_loses_nothing() -> None:
    broker = Broker()
    a = broker.queue("a", requires_duplicate_detection=True)
    b = broker.queue("b", forward_to="a")
    broker.update(a, forward_to="b")
    assert broker.send(a, letter("x", message_id="m")) == [1]
    assert sum(broker.info(queue).message_count for queue in (a, b)) == 1


def test_a6_forwarded_duplicate_is_dropped() -> None:
    broker = Broker()
    end = broker.queue("end", requires_duplicate_detection=True)
    first = broker.queue("first", forward_to="end")
    broker.send(first, letter("x", message_id="m"), letter("again", message_id="m"))
    assert broker.take(end) == ["x"]
    assert broker.info(first).message_count == 0


def test_a6_arriving_message_queues_behind_those_waiting_to_be_forwarded() -> None:
    broker = Broker()
    end, first = broker.queue("end"), broker.queue("first")
    broker.send(first, "0", "1", "2")
    broker.update(first, forward_to="end")
    broker.send(first, "3")
    broker.tidy()
    assert broker.take(end) == ["0", "1", "2", "3"]
    broker.send(first, "4")
    assert broker.take(end) == ["4"]


def test_e3_copies_of_topics_that_forward_to_each_other_are_bounded() -> None:
    broker = Broker(limits=replace(STANDARD, forwards_per_message=500))
    topic = broker.topic()
    for number in range(20):
        broker.subscription(f"s{number}", forward_to="topic")
    assert broker.send(topic, "x") == [1]
    copies = sum(info.dead_letter_count for info in broker.namespace.subscriptions("topic", START))
    assert 0 < copies < 1_000


# Much due work


def test_a5_expired_session_has_one_new_holder_however_much_is_due() -> None:
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


def test_e3_receive_is_not_delayed_by_many_expired_messages() -> None:
    broker = Broker()
    queue = broker.queue(default_time_to_live_ms=1_000)
    for _ in range(350):
        broker.send(queue, *["x"] * 100)
    broker.now_ms += 1_000
    before = broker.info(queue).message_count
    assert broker.receive(queue, 1) == []
    assert before > broker.namespace._catalogue.queue(queue).ready_count > 0


def test_e3_dropped_timers_do_not_accumulate() -> None:
    broker = Broker()
    queue = broker.queue()
    for number in range(5_000):
        broker.namespace.cancel_scheduled(queue, [broker.schedule(queue, "x", 10_000_000 - number)], broker.now_ms)
    for number in range(300):
        broker.delete(broker.queue(f"q{number}", auto_delete_on_idle_ms=10 * MINUTE))
    assert len(broker.namespace._context.timers) < 1_000


def test_e1_message_that_is_temporarily_unreadable_is_not_lost() -> None:
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


# Manipulated data directories


@pytest.mark.parametrize("name", ["pairbus.lock", "format.new"])
def test_e3_symbolic_link_in_the_data_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / name).symlink_to(victim)
    with suppress(StoreError):
        DataDirectory.open(directory, START).close()
    assert victim.read_text() == "precious"


def test_stores_implement_the_protocol_of_the_committer() -> None:
    store: KeyValueStore = MemoryStore()
    assert store.place


def test_e1_work_due_while_the_store_is_unreadable_is_done_later() -> None:
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


def test_e1_temporarily_unreadable_deferred_message_stays_deferred() -> None:
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


def test_e1_forwarding_job_loses_no_temporarily_unreadable_message() -> None:
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


def test_e1_callbacks_get_the_error_even_if_the_namespace_cannot_be_rebuilt() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.commit()
    broker.send(queue, "x")
    reported: list[StoreError | None] = []
    broker.keeper.when_durable(reported.append)
    make, broker.keeper._make_namespace = broker.keeper._make_namespace, lambda _records: 1 / 0  # type: ignore[assignment,return-value]
    fail_to_commit(broker)
    (error,) = reported
    assert isinstance(error, CommitInDoubtError)  # the store cannot say whether it has the commit
    assert error.reason == str(BROKEN)
    broker.keeper._make_namespace = make
    assert broker.take(queue) == []


def test_e3_dead_letter_reason_is_limited_like_other_properties() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "x")
    delivery = broker.one(queue)
    with pytest.raises(InvalidRequestError):
        broker.dead_letter(queue, delivery, reason="x" * 100_000)
    broker.dead_letter(queue, delivery, reason="short")
    assert broker.take(dead(queue)) == ["x"]


def test_e3_forwards_are_counted_for_each_message_separately() -> None:
    broker = Broker(limits=replace(STANDARD, forwards_per_message=5))
    topic = broker.topic()
    for number in range(5):
        broker.subscription(f"s{number}", forward_to="topic")
    broker.send(topic, "many")
    end = broker.queue("end")
    first = broker.queue("first", forward_to="end")
    broker.send(first, "one")
    assert broker.take(end) == ["one"]
