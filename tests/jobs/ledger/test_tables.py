"""Ledgers as tables (D3, D4): rows included, rows excluded, and errors before a job runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pairbus.jobs.ledger import (
    DamagedFileError,
    LedgerReadError,
    NewerLedgerError,
    NotALedgerError,
    WrongColumnsError,
    read_lives,
    read_operations,
)
from pairbus.jobs.ledger.tables import LedgerDirectory, Period
from pairbus.ledger import Ledger, LedgerSettings, OperationCounts, OperationKey, OperationKind, Stage
from pairbus.ledger.events import COLUMNS, LIVES, OPERATIONS
from tests.jobs.ledger.written import arrow_table, at, life, operation, write, write_events, write_file
from tests.waiting import eventually

NOON = at("2026-03-31T12:00")


def entities(table: DataFrame) -> list[str]:
    return sorted(row["entity"] for row in table.collect())


def plan(table: DataFrame) -> str:
    text: str = table._jdf.queryExecution().executedPlan().toString()
    return text


@pytest.mark.slow
def test_d3_columns_match_the_ledger(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [operation("2026-03-31T12:00")])
    write_events(tmp_path, [life("2026-03-31T12:00:00.123", session_id="s")])
    operations, lives = read_operations(spark, tmp_path), read_lives(spark, str(tmp_path))
    assert operations.columns == list(COLUMNS[OPERATIONS])
    assert lives.columns == list(COLUMNS[LIVES])
    (row,) = lives.collect()
    assert row["at"].astimezone(UTC) == at("2026-03-31T12:00:00.123")
    assert (row["session_id"], row["destination"], row["size"]) == ("s", None, 1_000)


@pytest.mark.slow
def test_ledgers_given_twice_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "a [b] {c}"
    write(first, [operation("2026-03-31T12:00", entity="a")])
    write(second, [operation("2026-03-30T07:00", entity="b"), operation("2026-03-31T12:00", entity="c")])
    link = tmp_path / "link"
    link.symlink_to(first)
    spellings: list[str | Path] = [first, f"{first}/", first / ".." / "first", link, f"file:{first}", f"file:{first}/"]
    assert entities(read_operations(spark, [str(second), first, *spellings[:4]])) == ["a", "b", "c"]
    assert entities(read_operations(spark, spellings[4:])) == ["a"]


@pytest.mark.slow
def test_missing_table_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [operation("2026-03-31T12:00")])
    lives = read_lives(spark, tmp_path)
    assert lives.columns == list(COLUMNS[LIVES])
    assert lives.collect() == []


@pytest.mark.slow
def test_time_range_includes_start_and_excludes_end(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path,
        [
            operation("2026-03-31T11:59:59", entity="before"),
            operation("2026-03-31T12:00", entity="start"),
            operation("2026-03-31T23:59:59", entity="same day"),
            operation("2026-04-01T00:00", entity="next day"),
            operation("2026-04-01T01:00", entity="end"),
        ],
    )
    vienna = timezone(timedelta(hours=2))
    end = datetime(2026, 4, 1, 3, tzinfo=vienna)
    assert entities(read_operations(spark, tmp_path, NOON, end)) == ["next day", "same day", "start"]
    assert entities(read_operations(spark, tmp_path, start=end)) == ["end"]
    assert entities(read_operations(spark, tmp_path, end=NOON)) == ["before"]


@pytest.mark.slow
def test_time_range_skips_directories(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [operation(f"2026-03-{day:02}T{hour:02}:00") for day in (1, 2, 3) for hour in range(24)])
    table = read_operations(spark, tmp_path, at("2026-03-02T22:30"), at("2026-03-03T01:00"))
    assert table.count() == 2  # 23:00 and 0:00
    partitions = next(line for line in plan(table).splitlines() if "PartitionFilters: [" in line)
    assert "day#" in partitions.split("PartitionFilters: [")[1].split("]")[0]
    assert "hour#" in partitions.split("PartitionFilters: [")[1].split("]")[0]
    scan = table._jdf.queryExecution().executedPlan().collectLeaves().head()
    assert scan.selectedPartitions().totalNumberOfFiles() == 3  # 22, 23 and 0 o'clock of 72


@pytest.mark.slow
def test_files_outside_the_range_are_not_opened(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [operation("2026-03-31T12:00", entity="good")])
    (bad,) = write(tmp_path, [operation("2026-03-30T12:00")])
    bad.write_bytes(b"PAR1")
    assert entities(read_operations(spark, tmp_path, start=NOON)) == ["good"]
    with pytest.raises(DamagedFileError):
        read_operations(spark, tmp_path)


@pytest.mark.slow
def test_incomplete_and_foreign_files_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    (file,) = write(tmp_path, [operation("2026-03-31T12:00", entity="a")])
    for name in (f"_{file.name}", f".{file.name}", "notes.txt"):
        (file.parent / name).write_bytes(b"not yet")
    assert entities(read_operations(spark, tmp_path)) == ["a"]


@pytest.mark.parametrize("kept", [0, 3, 8, -1, -8, -100])
@pytest.mark.slow
def test_truncated_file_is_rejected_before_a_job_runs(spark: SparkSession, tmp_path: Path, kept: int) -> None:
    file, *_ = write(tmp_path, [operation(f"2026-03-31T{hour:02}:00") for hour in range(5)])
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DamagedFileError, match="is damaged") as caught:
        read_operations(spark, tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.slow
def test_missing_column_is_reported_with_its_file(spark: SparkSession, tmp_path: Path) -> None:
    rows = arrow_table([operation("2026-03-31T12:00")])
    file = write_file(tmp_path, NOON, rows.drop_columns(["units"]))
    with pytest.raises(WrongColumnsError, match="no column 'units'") as caught:
        read_operations(spark, tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("bytes", pa.float64()),
        ("bytes", pa.int32()),
        ("entity", pa.binary()),
        ("at", pa.timestamp("ms")),
        ("at", pa.int64()),
    ],
)
@pytest.mark.slow
def test_column_of_wrong_type_is_reported_with_its_file(
    spark: SparkSession, tmp_path: Path, column: str, kind: pa.DataType
) -> None:
    rows = arrow_table([operation("2026-03-31T12:00")])
    number = rows.column_names.index(column)
    write_file(tmp_path, NOON, rows.set_column(number, column, rows.column(column).cast(kind)))
    with pytest.raises(WrongColumnsError, match=f"the column '{column}' of .* must be a "):
        read_operations(spark, tmp_path)


@pytest.mark.slow
def test_dictionary_encoded_texts_are_accepted(spark: SparkSession, tmp_path: Path) -> None:
    rows = arrow_table([operation("2026-03-31T12:00", entity="a")])
    number = rows.column_names.index("entity")
    write_file(tmp_path, NOON, rows.set_column(number, "entity", rows.column("entity").dictionary_encode()))
    assert entities(read_operations(spark, tmp_path)) == ["a"]


@pytest.mark.slow
def test_newer_ledger_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    write_file(tmp_path, NOON, arrow_table([operation("2026-03-31T12:00")]), version=2)
    with pytest.raises(NewerLedgerError, match="version 2"):
        read_operations(spark, tmp_path)


@pytest.mark.slow
def test_directory_without_ledger_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotALedgerError, match="does not exist"):
        read_operations(spark, tmp_path / "gone")
    with pytest.raises(NotALedgerError, match="neither"):
        read_operations(spark, tmp_path)
    (file,) = write(tmp_path, [operation("2026-03-31T12:00")])
    for part in (tmp_path / OPERATIONS, file.parent, file.parent.parent):
        with pytest.raises(NotALedgerError, match="a part of one"):
            read_operations(spark, part)
    with pytest.raises(LedgerReadError, match="no ledger was given"):
        read_operations(spark, [])


@pytest.mark.parametrize("place", ["x.parquet", "day=2026-13-01/hour=00/x.parquet", "day=2026-03-31/hour=24/x.parquet"])
@pytest.mark.slow
def test_misplaced_files_are_rejected(spark: SparkSession, tmp_path: Path, place: str) -> None:
    (file,) = write(tmp_path, [operation("2026-03-31T12:00")])
    stray = tmp_path / OPERATIONS / place
    stray.parent.mkdir(parents=True, exist_ok=True)
    file.rename(stray)
    with pytest.raises(NotALedgerError, match="where a ledger has its files"):
        read_operations(spark, tmp_path)


@pytest.mark.slow
def test_address_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [operation("2026-03-31T12:00", entity="a"), operation("2026-03-31T11:00", entity="b")])
    assert entities(read_operations(spark, tmp_path.as_uri(), start=NOON)) == ["a"]
    with pytest.raises(NotALedgerError, match="no table 'lives'"):
        read_lives(spark, tmp_path.as_uri())
    rows = arrow_table([operation("2026-03-31T12:00")])
    write_file(tmp_path / "narrow", NOON, rows.drop_columns(["units"]))
    with pytest.raises(WrongColumnsError, match="no column 'units'"):
        read_operations(spark, (tmp_path / "narrow").as_uri())


def test_time_range_without_time_zone_or_order_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"the end of the time range must have a time zone"):
        Period(end=NOON.replace(tzinfo=None))
    with pytest.raises(ValueError, match="before it starts"):
        Period(start=NOON, end=NOON - timedelta(seconds=1))


def test_time_range_may_start_before_any_ledger() -> None:
    first = datetime.min.replace(tzinfo=UTC)
    period = Period(start=first, end=first)
    assert not period.has_hour(NOON.date(), 12)
    assert Period(start=first).has_hour(NOON.date(), 12)


def test_last_hour_of_a_range_contains_its_last_instant() -> None:
    period = Period(start=NOON, end=NOON + timedelta(hours=1))
    assert period.first_hour == period.last_hour == (NOON.date(), 12)
    assert period.has_hour(NOON.date(), 12)
    assert not period.has_hour(NOON.date(), 13)
    assert not period.has_hour(NOON.date(), 11)


def counted(operations: int) -> OperationCounts:
    tally = OperationCounts()
    for _ in range(operations):
        tally.add(messages=1, size_bytes=10)
    return tally


SORT = OperationKey(kind=OperationKind.SEND, stage=Stage.DIRECT, entity="orders", result="ok", key_name="app")


@pytest.mark.slow
def test_d3_rows_in_journals_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    now = [round(NOON.timestamp() * 1000)]
    ledger = Ledger.open(tmp_path, "contoso", LedgerSettings(flush_s=0.01), clock=lambda: now[0])
    try:
        for second in range(3):
            ledger.write_operations(now[0] + 1000 * second, [(SORT, counted(5))], 7)
        eventually(lambda: ledger.status.operations_written >= 3)
        assert not [*tmp_path.rglob("*.parquet")]
        table = read_operations(spark, tmp_path)
        assert table.columns == list(COLUMNS[OPERATIONS])
        assert sends(table) == 15
        assert sends(read_operations(spark, tmp_path, start=NOON + timedelta(seconds=2))) == 5
    finally:
        ledger.close()
    assert [*tmp_path.rglob("*.parquet")]
    assert sends(read_operations(spark, tmp_path)) == 15
    assert sends(table) == 15  # as read then, though the journal is a file now


def sends(table: DataFrame) -> int:
    (row,) = table.where("kind = 'send'").groupBy().sum("operations").collect()
    count: int = row[0]
    return count


def test_unreadable_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "open" / "operations-2026-03-31T12-1-0a.journal").mkdir(parents=True)
    with pytest.raises(LedgerReadError, match=r"the journals of .* cannot be read"):
        LedgerDirectory(path=tmp_path).journals(OPERATIONS)


def test_converted_journal_is_read_from_the_file(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, "contoso", clock=lambda: round(NOON.timestamp() * 1000))
    ledger.write_operations(round(NOON.timestamp() * 1000), [(SORT, counted(1))], 0)
    eventually(lambda: ledger.status.operations_written >= 1)
    (stem,) = LedgerDirectory(path=tmp_path).journals(OPERATIONS)
    place = tmp_path / OPERATIONS / "day=2026-03-31" / "hour=12"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{stem}.parquet").touch()
    assert not LedgerDirectory(path=tmp_path).journals(OPERATIONS)
    (place / f"{stem}.parquet").unlink()
    ledger.close()
