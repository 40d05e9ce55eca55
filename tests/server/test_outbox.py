"""D3: the events of a commit are in the store until the ledger has written them, so that a crash loses none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from pairbus.broker import NO_PROPERTIES, Address, Namespace, NewMessage, QueueDescription, Records
from pairbus.ledger import LIVES, Ledger, LedgerSettings, read_open
from pairbus.ledger.events import ALIVE_EVERY_MS, extent_of, pack_events, unpack_events
from pairbus.server.event_recorder import EventRecorder
from pairbus.server.metering import path_of_address
from pairbus.server.outbox import Outbox, OutboxBatch
from pairbus.store import GroupCommitter, StoreError, keys
from pairbus.store.errors import StoreFailedError
from pairbus.store.memory import MemoryStore
from tests.ledger.entries import events_from
from tests.server.ledger_rows import rows_of
from tests.waiting import eventually

ORDERS = Address.of("orders")
NOW_MS = 1_794_798_000_000
QUICK = LedgerSettings(flush_s=0.01)


class Run:
    """A namespace with a ledger, from its start until it is stopped or killed; its store survives."""

    def __init__(self, store: MemoryStore, ledger: Ledger, start_ms: int, most_bytes: int = 1_000_000) -> None:
        self.ledger = ledger
        self._events = EventRecorder(path_of_address, start_ms, ledger.write_events)
        self.keeper = GroupCommitter(store, self._make, start_ms, recovering=self._events.begin)
        self._events.settle_in()
        self.outbox = Outbox(self._events, self.keeper, ledger, most_bytes)
        self.outbox.replay(start_ms)
        self.before_commit: Callable[[], object] = self.seal
        self.keeper.before_commit.add(self._before_commit)
        self._now_ms = start_ms

    def _before_commit(self) -> None:
        self.before_commit()

    def _make(self, records: Records) -> Namespace:
        return Namespace(
            records,
            view=lambda _body: NO_PROPERTIES,
            fresh_id=uuid4,
            fresh_token=partial(os.urandom, 16),
            event_sink=self._events,
        )

    def seal(self) -> None:
        envelope = self.outbox.seal()
        if envelope is not None:
            self.keeper.when_durable(partial(self._committed, envelope))

    def _committed(self, envelope: OutboxBatch, error: StoreError | None) -> None:
        self.outbox.committed(envelope, error)

    def send(self, *message_ids: str) -> None:
        messages = [NewMessage(b"x", message_id) for message_id in message_ids]
        self.keeper.namespace.send(ORDERS, messages, self._now_ms)
        self.keeper.commit(self._now_ms)

    def hand_over(self) -> None:
        """Hand over all events, and wait until the ledger has written them."""
        self.outbox.hand_over()
        eventually(self._is_written)
        self.keeper.commit(self._now_ms)

    def _is_written(self) -> bool:
        self.outbox.hand_over()
        return self.outbox.is_empty

    def receive_all(self) -> None:
        namespace = self.keeper.namespace
        for delivery in namespace.receive(ORDERS, 100, self._now_ms):
            assert delivery.lock_token is not None
            namespace.settle(ORDERS, delivery.lock_token, self._now_ms)
        self.keeper.commit(self._now_ms)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start namespaces on a store. The ledger of the one before is closed, and its outbox is left as by a kill."""
    started: list[Run] = []

    def begin_run(store: MemoryStore, most_bytes: int = 1_000_000) -> Run:
        if started:
            started[-1].ledger.close()
        start_ms = NOW_MS + len(started) * 1_000
        started.append(Run(store, Ledger.open(tmp_path, "north", QUICK, clock=lambda: start_ms), start_ms, most_bytes))
        return started[-1]

    yield begin_run
    started[-1].ledger.close()


def store_with_a_queue(begin: Callable[..., Run]) -> MemoryStore:
    store = MemoryStore()
    run = begin(store)
    run.keeper.namespace.create_queue("orders", QueueDescription(), NOW_MS)
    run.keeper.commit(NOW_MS)
    return store


def in_store(store: MemoryStore) -> int:
    return len([*store.scan(keys.OUTBOX, keys.after(keys.OUTBOX))])


def reported(directory: Path) -> list[tuple[str, str]]:
    rows = sorted(rows_of(directory, LIVES), key=lambda row: row["ordinal"])
    return [(row["event"], row["message_id"]) for row in rows if row["event"] not in {"started", "found"}]


