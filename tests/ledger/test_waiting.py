"""What waits for the disk stays within bounds, and no count gets lost."""

from __future__ import annotations

from pairbus.ledger import Event, Kind, Life, Sort, Stage, Tally
from pairbus.ledger.waiting import Counted, Second, Taken, Waiting
from tests.ledger.entries import HOUR_MS, START_MS, lives_from, sort_of, tally_of


def take(waiting: Waiting) -> Taken:
    taken = waiting.take()
    assert taken is not None
    return taken


def counted(waiting: Waiting) -> list[Counted]:
    taken = take(waiting)
    return [*(row for second in taken.seconds for row in second.counted()), *taken.merged]


def test_nothing_waits_at_first() -> None:
    assert Waiting(10, 10).take() is None


# Events


def test_events_come_out_in_order_and_count_until_they_are_written() -> None:
    waiting = Waiting(1_000, 10)
    for first in range(0, 100, 10):
        waiting.add_lives(lives_from(first, 10))
    assert take(waiting).lives == lives_from(0, 100)
    assert waiting.lives == 100
    waiting.done(100)
    assert waiting.lives == 0


def test_what_there_is_no_room_for_is_counted_in_its_place() -> None:
    waiting = Waiting(25, 10)
    for first in range(0, 60, 10):
        waiting.add_lives(lives_from(first, 10))
    assert waiting.lives_missed == 35
    assert take(waiting).lives == lives_from(0, 25)
    waiting.done(25)
    waiting.add_lives(lives_from(60, 5))
    assert take(waiting).lives == [gap(25, 35), *lives_from(60, 5)]


def test_a_gap_is_told_when_nothing_comes_after_it() -> None:
    waiting = Waiting(5, 10)
    waiting.add_lives(lives_from(0, 8))
    assert take(waiting).lives == lives_from(0, 5)
    assert take(waiting).lives == [gap(5, 3)]
    assert waiting.take() is None
    waiting.done(6)
    assert waiting.lives == 0


def test_two_gaps_are_two() -> None:
    waiting = Waiting(5, 10)
    waiting.add_lives(lives_from(0, 8))
    waiting.done(len(take(waiting).lives))
    waiting.add_lives(lives_from(8, 5))
    waiting.done(len(take(waiting).lives))
    waiting.add_lives(lives_from(13, 7))
    assert take(waiting).lives == lives_from(13, 5)
    assert take(waiting).lives == [gap(18, 2)]
    assert waiting.lives_missed == 5


def gap(first: int, count: int) -> Life:
    at_ms = START_MS + (first + count - 1) % 1_000
    return Life(at_ms, first, Event.MISSED, Stage.DIRECT, "", count, 0, "", None, None, 0)


# Operations


def test_operations_are_taken_as_they_came() -> None:
    waiting = Waiting(10, 10)
    rows = [(sort_of(number), tally_of(number)) for number in range(100)]
    waiting.add_operations(Second(START_MS, rows, 0))
    assert counted(waiting) == [Counted(START_MS, sort, tally, 0) for sort, tally in rows]


def test_connections_are_a_row_of_their_own() -> None:
    waiting = Waiting(10, 10)
    waiting.add_operations(Second(START_MS, [], 7))
    (row,) = counted(waiting)
    assert (row.at_ms, row.sort.kind, row.connections, row.tally.operations) == (START_MS, Kind.CONNECTION, 7, 0)


def test_no_count_gets_lost_however_long_the_disk_is_away() -> None:
    waiting = Waiting(10, most_operations=400)
    seconds = 3 * 3_600
    for second in range(seconds):
        done = [(sort_of(number), tally_of(number)) for number in (second % 5, 7)]
        connections = second % 100 if second % 3_600 < 3_000 else 1
        waiting.add_operations(Second(START_MS + 1_000 * second, done, connections))
    rows = counted(waiting)
    assert len(rows) < 700
    expected = [tally_of(number) for second in range(seconds) for number in (second % 5, 7)]
    for name in ("operations", "messages", "bytes", "units", "request_units"):
        assert sum(getattr(row.tally, name) for row in rows) == sum(getattr(tally, name) for tally in expected), name
    for hour in range(3):
        ours = [row for row in rows if row.at_ms // HOUR_MS == START_MS // HOUR_MS + hour]
        assert sum(row.tally.operations for row in ours) == sum(
            tally_of(number).operations
            for second in range(hour * 3_600, (hour + 1) * 3_600)
            for number in (second % 5, 7)
        )
        assert max(row.connections for row in ours) == 99


def test_many_entities_are_counted_together_in_the_end() -> None:
    waiting = Waiting(10, most_operations=100)
    for number in range(3_000):
        waiting.add_operations(Second(START_MS + number, [(sort_of(number), tally_of(number))], 0))
    rows = counted(waiting)
    assert len(rows) < 300
    for kind in Kind:
        found = sum(row.tally.bytes for row in rows if row.sort.kind == kind)
        assert found == sum(tally_of(n).bytes for n in range(3_000) if sort_of(n).kind == kind), kind


def test_what_was_handed_over_is_not_changed() -> None:
    """Merging counts into rows of its own: a second that waits may be looked at by nobody else, and yet."""
    waiting = Waiting(10, 10)
    sort, tally = Sort(Kind.SEND, Stage.DIRECT, "orders", "ok", "root"), Tally()
    tally.add()
    for second in range(200):
        waiting.add_operations(Second(START_MS + second, [(sort, tally)], 0))
    assert sum(row.tally.operations for row in counted(waiting)) == 200
    assert tally.operations == 1


def test_a_hand_over_counts_as_taken_with_its_last_event_and_not_before() -> None:
    waiting = Waiting(25, 10)
    assert [waiting.add_lives(lives_from(first, 10)) for first in (0, 10, 20, 30)] == [1, 2, 3, 4]
    assert take(waiting).hand_over == 3  # the fourth was missed, which is told later
    waiting.done(25)
    assert waiting.add_lives(lives_from(40, 5)) == 5
    taken = take(waiting)
    assert taken.lives == [gap(25, 15), *lives_from(40, 5)]
    assert taken.hand_over == 5
    waiting.add_operations(Second(START_MS, [], 1))
    assert take(waiting).hand_over == 5


def test_a_gap_does_not_stand_for_the_hand_over_that_ends_it() -> None:
    waiting = Waiting(60_000, 10)
    waiting.add_lives(lives_from(0, 60_000))
    waiting.add_lives(lives_from(60_000, 10))  # there is no room
    assert take(waiting).hand_over == 1
    waiting.done(60_000)
    waiting.add_lives(lives_from(60_010, 50_000))
    waiting.add_lives(lives_from(110_010, 9_000))
    assert take(waiting).hand_over == 3
    assert take(waiting).hand_over == 4


def test_what_is_given_up_is_a_gap_and_so_are_gaps_that_were_with_it() -> None:
    waiting = Waiting(5, 10)
    waiting.add_lives(lives_from(0, 8))
    waiting.done(len(take(waiting).lives))
    waiting.add_lives(lives_from(8, 2))
    taken = take(waiting).lives
    assert taken == [gap(5, 3), *lives_from(8, 2)]
    waiting.give_up(taken, START_MS)
    assert waiting.lives == 0
    (told,) = take(waiting).lives
    assert (told.event, told.at_ms, told.sequence) == (Event.MISSED, START_MS, 5)
    assert waiting.lives_missed == 5
