"""Ordinals of events fit into the ledger, and a start waits for the ledger for a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.broker import Address, MessageEvent, Record
from pairbus.ledger import Ledger, LedgerEvent, LedgerSettings
from pairbus.ledger.events import ALIVE_EVERY_MS
from pairbus.server.event_recorder import LARGEST_ORDINAL, EventRecorder, Spill
from pairbus.server.metering import path_of_address
from tests.ledger.entries import NAMESPACE, START_MS, events_from
from tests.waiting import eventually

ORDERS = Address.of("orders")
RECORD = Record(1, 1, 1, 1, 1, "one", None, None, None, None, 0)
IN_2100_MS = 4_102_444_800_000


# Ordinals


def ordinals_of_a_process(start_ms: int, last: int = 0) -> list[int]:
    events = EventRecorder(path_of_address, start_ms)
    events.begin(last)
    for _ in range(3):
        events.note(MessageEvent.ACCEPTED, ORDERS, RECORD)
    return [event.ordinal for event in events.take()]


@pytest.mark.parametrize("start_ms", [START_MS, 2_200_000_000_000, IN_2100_MS, 1 << 60])
def test_d3_ordinals_fit_into_the_ledger_with_any_clock(start_ms: int) -> None:
    last = 0
    for each_ms in (START_MS, start_ms, START_MS, start_ms, START_MS):
        ordinals = ordinals_of_a_process(each_ms, last)
        assert ordinals == [*range(ordinals[0], ordinals[0] + 4)]
        assert last < ordinals[0]
        assert ordinals[-1] < LARGEST_ORDINAL
        last = ordinals[-1]


@pytest.mark.parametrize("last", [LARGEST_ORDINAL - 5, 2_200_000_000_000 << 22, (1 << 64) - 1])
def test_d3_confirmed_ordinal_that_is_too_large_is_ignored(last: int) -> None:
    ordinals = ordinals_of_a_process(START_MS, last)
    assert ordinals == ordinals_of_a_process(START_MS)


def test_d3_start_states_the_last_ordinal_and_end_is_the_last_event() -> None:
    events = EventRecorder(path_of_address, START_MS)
    events.begin(7)
    events.note(MessageEvent.ACCEPTED, ORDERS, RECORD)
    events.end()
    found = events.take()
    assert [event.event for event in found] == [LedgerEvent.STARTED, LedgerEvent.ACCEPTED, LedgerEvent.STOPPED]
    assert found[0].sequence == 7
    assert found[-1].ordinal == found[0].ordinal + 2


def test_d3_idle_namespace_records_every_minute_that_it_is_alive() -> None:
    now_ms = START_MS
    events = EventRecorder(path_of_address, START_MS)
    events.now_ms = lambda: now_ms
    events.begin()
    found = events.take()
    for _ in range(5):
        now_ms += ALIVE_EVERY_MS // 2
        events.note_alive(now_ms)
        found += events.take()
    kinds = [event.event for event in found]
    assert kinds == [LedgerEvent.STARTED, LedgerEvent.ALIVE, LedgerEvent.ALIVE]
    assert [event.ordinal - found[0].ordinal for event in found] == [0, 1, 2]
    assert found[1].at_ms == START_MS + ALIVE_EVERY_MS


def test_d3_busy_namespace_does_not_record_that_it_is_alive() -> None:
    now_ms = START_MS
    events = EventRecorder(path_of_address, START_MS)
    events.now_ms = lambda: now_ms
    for _ in range(4):
        now_ms += ALIVE_EVERY_MS - 1
        events.note_alive(now_ms)
        events.note(MessageEvent.ACCEPTED, ORDERS, RECORD)
        events.note_alive(now_ms + ALIVE_EVERY_MS)  # the event before is not taken yet
        assert [event.event for event in events.take()] == [LedgerEvent.ACCEPTED]


# At the start


class Waits:
    """A clock that advances by the time slept."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waited_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.waited_s += seconds


@pytest.fixture
def idle_ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Return a ledger that writes nothing before it is closed."""
    ledger = Ledger.open(tmp_path, NAMESPACE, LedgerSettings(flush_s=3_600), clock=lambda: START_MS)
    yield ledger
    ledger.close()


def test_d3_start_waits_for_the_ledger_once_in_all(idle_ledger: Ledger) -> None:
    waits = Waits()
    spill = Spill(idle_ledger, 50, waits.clock, waits.sleep)
    for first in range(0, 10_000, 10):
        spill(events_from(first, 10))
    assert 4 < waits.waited_s < 6
    waits.now_s += 20  # loading a large store
    spill(events_from(10_000, 10))
    assert 24 < waits.waited_s < 26
    assert idle_ledger.status.events_waiting == 10_010


def test_d3_start_does_not_wait_for_a_failing_disk(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, NAMESPACE, LedgerSettings(flush_s=0.01, retry_s=0.01), clock=lambda: START_MS)
    (tmp_path / "open").rmdir()
    (tmp_path / "open").write_text("in the way")
    ledger.write_events(events_from(0, 10))
    eventually(lambda: ledger.status.error)
    waits = Waits()
    spill = Spill(ledger, 5, waits.clock, waits.sleep)
    for first in range(10, 1_000, 10):
        spill(events_from(first, 10))
    assert waits.waited_s == 0
    (tmp_path / "open").unlink()
    ledger.close()
    assert ledger.status.events_written == 1_000


def test_d3_found_events_are_handed_over_in_bounded_parts() -> None:
    pieces: list[int] = []
    events = EventRecorder(path_of_address, START_MS, lambda found: pieces.append(len(found)))
    events.begin()
    for _ in range(25_000):
        events.note(MessageEvent.FOUND, ORDERS, RECORD)
    events.settle_in()
    assert pieces == [10_000, 10_000, 5_001]
    events.note(MessageEvent.ACCEPTED, ORDERS, RECORD)
    assert [event.event for event in events.take()] == [LedgerEvent.ACCEPTED]