def test_d3_events_not_handed_over_are_replayed_at_the_next_start(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a", "b")
    killed.receive_all()
    assert in_store(store) == 2  # one commit each
    begin(store).hand_over()
    events = [("accepted", "a"), ("accepted", "b"), ("completed", "a"), ("completed", "b")]
    assert [event for event in reported(tmp_path) if event[0] != "received"] == events
    assert in_store(store) == 0


def test_d3_events_in_the_ledger_are_not_replayed(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a")
    killed.outbox.hand_over()
    eventually(lambda: killed.ledger.status.events_waiting == 0)  # written, and killed before the entry is removed
    killed.send("b")
    assert in_store(store) == 2
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "a"), ("accepted", "b")]
    assert in_store(store) == 0


def test_written_entries_are_removed_with_the_next_commit(begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    for number in range(10):
        run.send(str(number))
    assert in_store(store) == 10
    run.hand_over()
    assert in_store(store) == 0


def test_events_of_a_failed_commit_are_neither_stored_nor_recorded(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        run.send("lost")
    run.send("kept")
    assert in_store(store) == 1
    run.hand_over()
    assert reported(tmp_path) == [("accepted", "kept")]


def test_receive_alone_causes_no_commit(begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    run.hand_over()
    run.keeper.namespace.receive(ORDERS, 1, NOW_MS)
    run.keeper.commit(NOW_MS)
    assert in_store(store) == 0


def test_d3_commit_stores_earlier_receives_so_that_a_kill_leaves_no_hole(
    tmp_path: Path, begin: Callable[..., Run]
) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a")
    killed.hand_over()
    killed.keeper.namespace.receive(ORDERS, 1, NOW_MS)
    killed.seal()  # there is nothing to commit
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        killed.send("lost")
    killed.send("b")
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "a"), ("received", "a"), ("accepted", "b")]
    assert in_store(store) == 0


def test_d3_commit_stores_an_earlier_alive_event(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a")
    killed.hand_over()
    killed.outbox.note_alive(NOW_MS + 2 * ALIVE_EVERY_MS)
    killed.seal()  # there is nothing to commit
    killed.send("b")
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "a"), ("alive", ""), ("accepted", "b")]


