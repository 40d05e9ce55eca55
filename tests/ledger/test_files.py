"""Conversion of journals to files, and the layout of these."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.ledger import COLUMNS, LIVES, OPERATIONS, VERSION_KEY, LedgerSettings
from pairbus.ledger.files import LedgerFiles
from pairbus.ledger.schema import row_batches
from tests.ledger.entries import (
    HOUR_MS,
    NAMESPACE,
    START_MS,
    event_row,
    events_from,
    journals_in,
    ordinals,
    parquet_files,
    read_ledger,
)

SETTINGS = LedgerSettings(close_s=60, close_bytes=50_000)


def files_in(directory: Path, settings: LedgerSettings = SETTINGS) -> LedgerFiles:
    files = LedgerFiles(directory, settings)
    files.prepare()
    return files


def write(files: LedgerFiles, first: int, count: int, at_ms: int = START_MS, now_ms: int = START_MS) -> None:
    for batch in row_batches(LIVES, NAMESPACE, events_from(first, count, at_ms), lambda: None).row_batches:
        files.append(batch, now_ms)


@pytest.mark.parametrize("before", [None, 0o750], ids=["made now", "was there"])
def test_new_directory_is_private_and_existing_one_is_unchanged(tmp_path: Path, before: int | None) -> None:
    directory = tmp_path / "ledger"
    if before is not None:
        directory.mkdir()
        directory.chmod(before)
    files_in(directory)
    assert directory.stat().st_mode & 0o777 == (0o700 if before is None else before)


def test_journal_is_converted_at_maximum_age(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(files, 0, 10)
    files.close_due(START_MS + 59_999)
    assert len(journals_in(tmp_path)) == 1
    assert parquet_files(tmp_path, LIVES) == []
    files.close_due(START_MS + 60_000)
    assert journals_in(tmp_path) == []
    assert len(parquet_files(tmp_path, LIVES)) == 1
    write(files, 10, 10, now_ms=START_MS + 60_001)
    files.close()
    assert len(parquet_files(tmp_path, LIVES)) == 2
    assert ordinals(tmp_path) == [*range(20)]


def test_journal_is_converted_at_maximum_size(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    written = 0
    while not parquet_files(tmp_path, LIVES):
        assert all(journal.stat().st_size < 50_000 for journal in journals_in(tmp_path))
        write(files, written, 10)
        written += 10
        files.close_due(START_MS)
    assert journals_in(tmp_path) == []
    assert ordinals(tmp_path) == [*range(written)]


def test_journal_is_converted_when_its_hour_has_passed(tmp_path: Path) -> None:
    end_ms = START_MS + HOUR_MS
    files = files_in(tmp_path)
    write(files, 0, 10, end_ms - 1_000, now_ms=end_ms - 1_000)
    files.close_due(end_ms - 1)
    assert len(journals_in(tmp_path)) == 1
    files.close_due(end_ms)
    assert journals_in(tmp_path) == []


def test_journal_is_converted_after_clock_is_set_back(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(files, 0, 10)
    files.close_due(START_MS - 10)
    assert journals_in(tmp_path) == []


def test_rows_are_filed_under_the_hour_of_their_time(tmp_path: Path) -> None:
    """Independent of when they are written: some are late, some from a future hour, around midnight."""
    midnight_ms = START_MS + 21 * HOUR_MS
    files = files_in(tmp_path)
    write(files, 0, 2_000, midnight_ms - 500, now_ms=midnight_ms)
    write(files, 2_000, 10, midnight_ms + HOUR_MS, now_ms=midnight_ms)
    files.close()
    hours = {file.parent.relative_to(tmp_path).as_posix(): file for file in parquet_files(tmp_path, LIVES)}
    assert [*hours] == ["lives/day=2026-11-16/hour=23", "lives/day=2026-11-17/hour=00", "lives/day=2026-11-17/hour=01"]
    for number, file in enumerate(hours.values()):
        times = pq.ParquetFile(file).read(["at"]).column(0).cast(pa.int64()).to_pylist()
        assert {at // HOUR_MS for at in times} == {midnight_ms // HOUR_MS - 1 + number}
    assert ordinals(tmp_path) == [*range(2_010)]


def test_parquet_file_layout(tmp_path: Path) -> None:
    files = files_in(tmp_path, LedgerSettings())
    lives = events_from(0, 3_000)
    write(files, 1_500, 1_500)
    write(files, 0, 1_500)
    files.close()
    (file,) = parquet_files(tmp_path, LIVES)
    parquet = pq.ParquetFile(file)
    assert parquet.schema_arrow.names == [*COLUMNS[LIVES]]
    assert parquet.schema_arrow.metadata[VERSION_KEY.encode()] == b"1"
    assert parquet.schema_arrow.field("at").type == pa.timestamp("ms", tz="UTC")
    assert [field.name for field in parquet.schema_arrow if field.nullable] == ["session_id", "destination"]
    group = parquet.metadata.row_group(0)
    columns = {(column := group.column(number)).path_in_schema: column for number in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["entity"].has_dictionary_page
    assert not columns["message_id"].has_dictionary_page
    assert columns["at"].statistics.min < columns["at"].statistics.max
    rows = read_ledger(tmp_path, LIVES)
    assert rows == sorted(map(event_row, lives), key=lambda row: (row["at"], row["ordinal"]))


def test_empty_ledger_has_two_tables(tmp_path: Path) -> None:
    files_in(tmp_path / "new" / "ledger").close()
    assert sorted(path.name for path in (tmp_path / "new" / "ledger").iterdir()) == sorted([LIVES, OPERATIONS, "open"])


def test_failed_file_write_is_retried(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    write(files, 0, 10)
    (tmp_path / LIVES).rmdir()
    (tmp_path / LIVES).write_text("something is in the way")
    with pytest.raises(OSError, match=os.strerror(errno.EEXIST)):
        files.close_due(START_MS + HOUR_MS)
    assert ordinals(tmp_path) == [*range(10)]
    write(files, 10, 10)
    (tmp_path / LIVES).unlink()
    files.close_due(START_MS + HOUR_MS)
    assert journals_in(tmp_path) == []
    assert len(parquet_files(tmp_path, LIVES)) == 2
    assert ordinals(tmp_path) == [*range(20)]
