"""Writes a ledger while the system lets no file grow, checks the result, and continues when there is space again.

The limit on file sizes applies to this process alone, so the errors are real, and no other process is affected.
"""

from __future__ import annotations

import logging
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pairbus.ledger import LIVES, OPERATIONS, Ledger, LedgerSettings
from pairbus.ledger.journal import read_journal
from pairbus.ledger.schema import LedgerFileName
from tests.ledger.entries import (
    HOUR_MS,
    NAMESPACE,
    START_MS,
    counts_of,
    event_row,
    events_from,
    journals_in,
    key_of,
    read_ledger,
)
from tests.waiting import eventually

SETTINGS: Final = LedgerSettings(flush_s=0.01, retry_s=0.02, most_waiting=1_000, most_operations=200)
AT_A_TIME: Final = 100
_STANDARD_STREAMS: Final = 3
"""With a limit of so many descriptors no file can be opened."""


class Lines(logging.Handler):
    """Collects log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


LOG: Final = Lines()


def limit_files(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def fill(ledger: Ledger, number: int = 0) -> int:
    """Write until a write fails, and return the number of the next event."""
    while ledger.status.error is None:
        before = ledger.status.events_written
        ledger.write_events(events_from(number, AT_A_TIME))
        number += AT_A_TIME
        eventually(lambda: ledger.status.error or ledger.status.events_written > before)  # noqa: B023
    return number


def has_no_rest(path: Path) -> bool:
    """Return whether no partial frame is left in a journal; retries leave one for a moment."""
    stem = LedgerFileName.parse(path.stem)
    assert stem is not None
    size = path.stat().st_size
    return read_journal(path, stem).trusted_bytes == size


def expect_lives(directory: Path, count: int) -> None:
    rows = sorted(read_ledger(directory, LIVES), key=lambda row: row["ordinal"])
    assert rows == [event_row(life) for life in events_from(0, count)]


def expect_operations(directory: Path, count: int) -> None:
    rows = read_ledger(directory, OPERATIONS)
    assert sum(row["operations"] for row in rows) == sum(counts_of(number).operations for number in range(count))
    assert sum(row["bytes"] for row in rows) == sum(counts_of(number).bytes for number in range(count))


def nothing_is_lost(directory: Path) -> None:
    """Queued rows are written when there is space; the failure and the recovery are logged once each."""
    limit_files(60_000)
    ledger = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    number = fill(ledger)
    assert number > 2 * AT_A_TIME
    eventually(lambda: all(map(has_no_rest, journals_in(directory))))
    for second in range(500):
        ledger.write_operations(START_MS + 1_000 * second, [(key_of(second), counts_of(second))], 0)
    ledger.write_events(events_from(number, AT_A_TIME))
    number += AT_A_TIME
    assert ledger.status.events_waiting == 2 * AT_A_TIME
    limit_files(resource.RLIM_INFINITY)
    eventually(lambda: ledger.status.events_written == number and not ledger.status.error)
    ledger.close()
    assert ledger.status.events_missed == ledger.status.events_waiting == 0
    expect_lives(directory, number)
    expect_operations(directory, 500)
    begun, ended = LOG.lines
    assert begun.startswith(f"ERROR ledger write failed, queueing in memory directory={directory} ")
    assert "File too large" in begun
    assert ended == f"WARNING ledger writes resumed directory={directory}"


def what_is_too_much_is_counted(directory: Path) -> None:
    limit_files(60_000)
    ledger = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    number = fill(ledger)
    for _ in range(20):
        ledger.write_events(events_from(number, AT_A_TIME))
        number += AT_A_TIME
    status = ledger.status
    assert status.events_waiting == SETTINGS.most_waiting
    assert status.events_missed == number - status.events_waiting - status.events_written
    limit_files(resource.RLIM_INFINITY)
    eventually(lambda: not ledger.status.error)
    ledger.write_events(events_from(number, AT_A_TIME))
    ledger.close()
    rows = sorted(read_ledger(directory, LIVES), key=lambda row: row["ordinal"])
    first = number - status.events_missed
    expected = [*map(event_row, events_from(0, first)), *map(event_row, events_from(number, AT_A_TIME))]
    (gap,) = [row for row in rows if row["event"] == "missed"]
    assert (gap["ordinal"], gap["sequence"]) == (first, status.events_missed)
    assert [row for row in rows if row is not gap] == expected
    assert ledger.status.events_missed == status.events_missed


def descriptors_run_out(directory: Path) -> None:
    """Files that are open are written; what needs another file waits until one can be opened."""
    ledger = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    ledger.write_events(events_from(0, AT_A_TIME))
    eventually(lambda: ledger.status.events_written == AT_A_TIME)
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD_STREAMS, most))
    next_hour_ms = START_MS + HOUR_MS
    for number in range(AT_A_TIME, 4 * AT_A_TIME, AT_A_TIME):
        ledger.write_events(events_from(number, AT_A_TIME, next_hour_ms))
    ledger.write_operations(START_MS, [(key_of(0), counts_of(0))], 0)
    eventually(lambda: ledger.status.error)
    assert ledger.status.events_waiting == 3 * AT_A_TIME
    assert ledger.status.events_missed == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    eventually(lambda: ledger.status.events_written == 4 * AT_A_TIME and not ledger.status.error)
    ledger.close()
    rows = sorted(read_ledger(directory, LIVES), key=lambda row: row["ordinal"])
    later = events_from(AT_A_TIME, 3 * AT_A_TIME, next_hour_ms)
    assert rows == [*map(event_row, events_from(0, AT_A_TIME)), *map(event_row, later)]
    expect_operations(directory, 1)
    begun, ended = LOG.lines
    assert begun.startswith(f"ERROR ledger write failed, queueing in memory directory={directory} ")
    assert "Too many open files" in begun
    assert ended == f"WARNING ledger writes resumed directory={directory}"


def no_room_to_close(directory: Path) -> None:
    """The Parquet file does not fit: the journal stays readable, and is converted later."""
    ledger = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    ledger.write_events(events_from(0, AT_A_TIME))
    eventually(lambda: ledger.status.events_written == AT_A_TIME)
    limit_files(1_000)
    ledger.close()
    assert ledger.status.error is not None
    assert len(journals_in(directory)) == 1
    expect_lives(directory, AT_A_TIME)
    again = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    assert again.status.error is not None
    limit_files(resource.RLIM_INFINITY)
    eventually(lambda: again.status.files_closed == 1)
    assert journals_in(directory) == []
    again.close()
    expect_lives(directory, AT_A_TIME)
    assert [*directory.rglob("_*")] == []


def full_disk(directory: Path) -> None:
    """A small separate disk: nothing can be created on it, not even a directory entry."""
    ballast = directory / "ballast"
    ledger = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    number = fill(ledger)
    ledger.close()
    assert "No space left" in LOG.lines[0]
    assert LOG.lines[-1].endswith(f" rows={ledger.status.events_waiting}")
    assert ledger.status.events_waiting > 0
    written = ledger.status.events_written
    expect_lives(directory, written)
    again = Ledger.open(directory, NAMESPACE, SETTINGS, clock=lambda: START_MS)
    assert again.status.error is not None
    again.write_events(events_from(written, number - written))
    ballast.unlink()
    eventually(lambda: again.status.error is None)
    again.close()
    assert journals_in(directory) == []
    expect_lives(directory, number)


SCENES: Final[dict[str, Callable[[Path], None]]] = {
    scene.__name__: scene
    for scene in (nothing_is_lost, what_is_too_much_is_counted, descriptors_run_out, no_room_to_close)
}

if __name__ == "__main__":
    logging.getLogger("pairbus").addHandler(LOG)
    if sys.argv[1] == full_disk.__name__:
        (Path(sys.argv[2]) / "ballast").write_bytes(bytes(shutil.disk_usage(sys.argv[2]).free // 2))
        full_disk(Path(sys.argv[2]))
    else:
        SCENES[sys.argv[1]](Path(sys.argv[2]))
