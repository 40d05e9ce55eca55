"""Journals are trusted frame by frame: complete frames are read back, with anything after them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.ledger import LIVES, LedgerSettings, read_open
from pairbus.ledger.events import VERSION, VERSION_KEY
from pairbus.ledger.files import LedgerFiles
from pairbus.ledger.journal import LedgerJournal
from pairbus.ledger.schema import SCHEMAS, LedgerFileName, RowBatch, hour_of, row_batches
from pairbus.store import segment_log
from pairbus.store.segment_log import frame_header
from tests.ledger.entries import (
    NAMESPACE,
    START_MS,
    event_row,
    events_from,
    journals_in,
    ordinals,
    parquet_files,
    read_ledger,
    rows_of,
)

FILE_NAME = LedgerFileName.of_hour(LIVES, hour_of(START_MS), START_MS)


def batch_of(first: int, count: int) -> RowBatch:
    (batch,) = row_batches(LIVES, NAMESPACE, events_from(first, count), lambda: None).row_batches
    return batch


def journal_with(directory: Path, *counts: int) -> list[int]:
    """Write a journal as a killed process leaves it behind, and return the end of each frame."""
    journal = LedgerJournal.create(directory, FILE_NAME, START_MS)
    ends = []
    for number, count in enumerate(counts):
        journal.append(batch_of(sum(counts[:number]), count))
        ends.append(journal.segment.size)
    journal.release()
    return ends


def recover(directory: Path) -> None:
    files = LedgerFiles(directory, LedgerSettings())
    files.prepare()
    files.adopt()
    files.close()


def open_rows(directory: Path) -> int:
    return sum(table.num_rows for table in read_open(directory, LIVES).values())


def test_appended_rows_are_read_back(tmp_path: Path) -> None:
    journal_with(tmp_path, 3, 1, 40)
    (table,) = read_open(tmp_path, LIVES).values()
    assert rows_of([table]) == [event_row(life) for life in events_from(0, 44)]
    recover(tmp_path)
    assert journals_in(tmp_path) == []
    (file,) = parquet_files(tmp_path, LIVES)
    assert file.relative_to(tmp_path).as_posix() == f"lives/day=2026-11-16/hour=03/{FILE_NAME.name}.parquet"
    assert ordinals(tmp_path) == [*range(44)]


def test_truncated_last_frame_is_ignored(tmp_path: Path) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    for size in reversed(range(before, end)):
        os.truncate(path, size)
        assert open_rows(tmp_path) == 5, f"cut at {size} of {end}"
    recover(tmp_path)
    assert ordinals(tmp_path) == [*range(5)]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_truncated_journal_is_recovered(tmp_path: Path, share: float) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    os.truncate(path, before + int((end - before) * share))
    recover(tmp_path)
    assert journals_in(tmp_path) == []
    assert ordinals(tmp_path) == [*range(5)]


def test_empty_journal_leaves_no_file(tmp_path: Path) -> None:
    journal_with(tmp_path)
    assert read_open(tmp_path, LIVES) == {}
    recover(tmp_path)
    assert journals_in(tmp_path) == parquet_files(tmp_path, LIVES) == []


def test_trailing_zeros_are_ignored(tmp_path: Path) -> None:
    """A file system may have extended the file without writing its content."""
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    with path.open("ab") as file:
        file.write(bytes(4_096))
    assert open_rows(tmp_path) == 5


def test_flipped_bit_invalidates_its_frame_and_later_ones(tmp_path: Path) -> None:
    ends = journal_with(tmp_path, 2, 2, 2)
    (path,) = journals_in(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert open_rows(tmp_path) == 2 * sum(end <= place for end in ends), f"a bit of byte {place}"


def test_damaged_journal_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    with path.open("r+b") as file:
        file.seek(end - 1)
        file.write(b"?")
    recover(tmp_path)
    assert f"valid_bytes={before} total_bytes={end}" in caplog.text
    assert ordinals(tmp_path) == [*range(5)]


def test_frame_with_other_columns_is_ignored(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    append_raw(tmp_path, pa.table({"a": [1]}))
    assert open_rows(tmp_path) == 5


def test_frame_without_arrow_data_is_ignored(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    with path.open("ab") as file:
        file.write(frame_header(memoryview(b"nonsense")) + b"nonsense")
    assert open_rows(tmp_path) == 5


def test_journal_of_newer_version_is_left_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal_with(tmp_path)
    schema = SCHEMAS[LIVES].with_metadata({VERSION_KEY: str(VERSION + 1)})
    append_raw(tmp_path, pa.Table.from_batches(batch_of(0, 3).batches).cast(schema))
    (path,) = journals_in(tmp_path)
    before = path.read_bytes()
    assert read_open(tmp_path, LIVES) == {}
    recover(tmp_path)
    assert path.read_bytes() == before
    assert f"version {VERSION + 1}" in caplog.text
    assert parquet_files(tmp_path, LIVES) == []


def append_raw(directory: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content = memoryview(sink.getvalue())
    (path,) = journals_in(directory)
    with path.open("ab") as file:
        file.write(frame_header(content))
        file.write(content)


def test_frame_of_failed_sync_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame was written before the disk failed: it is truncated before its rows are written elsewhere."""
    files = LedgerFiles(tmp_path, LedgerSettings(close_bytes=1))
    files.append(batch_of(0, 5), START_MS)
    with monkeypatch.context() as patch:
        patch.setattr(segment_log, "sync_content", failing_disk)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                files.append(batch_of(5, 5), START_MS)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            files.close_due(START_MS)
    files.close_due(START_MS)
    assert ordinals(tmp_path) == [*range(5)]
    files.append(batch_of(5, 5), START_MS)
    files.close()
    assert ordinals(tmp_path) == [*range(10)]
    assert len(parquet_files(tmp_path, LIVES)) == 2


