"""Bills from ledgers: DataFrames in, DataFrames out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql.functions import coalesce, col, concat, lit, when
from pyspark.sql.functions import sum as total
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from pairbus.jobs.cost.lines import AMOUNT, BASE_CHARGE, charges_of, monthly_bills
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import GROUPS, PAIRING_STEPS, By, Statement, StatementLine
from pairbus.jobs.cost.usage import COUNTS, usage

_STEPS: Final = StructType([StructField("number", IntegerType()), StructField("step", StringType())])

_ALL: Final = "(all)"
"""Namespaces, for what they are charged together."""


def charges(operations: DataFrame, card: RateCard) -> DataFrame:
    """What each namespace, entity, hour, stage and kind of operation costs.

    What depends on the whole month (tiers, allowances) is spread over its lines by their share, to the last decimal:
    the amounts add up to the bill. Connections, messaging units and the base charge are lines of their own.
    """
    used = usage(operations, card)
    return charges_of(used, monthly_bills(used, card), card)


def bill(charged: DataFrame, by: By) -> DataFrame:
    """The lines of ``charges``, put together.

    Those of no entity have their kind in its place, in brackets; the base charge is of no namespace, and of no hour.
    """
    groups = GROUPS[by]
    return _named(charged, by).groupBy(*groups).agg(*_sums()).orderBy(*groups)


def pairing(charged: DataFrame) -> DataFrame:
    """What a pair costs besides: each of the four charges of diverted messages, pings, idle polls, and the rest."""
    found = charged.withColumn("number", _step()).groupBy("number").agg(*_sums())
    rows = [(number, step.name) for number, step in enumerate(PAIRING_STEPS)]
    steps = charged.sparkSession.createDataFrame(rows, _STEPS)
    counts = [coalesce(col(name), lit(0)).alias(name) for name in COUNTS]
    amount = coalesce(col("amount"), lit(0)).cast(AMOUNT).alias("amount")
    return steps.join(found, "number", "left").orderBy("number").select("step", *counts, amount)


def statement(operations: DataFrame, card: RateCard, by: By = By.STAGE) -> Statement:
    """The bill for the operations of ledgers; runs the jobs that it takes."""
    with _kept(usage(operations, card)) as used:
        months = monthly_bills(used, card)
        with _kept(charges_of(used, months, card)) as charged:
            return Statement(
                card=card,
                by=by,
                months=months,
                lines=_lines(bill(charged, by).collect(), GROUPS[by]),
                steps=_lines(pairing(charged).collect(), ("step",)),
            )


@contextmanager
def _kept(table: DataFrame) -> Iterator[DataFrame]:
    """For what is needed more than once."""
    table.persist()
    try:
        yield table
    finally:
        table.unpersist()


def _named(charged: DataFrame, by: By) -> DataFrame:
    """With something in the place of a name where there is none; no entity can have a name with brackets."""
    match by:
        case By.ENTITY:
            kind = concat(lit("("), col("kind"), lit(")"))
            return charged.withColumns({"namespace": _or("namespace", lit(_ALL)), "entity": _or("entity", kind)})
        case By.HOUR:
            return charged.withColumn("hour", when(col("kind") != BASE_CHARGE, col("hour")))
        case By.STAGE:
            return charged


def _or(name: str, other: Column) -> Column:
    return when(col(name) == "", other).otherwise(col(name))


def _sums() -> Iterator[Column]:
    for name in COUNTS:
        yield total(name).alias(name)
    yield total("amount").cast(AMOUNT).alias("amount")


def _step() -> Column:
    """Which step a line is of; the first that fits."""
    number = lit(None).cast(IntegerType())
    for place, step in reversed([*enumerate(PAIRING_STEPS)]):
        fits = col("stage").isin([stage.value for stage in step.stages])
        if step.kind is not None:
            fits &= col("kind") == step.kind.value
        number = when(fits, lit(place)).otherwise(number)
    return number


def _lines(rows: Sequence[Row], groups: Sequence[str]) -> tuple[StatementLine, ...]:
    return tuple(
        StatementLine(
            labels=tuple(_label(row[name]) for name in groups),
            operations=row["operations"],
            failed=row["failed"],
            messages=row["messages"],
            bytes=row["bytes"],
            units=row["units"],
            amount=row["amount"],
        )
        for row in rows
    )


def _label(value: str | datetime | None) -> str:
    if value is None:
        return f"({BASE_CHARGE})"
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%MZ}" if isinstance(value, datetime) else value
