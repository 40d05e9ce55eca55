"""The tables of one or more ledgers, as DataFrames."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pairbus.jobs.lines import reason_of
from pairbus.ledger import read_open
from pairbus.ledger.events import COLUMNS, LIVES, NUMBER, OPERATIONS, TEXT, TIME, VERSION, VERSION_KEY
from pairbus.spark.file_systems import FileSystemError, check_file_systems, java_reason
from pairbus.spark.session import LIGHT


class LedgerReadError(Exception):
    """A ledger cannot be read."""


class NotALedgerError(LedgerReadError):
    """A path has no ledger, or its files are not laid out like one."""


class DamagedFileError(LedgerReadError):
    """A file of a ledger is truncated, or is not a Parquet file."""


class WrongColumnsError(LedgerReadError):
    """A file of a ledger lacks a column, or has one of another type."""


class NewerLedgerError(LedgerReadError):
    """A file of a ledger was written by a newer version, whose columns may have another meaning."""


OLDEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""No row of a ledger is older; nothing can be subtracted from ``datetime.min``."""

_INSTANT: Final = timedelta(microseconds=1)


_DAY: Final = re.compile(r"day=\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time range, including its start and excluding its end; either may be open."""

    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name, time in (("start", self.start), ("end", self.end)):
            if time is not None and time.tzinfo is None:
                raise ValueError(f"the {name} of the time range must have a time zone, got {time}")
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"the time range must not end ({self.end}) before it starts ({self.start})")

    @property
    def first_hour(self) -> tuple[date, int] | None:
        """The partition of the start."""
        return None if self.start is None else _hour_of(self.start)

    @property
    def last_hour(self) -> tuple[date, int] | None:
        """The partition of the last instant."""
        return None if self.end is None else _hour_of(max(self.end, OLDEST) - _INSTANT)

    def has_hour(self, day: date, hour: int) -> bool:
        """Return whether a partition may hold rows of this range."""
        first, last = self.first_hour, self.last_hour
        return (first is None or (day, hour) >= first) and (last is None or (day, hour) <= last)

    def has_day(self, directory: str) -> bool:
        """Return whether a directory may hold rows of this range, or is not that of a day."""
        if not _DAY.fullmatch(directory):
            return True
        day, first, last = directory.removeprefix("day="), self.first_hour, self.last_hour
        return (first is None or day >= first[0].isoformat()) and (last is None or day <= last[0].isoformat())

    def partitions(self) -> Column:
        """Return a condition on the columns day and hour, with which Spark skips directories."""
        condition = lit(True)
        if self.first_hour is not None:
            day, hour = self.first_hour
            condition &= (col("day") > day) | ((col("day") == day) & (col("hour") >= hour))
        if self.last_hour is not None:
            day, hour = self.last_hour
            condition &= (col("day") < day) | ((col("day") == day) & (col("hour") <= hour))
        return condition

    def rows(self) -> Column:
        """Return the condition on the column at."""
        condition = lit(True)
        if self.start is not None:
            condition &= col("at") >= self.start
        if self.end is not None:
            condition &= col("at") < self.end
        return condition


def _hour_of(time: datetime) -> tuple[date, int]:
    utc = time.astimezone(UTC)
    return utc.date(), utc.hour


