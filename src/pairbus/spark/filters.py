"""Filters that Spark pushes down to the source: which of them it takes, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from pairbus.spark.sequences import SequenceRanges

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1

_VALUES: Final[dict[type, type]] = {StringType: str, IntegerType: int, LongType: int, TimestampType: datetime}
"""The types of columns that are compared, and of the values in their filters."""

_COMPARISONS: Final[dict[type[Filter], Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_PATTERNS: Final[dict[type[Filter], Callable[[pa.Array, str], pa.Array]]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


def is_supported(condition: Filter, schema: StructType) -> bool:
    """Return whether ``matches`` can evaluate a filter on rows of this schema as Spark would."""
    if isinstance(condition, Not):
        return is_supported(condition.child, schema)
    column: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(column) != 1 or column[0] not in schema.names:
        return False
    kind = _VALUES.get(type(schema[column[0]].dataType))
    if kind is None or isinstance(condition, IsNull | IsNotNull):
        return kind is not None
    if type(condition) in _PATTERNS and kind is not str:
        return False
    values = condition.value if isinstance(condition, In) else (getattr(condition, "value", None),)
    is_known = type(condition) in {*_COMPARISONS, *_PATTERNS, EqualNullSafe, In}
    return is_known and all(_is_value(one, kind) for one in values)


def _is_value(value: object, kind: type) -> bool:
    if kind is datetime:
        return isinstance(value, datetime) and value.tzinfo is not None
    return type(value) is kind and (kind is not int or _LEAST < value < _MOST)  # type: ignore[operator]


def column_of(condition: Filter) -> str:
    """Return the column of a supported filter."""
    while isinstance(condition, Not):
        condition = condition.child
    name: str = condition.attribute[0]  # type: ignore[attr-defined]
    return name


def matches(condition: Filter, values: pa.Array) -> list[bool]:
    """Return for each value of the filter's column whether its row is selected; a comparison with null selects none."""
    return [chosen is True for chosen in _evaluate(condition, values).to_pylist()]


def _evaluate(condition: Filter, values: pa.Array) -> pa.Array:
    if isinstance(condition, Not):
        return pc.invert(_evaluate(condition.child, values))
    if isinstance(condition, IsNull):
        return pc.is_null(values)
    if isinstance(condition, IsNotNull):
        return pc.is_valid(values)
    value: Any = condition.value  # type: ignore[attr-defined]
    if type(condition) in _PATTERNS:
        return _PATTERNS[type(condition)](values, value)
    if isinstance(condition, In):
        found = pc.is_in(values, pa.array(value, values.type))
        return pc.if_else(pc.is_valid(values), found, None)
    equal_or_not = _COMPARISONS.get(type(condition), pc.equal)(values, pa.scalar(value, values.type))
    return pc.fill_null(equal_or_not, fill_value=False) if isinstance(condition, EqualNullSafe) else equal_or_not


def numbers_of(conditions: Iterable[Filter]) -> SequenceRanges:
    """Return the sequence numbers that supported filters leave."""
    found = SequenceRanges([(_LEAST, _MOST)])
    for condition in conditions:
        if not isinstance(condition, Not) and column_of(condition) == "sequence_number":
            found &= _numbers(condition)
    return found


def _numbers(condition: Filter) -> SequenceRanges:
    match condition:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return SequenceRanges([(value, value)])
        case In(value=values):
            return SequenceRanges.of(values)
        case GreaterThan(value=value):
            return SequenceRanges([(value + 1, _MOST)])
        case GreaterThanOrEqual(value=value):
            return SequenceRanges([(value, _MOST)])
        case LessThan(value=value):
            return SequenceRanges([(_LEAST, value - 1)])
        case LessThanOrEqual(value=value):
            return SequenceRanges([(_LEAST, value)])
    return SequenceRanges([(_LEAST, _MOST)])


def selects_entity(conditions: Iterable[Filter], entity: str) -> bool:
    """Return whether supported filters leave rows of an entity."""
    return all(
        matches(condition, pa.array([entity]))[0] for condition in conditions if column_of(condition) == "entity"
    )