def failing_disk(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# Kills at critical points


def test_kill_before_journal_is_deleted_duplicates_no_rows(tmp_path: Path) -> None:
    """The file is complete, and the journal still exists: no row is read twice, before and after recovery.

    The file is not written again, since the journal may have been damaged since.
    """
    journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    journal = path.read_bytes()
    recover(tmp_path)
    path.write_bytes(journal[:-1])
    assert ordinals(tmp_path) == [*range(7)]
    recover(tmp_path)
    assert journals_in(tmp_path) == []
    assert len(parquet_files(tmp_path, LIVES)) == 1
    assert ordinals(tmp_path) == [*range(7)]


def test_kill_while_file_is_written_loses_no_rows(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    target = FILE_NAME.parquet_file(tmp_path)
    target.parent.mkdir(parents=True)
    target.with_name(f"_{FILE_NAME.name}.writing").write_bytes(b"PAR1 and then")
    assert ordinals(tmp_path) == [*range(5)]
    recover(tmp_path)
    assert [*target.parent.iterdir()] == [target]
    assert ordinals(tmp_path) == [*range(5)]


def test_kill_before_journal_is_named_leaves_no_file(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    unnamed = tmp_path / "open" / (FILE_NAME.name + ".new")
    unnamed.touch()
    recover(tmp_path)
    assert not unnamed.exists()


def test_foreign_files_are_left_unchanged(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    unproven_peer = tmp_path / "open" / "notes.journal"
    unproven_peer.write_text("not one of ours")
    recover(tmp_path)
    assert unproven_peer.read_text() == "not one of ours"
    assert read_ledger(tmp_path, LIVES) != []


def test_locked_journal_is_not_recovered(tmp_path: Path) -> None:
    journal = LedgerJournal.create(tmp_path, FILE_NAME, START_MS)
    journal.append(batch_of(0, 5))
    recover(tmp_path)
    assert journals_in(tmp_path) == [journal.segment.path]
    journal.append(batch_of(5, 5))
    assert ordinals(tmp_path) == [*range(10)]
    journal.release()
    recover(tmp_path)
    assert ordinals(tmp_path) == [*range(10)]


def test_journal_converted_during_read_is_read_once(tmp_path: Path) -> None:
    """The reader has seen only a part of the journal, and the next file exists already: the file is used."""
    files = LedgerFiles(tmp_path, LedgerSettings(close_bytes=1))
    files.append(batch_of(0, 5), START_MS)
    (name,) = journals = read_open(tmp_path, LIVES)
    assert journals[name].num_rows == 5
    for first in (5, 10):
        files.append(batch_of(first, 5), START_MS)
        files.close_due(START_MS)
    rows_by_file = {file.stem: pq.ParquetFile(file).metadata.num_rows for file in parquet_files(tmp_path, LIVES)}
    assert sorted(rows_by_file.values()) == [5, 10]
    assert rows_by_file[name] == 10


def test_journal_converted_by_another_process_is_skipped(tmp_path: Path) -> None:
    """Two processes recover the same journal; one has it open while the other converts and deletes it."""
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    first = LedgerJournal.adopt(path)
    assert first is not None
    assert LedgerJournal.adopt(path) is None
    first.remove()
    assert LedgerJournal.adopt(path) is None