_OPEN: Final = "open"
_PLACE: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})/hour=([01]\d|2[0-3])/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDirectory:
    """A ledger in a local directory."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise NotALedgerError(f"the directory {self.path} does not exist")
        if not any((self.path / name).is_dir() for name in (OPERATIONS, LIVES, _OPEN)):
            raise NotALedgerError(f"{self.path} is not a ledger: {self._advice()}")

    def _advice(self) -> str:
        if self.path.name in {OPERATIONS, LIVES} or self.path.name.startswith(("day=", "hour=")):
            return f"it is a part of one; name the directory that contains {OPERATIONS!r}"
        return f"it contains neither {OPERATIONS!r} nor {LIVES!r}"

    def table(self, name: str) -> Path:
        """Return the directory of a table's files, which may not exist."""
        return self.path / name

    def files(self, table: str, period: Period) -> Iterator[Path]:
        """Yield the files of a table that may hold rows of a time range, without those that Spark ignores."""
        root = self.table(table)
        for file in sorted(file for day in self.days(table, period) for file in _parquet_files(day)):
            place = file.relative_to(root)
            if any(part.startswith(("_", ".")) for part in place.parts):
                continue
            if period.has_hour(*_hour_of_file(file, place.as_posix())):
                yield file

    def days(self, table: str, period: Period) -> list[Path]:
        """Return what is in the directory of a table, without the days outside of a time range."""
        root = self.table(table)
        return [place for place in root.iterdir() if period.has_day(place.name)] if root.is_dir() else []

    def has_journals(self) -> bool:
        """Return whether there are journals that are not converted yet."""
        return (self.path / _OPEN).is_dir() and any((self.path / _OPEN).iterdir())

    def journals(self, table: str) -> Mapping[str, Any]:
        """Return the rows of journals that are not converted yet, by the names of their future files."""
        if not (self.path / _OPEN).is_dir():
            return {}
        try:
            journals = read_open(self.path, table)
        except OSError as error:
            raise LedgerReadError(f"the journals of {self.path} cannot be read: {error.strerror or error}") from error
        # Read first, listed then: if both exist, the file may hold rows appended after the journal was read.
        closed = {file.stem for file in self.table(table).rglob("*.parquet")}
        return {stem: rows for stem, rows in journals.items() if stem not in closed}


def _parquet_files(place: Path) -> Iterable[Path]:
    if place.is_dir():
        return place.rglob("*.parquet")
    return [place] if place.suffix == ".parquet" else []


def _hour_of_file(file: Path, place: str) -> tuple[date, int]:
    found = _PLACE.fullmatch(place)
    try:
        if found is not None:
            return date.fromisoformat(found[1]), int(found[2])
    except ValueError:
        pass
    raise NotALedgerError(f"{file} is not below day=YYYY-MM-DD/hour=HH, where a ledger has its files; move it away")


_MOST_THREADS: Final = 16


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit in {"ms", "us"} and kind.tz is not None


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {TIME: _is_time, TEXT: _is_text, NUMBER: pa.types.is_int64}


