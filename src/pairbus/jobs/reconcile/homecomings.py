"""Diverted messages, and what the primary has accepted from the syphon: which belongs to which.

Ids need not be unique, nor be there at all. So messages are matched by count: of those that have destination, id and
session in common, the first that came home is taken for the first that was diverted.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql.functions import coalesce, col, count, least, lit, row_number, xxhash64
from pyspark.sql.functions import max as greatest_of

from pairbus.jobs.reconcile.diverted import LEFT, Fate
from pairbus.jobs.reconcile.events import MESSAGE, PLACE, first_seen
from pairbus.ledger.operation import Stage


def homecomings(events: DataFrame) -> DataFrame:
    """What the primary has accepted from the syphon, or has found in the queue that it was accepted in."""
    is_first_place = ~col("is_subscription") & (col("sequence") == col("original_sequence"))
    return first_seen(events.where(is_first_place), Stage.SYPHON).select(
        *PLACE,
        col("path").alias("destination"),
        "message_id",
        "session_id",
        "session_key",
        col("ordinal").alias("home_ordinal"),
        col("at").alias("home_at"),
    )


def matched(homecomings: DataFrame, diverted: DataFrame) -> DataFrame:
    """Each homecoming with what was diverted; one too many has that of the last one, a stray has nothing.

    ``diverted`` tells how many there were, ``rank`` which homecoming of them this is.
    """
    in_order = Window.partitionBy(*MESSAGE)
    counts = diverted.groupBy(*MESSAGE).agg(count(lit(1)).alias("diverted"))
    came = (
        homecomings.select(
            "*",
            row_number().over(in_order.orderBy("home_ordinal")).alias("rank"),
            count(lit(1)).over(in_order).alias("came"),
        )
        .join(counts, list(MESSAGE), "left")
        .withColumn("turn", least("rank", "diverted"))
    )
    went = diverted.withColumn("turn", row_number().over(in_order.orderBy("diverted_ordinal"))).drop(
        "session_id", "sequence"
    )
    return came.join(went, [*MESSAGE, "turn"], "left").withColumn(
        "is_surplus", coalesce(col("rank") > col("diverted"), lit(False))
    )


def not_home(diverted: DataFrame, homecomings: DataFrame, repeated: DataFrame) -> DataFrame:
    """Those that have left the backlog and did not arrive.

    What the destination has dropped, because it had a message with this id already, has arrived.
    """
    arrived = (
        homecomings.select(*MESSAGE)
        .unionByName(repeated.select(*MESSAGE))
        .groupBy(*MESSAGE)
        .agg(count(lit(1)).alias("arrived"))
    )
    # Those that were removed by somebody else are the last to be taken for those that arrived.
    by_likelihood = Window.partitionBy(*MESSAGE).orderBy(col("fate") != Fate.COMPLETED, "diverted_ordinal")
    return (
        diverted.where(col("fate").isin(*LEFT))
        .withColumn("turn", row_number().over(by_likelihood))
        .join(arrived, list(MESSAGE), "left")
        .where(col("turn") > coalesce("arrived", lit(0)))
        .drop("turn", "arrived")
    )


def repeated_homecomings(repeated: DataFrame) -> DataFrame:
    """What the syphon has sent, and the destination has dropped."""
    return repeated.where(col("stage").isin(Stage.SYPHON, Stage.RETURNED)).withColumn("destination", col("path"))


def home_of(copies: DataFrame, homecomings: DataFrame, *, with_routes: bool) -> DataFrame:
    """The places of messages that came home, each with the ordinal of its homecoming.

    What a topic or a forwarding queue has passed on is tied to it by its id and its first number; where several have
    these, the last one before it was put there is the one.
    """
    direct = copies.where(col("accepted") > 0).select(*PLACE, col("ordinal").alias("home_ordinal"))
    if not with_routes:
        return direct
    origins = homecomings.select(
        xxhash64("message_id").alias("id_hash"), col("sequence").alias("original_sequence"), "home_ordinal"
    )
    routed = (
        copies.where(col("accepted") == 0)
        .select(*PLACE, "id_hash", "original_sequence", "ordinal")
        .join(origins, ["id_hash", "original_sequence"])
        .where(col("home_ordinal") < col("ordinal"))
        .groupBy(*PLACE)
        .agg(greatest_of("home_ordinal").alias("home_ordinal"))
    )
    return direct.unionByName(routed)
