"""Bills from ledgers, as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_DOWN, Decimal
from functools import reduce
from operator import attrgetter
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql.functions import (
    broadcast,
    coalesce,
    col,
    concat,
    count,
    date_add,
    explode,
    expr,
    floor,
    lit,
    sequence,
    timestamp_seconds,
    trunc,
    unix_seconds,
    when,
)
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pairbus.jobs.cost.month import AMOUNT_DIGITS, BillingMeter, MonthlyBill, MonthlyUsage, monthly_bill, rounded
from pairbus.jobs.cost.rate_card import CountedBy, Failures, MessagingUnitRates, RateCard
from pairbus.jobs.cost.statement import GROUPS, PAIRING_STEPS, GroupBy, Statement, StatementLine
from pairbus.ledger.events import SUCCEEDED, OperationKind

LINE: Final = ("namespace", "entity", "hour", "stage", "kind")
"""The key of a line of a bill."""

COUNTS: Final = ("operations", "failed", "messages", "bytes", "units")
"""The counts of a line: messages and bytes of successful operations, units that the card bills."""


def usage(operations: DataFrame, card: RateCard) -> DataFrame:
    """Return the billable usage for each namespace, entity, hour, stage and kind.

    Besides the counts there are ``bytes_out`` and ``connections``, the maximum number of open connections. Rows about
    injected faults are left out.
    """
    is_ok = col("result") == SUCCEEDED
    return (
        operations.where(col("kind") != OperationKind.FAULT.value)
        .withColumn("hour", hour_of(col("at")))
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
    """Return the start of the hour, independent of the session's time zone."""
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


AMOUNT: Final = DecimalType(24, AMOUNT_DIGITS)
"""Type of amounts of money. With more digits before the point, Spark would keep fewer after it when it adds."""

BASE_CHARGE: Final = "base charge"
MESSAGING_UNIT: Final = "messaging unit"
"""Kinds of lines that are not based on operations."""

_PRICE_DIGITS: Final = 15
_PRICE: Final = DecimalType(24, _PRICE_DIGITS)
_QUANTITY: Final = DecimalType(18, 0)
_EPOCH: Final = date(1970, 1, 1)


def monthly_bills(used: DataFrame, card: RateCard) -> dict[date, MonthlyBill]:
    """Return the bill of each calendar month (UTC) of ``usage``, by its first day; this runs a job."""
    hours = _hours_by_month(used) if card.messaging_units is not None else {}
    by_hour = used.groupBy("namespace", "hour").agg(
        total("units").alias("units"), total("bytes_out").alias("bytes_out"), greatest("connections").alias("peak")
    )
    months = by_hour.groupBy(_month().alias("month")).agg(
        total("units").alias("units"), total("bytes_out").alias("bytes_out"), total("peak").alias("peaks")
    )
    return {
        row["month"]: monthly_bill(
            MonthlyUsage(
                units=row["units"],
                connection_peaks=row["peaks"],
                bytes_out=row["bytes_out"],
                namespace_hours=hours.get(row["month"], 0),
            ),
            card,
        )
        for row in months.orderBy("month").collect()
    }


def charges_of(used: DataFrame, months: Mapping[date, MonthlyBill], card: RateCard) -> DataFrame:
    """Return a line for each namespace, entity, hour, stage and kind, and the lines not based on operations."""
    parts = [_operation_lines(used, months)]
    if card.connections is not None:
        parts.append(_connection_lines(used, months))
    if card.messaging_units is not None:
        parts.append(_messaging_unit_lines(used, card.messaging_units))
    if card.month:
        parts.append(_base_lines(used.sparkSession, months))
    return reduce(DataFrame.unionByName, parts)


# Lines based on operations.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """The cost of all lines of a month by one meter, and the column with the weight of each line."""

    meter: BillingMeter
    weight: str
    quantity: Callable[[MonthlyUsage], int]


def _operation_lines(used: DataFrame, months: Mapping[date, MonthlyBill]) -> DataFrame:
    costs = (
        _Cost(meter=BillingMeter.OPERATIONS, weight="units", quantity=attrgetter("units")),
        _Cost(meter=BillingMeter.BANDWIDTH, weight="bytes_out", quantity=attrgetter("bytes_out")),
    )
    lines = _spread(used.where(col("kind") != OperationKind.CONNECTION.value), months, costs)
    return lines.select(*LINE, *COUNTS, "amount")