def check_footers(files: Iterable[Path], columns: Mapping[str, str]) -> None:
    """Raise for the first file that is damaged, newer than this program, or has other columns."""
    threads = min(_MOST_THREADS, 4 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(threads, thread_name_prefix="pairbus-footers") as pool:
        checks = [pool.submit(check_footer, file, columns) for file in files]
        try:
            for check in checks:
                check.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check_footer(file: Path, columns: Mapping[str, str]) -> None:
    """Raise if a file is damaged, newer than this program, or has other columns."""
    try:
        metadata = pq.read_metadata(file)
    except FileNotFoundError:
        return  # deleted since it was listed: Spark will not find it either
    except pa.ArrowException as error:
        raise DamagedFileError(
            f"{file} is damaged, or not a Parquet file: {_first_line(error)}; "
            "move it out of the ledger to read the rest without it"
        ) from error
    except OSError as error:
        raise LedgerReadError(f"{file} cannot be read: {error.strerror or _first_line(error)}") from error
    _check_version(file, metadata.metadata or {})
    _check_columns(file, metadata.schema.to_arrow_schema(), columns)


def _check_version(file: Path, metadata: Mapping[bytes, bytes]) -> None:
    written = metadata.get(VERSION_KEY.encode())
    if written is None:
        return  # the check of the columns decides
    if not written.isdigit():
        raise DamagedFileError(f"the ledger version of {file} is not a number; move it out of the ledger")
    if int(written) > VERSION:
        raise NewerLedgerError(
            f"{file} has ledger version {int(written)}, but this pairbus supports up to {VERSION}; "
            "install a newer pairbus"
        )


def _check_columns(file: Path, schema: Any, columns: Mapping[str, str]) -> None:
    for name, kind in columns.items():
        if name not in schema.names:
            raise WrongColumnsError(f"{file} has no column {name!r}: it belongs to another table, or not to a ledger")
        found = schema.field(name).type
        if not _FITS[kind](found):
            raise WrongColumnsError(f"the column {name!r} of {file} must be a {kind}, got {found}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


Paths = str | Path | Iterable[str | Path]
"""Ledgers: local directories, or addresses that Spark can read (``s3a://…``)."""

_SPARK_TYPES: Final[Mapping[str, DataType]] = {TIME: TimestampType(), TEXT: StringType(), NUMBER: LongType()}
_ARROW_TYPES: Final[Mapping[str, Any]] = {TIME: pa.timestamp("us", tz="UTC"), TEXT: pa.string(), NUMBER: pa.int64()}
_PARTITIONS: Final = (StructField("day", DateType()), StructField("hour", IntegerType()))
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def read_operations(
    spark: SparkSession, paths: Paths, start: datetime | None = None, end: datetime | None = None
) -> DataFrame:
    """Return the operations from ``start`` until before ``end``, counted by second and key.

    Raise ``LedgerReadError`` for a path that is not a ledger, or a damaged ledger, before any job runs.
    """
    return _read(spark, OPERATIONS, paths, Period(start=start, end=end))


def read_lives(
    spark: SparkSession, paths: Paths, start: datetime | None = None, end: datetime | None = None
) -> DataFrame:
    """Return the message events from ``start`` until before ``end``; empty if the namespace has not recorded them.

    Raise ``LedgerReadError`` for a path that is not a ledger, or a damaged ledger, before any job runs.
    """
    return _read(spark, LIVES, paths, Period(start=start, end=end))


def check_ledgers(paths: Paths) -> None:
    """Check that local directories are ledgers, before Spark is started for them.

    Raise ``NotALedgerError``. Addresses are not checked: only Spark can read them.
    """
    for place in plain_places(paths):
        if not is_address(place):
            LedgerDirectory(path=Path(place))


def has_files_since(paths: Paths, table: str, time: datetime) -> bool:
    """Return whether ledgers may hold rows of a time or later; at an address, there may be any."""
    later = Period(start=time)
    for place in plain_places(paths):
        if is_address(place):
            return True
        ledger = LedgerDirectory(path=Path(place))
        if ledger.has_journals() or any(True for _ in ledger.files(table, later)):
            return True
    return False


def table_schema(table: str) -> StructType:
    """Return the Spark schema of a table."""
    return StructType([StructField(name, _SPARK_TYPES[kind]) for name, kind in COLUMNS[table].items()])


def _read(spark: SparkSession, table: str, paths: Paths, period: Period) -> DataFrame:
    parts = [part for place in plain_places(paths) for part in _parts(spark, table, place, period)]
    return reduce(DataFrame.unionByName, parts)


def is_address(place: str) -> bool:
    """Return whether a place is an address for Spark, rather than a local directory."""
    return _ADDRESS.match(place) is not None


def plain_places(paths: Paths) -> list[str]:
    """Return the normalized places of ledgers, each once."""
    places = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not places:
        raise LedgerReadError("no ledger was given; name at least one directory")
    return list(dict.fromkeys(map(_plain, places)))


def _plain(place: str | Path) -> str:
    """Normalize a place: rows of a ledger that is given twice would be counted twice."""
    text = str(place)
    return text.rstrip("/") if is_address(text) else str(Path(text).resolve())


def _parts(spark: SparkSession, table: str, place: str, period: Period) -> list[DataFrame]:
    if is_address(place):
        return [_remote(spark, table, place, period)]
    return _local(spark, table, LedgerDirectory(path=Path(place)), period)


# Local directories.


def _local(spark: SparkSession, table: str, ledger: LedgerDirectory, period: Period) -> list[DataFrame]:
    # The journals first: a journal converted from now on is excluded as a file, and a new file is not missed.
    journals = ledger.journals(table)
    check_footers(ledger.files(table, period), COLUMNS[table])
    parts = [_journal_rows(spark, table, journals).where(period.rows())] if journals else []
    if days := [place for place in ledger.days(table, period) if _DAY.fullmatch(place.name)]:
        # Spark lists what it is given: it need not see the other days. It may list all of a ledger by itself.
        root = ledger.table(table).absolute()
        places = [root] if period == Period() else days
        files = [f"file:{place.absolute()}" for place in places]
        return [_files(spark, table, f"file:{root}", files, period, _excluding(journals)), *parts]
    return parts or [spark.createDataFrame([], table_schema(table))]


def _excluding(journals: Mapping[str, Any]) -> Column:
    """Return the condition that a row is not from the file of a journal that was read already."""
    if not journals:
        return lit(True)
    return ~col("_metadata.file_name").isin([f"{stem}.parquet" for stem in journals])


def _journal_rows(spark: SparkSession, table: str, journals: Mapping[str, Any]) -> DataFrame:
    schema = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS[table].items()])
    rows = pa.concat_tables([journal.select(schema.names).cast(schema) for journal in journals.values()])
    return spark.createDataFrame(rows, table_schema(table))


