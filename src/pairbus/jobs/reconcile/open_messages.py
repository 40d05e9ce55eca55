"""Open messages at an hour: all that a reconciliation needs of earlier events.

They are kept as events, in a directory for each hour, so that the next reconciliation reads them in place of older
hours. A directory has few rows: the events of messages that were in the backlog, and some that concern the ledger as a
whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.functions import max as greatest_of
from pyspark.sql.types import StringType, StructField, StructType

from pairbus.jobs.ledger.tables import table_schema
from pairbus.ledger.events import COLUMNS, LIVES, LedgerEvent

_HOUR: Final = "%Y-%m-%dT%H"
_SIDES: Final = ("primary", "secondary")
_PATH_NOT_FOUND: Final = "PATH_NOT_FOUND"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMessages:
    """The events before ``until`` of messages that were open then."""

    until: datetime
    primary: DataFrame
    """The last event alone: messages that the primary has accepted before a time range are not in its result."""

    secondary: DataFrame
    """The events of messages in the backlog, and some that concern the ledger as a whole."""


def last_event(events: DataFrame) -> DataFrame:
    """Return the event with the largest ordinal, if there is one."""
    return events.join(events.agg(greatest_of("ordinal").alias("ordinal")), "ordinal", "left_semi")


def open_in_backlog(events: DataFrame, backlog: DataFrame, diverted: DataFrame) -> DataFrame:
    """Return the ``events`` before a time of messages that were in the backlog then.

    ``backlog`` are the located events of the backlog queues, ``diverted`` the messages that are open. The last event is
    included, since the ordinals of later ones continue from it; so are the last start, and deletions, after which the
    sequence numbers of an entity start again.
    """
    places = diverted.select(col("backlog_queue").alias("path"), "sequence").distinct()
    of_messages = backlog.join(places, ["path", "sequence"], "left_semi")
    is_deletion = (col("event") == LedgerEvent.REMOVED) & (col("sequence") == 0)
    last_start = last_event(events.where(col("event") == LedgerEvent.STARTED))
    parts = (of_messages, last_event(events), last_start, events.where(is_deletion))
    return reduce(DataFrame.union, (part.select(*COLUMNS[LIVES]) for part in parts)).distinct()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMessagesDirectory:
    """Open messages by hour, in a local directory or at an address that Spark can write to."""

    spark: SparkSession
    place: str

    def latest(self, until: datetime) -> OpenMessages | None:
        """Return the latest ones that are not after ``until``; this runs a job."""
        text = StringType()
        schema = StructType([*table_schema(LIVES), StructField("side", text), StructField("until", text)])
        try:
            kept = self.spark.read.schema(schema).parquet(self.place)
        except AnalysisException as error:
            if error.getCondition() != _PATH_NOT_FOUND:
                raise
            return None  # nothing was written there yet
        is_early = col("until") <= until.astimezone(UTC).strftime(_HOUR)
        (row,) = kept.where(is_early).agg(greatest_of("until").alias("until")).collect()
        if row["until"] is None:
            return None
        hour = datetime.strptime(row["until"], _HOUR).replace(tzinfo=UTC)
        of_hour = kept.where(col("until") == row["until"])
        primary, secondary = (of_hour.where(col("side") == side).select(*COLUMNS[LIVES]) for side in _SIDES)
        return OpenMessages(until=hour, primary=primary, secondary=secondary)

    def write(self, found: OpenMessages) -> None:
        """Write the ones of an hour."""
        hour = found.until.astimezone(UTC).strftime(_HOUR)
        rows = reduce(
            DataFrame.unionByName,
            (
                part.withColumn("side", lit(side))
                for side, part in zip(_SIDES, (found.primary, found.secondary), strict=True)
            ),
        )
        rows.coalesce(1).write.mode("overwrite").parquet(f"{self.place.rstrip('/')}/until={hour}")