def _connection_lines(used: DataFrame, months: Mapping[date, MonthlyBill]) -> DataFrame:
    peaks = used.groupBy("namespace", "hour").agg(greatest("connections").alias("peak")).where(col("peak") > 0)
    lines = peaks.withColumns({"entity": lit(""), "stage": lit(""), "kind": lit(OperationKind.CONNECTION.value)})
    cost = _Cost(meter=BillingMeter.CONNECTIONS, weight="peak", quantity=attrgetter("connection_peaks"))
    return _spread(lines, months, [cost]).select(*LINE, *_no_counts(), "amount")


def _spread(lines: DataFrame, months: Mapping[date, MonthlyBill], costs: Sequence[_Cost]) -> DataFrame:
    """Add the column amount, with each line's share of the cost of its month.

    A line gets the cost of all weights up to its own, minus the cost of those before it, both at the average price of
    the month and rounded: so no remainder is left by the rounding.
    """
    so_far = Window.partitionBy("month").orderBy(*LINE).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    weighed = (
        lines.withColumn("month", _month())
        .join(broadcast(_prices(lines.sparkSession, months, costs)), "month")
        .withColumns({_after(cost): total(cost.weight).over(so_far) for cost in costs})
    )
    amount = reduce(Column.__add__, map(_share, costs))
    return weighed.withColumn("amount", amount.cast(AMOUNT))


def _share(cost: _Cost) -> Column:
    after = col(_after(cost))
    return _cost_of(cost, after) - _cost_of(cost, after - col(cost.weight))


def _cost_of(cost: _Cost, quantity: Column) -> Column:
    at_average = (quantity.cast(_QUANTITY) * col(f"average of {cost.weight}")).cast(AMOUNT)
    of_all, for_all = col(f"sum of {cost.weight}"), col(f"cost of {cost.weight}")
    return when(quantity == of_all, for_all).otherwise(at_average)


def _after(cost: _Cost) -> str:
    return f"{cost.weight} so far"


def _prices(spark: SparkSession, months: Mapping[date, MonthlyBill], costs: Sequence[_Cost]) -> DataFrame:
    """Return the quantity, the cost and the average price of each cost in each month."""
    columns: dict[str, DataType] = {"month": DateType()}
    rows: list[list[object]] = [[month] for month in months]
    for cost in costs:
        names = (f"sum of {cost.weight}", f"cost of {cost.weight}", f"average of {cost.weight}")
        columns.update(zip(names, (LongType(), AMOUNT, _PRICE), strict=True))
        for row, month in zip(rows, months.values(), strict=True):
            quantity, amount = cost.quantity(month.usage), month.amount(cost.meter)
            row += [quantity, amount, _average(amount, quantity)]
    return _literal_table(spark, columns, [tuple(row) for row in rows])


def _average(amount: Decimal, quantity: int) -> Decimal:
    """Return the average, rounded down: no part may cost more than the whole."""
    return (amount / quantity).quantize(Decimal(1).scaleb(-_PRICE_DIGITS), ROUND_DOWN) if quantity else Decimal(0)


# Lines not based on operations.


def _messaging_unit_lines(used: DataFrame, rates: MessagingUnitRates) -> DataFrame:
    price = lit(rounded(rates.hour * rates.units)).cast(AMOUNT)
    lines = _namespace_hours(used).withColumns({"entity": lit(""), "stage": lit(""), "kind": lit(MESSAGING_UNIT)})
    return lines.select(*LINE, *_no_counts(), price.alias("amount"))


def _namespace_hours(used: DataFrame) -> DataFrame:
    """Return the hours in which each namespace existed, from its first to its last."""
    span = used.groupBy("namespace").agg(least("hour").alias("first"), greatest("hour").alias("last"))
    return span.select("namespace", explode(sequence("first", "last", expr("INTERVAL 1 HOUR"))).alias("hour"))


def _hours_by_month(used: DataFrame) -> dict[date, int]:
    months = _namespace_hours(used).groupBy(_month().alias("month")).agg(count("*").alias("hours"))
    return {row["month"]: row["hours"] for row in months.collect()}


def _base_lines(spark: SparkSession, months: Mapping[date, MonthlyBill]) -> DataFrame:
    """Return a line in the first hour of each month, without a namespace."""
    rows = [
        ("", "", datetime.combine(month, time(), UTC), "", BASE_CHARGE, one.amount(BillingMeter.BASE_CHARGE))
        for month, one in months.items()
    ]
    kinds: dict[str, DataType] = {name: StringType() for name in LINE}
    lines = _literal_table(spark, {**kinds, "hour": TimestampType(), "amount": AMOUNT}, rows)
    return lines.select(*LINE, *_no_counts(), "amount")