# Addresses.


def _remote(spark: SparkSession, table: str, address: str, period: Period) -> DataFrame:
    """Read the files at an address; journals are on the server's machine, and are not included."""
    root = f"{address.rstrip('/')}/{table}"
    try:
        check_file_systems(spark, address)
        found = spark.read.option("pathGlobFilter", "*.parquet").parquet(_exactly(root)).schema
    except AnalysisException as error:
        raise NotALedgerError(f"{address} is not a ledger, or has no table {table!r}: {_first_line(error)}") from error
    except FileSystemError as error:
        raise LedgerReadError(str(error)) from error
    except Py4JJavaError as error:
        raise LedgerReadError(f"{root} cannot be read: {java_reason(error)}") from error
    for field in table_schema(table):
        if field.name not in found.names:
            raise WrongColumnsError(f"{root} has no column {field.name!r}: it does not belong to a ledger")
        if found[field.name].dataType != field.dataType:
            raise WrongColumnsError(
                f"the column {field.name!r} of {root} must be {field.dataType.simpleString()}, "
                f"got {found[field.name].dataType.simpleString()}"
            )
    return _files(spark, table, root, [root], period, lit(True))


# Both.


def _files(
    spark: SparkSession, table: str, root: str, places: Iterable[str], period: Period, wanted: Column
) -> DataFrame:
    schema = StructType([*table_schema(table), *_PARTITIONS])
    reader = spark.read.schema(schema).options(pathGlobFilter="*.parquet", basePath=root)
    files = reader.parquet(*map(_exactly, places))
    return files.where(period.partitions() & period.rows() & wanted).select(*COLUMNS[table])


def _exactly(path: str) -> str:
    """Escape a path, so that Spark takes no character for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)


FEW_ROWS: Final = {**LIGHT, "spark.sql.shuffle.partitions": "2"}
"""For small ledgers: optimized compilation and parallelism would take longer than the work."""

HANDFUL: Final = {
    **FEW_ROWS,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""For tiny ledgers: code generation and adaptive planning would take longer than the work, too."""

_BY_SIZE: Final = ((256 * 1024, HANDFUL), (32 * 1024 * 1024, FEW_ROWS))
"""The fastest configuration by ledger size in bytes, measured on two processors."""


def session_config(ledgers: Paths, otherwise: Mapping[str, str]) -> Mapping[str, str]:
    """Return the configuration of a session that reads these ledgers."""
    largest, _ = _BY_SIZE[-1]
    size = _size(ledgers, largest)
    return next((config for limit, config in _BY_SIZE if size <= limit), otherwise)


def _size(ledgers: Paths, limit: int) -> int:
    """Return the size of ledgers in bytes, as far as this machine knows: at an address there may be any number.

    Counting stops beyond ``limit``.
    """
    size = 0
    for place in plain_places(ledgers):
        if is_address(place):
            return limit + 1
        for file in Path(place).rglob("*"):
            size += _size_of(file)
            if size > limit:
                return size
    return size


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:  # a running server has just converted a journal
        return 0


FAILURES: Final = (PySparkException, Py4JError)
"""Exceptions of a failed Spark job: the second if a task failed, as with a file that is damaged inside."""

_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
"""The part of Spark's error that is meant for users, after a page of stack traces."""


def failure_line(error: Exception) -> str:
    try:
        found = _CONDITION.search(str(error))
    except Exception:  # noqa: BLE001 (the text comes from Java, which may have exited)
        found = None
    return reason_of(error) if found is None else found[0].strip()
