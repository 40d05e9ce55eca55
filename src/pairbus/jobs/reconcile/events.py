"""The lives of a ledger, with the places that they tell of made exact."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, coalesce, col, concat, lit, size, when
from pyspark.sql.functions import filter as only
from pyspark.sql.functions import min as least_of
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pairbus.jobs.reconcile.survey import Entity
from pairbus.ledger.life import Event
from pairbus.ledger.operation import Stage

PLACE: Final = ("entity_id", "incarnation", "sequence")
"""What a message in an entity is known by. An entity that was deleted and made again has another incarnation."""

MESSAGE: Final = ("destination", "message_id", "session_key")
"""What a message is known by in both namespaces; several may have this in common."""

_ENTITIES: Final = (
    ("entity", pa.string(), StringType()),
    ("entity_id", pa.int32(), IntegerType()),
    ("path", pa.string(), StringType()),
    ("is_topic", pa.bool_(), BooleanType()),
    ("is_subscription", pa.bool_(), BooleanType()),
    ("deletions", pa.list_(pa.int64()), ArrayType(LongType())),
)

_OF_NO_PLACE: Final = (Event.MISSED, Event.REPEATED, Event.STARTED, Event.STOPPED)


def located(lives: DataFrame, entities: Iterable[Entity]) -> DataFrame:
    """What has happened to messages in these entities, with their places; what happened elsewhere is left out."""
    in_place = lives.where(~col("event").isin(*_OF_NO_PLACE) & (col("sequence") != 0))
    return _with_entities(in_place, list(entities))


def repeated(lives: DataFrame, entities: Iterable[Entity]) -> DataFrame:
    """What was dropped by duplicate detection of these entities; it never had a place."""
    found = lives.where(col("event") == Event.REPEATED)
    return _with_entities(found, list(entities))


def session_key() -> Any:
    """Equal where session ids are, and where there are none."""
    return coalesce(concat(lit("="), col("session_id")), lit(""))


def _with_entities(lives: DataFrame, entities: list[Entity]) -> DataFrame:
    joined = lives.join(broadcast(entity_table(lives, entities)), "entity")
    if not any(entity.deletions for entity in entities):
        return joined.select(
            "*", session_key().alias("session_key"), lit(0).alias("incarnation"), lit(False).alias("is_deleted")
        )
    ordinal = col("ordinal")
    before = size(only("deletions", lambda deletion: deletion < ordinal))
    return joined.select(
        "*",
        session_key().alias("session_key"),
        before.alias("incarnation"),
        (before < size("deletions")).alias("is_deleted"),
    )


def entity_table(lives: DataFrame, entities: list[Entity]) -> DataFrame:
    """The entities as a table, to be joined with."""
    columns = zip(
        *((one.spelling, one.id, one.path, one.is_topic, one.is_subscription, list(one.deletions)) for one in entities),
        strict=True,
    )
    arrays = list(columns) or [()] * len(_ENTITIES)
    table = pa.table(
        {name: pa.array(list(values), kind) for (name, kind, _), values in zip(_ENTITIES, arrays, strict=True)}
    )
    schema = StructType([StructField(name, kind) for name, _, kind in _ENTITIES])
    return lives.sparkSession.createDataFrame(table, schema)


def first_seen(events: DataFrame, stage: Stage) -> DataFrame:
    """When messages were accepted; of those that the ledger does not tell that of, when one was first found.

    What was routed there was accepted elsewhere, also where both have given it the same number.
    """
    accepted = events.where((col("event") == Event.ACCEPTED) & (col("stage") == stage))
    found = events.where((col("event") == Event.FOUND) & (col("stage") == stage))
    first = found.groupBy(*PLACE).agg(least_of("ordinal").alias("ordinal"))
    begun = events.where(is_any(Event.ACCEPTED, Event.ROUTED))
    earliest = found.join(first, [*PLACE, "ordinal"]).join(begun, list(PLACE), "left_anti")
    return accepted.unionByName(earliest.select(*accepted.columns))


def is_any(*events: Event) -> Any:
    """Whether it is one of these."""
    return col("event").isin(*events)


def if_event(event: Event, column: str) -> Any:
    """The column where it is this event, else nothing."""
    return when(col("event") == event, col(column))
