"""A journal is trusted chunk by chunk: what is complete comes back, whatever has happened to the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pairbus.ledger import LIVES, LedgerSettings, read_open
from pairbus.ledger import journal as journal_module
from pairbus.ledger.book import Book
from pairbus.ledger.chunk import head_of
from pairbus.ledger.columns import VERSION, VERSION_KEY
from pairbus.ledger.journal import Journal
from pairbus.ledger.page import Page, life_pages
from pairbus.ledger.schema import SCHEMAS
from pairbus.ledger.stem import Stem, hour_of
from tests.ledger.entries import (
    NAMESPACE,
    START_MS,
    journals_in,
    life_row,
    lives_from,
    ordinals,
    parquet_files,
    read_ledger,
    rows_of,
)

STEM = Stem.of_hour(LIVES, hour_of(START_MS), START_MS)


def page_of(first: int, count: int) -> Page:
    (page,) = life_pages(NAMESPACE, lives_from(first, count), lambda: None).pages
    return page


def journal_with(directory: Path, *counts: int) -> list[int]:
    """A journal that its process has left behind; tells where each chunk ends."""
    journal = Journal.create(directory, STEM, START_MS)
    ends = []
    for number, count in enumerate(counts):
        journal.append(page_of(sum(counts[:number]), count))
        ends.append(journal.size)
    journal.let_go()
    return ends


def recover(directory: Path) -> None:
    book = Book(directory, LedgerSettings())
    book.prepare()
    book.adopt()
    book.close()


def open_rows(directory: Path) -> int:
    return sum(table.num_rows for table in read_open(directory, LIVES).values())


def test_what_is_appended_comes_back(tmp_path: Path) -> None:
    journal_with(tmp_path, 3, 1, 40)
    (table,) = read_open(tmp_path, LIVES).values()
    assert rows_of([table]) == [life_row(life) for life in lives_from(0, 44)]
    recover(tmp_path)
    assert journals_in(tmp_path) == []
    (file,) = parquet_files(tmp_path, LIVES)
    assert file.relative_to(tmp_path).as_posix() == f"lives/day=2026-11-16/hour=03/{STEM.name}.parquet"
    assert ordinals(tmp_path) == [*range(44)]


def test_a_journal_that_is_cut_anywhere_in_its_last_chunk(tmp_path: Path) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    for size in reversed(range(before, end)):
        os.truncate(path, size)
        assert open_rows(tmp_path) == 5, f"cut at {size} of {end}"
    recover(tmp_path)
    assert ordinals(tmp_path) == [*range(5)]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_journal_that_was_cut_is_recovered(tmp_path: Path, share: float) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    os.truncate(path, before + int((end - before) * share))
    recover(tmp_path)
    assert journals_in(tmp_path) == []
    assert ordinals(tmp_path) == [*range(5)]


def test_a_journal_that_holds_nothing_leaves_nothing(tmp_path: Path) -> None:
    journal_with(tmp_path)
    assert read_open(tmp_path, LIVES) == {}
    recover(tmp_path)
    assert journals_in(tmp_path) == parquet_files(tmp_path, LIVES) == []


def test_zeros_at_the_end_are_no_rows(tmp_path: Path) -> None:
    """A file system may have made the file longer, and not have written what belongs there."""
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    with path.open("ab") as file:
        file.write(bytes(4_096))
    assert open_rows(tmp_path) == 5


def test_a_flipped_bit_hides_its_chunk_and_what_follows(tmp_path: Path) -> None:
    ends = journal_with(tmp_path, 2, 2, 2)
    (path,) = journals_in(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert open_rows(tmp_path) == 2 * sum(end <= place for end in ends), f"a bit of byte {place}"


def test_what_is_damaged_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, end = journal_with(tmp_path, 5, 2)
    (path,) = journals_in(tmp_path)
    with path.open("r+b") as file:
        file.seek(end - 1)
        file.write(b"?")
    recover(tmp_path)
    assert f"was cut off at {before} of {end} bytes" in caplog.text
    assert ordinals(tmp_path) == [*range(5)]


def test_a_chunk_of_other_columns_is_not_trusted(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    append_raw(tmp_path, pa.table({"a": [1]}))
    assert open_rows(tmp_path) == 5


def test_a_chunk_that_is_no_arrow_is_not_trusted(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    with path.open("ab") as file:
        file.write(head_of(memoryview(b"nonsense")) + b"nonsense")
    assert open_rows(tmp_path) == 5


def test_a_journal_of_a_later_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal_with(tmp_path)
    schema = SCHEMAS[LIVES].with_metadata({VERSION_KEY: str(VERSION + 1)})
    append_raw(tmp_path, pa.Table.from_batches(page_of(0, 3).batches).cast(schema))
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
        file.write(head_of(content))
        file.write(content)


def test_a_chunk_that_may_be_on_disk_or_not_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was written, and then the disk failed: it is cut off before its rows are written anew elsewhere."""
    book = Book(tmp_path, LedgerSettings(close_bytes=1))
    book.append(page_of(0, 5), START_MS)
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "sync_content", failing_disk)
        for _ in range(2):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                book.append(page_of(5, 5), START_MS)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            book.close_due(START_MS)
    book.close_due(START_MS)
    assert ordinals(tmp_path) == [*range(5)]
    book.append(page_of(5, 5), START_MS)
    book.close()
    assert ordinals(tmp_path) == [*range(10)]
    assert len(parquet_files(tmp_path, LIVES)) == 2