def test_d3_receives_in_the_ledger_are_not_stored_again(begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    run.keeper.namespace.receive(ORDERS, 1, NOW_MS)
    run.seal()
    run.hand_over()
    run.send("b")
    ((_, content),) = store.scan(keys.OUTBOX, keys.after(keys.OUTBOX))
    assert [event.message_id for event in unpack_events(content)] == ["b"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_d3_started_event_states_the_last_confirmed_ordinal(
    tmp_path: Path, begin: Callable[..., Run], is_killed: bool
) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    if not is_killed:
        run.hand_over()
    begin(store).hand_over()
    begin(store)  # this closes the ledger of the run before
    rows = sorted(rows_of(tmp_path, LIVES), key=lambda row: row["ordinal"])
    accepted = next(row["ordinal"] for row in rows if row["event"] == "accepted")
    assert [row["sequence"] for row in rows if row["event"] == "started"] == [0, 0, accepted]


def test_events_take_no_room_from_messages(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    run.hand_over()
    store.max_bytes = 1  # nothing fits any more, but entries can be removed
    run.receive_all()
    assert in_store(store) == 1  # the mark of events without room
    run.hand_over()
    assert ("completed", "a") in reported(tmp_path)
    assert in_store(store) == 0


def test_outbox_is_bounded_while_the_ledger_cannot_be_written(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store, most_bytes=500)
    for number in range(20):
        run.send(str(number))
    assert 1 < in_store(store) < 10
    run.hand_over()
    assert in_store(store) == 0
    assert reported(tmp_path) == [("accepted", str(number)) for number in range(20)]


@pytest.mark.parametrize(
    "content", [b"", b"no JSON", b"[1]", b'[["a"]]', b'[[1,2,"eaten","direct","",0,0,"",null,null,0]]']
)
def test_entry_without_events_is_recorded_as_a_gap(tmp_path: Path, begin: Callable[..., Run], content: bytes) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    run.keeper.namespace.create_queue("bills", QueueDescription(), NOW_MS)
    assert run.keeper.put_in_outbox(1, content)
    run.keeper.commit(NOW_MS)
    begin(store).hand_over()
    assert sorted(reported(tmp_path)) == [("accepted", "a"), ("missed", "")]
    assert in_store(store) == 0


def test_damaged_entry_is_recorded_as_a_gap(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("a")
    run.send("b")
    first, _ = store.scan(keys.OUTBOX, keys.after(keys.OUTBOX))
    store.damage(first[0])
    begin(store).hand_over()
    assert reported(tmp_path) == [("missed", ""), ("accepted", "b")]
    assert in_store(store) == 0


def test_entry_is_stored_with_its_commit_and_no_other(begin: Callable[..., Run]) -> None:
    """This holds for commits that follow each other at once, too, as they do under load."""
    store = store_with_a_queue(begin)
    run = begin(store)
    assert not run.keeper.put_in_outbox(1, b"nothing has happened")
    seen: list[int] = []
    run.before_commit = lambda: seen.append(in_store(store))
    run.send("a")
    run.keeper.commit(NOW_MS)  # there is nothing to commit
    assert seen == [0]


def test_packed_events_are_unpacked_unchanged() -> None:
    events = events_from(0, 500)
    events.append(events[0]._replace(message_id="half a pair \ud800", session_id="\0é"))
    assert unpack_events(pack_events(events)) == events


def test_d3_events_without_room_are_a_gap_after_a_kill(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a")
    killed.hand_over()
    store.max_bytes = 1
    killed.receive_all()
    begin(store).hand_over()
    assert [event for event, _ in reported(tmp_path)] == ["accepted", "missed"]
    assert in_store(store) == 0


def test_d3_events_without_room_are_no_gap_if_the_ledger_has_them(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store, most_bytes=1)
    killed.send("a")
    killed.send("b")
    killed.send("c")
    killed.outbox.hand_over()
    eventually(lambda: killed.ledger.status.events_waiting == 0)
    assert in_store(store) == 2  # the first entry, and one mark for the others
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "a"), ("accepted", "b"), ("accepted", "c")]
    assert in_store(store) == 0


def test_d3_gap_states_the_number_of_events_without_room(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store, most_bytes=1)
    killed.send("kept")
    killed.send("a", "b", "c")
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        killed.send("lost", "lost, too")
    killed.send("d", "e")
    assert in_store(store) == 2  # the first entry, and one mark for the others
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "kept"), ("missed", "")]
    assert missed(tmp_path) == [5]
    assert in_store(store) == 0


def test_d3_gap_does_not_count_events_written_meanwhile(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    killed = begin(store, most_bytes=1)
    killed.send("kept")
    killed.send("a", "b", "c")
    killed.hand_over()
    killed.send("kept again")
    killed.send("d", "e")
    begin(store).hand_over()
    assert missed(tmp_path) == [2]


def missed(directory: Path) -> list[int]:
    return [row["sequence"] for row in rows_of(directory, LIVES) if row["event"] == "missed"]


def test_d3_events_undone_by_a_failed_commit_are_not_recorded_with_the_next(
    tmp_path: Path, begin: Callable[..., Run]
) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.keeper.namespace.send(ORDERS, [NewMessage(b"x", "one")], NOW_MS)
    run.before_commit = lambda: None  # the commit is in progress, and more happens meanwhile
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        run.keeper.commit(NOW_MS)
    run.before_commit = run.seal
    run.send("two")
    run.hand_over()
    assert reported(tmp_path) == [("accepted", "two")]


def test_d3_found_events_after_a_failed_commit_are_not_stored(begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send(*map(str, range(100)))
    run.hand_over()
    store.fail_next_run(StoreFailedError("the store", "the test wants it so"))
    with pytest.raises(StoreError):
        run.send("lost")
    run.send("kept")
    ((_, content),) = store.scan(keys.OUTBOX, keys.after(keys.OUTBOX))
    assert [event.message_id for event in unpack_events(content)] == ["kept"]


def test_d3_ordinals_grow_across_processes_with_any_clock(tmp_path: Path, begin: Callable[..., Run]) -> None:
    store = store_with_a_queue(begin)
    run = begin(store)
    run.send("first")
    run.ledger.close()
    earlier_ms = NOW_MS - 3_600_000
    again = Run(store, Ledger.open(tmp_path, "north", QUICK, clock=lambda: earlier_ms), earlier_ms)
    again.send("second")
    again.hand_over()
    again.ledger.close()
    assert reported(tmp_path) == [("accepted", "first"), ("accepted", "second")]


def test_similar_events_are_packed_compactly() -> None:
    first = events_from(0, 1)[0]
    alike = [first._replace(ordinal=7 + place, sequence=place, original_sequence=place) for place in range(100)]
    assert unpack_events(pack_events(alike)) == alike
    assert len(pack_events(alike)) < 1_000


@pytest.mark.parametrize("place", range(12))
def test_entry_without_a_column_is_rejected(place: int) -> None:
    columns = json.loads(pack_events(events_from(0, 3)))
    with pytest.raises(ValueError):  # noqa: PT011 (any ValueError)
        unpack_events(json.dumps([*columns[:place], *columns[place + 1 :]]).encode())
    columns[place] = [1, 2, 3, 4]
    with pytest.raises(ValueError):  # noqa: PT011
        unpack_events(json.dumps(columns).encode())


# A ledger without room


TINY = LedgerSettings(flush_s=0.01, retry_s=0.01, most_waiting=20)


def failing_ledger(directory: Path, settings: LedgerSettings = TINY) -> Ledger:
    """Return a ledger that can write nothing until ``open`` is a directory again."""
    ledger = Ledger.open(directory, "north", settings, clock=lambda: NOW_MS)
    (directory / "open").rmdir()
    (directory / "open").write_text("in the way")
    return ledger


def run_with_a_queue(store: MemoryStore, ledger: Ledger, most_bytes: int = 1_000_000) -> Run:
    run = Run(store, ledger, NOW_MS, most_bytes)
    run.keeper.namespace.create_queue("orders", QueueDescription(), NOW_MS)
    run.keeper.commit(NOW_MS)
    return run


def send_many(run: Run, count: int) -> None:
    for number in range(count):
        run.send(str(number))
        run.outbox.hand_over()


def accepted(count: int) -> list[tuple[str, str]]:
    return [("accepted", str(number)) for number in range(count)]


def test_d3_stored_events_are_deferred_until_the_ledger_has_room(tmp_path: Path) -> None:
    store, ledger = MemoryStore(), failing_ledger(tmp_path)
    run = run_with_a_queue(store, ledger)
    send_many(run, 100)
    assert in_store(store) == 100
    assert ledger.status.events_waiting <= 10
    (tmp_path / "open").unlink()
    run.hand_over()
    (journal,) = read_open(tmp_path, LIVES).values()
    assert journal["message_id"].to_pylist() == ["", *map(str, range(100))]  # the start, and the rest in order
    ledger.close()
    assert ledger.status.events_missed == 0
    assert reported(tmp_path) == accepted(100)
    assert in_store(store) == 0


def test_d3_receives_both_stored_and_queued_are_recorded_once(tmp_path: Path) -> None:
    store, ledger = MemoryStore(), failing_ledger(tmp_path)
    run = run_with_a_queue(store, ledger)
    for number in range(15):
        run.send(str(number))
        run.keeper.namespace.receive(ORDERS, 1, NOW_MS)
        run.seal()
        run.outbox.hand_over()
    (tmp_path / "open").unlink()
    run.hand_over()
    ledger.close()
    found = reported(tmp_path)
    assert sorted(found) == sorted((event, str(number)) for event in ("accepted", "received") for number in range(15))


def test_d3_deferred_events_survive_a_kill_and_a_small_ledger(tmp_path: Path) -> None:
    store, ledger = MemoryStore(), failing_ledger(tmp_path)
    send_many(run_with_a_queue(store, ledger), 100)
    (tmp_path / "open").unlink()
    ledger.close()  # the ledger writes its queue, and the entries stay in the store
    small = LedgerSettings(flush_s=0.3, most_waiting=150)  # room for the found events, and not for both
    again = Ledger.open(tmp_path, "north", small, clock=lambda: NOW_MS)
    run = Run(store, again, NOW_MS + 1_000)
    run.hand_over()
    again.close()
    assert again.status.events_missed == 0
    assert reported(tmp_path) == accepted(100)
    assert in_store(store) == 0


def test_d3_events_during_catch_up_are_recorded_after_deferred_ones(tmp_path: Path) -> None:
    store, ledger = MemoryStore(), failing_ledger(tmp_path)
    run = run_with_a_queue(store, ledger)
    send_many(run, 50)
    (tmp_path / "open").unlink()
    for number in range(50, 300):
        run.send(str(number))
        run.outbox.hand_over()
    run.hand_over()
    (journal,) = read_open(tmp_path, LIVES).values()
    assert journal["message_id"].to_pylist() == ["", *map(str, range(300))]
    ledger.close()


def test_d3_events_are_missed_only_if_the_store_has_no_room_either(tmp_path: Path) -> None:
    store, ledger = MemoryStore(), failing_ledger(tmp_path)
    run = run_with_a_queue(store, ledger, most_bytes=2_000)
    send_many(run, 100)
    kept = in_store(store) - 1  # and a mark
    assert 10 < kept < 40
    assert ledger.status.events_missed > 0
    (tmp_path / "open").unlink()
    run.hand_over()
    ledger.close()
    found = reported(tmp_path)
    assert found[:kept] == accepted(kept)
    assert len(found) - 1 + ledger.status.events_missed == 100  # one mark has the number
    assert missed(tmp_path) == [ledger.status.events_missed]
    assert in_store(store) == 0


def test_d3_partly_recorded_entry_is_completed_without_duplicates(tmp_path: Path, begin: Callable[..., Run]) -> None:
    """A frame of the ledger holds events of one hour. A commit may have events of two, and a kill may come between."""
    store = store_with_a_queue(begin)
    killed = begin(store)
    killed.send("a", "b", "c")
    ((_, content),) = store.scan(keys.OUTBOX, keys.after(keys.OUTBOX))
    killed.ledger.write_events(unpack_events(content)[:2])
    begin(store).hand_over()
    assert reported(tmp_path) == [("accepted", "a"), ("accepted", "b"), ("accepted", "c")]


# Wrong clocks


IN_2041_MS = 2_240_000_000_000


def test_d3_start_with_a_wrong_clock_does_not_stop_recording(tmp_path: Path) -> None:
    store = MemoryStore()
    for start_ms in (NOW_MS, IN_2041_MS, NOW_MS + 1_000):
        ledger = Ledger.open(tmp_path, "north", QUICK, clock=lambda: NOW_MS)
        run = Run(store, ledger, start_ms)
        if start_ms == NOW_MS:
            run.keeper.namespace.create_queue("orders", QueueDescription(), NOW_MS)
        run.send(str(start_ms))
        run.hand_over()
        ledger.close()
        assert ledger.status.events_missed == 0
    assert reported(tmp_path) == [("accepted", str(each)) for each in (NOW_MS, IN_2041_MS, NOW_MS + 1_000)]


def test_d3_store_with_ordinals_of_a_wrong_clock_is_repaired(tmp_path: Path, begin: Callable[..., Run]) -> None:
    """An earlier version let ordinals become too large."""
    store = store_with_a_queue(begin)
    run = begin(store)
    number = IN_2041_MS << 22
    run.keeper.namespace.send(ORDERS, [NewMessage(b"x", "then")], NOW_MS)
    events = [event._replace(ordinal=number + place) for place, event in enumerate(events_from(0, 3))]
    assert run.keeper.put_in_outbox(number + 2, pack_events(events))
    run.before_commit = lambda: None
    run.keeper.commit(NOW_MS)
    again = begin(store)
    again.send("a")
    again.hand_over()
    assert again.ledger.status.events_missed == 0
    begin(store).send("b")
    begin(store).hand_over()
    assert reported(tmp_path) == [("missed", ""), ("accepted", "a"), ("accepted", "b")]
    assert missed(tmp_path) == [3]


def test_extent_of_packed_events_is_read_without_unpacking() -> None:
    events = events_from(7, 500)
    assert [*extent_of(pack_events(events)).ordinals] == [*range(7, 507)]
    assert extent_of(pack_events(events)).first_ms == min(event.at_ms for event in events)
    some = [events[0], events[3], events[2]]
    assert extent_of(pack_events(some)) == (events[0].at_ms, [7, 10, 9])
    for content in (b"no JSON", b"[1]", b'[["a"]]', b"17", b'[1,"then",7]'):
        with pytest.raises(ValueError):  # noqa: PT011 (any ValueError)
            extent_of(content)
