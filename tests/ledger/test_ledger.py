"""The ledger as a namespace uses it: a hand-over returns at once, and is soon on disk."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pairbus.ledger import (
    LIVES,
    OPERATIONS,
    Ledger,
    LedgerDirectoryError,
    LedgerError,
    LedgerSettings,
    LedgerSettingsError,
    LifecycleEvent,
    OperationKind,
    read_open,
)
from pairbus.ledger.events import operation_rows
from pairbus.ledger.files import LedgerFiles, LedgerWriter
from pairbus.ledger.write_queue import WriteQueue
from tests.ledger.child import run, start
from tests.ledger.entries import (
    HOUR_MS,
    NAMESPACE,
    START_MS,
    counts_of,
    event_of,
    event_row,
    events_from,
    journals_in,
    key_of,
    operation_row,
    ordinals,
    parquet_files,
    read_ledger,
)
from tests.waiting import eventually

QUICK = LedgerSettings(flush_s=0.01)


def open_ledger(directory: Path, settings: LedgerSettings = QUICK) -> Ledger:
    return Ledger.open(directory, NAMESPACE, settings, clock=lambda: START_MS)


def test_d3_journals_left_at_close_are_converted_at_the_next_start(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.write_events(events_from(0, 50))
    assert not ledger.is_closed
    ledger.leave_journals()
    ledger.begin_close()
    eventually(lambda: ledger.is_closed)
    assert journals_in(tmp_path)
    assert not parquet_files(tmp_path, LIVES)
    assert ordinals(tmp_path) == [*range(50)]
    open_ledger(tmp_path).close()
    assert not journals_in(tmp_path)
    assert ordinals(tmp_path) == [*range(50)]


def test_d3_handed_over_rows_are_in_the_ledger(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    rows = [(key_of(number), counts_of(number)) for number in range(20)]
    ledger.write_operations(START_MS, rows, 9)
    ledger.write_events(events_from(0, 50))
    ledger.close()
    *operations, connections = read_ledger(tmp_path, OPERATIONS)
    assert operations == [operation_row(START_MS, sort, tally) for sort, tally in rows]
    assert (connections["kind"], connections["connections"], connections["operations"]) == (
        OperationKind.CONNECTION,
        9,
        0,
    )
    assert read_ledger(tmp_path, LIVES) == [event_row(event) for event in events_from(0, 50)]
    assert journals_in(tmp_path) == []


def test_d3_handed_over_rows_are_readable_within_a_second(tmp_path: Path) -> None:
    """With default settings, while the ledger is open and the first journal exists."""
    ledger = open_ledger(tmp_path, LedgerSettings())
    waits_s: list[float] = []
    while len(waits_s) < 3 or (min(waits_s) >= 1 and len(waits_s) < 20):  # on a shared disk, some take longer
        begun_s = time.monotonic()
        ledger.write_events(events_from(len(waits_s) * 10, 10))
        eventually(partial(has_rows, tmp_path, 10 * len(waits_s) + 10))
        waits_s.append(time.monotonic() - begun_s)
    (stem,) = read_open(tmp_path, LIVES)
    assert min(waits_s) < 1
    ledger.close()
    assert read_open(tmp_path, LIVES) == {}
    assert [file.stem for file in parquet_files(tmp_path, LIVES)] == [stem]
    assert ordinals(tmp_path) == [*range(10 * len(waits_s))]


def has_rows(directory: Path, count: int) -> bool:
    return len(read_ledger(directory, LIVES)) == count


def test_status_counts_durable_rows(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.status.rows_written == 0
    ledger.write_events(events_from(0, 10))
    ledger.write_operations(START_MS, [(key_of(0), counts_of(0))], 0)
    eventually(lambda: ledger.status.rows_written == 11)
    status = ledger.status
    assert (status.events_written, status.operations_written, status.events_waiting) == (10, 1, 0)
    assert (status.events_missed, status.files_closed, status.error) == (0, 0, None)
    ledger.close()
    assert ledger.status.files_closed == 2


def test_rows_of_two_hours_are_in_two_files(tmp_path: Path) -> None:
    now_ms = START_MS
    ledger = Ledger.open(tmp_path, NAMESPACE, QUICK, clock=lambda: now_ms)
    ledger.write_events(events_from(0, 10, now_ms))
    eventually(lambda: ledger.status.events_written == 10)
    now_ms += HOUR_MS
    eventually(lambda: ledger.status.files_closed == 1)
    ledger.write_events(events_from(10, 10, now_ms))
    ledger.close()
    assert [file.parent.name for file in parquet_files(tmp_path, LIVES)] == ["hour=03", "hour=04"]
    assert ordinals(tmp_path) == [*range(20)]


def test_reader_sees_each_row_once_during_conversion(tmp_path: Path) -> None:
    """Rows never disappear or leave a gap for a reader that runs concurrently with the writer."""
    ledger = open_ledger(tmp_path, LedgerSettings(flush_s=0.001, close_bytes=10_000))
    seen = written = 0
    while ledger.status.files_closed < 8:
        ledger.write_events(events_from(written, 20))
        written += 20
        found = ordinals(tmp_path)
        assert found == [*range(len(found))]
        assert seen <= len(found) <= written
        seen = len(found)
    ledger.close()
    assert ordinals(tmp_path) == [*range(written)]


# Opening and closing


def test_close_is_idempotent(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.write_events(events_from(0, 10))
    ledger.close()
    ledger.close()
    assert ordinals(tmp_path) == [*range(10)]


def test_hand_over_after_close_does_not_raise(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.close()
    ledger.write_events(events_from(0, 10))
    ledger.write_operations(START_MS, [(key_of(0), counts_of(0))], 1)
    ledger.close()
    assert read_ledger(tmp_path, LIVES) == read_ledger(tmp_path, OPERATIONS) == []
    assert ledger.status.events_waiting == 10


def test_ledger_is_reopened(tmp_path: Path) -> None:
    for turn in range(3):
        ledger = open_ledger(tmp_path)
        ledger.write_events(events_from(10 * turn, 10))
        ledger.close()
    assert ordinals(tmp_path) == [*range(30)]
    assert len(parquet_files(tmp_path, LIVES)) == 3


@pytest.mark.parametrize("below", ["file", "file/ledger"])
def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(LedgerDirectoryError, match="cannot be written") as caught:
        open_ledger(tmp_path / below)
    assert isinstance(caught.value, LedgerError)
    assert caught.value.path == tmp_path / below


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_that_is_not_writable_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerDirectoryError, match=os.strerror(errno.EACCES)):
        open_ledger(tmp_path)
    tmp_path.chmod(0o700)


def test_missing_pyarrow_is_an_error(tmp_path: Path) -> None:
    lines = run("bare_child", tmp_path).splitlines()
    assert lines == ["a ledger requires pyarrow, which is not installed. Run: pip install 'pairbus[ledger]'"] * 2


def test_journals_are_read_without_lmdb(tmp_path: Path) -> None:
    with start("writing_child", tmp_path, NAMESPACE) as child:
        say(child, None, "open")
        say(child, "0 50", "written")
        child.kill()
    assert run("reading_child", tmp_path).splitlines() == ["50"]


@pytest.mark.parametrize("name", LedgerSettings.__slots__)
def test_settings_out_of_range_are_rejected(name: str) -> None:
    settings: Callable[..., LedgerSettings] = LedgerSettings
    with pytest.raises(LedgerSettingsError, match=f"{name} must be > 0, got 0"):
        settings(**{name: 0})


# Several processes


def test_concurrent_recovery_recovers_each_row_once(tmp_path: Path) -> None:
    with start("writing_child", tmp_path, NAMESPACE) as child:
        say(child, None, "open")
        say(child, "0 50", "written")
        child.kill()
    children = [start("writing_child", tmp_path, NAMESPACE) for _ in range(3)]
    for other in children:
        other.communicate(timeout=60)
    assert journals_in(tmp_path) == []
    assert ordinals(tmp_path) == [*range(50)]


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    """Neither process recovers the journals of the other."""
    with start("writing_child", tmp_path, "fabrikam") as child:
        say(child, None, "open")
        say(child, "0 10", "written")
        ledger = open_ledger(tmp_path)
        ledger.write_events(events_from(100, 10))
        eventually(lambda: ledger.status.events_written == 10)
        assert len(journals_in(tmp_path)) == 2
        ledger.close()
        (journal,) = journals_in(tmp_path)
        say(child, "10 10", "written")
        assert journals_in(tmp_path) == [journal]
        child.kill()
    assert len(read_ledger(tmp_path, LIVES)) == 30
    open_ledger(tmp_path).close()
    assert journals_in(tmp_path) == []
    expected = [event_row(event, "fabrikam") for event in events_from(0, 20)] + [*map(event_row, events_from(100, 10))]
    assert sorted(read_ledger(tmp_path, LIVES), key=lambda row: row["ordinal"]) == expected


def say(child: subprocess.Popen[str], line: str | None, answer: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    if line is not None:
        child.stdin.write(line + "\n")
        child.stdin.flush()
    assert child.stdout.readline() == answer + "\n"


# Invalid rows


def test_invalid_row_is_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Invalid rows are logged, counted, and do not prevent others from being written."""
    ledger = open_ledger(tmp_path)
    one: Any = "one"
    for event in (
        event_of(1)._replace(sequence=one),
        event_of(2)._replace(at_ms=1 << 60),
        event_of(3)._replace(size=1 << 70),
    ):
        ledger.write_events([event])
        eventually(lambda: not ledger.status.events_waiting)
    assert ledger.status.events_missed == 3
    ledger.write_events(events_from(10, 5))
    ledger.close()
    assert ledger.status.error is None
    *gaps, first, _, _, _, _ = read_ledger(tmp_path, LIVES)
    assert sum(row["sequence"] for row in gaps if row["event"] == "missed") == 3
    assert first["ordinal"] == 10
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