# Helpers.


def _month() -> Column:
    """Return the first day of the month of an hour in UTC, independent of the session's time zone."""
    days = floor(unix_seconds(col("hour")) / 86_400).cast("int")
    return trunc(date_add(lit(_EPOCH), days), "month")


def _no_counts() -> list[Column]:
    return [lit(0).cast(LongType()).alias(name) for name in COUNTS]


def _literal_table(spark: SparkSession, columns: dict[str, DataType], rows: Sequence[tuple[object, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, StructType([StructField(name, kind) for name, kind in columns.items()]))


_STEPS: Final = StructType([StructField("number", IntegerType()), StructField("step", StringType())])

_ALL: Final = "(all)"
"""Label of charges for all namespaces together."""


def charges(operations: DataFrame, card: RateCard) -> DataFrame:
    """Return the cost of each namespace, entity, hour, stage and kind of operation.

    Costs that depend on the whole month (tiers, allowances) are distributed over its lines by their share, to the last
    decimal: the amounts add up to the bill. Connections, messaging units and the base charge are separate lines.
    """
    used = usage(operations, card)
    return charges_of(used, monthly_bills(used, card), card)


def bill(charged: DataFrame, by: GroupBy) -> DataFrame:
    """Group the lines of ``charges``.

    Lines without an entity have their kind in its index, in brackets; the base charge has no namespace and no hour.
    """
    groups = GROUPS[by]
    return _named(charged, by).groupBy(*groups).agg(*_sums()).orderBy(*groups)


def pairing(charged: DataFrame) -> DataFrame:
    """Return the cost of pairing: the four charges of diverted messages, pings, idle polls, and the rest."""
    found = charged.withColumn("number", _step()).groupBy("number").agg(*_sums())
    rows = [(number, step.name) for number, step in enumerate(PAIRING_STEPS)]
    steps = charged.sparkSession.createDataFrame(rows, _STEPS)
    counts = [coalesce(col(name), lit(0)).alias(name) for name in COUNTS]
    amount = coalesce(col("amount"), lit(0)).cast(AMOUNT).alias("amount")
    return steps.join(found, "number", "left").orderBy("number").select("step", *counts, amount)


def statement(operations: DataFrame, card: RateCard, by: GroupBy = GroupBy.STAGE) -> Statement:
    """Return the bill for the operations of ledgers; this runs jobs."""
    with _persisted(usage(operations, card)) as used:
        months = monthly_bills(used, card)
        with _persisted(charges_of(used, months, card)) as charged:
            return Statement(
                card=card,
                by=by,
                months=months,
                lines=_lines(bill(charged, by).collect(), GROUPS[by]),
                steps=_lines(pairing(charged).collect(), ("step",)),
            )


@contextmanager
def _persisted(table: DataFrame) -> Iterator[DataFrame]:
    """Persist a table that is used more than once."""
    table.persist()
    try:
        yield table
    finally:
        table.unpersist()


def _named(charged: DataFrame, by: GroupBy) -> DataFrame:
    """Fill in a label where there is no name; it has brackets, which no entity name can have."""
    match by:
        case GroupBy.ENTITY:
            kind = concat(lit("("), col("kind"), lit(")"))
            return charged.withColumns({"namespace": _or("namespace", lit(_ALL)), "entity": _or("entity", kind)})
        case GroupBy.HOUR:
            return charged.withColumn("hour", when(col("kind") != BASE_CHARGE, col("hour")))
        case GroupBy.STAGE:
            return charged


def _or(name: str, other: Column) -> Column:
    return when(col(name) == "", other).otherwise(col(name))


def _sums() -> Iterator[Column]:
    for name in COUNTS:
        yield total(name).alias(name)
    yield total("amount").cast(AMOUNT).alias("amount")


def _step() -> Column:
    """Return the number of the first step that a line matches."""
    number = lit(None).cast(IntegerType())
    for index, step in reversed([*enumerate(PAIRING_STEPS)]):
        fits = col("stage").isin([stage.value for stage in step.stages])
        if step.kind is not None:
            fits &= col("kind") == step.kind.value
        number = when(fits, lit(index)).otherwise(number)
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
