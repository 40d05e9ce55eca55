"""The queue of unwritten rows stays within bounds, and no count is lost."""

from __future__ import annotations

from pairbus.ledger import LedgerEvent, LifecycleEvent, OperationCounts, OperationKey, OperationKind, Stage
from pairbus.ledger.events import OperationRow, operation_rows
from pairbus.ledger.write_queue import QueuedRows, WriteQueue
from tests.ledger.entries import HOUR_MS, START_MS, counts_of, events_from, key_of


def take(queue: WriteQueue) -> QueuedRows:
    taken = queue.take()
    assert taken is not None
    return taken


def counted(queue: WriteQueue) -> list[OperationRow]:
    return [*take(queue).operations]


def test_new_queue_is_empty() -> None:
    assert WriteQueue(10, 10).take() is None


# Events


def test_events_are_taken_in_order_and_counted_until_written() -> None:
    queue = WriteQueue(1_000, 10)
    for first in range(0, 100, 10):
        queue.add_events(events_from(first, 10))
    assert take(queue).events == events_from(0, 100)
    assert queue.events == 100
    queue.done(100)
    assert queue.events == 0


def test_dropped_events_are_recorded_as_a_gap() -> None:
    queue = WriteQueue(25, 10)
    for first in range(0, 60, 10):
        queue.add_events(events_from(first, 10))
    assert queue.events_missed == 35
    assert take(queue).events == events_from(0, 25)
    queue.done(25)
    queue.add_events(events_from(60, 5))
    assert take(queue).events == [gap(25, 35), *events_from(60, 5)]


def test_gap_is_recorded_without_later_events() -> None:
    queue = WriteQueue(5, 10)
    queue.add_events(events_from(0, 8))
    assert take(queue).events == events_from(0, 5)
    assert take(queue).events == [gap(5, 3)]
    assert queue.take() is None
    queue.done(6)
    assert queue.events == 0


def test_two_gaps_are_recorded_separately() -> None:
    queue = WriteQueue(5, 10)
    queue.add_events(events_from(0, 8))
    queue.done(len(take(queue).events))
    queue.add_events(events_from(8, 5))
    queue.done(len(take(queue).events))
    queue.add_events(events_from(13, 7))
    assert take(queue).events == events_from(13, 5)
    assert take(queue).events == [gap(18, 2)]
    assert queue.events_missed == 5


def gap(first: int, count: int) -> LifecycleEvent:
    at_ms = START_MS + (first + count - 1) % 1_000
    return LifecycleEvent(at_ms, first, LedgerEvent.MISSED, Stage.DIRECT, "", count, 0, "", None, None, 0)


# Operations


def test_operations_are_taken_unmerged() -> None:
    queue = WriteQueue(10, 10)
    rows = [(key_of(number), counts_of(number)) for number in range(100)]
    queue.add_operations(operation_rows(START_MS, rows, 0))
    assert counted(queue) == operation_rows(START_MS, rows, 0)


def test_connections_have_a_separate_row() -> None:
    queue = WriteQueue(10, 10)
    queue.add_operations(operation_rows(START_MS, [], 7))
    (row,) = counted(queue)
    assert (row.at_ms, row.kind, row.connections, row.operations) == (
        START_MS,
        OperationKind.CONNECTION,
        7,
        0,
    )


def test_counts_are_kept_during_long_disk_failure() -> None:
    queue = WriteQueue(10, max_operations=400)
    seconds = 3 * 3_600
    for second in range(seconds):
        done = [(key_of(number), counts_of(number)) for number in (second % 5, 7)]
        connections = second % 100 if second % 3_600 < 3_000 else 1
        queue.add_operations(operation_rows(START_MS + 1_000 * second, done, connections))
    rows = counted(queue)
    assert len(rows) < 700
    expected = [counts_of(number) for second in range(seconds) for number in (second % 5, 7)]
    for name in ("operations", "messages", "bytes", "units", "request_units"):
        assert sum(getattr(row, name) for row in rows) == sum(getattr(counts, name) for counts in expected), name
    for hour in range(3):
        ours = [row for row in rows if row.at_ms // HOUR_MS == START_MS // HOUR_MS + hour]
        assert sum(row.operations for row in ours) == sum(
            counts_of(number).operations
            for second in range(hour * 3_600, (hour + 1) * 3_600)
            for number in (second % 5, 7)
        )
        assert max(row.connections for row in ours) == 99


def test_many_entities_are_merged_when_queue_is_full() -> None:
    queue = WriteQueue(10, max_operations=100)
    for number in range(3_000):
        queue.add_operations(operation_rows(START_MS + number, [(key_of(number), counts_of(number))], 0))
    rows = counted(queue)
    assert len(rows) < 300
    for kind in OperationKind:
        found = sum(row.bytes for row in rows if row.kind == kind)
        assert found == sum(counts_of(n).bytes for n in range(3_000) if key_of(n).kind == kind), kind


def test_merging_does_not_change_queued_counts() -> None:
    """Merging adds counts to separate rows: those of a queued second must not change."""
    queue = WriteQueue(10, 10)
    key, counts = OperationKey(OperationKind.SEND, Stage.DIRECT, "orders", "ok", "root"), OperationCounts()
    counts.add()
    for second in range(200):
        queue.add_operations(operation_rows(START_MS + second, [(key, counts)], 0))
    assert sum(row.operations for row in counted(queue)) == 200
    assert counts.operations == 1


def test_hand_over_is_taken_with_its_last_event() -> None:
    queue = WriteQueue(25, 10)
    assert [queue.add_events(events_from(first, 10)) for first in (0, 10, 20, 30)] == [1, 2, 3, 4]
    assert take(queue).hand_over == 3  # the fourth was missed, which is recorded later
    queue.done(25)
    assert queue.add_events(events_from(40, 5)) == 5
    taken = take(queue)
    assert taken.events == [gap(25, 15), *events_from(40, 5)]
    assert taken.hand_over == 5
    queue.add_operations(operation_rows(START_MS, [], 1))
    assert take(queue).hand_over == 5


def test_gap_does_not_include_the_hand_over_after_it() -> None:
    queue = WriteQueue(60_000, 10)
    queue.add_events(events_from(0, 60_000))
    queue.add_events(events_from(60_000, 10))  # the queue is full
    assert take(queue).hand_over == 1
    queue.done(60_000)
    queue.add_events(events_from(60_010, 50_000))
    queue.add_events(events_from(110_010, 9_000))
    assert take(queue).hand_over == 3
    assert take(queue).hand_over == 4


def test_rejected_events_and_gaps_are_recorded_as_a_gap() -> None:
    queue = WriteQueue(5, 10)
    queue.add_events(events_from(0, 8))
    queue.done(len(take(queue).events))
    queue.add_events(events_from(8, 2))
    taken = take(queue).events
    assert taken == [gap(5, 3), *events_from(8, 2)]
    queue.give_up(taken, START_MS)
    assert queue.events == 0
    (reported,) = take(queue).events
    assert (reported.event, reported.at_ms, reported.sequence) == (LedgerEvent.MISSED, START_MS, 5)
    assert queue.events_missed == 5
