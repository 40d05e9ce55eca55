"""What was used, by the hour: the one step that sees every row of a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, floor, lit, timestamp_seconds, unix_seconds, when
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import sum as total

from pairbus.jobs.cost.rate_card import CountedBy, Failures, RateCard
from pairbus.ledger.operation import SUCCEEDED

LINE: Final = ("namespace", "entity", "hour", "stage", "kind")
"""What a line of a bill is about."""

COUNTS: Final = ("operations", "failed", "messages", "bytes", "units")
"""What a line counts: messages and bytes of what succeeded, units of what the card bills."""


def usage(operations: DataFrame, card: RateCard) -> DataFrame:
    """What was used of what costs something, for each namespace, entity, hour, stage and kind.

    ``bytes_out`` and ``connections`` (the most at a time) are there besides the counts.
    """
    is_ok = col("result") == SUCCEEDED
    return (
        operations.withColumn("hour", hour_of(col("at")))
        .groupBy(*LINE)
        .agg(
            _sum(col("operations")).alias("operations"),
            _sum(when(~is_ok, col("operations"))).alias("failed"),
            _sum(when(is_ok, col("messages"))).alias("messages"),
            _sum(when(is_ok, col("bytes"))).alias("bytes"),
            _sum(_billable_units(card, is_ok)).alias("units"),
            _sum(_bytes_out(card, is_ok)).alias("bytes_out"),
            coalesce(greatest("connections"), lit(0)).alias("connections"),
        )
    )


def hour_of(time: Column) -> Column:
    """The beginning of an hour, whatever time zone a session has."""
    return timestamp_seconds(floor(unix_seconds(time) / 3600) * 3600)


def _billable_units(card: RateCard, is_ok: Column) -> Column:
    counted = "units" if card.operations.counted_by is CountedBy.MESSAGE else "request_units"
    is_billable = _among("kind", card.operations.billable)
    if card.operations.failures is Failures.FREE:
        is_billable &= is_ok
    return when(is_billable, col(counted))


def _bytes_out(card: RateCard, is_ok: Column) -> Column:
    if card.bandwidth is None:
        return lit(0)
    return when(_among("kind", card.bandwidth.kinds) & _among("stage", card.bandwidth.stages) & is_ok, col("bytes"))


def _among(column: str, values: Iterable[str]) -> Column:
    return col(column).isin([str(value) for value in values])


def _sum(values: Column) -> Column:
    return coalesce(total(values), lit(0))
