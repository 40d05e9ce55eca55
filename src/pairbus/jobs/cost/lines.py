"""The lines of a bill, with what the month costs spread over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import ROUND_DOWN, Decimal
from functools import reduce
from operator import attrgetter
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import (
    broadcast,
    col,
    count,
    date_add,
    explode,
    expr,
    floor,
    lit,
    sequence,
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
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pairbus.jobs.cost.month import AMOUNT_DIGITS, Meter, MonthlyBill, MonthlyUsage, monthly_bill, rounded
from pairbus.jobs.cost.rate_card import MessagingUnitRates, RateCard
from pairbus.jobs.cost.usage import COUNTS, LINE
from pairbus.ledger.operation import Kind

AMOUNT: Final = DecimalType(24, AMOUNT_DIGITS)
"""Of money, in a column. With more digits before the point, Spark would keep fewer behind it when it adds."""

BASE_CHARGE: Final = "base charge"
MESSAGING_UNIT: Final = "messaging unit"
"""Kinds of lines that no operation stands behind."""

_PRICE_DIGITS: Final = 15
_PRICE: Final = DecimalType(24, _PRICE_DIGITS)
_QUANTITY: Final = DecimalType(18, 0)
_EPOCH: Final = date(1970, 1, 1)


def monthly_bills(used: DataFrame, card: RateCard) -> dict[date, MonthlyBill]:
    """What each calendar month (UTC) costs, of ``usage``, by its first day; runs a job."""
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
    """A line for each namespace, entity, hour, stage and kind, and those that no operation stands behind."""
    parts = [_operation_lines(used, months)]
    if card.connections is not None:
        parts.append(_connection_lines(used, months))
    if card.messaging_units is not None:
        parts.append(_messaging_unit_lines(used, card.messaging_units))
    if card.month:
        parts.append(_base_lines(used.sparkSession, months))
    return reduce(DataFrame.unionByName, parts)


# What operations stand behind.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What all lines of a month cost together by one meter, and the column that says how much of it is whose."""

    meter: Meter
    weight: str
    quantity: Callable[[MonthlyUsage], int]


def _operation_lines(used: DataFrame, months: Mapping[date, MonthlyBill]) -> DataFrame:
    costs = (
        _Cost(meter=Meter.OPERATIONS, weight="units", quantity=attrgetter("units")),
        _Cost(meter=Meter.BANDWIDTH, weight="bytes_out", quantity=attrgetter("bytes_out")),
    )
    lines = _spread(used.where(col("kind") != Kind.CONNECTION.value), months, costs)
    return lines.select(*LINE, *COUNTS, "amount")


def _connection_lines(used: DataFrame, months: Mapping[date, MonthlyBill]) -> DataFrame:
    peaks = used.groupBy("namespace", "hour").agg(greatest("connections").alias("peak")).where(col("peak") > 0)
    lines = peaks.withColumns({"entity": lit(""), "stage": lit(""), "kind": lit(Kind.CONNECTION.value)})
    cost = _Cost(meter=Meter.CONNECTIONS, weight="peak", quantity=attrgetter("connection_peaks"))
    return _spread(lines, months, [cost]).select(*LINE, *_no_counts(), "amount")


def _spread(lines: DataFrame, months: Mapping[date, MonthlyBill], costs: Sequence[_Cost]) -> DataFrame:
    """Add the column amount, with each line's share of what its month costs.

    A line gets what all weights up to its own cost, less what those before it cost, both at the average price of the
    month and rounded: so nothing is left over, however much is rounded.
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
    """For each month and cost, what there is of it, what that costs, and what one costs on average."""
    columns: dict[str, DataType] = {"month": DateType()}
    rows: list[list[object]] = [[month] for month in months]
    for cost in costs:
        names = (f"sum of {cost.weight}", f"cost of {cost.weight}", f"average of {cost.weight}")
        columns.update(zip(names, (LongType(), AMOUNT, _PRICE), strict=True))
        for row, month in zip(rows, months.values(), strict=True):
            quantity, amount = cost.quantity(month.usage), month.amount(cost.meter)
            row += [quantity, amount, _average(amount, quantity)]
    return _small(spark, columns, [tuple(row) for row in rows])


def _average(amount: Decimal, quantity: int) -> Decimal:
    """Rounded down: no part costs more than all of it."""
    return (amount / quantity).quantize(Decimal(1).scaleb(-_PRICE_DIGITS), ROUND_DOWN) if quantity else Decimal(0)


# What none does.


def _messaging_unit_lines(used: DataFrame, rates: MessagingUnitRates) -> DataFrame:
    price = lit(rounded(rates.hour * rates.units)).cast(AMOUNT)
    lines = _namespace_hours(used).withColumns({"entity": lit(""), "stage": lit(""), "kind": lit(MESSAGING_UNIT)})
    return lines.select(*LINE, *_no_counts(), price.alias("amount"))


def _namespace_hours(used: DataFrame) -> DataFrame:
    """The hours in which each namespace was there: from its first to its last."""
    span = used.groupBy("namespace").agg(least("hour").alias("first"), greatest("hour").alias("last"))
    return span.select("namespace", explode(sequence("first", "last", expr("INTERVAL 1 HOUR"))).alias("hour"))


def _hours_by_month(used: DataFrame) -> dict[date, int]:
    months = _namespace_hours(used).groupBy(_month().alias("month")).agg(count("*").alias("hours"))
    return {row["month"]: row["hours"] for row in months.collect()}


def _base_lines(spark: SparkSession, months: Mapping[date, MonthlyBill]) -> DataFrame:
    """In the first hour of each month, on nobody's account."""
    rows = [
        ("", "", datetime.combine(month, time(), UTC), "", BASE_CHARGE, one.amount(Meter.BASE_CHARGE))
        for month, one in months.items()
    ]
    kinds: dict[str, DataType] = {name: StringType() for name in LINE}
    lines = _small(spark, {**kinds, "hour": TimestampType(), "amount": AMOUNT}, rows)
    return lines.select(*LINE, *_no_counts(), "amount")


# Small things.


def _month() -> Column:
    """The first day of the month of an hour, in UTC whatever time zone a session has."""
    days = floor(unix_seconds(col("hour")) / 86_400).cast("int")
    return trunc(date_add(lit(_EPOCH), days), "month")


def _no_counts() -> list[Column]:
    return [lit(0).cast(LongType()).alias(name) for name in COUNTS]


def _small(spark: SparkSession, columns: dict[str, DataType], rows: Sequence[tuple[object, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, StructType([StructField(name, kind) for name, kind in columns.items()]))
