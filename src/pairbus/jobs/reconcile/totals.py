"""What is counted, for each entity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import broadcast, coalesce, col, count_if, lit
from pyspark.sql.functions import sum as sum_of

from pairbus.jobs.reconcile.diverted import Fate

MEASURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accepted": "accepted from senders",
        "diverted": "diverted to the backlog",
        "syphoned": "accepted from the syphon",
        "repeated": "dropped as duplicates",
        "routed": "routed to it",
        "found": "there before the ledger tells of them",
        "received": "received",
        "completed": "completed",
        "dead_lettered": "dead-lettered",
        "expired": "expired",
        "removed": "removed",
        "waiting": "still waiting",
        "backlog_waiting": "still waiting in the backlog",
        "backlog_dead_lettered": "dead-lettered in the backlog",
        "backlog_expired": "expired in the backlog",
        "unrecorded": "gone, and how was not recorded",
        "missing": "missing",
        "duplicated": "duplicated in the destination",
        "delivered_twice": "delivered more than once",
        "redelivered": "delivered again after being given back",
        "out_of_order": "out of order",
        "out_of_order_in_session": "out of order within sessions",
        "unmatched": "from the syphon, of unknown origin",
    }
)
"""The columns of the totals, with what they say in words."""

QUESTIONABLE: Final = frozenset({"missing", "duplicated", "delivered_twice", "out_of_order", "out_of_order_in_session"})


def copy_counts(copies: DataFrame) -> DataFrame:
    """Of messages in their places; those of dead letters are not among them."""
    return copies.groupBy("entity_id").agg(
        _sum("accepted", when=~col("is_home")),
        _sum("routed"),
        _sum("found"),
        count_if(col("deliveries") > 0).alias("received"),
        *(_sum(name) for name in ("completed", "dead_lettered", "expired", "removed")),
        count_if("waits").alias("waiting"),
        count_if("is_unrecorded").alias("unrecorded"),
        _sum("set_aside").alias("missing"),
        *(_sum(name) for name in ("delivered_twice", "redelivered")),
    )


def forwarded_counts(copies: DataFrame) -> DataFrame:
    """Taken off from what waits, and from what is gone."""
    return copies.groupBy("entity_id").agg(
        (-count_if("waits")).alias("waiting"), (-count_if("is_unrecorded")).alias("unrecorded")
    )


def diverted_counts(diverted: DataFrame) -> DataFrame:
    return diverted.groupBy(col("destination").alias("entity")).agg(
        count_if(lit(True)).alias("diverted"),
        *(
            count_if(col("fate") == fate).alias(name)
            for fate, name in (
                (Fate.WAITING, "backlog_waiting"),
                (Fate.DEAD_LETTERED, "backlog_dead_lettered"),
                (Fate.EXPIRED, "backlog_expired"),
            )
        ),
    )


def counted(rows: DataFrame, name: str, by: str = "entity_id") -> DataFrame:
    """How many there are, for each entity."""
    return rows.groupBy(by).agg(count_if(lit(True)).alias(name))


def totals(by_id: Iterable[DataFrame], by_path: Iterable[DataFrame], entities: DataFrame) -> DataFrame:
    """All of it, a row for each entity that there is anything to say of."""
    paths = entities.select("entity_id", col("path").alias("entity")).distinct()
    found = _together(by_id).join(broadcast(paths), "entity_id").drop("entity_id")
    together = _together([found, *by_path])
    return together.groupBy("entity").agg(*(_sum(name) for name in MEASURES)).orderBy("entity")


def _together(parts: Iterable[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def _sum(name: str, when: Column | None = None) -> Column:
    value = col(name) if when is None else col(name) * when.cast("int")
    return coalesce(sum_of(value), lit(0)).alias(name)