def failing_disk(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# Killed at the worst time


def test_killed_before_the_journal_was_removed(tmp_path: Path) -> None:
    """The file is complete, and the journal is still there: no row is there twice, before and after.

    Nor is the file written again: the journal may have been damaged since.
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


def test_killed_while_the_file_was_written(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    target = STEM.parquet_file(tmp_path)
    target.parent.mkdir(parents=True)
    target.with_name(f"_{STEM.name}.writing").write_bytes(b"PAR1 and then")
    assert ordinals(tmp_path) == [*range(5)]
    recover(tmp_path)
    assert [*target.parent.iterdir()] == [target]
    assert ordinals(tmp_path) == [*range(5)]


def test_killed_before_the_journal_had_a_name(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    unnamed = tmp_path / "open" / (STEM.name + ".new")
    unnamed.touch()
    recover(tmp_path)
    assert not unnamed.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    journal_with(tmp_path, 5)
    stranger = tmp_path / "open" / "notes.journal"
    stranger.write_text("not one of ours")
    recover(tmp_path)
    assert stranger.read_text() == "not one of ours"
    assert read_ledger(tmp_path, LIVES) != []


def test_a_journal_that_somebody_writes_is_not_recovered(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, STEM, START_MS)
    journal.append(page_of(0, 5))
    recover(tmp_path)
    assert journals_in(tmp_path) == [journal.path]
    journal.append(page_of(5, 5))
    assert ordinals(tmp_path) == [*range(10)]
    journal.let_go()
    recover(tmp_path)
    assert ordinals(tmp_path) == [*range(10)]


def test_a_journal_that_becomes_a_file_while_somebody_reads(tmp_path: Path) -> None:
    """What he has read of it is not all that is in the file, and the next file is there already: the file counts."""
    book = Book(tmp_path, LedgerSettings(close_bytes=1))
    book.append(page_of(0, 5), START_MS)
    (stem,) = journals = read_open(tmp_path, LIVES)
    assert journals[stem].num_rows == 5
    for first in (5, 10):
        book.append(page_of(first, 5), START_MS)
        book.close_due(START_MS)
    files = {file.stem: pq.ParquetFile(file).metadata.num_rows for file in parquet_files(tmp_path, LIVES)}
    assert sorted(files.values()) == [5, 10]
    assert files[stem] == 10


def test_a_journal_that_somebody_else_has_just_finished(tmp_path: Path) -> None:
    """Two look for what was left; one has the file open while the other is done with it, and removes it."""
    journal_with(tmp_path, 5)
    (path,) = journals_in(tmp_path)
    first = Journal.adopt(path)
    assert first is not None
    assert Journal.adopt(path) is None
    first.remove()
    assert Journal.adopt(path) is None