def test_invalid_row_does_not_affect_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = open_ledger(tmp_path)
    events = events_from(0, 5_000)
    bad = (0, 17, 18, 2_600, 4_999)
    for number in bad:
        events[number] = events[number]._replace(ordinal=1 << 63)
    ledger.write_events(events)
    broken = counts_of(3)
    broken.bytes = 1 << 63
    rows = [(key_of(number), broken if number == 3 else counts_of(number)) for number in range(5)]
    ledger.write_operations(START_MS, rows, 0)
    eventually(lambda: not ledger.status.events_waiting)
    ledger.close()
    assert ledger.status.events_missed == len(bad)
    rows_read = [row for row in read_ledger(tmp_path, LIVES) if row["event"] != "missed"]
    assert sorted(row["ordinal"] for row in rows_read) == [number for number in range(5_000) if number not in bad]
    assert [row["entity"] for row in read_ledger(tmp_path, OPERATIONS)] == [f"orders/{n}" for n in (0, 1, 2, 4)]
    assert len(journals_in(tmp_path)) == 0
    assert len(parquet_files(tmp_path, LIVES)) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_search_for_invalid_rows_is_bounded(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.write_events([event._replace(size=1 << 70) for event in events_from(0, 20_000)])
    eventually(lambda: not ledger.status.events_waiting)
    ledger.close()
    (gap,) = read_ledger(tmp_path, LIVES)
    assert (gap["event"], gap["sequence"]) == ("missed", 20_000)


def test_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.write_events([event_of(1)._replace(message_id="a\ud800b", session_id="\udfff"), event_of(2)])
    ledger.write_operations(START_MS, [(key_of(1)._replace(entity="\ud83d\ude00"), counts_of(1))], 0)
    ledger.close()
    first, second = read_ledger(tmp_path, LIVES)
    assert (first["message_id"], first["session_id"]) == ("a\ufffdb", "\ufffd")
    assert second == event_row(event_of(2))
    (operation,) = read_ledger(tmp_path, OPERATIONS)
    assert operation["entity"] == "\U0001f600"


def test_hand_over_does_not_block(tmp_path: Path) -> None:
    """The hand-over does not block even if the writer is fully loaded."""
    ledger = open_ledger(tmp_path, LedgerSettings(flush_s=0.01))
    events = [events_from(first, 1_000) for first in range(0, 100_000, 1_000)]
    waits_s = sorted(taken_s(ledger, some) for some in events)
    assert waits_s[len(waits_s) // 2] < 0.001
    ledger.close()
    assert ledger.status.events_written == 100_000


def taken_s(ledger: Ledger, events: list[LifecycleEvent]) -> float:
    begun_s = time.perf_counter()
    ledger.write_events(events)
    return time.perf_counter() - begun_s


def test_d3_hand_over_is_reported_written_once_durable(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.hand_overs_written == 0
    for number in range(1, 4):
        assert ledger.write_events(events_from(number * 10, 10)) == number
        eventually(lambda expected=number: ledger.hand_overs_written == expected)  # type: ignore[misc]
        assert ordinals(tmp_path) == [*range(10, number * 10 + 10)]
    ledger.close()


def test_recorded_ordinals_include_files_and_journals(tmp_path: Path) -> None:
    first = open_ledger(tmp_path)
    first.write_events(events_from(0, 100))
    first.close()
    other = Ledger.open(tmp_path, "another", QUICK, clock=lambda: START_MS)
    other.write_events(events_from(100, 100))
    other.close()
    ledger = open_ledger(tmp_path)
    ledger.write_events(events_from(200, 10))
    eventually(lambda: ledger.status.events_waiting == 0)
    assert ledger.ordinals_from(event_of(90)) == {*range(90, 100), *range(200, 210)}
    assert ledger.ordinals_from(event_of(90, START_MS + HOUR_MS)) == {*range(200, 210)}  # files since that hour
    (parquet_files(tmp_path, LIVES)[0]).write_bytes(b"no Parquet")
    assert ledger.ordinals_from(event_of(205)) == {*range(205, 210)}
    ledger.close()


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_d3_deleted_ledger_is_recreated_with_unconverted_rows(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "ledger"
    ledger = open_ledger(directory)
    ledger.write_events(events_from(0, 10))
    eventually(lambda: ledger.hand_overs_written == 1)
    if how == "moved":
        directory.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(directory)
    eventually(lambda: parquet_files(directory, LIVES))
    ledger.write_events(events_from(10, 10))
    ledger.close()
    assert ordinals(directory) == [*range(20)]


@pytest.mark.parametrize("trouble", [OSError(errno.EMFILE, "no descriptors"), MemoryError(), ImportError("no files")])
def test_e1_temporary_conversion_error_neither_loses_nor_duplicates_rows(tmp_path: Path, trouble: Exception) -> None:
    troubles = [trouble, trouble]

    def pause() -> None:
        if troubles:
            raise troubles.pop()

    waiting = WriteQueue(10_000, 10_000)
    writer = LedgerWriter(LedgerFiles(tmp_path, QUICK), waiting, NAMESPACE, pause)
    waiting.add_operations(operation_rows(START_MS, [(key_of(number), counts_of(number)) for number in range(5)], 1))
    waiting.add_events(events_from(0, 2_500))
    for _ in range(2):
        writer.turn(START_MS)
        assert writer.error is not None
    assert (writer.events_written, writer.operations_written, writer.hand_overs_written) == (0, 0, 0)
    writer.turn(START_MS)
    assert writer.error is None
    writer.finish(START_MS)
    assert ordinals(tmp_path) == [event.ordinal for event in events_from(0, 2_500)]
    assert len(read_ledger(tmp_path, OPERATIONS)) == 5 + 1, "the connections have a row of their own"
