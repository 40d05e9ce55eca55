"""The tables of one ledger or of several, as DataFrames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
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

from pairbus.jobs.ledger.directory import LedgerDirectory
from pairbus.jobs.ledger.errors import LedgerReadError, NotALedgerError, WrongColumnsError
from pairbus.jobs.ledger.footers import check_footers
from pairbus.jobs.ledger.period import Period
from pairbus.ledger.columns import COLUMNS, LIVES, NUMBER, OPERATIONS, TEXT, TIME

Paths = str | Path | Iterable[str | Path]
"""Where ledgers are: directories of this machine, or addresses that Spark knows how to read (``s3a://…``)."""

_SPARK_TYPES: Final[Mapping[str, DataType]] = {TIME: TimestampType(), TEXT: StringType(), NUMBER: LongType()}
_ARROW_TYPES: Final[Mapping[str, Any]] = {TIME: pa.timestamp("us", tz="UTC"), TEXT: pa.string(), NUMBER: pa.int64()}
_PARTITIONS: Final = (StructField("day", DateType()), StructField("hour", IntegerType()))
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def read_operations(
    spark: SparkSession, paths: Paths, start: datetime | None = None, end: datetime | None = None
) -> DataFrame:
    """What was done, by second and sort, from ``start`` until before ``end``.

    Raises ``LedgerReadError`` for what is no ledger, or is one that is damaged: before any job runs.
    """
    return _read(spark, OPERATIONS, paths, Period(start=start, end=end))


def read_lives(
    spark: SparkSession, paths: Paths, start: datetime | None = None, end: datetime | None = None
) -> DataFrame:
    """What happened to messages, from ``start`` until before ``end``; empty if the namespace has not recorded it.

    Raises ``LedgerReadError`` for what is no ledger, or is one that is damaged: before any job runs.
    """
    return _read(spark, LIVES, paths, Period(start=start, end=end))


def check_ledgers(paths: Paths) -> None:
    """See whether there are ledgers in directories of this machine, before Spark is started for them.

    Raises ``NotALedgerError``. Of what is at an address, only Spark can tell.
    """
    for place in plain_places(paths):
        if not is_address(place):
            LedgerDirectory(path=Path(place))


def table_schema(table: str) -> StructType:
    """The columns of a table, as Spark has them."""
    return StructType([StructField(name, _SPARK_TYPES[kind]) for name, kind in COLUMNS[table].items()])


def _read(spark: SparkSession, table: str, paths: Paths, period: Period) -> DataFrame:
    parts = [part for place in plain_places(paths) for part in _parts(spark, table, place, period)]
    return reduce(DataFrame.unionByName, parts)


def is_address(place: str) -> bool:
    """Whether it is for Spark to find, and no directory of this machine."""
    return _ADDRESS.match(place) is not None


def plain_places(paths: Paths) -> list[str]:
    """Where ledgers are, each once, however it is written."""
    places = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not places:
        raise LedgerReadError("no ledger is named")
    return list(dict.fromkeys(map(_plain, places)))


def _plain(place: str | Path) -> str:
    """The same for all ways to write it: rows of a ledger that is named twice would be there twice."""
    text = str(place)
    return text.rstrip("/") if is_address(text) else str(Path(text).resolve())


def _parts(spark: SparkSession, table: str, place: str, period: Period) -> list[DataFrame]:
    if is_address(place):
        return [_remote(spark, table, place, period)]
    return _local(spark, table, LedgerDirectory(path=Path(place)), period)


# On this machine.


def _local(spark: SparkSession, table: str, ledger: LedgerDirectory, period: Period) -> list[DataFrame]:
    # The journals first: one that is closed from now on is left out as a file, and what begins a file is not missed.
    journals = ledger.journals(table)
    check_footers(ledger.files(table, period), COLUMNS[table])
    parts = [_journal_rows(spark, table, journals).where(period.rows())] if journals else []
    if ledger.table(table).is_dir():
        files = _files(spark, table, f"file:{ledger.table(table).absolute()}", period, _but(journals))
        return [files, *parts]
    return parts or [spark.createDataFrame([], table_schema(table))]


def _but(journals: Mapping[str, Any]) -> Column:
    """The condition that a row is not from the file of a journal that was read already."""
    if not journals:
        return lit(True)
    return ~col("_metadata.file_name").isin([f"{stem}.parquet" for stem in journals])


def _journal_rows(spark: SparkSession, table: str, journals: Mapping[str, Any]) -> DataFrame:
    schema = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS[table].items()])
    rows = pa.concat_tables([journal.select(schema.names).cast(schema) for journal in journals.values()])
    return spark.createDataFrame(rows, table_schema(table))


# Elsewhere.


def _remote(spark: SparkSession, table: str, address: str, period: Period) -> DataFrame:
    """The files at an address; journals are where the server is, and are left out."""
    root = f"{address.rstrip('/')}/{table}"
    try:
        found = spark.read.option("pathGlobFilter", "*.parquet").parquet(_exactly(root)).schema
    except AnalysisException as error:
        raise NotALedgerError(f"{address} is no ledger, or has no table {table!r}: {_first_line(error)}") from error
    for field in table_schema(table):
        if field.name not in found.names:
            raise WrongColumnsError(f"{root} has no column {field.name!r}: it is not of a ledger")
        if found[field.name].dataType != field.dataType:
            raise WrongColumnsError(
                f"{root} has {found[field.name].dataType.simpleString()} in the column {field.name!r}, "
                f"which is {field.dataType.simpleString()}"
            )
    return _files(spark, table, root, period, lit(True))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# Both.


def _files(spark: SparkSession, table: str, root: str, period: Period, wanted: Column) -> DataFrame:
    schema = StructType([*table_schema(table), *_PARTITIONS])
    files = spark.read.schema(schema).options(pathGlobFilter="*.parquet", basePath=root).parquet(_exactly(root))
    return files.where(period.partitions() & period.rows() & wanted).select(*COLUMNS[table])


def _exactly(path: str) -> str:
    """A path of which Spark takes every character for itself, and none for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
