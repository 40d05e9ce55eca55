"""B4: an audit finds an inconsistent index, and a reload restores the entity from the store, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from pairbus.broker import (
    Address,
    EntityUnavailableError,
    IndexFault,
    IndexReloaded,
    LockLostError,
    MessageNotFoundError,
    SessionLost,
)
from pairbus.broker.context import Deadlines
from pairbus.broker.queue import Queue
from pairbus.broker.repair import AUDITED, PAGE
from tests.broker.broker import MINUTE, Broker, blob, dead, letter, numbers, texts

OTHER: Final = "other"


def faults(broker: Broker) -> list[IndexFault]:
    return [fault for fault in broker.namespace.audit().everything() if fault is not None]


def index(broker: Broker, address: Address) -> Queue:
    queue = broker.namespace._catalogue.find_queue(address)
    assert queue is not None
    return queue


def inconsistent(_due_ms: int, _sequence: int) -> bool:
    raise TypeError("the index is inconsistent")


def repair(broker: Broker, address: Address) -> None:
    broker.namespace.reload(address, broker.now_ms)
    broker.tidy()


def lose_message(queue: Queue) -> None:
    number = queue.next_ready()
    assert number is not None
    queue.present.discard(number)


def lose_ready(queue: Queue) -> None:
    queue.next_ready()


def add_unknown(queue: Queue) -> None:
    queue.present.add(9)
    queue._ready[0].add(9)


def swap_unknown(queue: Queue) -> None:
    """Keep all counts, but list another message than the store has."""
    lose_message(queue)
    add_unknown(queue)


def miscount(queue: Queue) -> None:
    queue.present._count += 1


def lock_ready_message(queue: Queue) -> None:
    queue._locks[b"token"] = queue._locked[2] = queue.lock(queue._context.records.record(queue.place, 2), 1 << 50)  # type: ignore[arg-type]


MISCOUNTS: Final = [lose_message, lose_ready, add_unknown, miscount, lock_ready_message]
CORRUPTIONS: Final = [*MISCOUNTS, swap_unknown]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_b4_inconsistent_index_is_found_and_reloaded_from_the_store(corrupt: Callable[[Queue], None]) -> None:
    broker = Broker()
    queue, other = broker.queue(), broker.queue(OTHER)
    broker.send(queue, "a", "b", "c")
    broker.send(other, "x")
    held = broker.one(other)
    broker.commit()
    broker.send(queue, "uncommitted")
    assert faults(broker) == []
    corrupt(index(broker, queue))
    assert {fault.address for fault in faults(broker)} == {queue}
    broker.namespace.take_notices()
    repair(broker, queue)
    assert faults(broker) == []
    assert broker.namespace.take_notices() == [IndexReloaded(queue, 4)]
    assert broker.info(queue).size_bytes == sum(each.record.size for each in broker.peek(queue))
    assert broker.take(queue) == ["a", "b", "c", "uncommitted"]
    broker.complete(other, held)  # the locks of other entities are untouched


def test_difference_on_a_later_page_is_found() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, *map(str, range(3 * PAGE)))
    broker.commit()
    assert len([*broker.namespace.audit().everything()]) > 3
    last = index(broker, queue).present.last()
    assert last is not None
    for numbers_of in index(broker, queue).sets:  # the counts stay as they are
        numbers_of.discard(last - 5)
        numbers_of.add(last + 5)
    (fault,) = faults(broker)
    assert "the index lacks 1 messages of the store" in fault.reason
    repair(broker, queue)
    assert broker.info(queue).ready_count == 3 * PAGE


@pytest.mark.parametrize("corrupt", MISCOUNTS)
def test_wrong_number_of_messages_is_found_without_reading_the_store(corrupt: Callable[[Queue], None]) -> None:
    broker = Broker()
    queue, other = broker.queue(), broker.queue(OTHER)
    broker.send(queue, *map(str, range(2 * AUDITED)))
    broker.send(other, "x")
    audit = broker.namespace.audit()
    assert {*audit.counts()} == {None}
    corrupt(index(broker, queue))
    broker.store.close()
    (address,) = (fault.address for fault in audit.counts() if fault is not None)
    assert address == queue


def test_counts_stay_right_in_every_state_of_a_message() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, "ready", "locked", "deferred", "dead", letter("expiring", time_to_live_ms=MINUTE), "gone")
    locked, deferred, buried, expiring, gone = broker.receive(queue, 6)[1:]
    broker.defer(queue, deferred)
    broker.dead_letter(queue, buried, reason="bad")
    broker.abandon(queue, expiring)
    broker.complete(queue, gone)
    broker.schedule(queue, "scheduled", MINUTE)
    assert {*broker.namespace.audit().counts()} == {None}
    broker.wait(2 * MINUTE)
    assert {*broker.namespace.audit().counts()} == {None}
    broker.namespace.quarantine(queue, deferred.record.sequence, broker.now_ms)
    assert {*broker.namespace.audit().counts()} == {None}
    assert locked.record.sequence in numbers(broker.peek(queue))


@pytest.mark.parametrize("length", [3, 2 * PAGE])
@pytest.mark.parametrize("at", ["first", "last"])
def test_changed_queue_is_compared_with_the_store_before_all_others(length: int, at: str) -> None:
    broker = Broker()
    first, queue = broker.queue("aaa"), broker.queue()
    broker.send(first, *map(str, range(2 * PAGE)))
    audit = broker.namespace.audit()
    assert {*audit.counts(), *audit.touched()} == {None}
    broker.send(queue, *map(str, range(length)))
    wrong = getattr(index(broker, queue).present, at)()
    for numbers_of in index(broker, queue).sets:
        numbers_of.discard(wrong)
        numbers_of.add(9 * PAGE)
    assert {*audit.counts()} == {None}
    steps = [*audit.touched()]
    assert len(steps) < 10
    assert {fault.address for fault in steps if fault is not None} == {queue}
    assert [*audit.touched()] == []


def test_exempt_entity_is_not_compared() -> None:
    broker = Broker()
    queue, other = broker.queue(), broker.queue(OTHER)
    for each in (queue, other):
        broker.send(each, "a", "b", "c")
        lose_message(index(broker, each))
    exempt = broker.namespace.entity_id(queue)
    audit = broker.namespace.audit(lambda entity_id: entity_id == exempt)
    for found in (audit.counts(), audit.touched(), audit.everything()):
        assert {fault.address for fault in found if fault is not None} == {other}


def test_wrong_count_of_a_session_is_found() -> None:
    broker = Broker()
    queue = broker.queue(requires_session=True)
    broker.send(queue, letter("a", session_id="s"), letter("b", session_id="t"))
    audit = broker.namespace.audit()
    assert {*audit.counts(), *audit.everything()} == {None}
    sessions = index(broker, queue).sessions
    assert sessions is not None
    session = sessions.get("t")
    assert session is not None
    session.ready.pop_first()
    (fault,) = (fault for fault in audit.counts() if fault is not None)
    assert fault.reason == "2 messages are present, but 1 are ready, locked, deferred or scheduled"
    repair(broker, queue)
    assert {*audit.counts(), *audit.everything()} == {None}


def test_reload_restores_every_state_and_ends_locks() -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True)
    broker.send(queue, "ready", "locked", "deferred", "dead", letter("expiring", time_to_live_ms=MINUTE))
    locked, deferred, buried = broker.receive(queue, 4)[1:]
    broker.defer(queue, deferred)
    broker.dead_letter(queue, buried, reason="bad")
    scheduled = broker.schedule(queue, "scheduled", MINUTE)
    repair(broker, queue)
    info = broker.info(queue)
    assert (info.ready_count, info.deferred_count, info.scheduled_count, info.dead_letter_count) == (3, 1, 1, 1)
    with pytest.raises(LockLostError):
        broker.complete(queue, locked)
    assert texts(broker.deferred(queue, deferred.record.sequence)) == ["deferred"]
    broker.wait(2 * MINUTE)
    assert texts(broker.peek(dead(queue)))[0] == "dead"
    assert {"expiring", "dead"} == set(texts(broker.peek(dead(queue))))
    assert scheduled not in [None, *numbers(broker.peek(dead(queue)))]
    assert "scheduled" in broker.take(queue)


def test_reload_in_progress_accepts_messages_and_delivers_none() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b", "c")
    broker.namespace.reload(queue, broker.now_ms)
    broker.namespace.tidy(broker.now_ms, 1)
    assert broker.receive(queue) == []
    broker.send(queue, "d")
    with pytest.raises(EntityUnavailableError, match="retry in a few seconds"):
        broker.peek(queue)
    with pytest.raises(EntityUnavailableError):
        broker.deferred(queue, 1)
    with pytest.raises(EntityUnavailableError):
        broker.namespace.cancel_scheduled(queue, [1], broker.now_ms)
    broker.namespace.reload(queue, broker.now_ms)  # it is being loaded already
    broker.tidy()
    assert broker.namespace.take_woken() == [queue]
    assert broker.take(queue) == ["a", "b", "c", "d"]
    with pytest.raises(MessageNotFoundError):
        broker.deferred(queue, 1)


def test_reload_ends_held_sessions_and_keeps_their_states() -> None:
    broker = Broker()
    queue = broker.queue(requires_session=True)
    broker.send(queue, letter("a", session_id="s"), letter("b", session_id="t"))
    grant = broker.namespace.accept_session(queue, "s", broker.now_ms)
    assert grant is not None
    broker.namespace.set_session_state(queue, grant.session_token, b"state", broker.now_ms)
    repair(broker, queue)
    assert SessionLost(queue, "s", grant.session_token) in broker.namespace.take_notices()
    again = broker.namespace.accept_session(queue, "s", broker.now_ms)
    assert again is not None
    assert broker.namespace.session_state(queue, again.session_token, broker.now_ms) == b"state"
    assert broker.take(queue, session_token=again.session_token) == ["a"]
    assert faults(broker) == []


def test_entity_deleted_while_it_is_reloaded_leaves_nothing_in_the_store() -> None:
    broker = Broker()
    topic, queue = broker.topic(), broker.queue()
    first, second = broker.subscription("one"), broker.subscription("two")
    broker.send(topic, "shared")
    broker.send(queue, "a", "b", "c")
    for address in (queue, first):
        broker.namespace.reload(address, broker.now_ms)
    broker.namespace.tidy(broker.now_ms, 1)
    broker.delete(queue)
    broker.delete(first)
    broker.tidy()
    broker.commit()
    assert broker.take(second) == ["shared"]
    broker.commit()
    assert [key for key, _ in broker.store.scan(b"B", b"C")] == []
    assert [key for key, _ in broker.store.scan(b"R", b"S")] == []


def test_reload_forwards_what_waits_in_an_entity_that_forwards() -> None:
    broker = Broker()
    target = broker.queue("target")
    queue = broker.queue()
    broker.send(queue, "a", "b")
    broker.update(queue, forward_to="target")
    broker.namespace.reload(queue, broker.now_ms)
    broker.tidy()
    assert broker.take(target) == ["a", "b"]


def test_failing_timer_of_one_entity_is_reported_and_the_others_go_on() -> None:
    broker = Broker()
    queue, other = broker.queue(), broker.queue(OTHER)
    broker.send(queue, letter("a", time_to_live_ms=MINUTE))
    broker.send(other, letter("b", time_to_live_ms=MINUTE))
    index(broker, queue).expiries = Deadlines(inconsistent)
    index(broker, queue).expiries.add(broker.now_ms + MINUTE, 1)
    broker.wait(2 * MINUTE)
    assert broker.take(other) == []
    (fault,) = broker.namespace.take_notices()
    assert fault == IndexFault(queue, "its timers failed with TypeError")
    repair(broker, queue)
    broker.wait(1)
    assert broker.take(queue) == []
    assert faults(broker) == []


def test_suspended_entity_accepts_messages_and_delivers_them_after_a_restart() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a")
    broker.namespace.suspend(queue, broker.now_ms)
    broker.send(queue, "b")
    assert broker.receive(queue) == []
    assert not broker.namespace.can_deliver(queue)
    broker.restart()
    assert broker.take(queue) == ["a", "b"]


def test_damaged_record_is_quarantined_by_a_reload() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, blob(10), blob(20))
    broker.commit()
    key = next(key for key, _ in broker.store.scan(b"R", b"S"))
    commit = broker.store.prepare({key: b"not a record"})
    commit.run()
    repair(broker, queue)
    assert [len(each.body) for each in broker.peek(queue)] == [20]
    assert broker.info(queue).dead_letter_count == 1
    assert faults(broker) == []
