"""Messages that a queue or subscription has kept, and never gave to anyone, though it has given out later ones."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.functions import coalesce, col, lit, shiftright
from pyspark.sql.functions import max as greatest_of

_PARTITION_SHIFT: Final = 48
"""The number of a message in a partitioned entity begins with that of its partition."""

_LINE: Final = ("entity_id", "incarnation", "partition", "line")
"""Where messages are given out in the order of their numbers."""


def passed_over(copies: DataFrame, among: DataFrame) -> DataFrame:
    """Those that should have been received: what has the smallest number is given out first, of a session at least.

    What is scheduled is not due yet, whatever its number.
    """
    received = _in_line(among.where(col("deliveries") > 0))
    furthest = received.groupBy(*_LINE).agg(greatest_of("sequence").alias("furthest"))
    return (
        _in_line(copies.where(col("waits") & (col("deliveries") == 0) & (col("scheduled") == 0)))
        .join(furthest, list(_LINE))
        .where(col("sequence") < col("furthest"))
        .drop("partition", "line", "furthest")
    )


def _in_line(copies: DataFrame) -> DataFrame:
    partition, line = shiftright("sequence", _PARTITION_SHIFT), coalesce("session", lit(0))
    return copies.select("*", partition.alias("partition"), line.alias("line"))
