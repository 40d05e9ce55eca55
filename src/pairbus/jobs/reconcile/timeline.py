"""What happened in each minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, count_if, date_trunc, lit

from pairbus.jobs.ledger.period import Period
from pairbus.ledger.life import Event
from pairbus.ledger.operation import Stage

LINES: Final = ("direct", "diverted", "syphoned", "received")


def timeline(primary: DataFrame, secondary: DataFrame, period: Period, correction: timedelta) -> DataFrame:
    """Messages a minute: accepted from senders by either namespace; brought home by the syphon; received."""
    at_home = primary.where(col("event").isin(Event.ACCEPTED, Event.RECEIVED)).select("at", "event", "stage", _is(True))
    away = secondary.where((col("event") == Event.ACCEPTED) & (col("stage") == Stage.BACKLOG)).select(
        (col("at") + lit(correction)).alias("at"), "event", "stage", _is(False)
    )
    accepted, home, syphon = col("event") == Event.ACCEPTED, col("is_home"), col("stage") == Stage.SYPHON
    return (
        at_home.unionByName(away)
        .where(period.rows())
        .groupBy(date_trunc("minute", "at").alias("minute"))
        .agg(
            count_if(home & accepted & ~syphon).alias("direct"),
            count_if(~home).alias("diverted"),
            count_if(home & accepted & syphon).alias("syphoned"),
            count_if(home & ~accepted).alias("received"),
        )
        .orderBy("minute")
    )


def _is(home: bool) -> Column:
    return lit(home).alias("is_home")
