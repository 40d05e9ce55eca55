"""The columns that messages are made of, and what becomes of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pairbus.client.errors import InvalidMessageError
from pairbus.client.times import from_milliseconds, from_ms
from pairbus.spark.errors import SchemaError
from pairbus.spark.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA
from pairbus.wire import Byte, Decimal128, EncodeError, Float, Int, Short, Timestamp
from pairbus.wire.decimals import decimal128

Convert: TypeAlias = Callable[[Any], Any]
"""Makes of a value, which is not null, what a message has."""


def same(value: Any) -> Any:
    return value


def _moment(micros: int) -> datetime:
    return from_ms(micros // 1_000)


def _decimal(number: Decimal) -> Decimal128:
    try:
        return decimal128(number)
    except EncodeError as error:
        raise InvalidMessageError(f"an application property cannot be sent: {error}") from error


_TEXT: Final[dict[type[DataType], Convert]] = {StringType: same}
WRITTEN: Final[dict[str, dict[type[DataType], Convert]]] = {
    "entity": _TEXT,
    "payload": {BinaryType: same},
    "body": {BinaryType: same, StringType: str.encode},
    **dict.fromkeys(
        (
            "message_id",
            "session_id",
            "correlation_id",
            "label",
            "content_type",
            "to",
            "reply_to",
            "reply_to_session_id",
            "partition_key",
            "via_partition_key",
        ),
        _TEXT,
    ),
    "time_to_live_ms": dict.fromkeys((LongType, IntegerType), from_milliseconds),
    "scheduled_enqueue_time": {TimestampType: _moment},
    "application_properties": {MapType: same, StructType: same},
}
"""The columns that messages are made of, with the types that they may have."""

_TYPED: Final[dict[type[DataType], Convert]] = {
    BinaryType: same,
    BooleanType: same,
    ByteType: Byte,
    DecimalType: _decimal,
    DoubleType: same,
    FloatType: Float,
    IntegerType: Int,
    LongType: same,
    NullType: same,
    ShortType: Short,
    StringType: same,
    TimestampType: lambda micros: Timestamp(micros // 1_000),
}
"""What an application property of each type of Spark's is to AMQP."""

_SQL_NAMES: Final[dict[type[DataType], str]] = {
    ByteType: "tinyint",
    IntegerType: "int",
    LongType: "bigint",
    ShortType: "smallint",
}
_READ_ONLY: Final = frozenset({*MESSAGE_SCHEMA.names, *EXTRA_SCHEMA.names}) - WRITTEN.keys()
"""What messages that were read have beside; it may be there, so that they can be written as they are."""


def converter(name: str, kind: DataType) -> Convert:
    """What makes the values of a column; points in time come to it as microseconds."""
    return _properties(kind) if name == "application_properties" else WRITTEN[name].get(type(kind), same)


def _properties(kind: DataType) -> Convert:
    """A map has those that it has, null ones too; a struct has all its fields in every row, and null is none."""
    if isinstance(kind, StructType):
        converts = {field.name: _TYPED[type(field.dataType)] for field in kind}
        return lambda row: {name: converts[name](value) for name, value in row.items() if value is not None}
    convert = _TYPED[type(kind.valueType)] if isinstance(kind, MapType) else same
    if convert is same:
        return dict
    return lambda row: {name: None if value is None else convert(value) for name, value in row}


# What a schema has to be like.


def check_columns(schema: StructType, entity: str | None) -> None:
    names = schema.names
    for field in schema:
        if field.name in WRITTEN:
            _check_type(field.name, field.dataType)
        elif field.name not in _READ_ONLY:
            raise SchemaError(_unknown(field.name))
        if names.count(field.name) > 1:
            raise SchemaError(f"there are {names.count(field.name)} columns with the name '{field.name}'")
    if "body" not in names and "payload" not in names:
        raise SchemaError(f"there is no column 'body' and no column 'payload' to send; there is {_listed(names)}")
    if entity is None and "entity" not in names:
        raise SchemaError("where are the rows to be sent? There is no option 'entity', and no column 'entity'")


def _check_type(name: str, kind: DataType) -> None:
    kinds = WRITTEN[name]
    if isinstance(kind, NullType):
        return
    if type(kind) not in kinds:
        wanted = " or ".join(_type_name(one) for one in kinds)
        raise SchemaError(f"the column '{name}' is {kind.simpleString()}; it has to be {wanted}")
    if isinstance(kind, MapType):
        _check_property(name, "key", kind.keyType, {StringType})
        _check_property(name, "value", kind.valueType, _TYPED.keys())
    if isinstance(kind, StructType):
        for field in kind:
            _check_property(name, field.name, field.dataType, _TYPED.keys())


def _check_property(column: str, name: str, kind: DataType, kinds: Iterable[type[DataType]]) -> None:
    if type(kind) not in set(kinds):
        wanted = " or ".join(sorted(_type_name(one) for one in kinds))
        raise SchemaError(f"'{column}.{name}' is {kind.simpleString()}; it has to be {wanted}")


def _type_name(kind: type[DataType]) -> str:
    """As Spark's SQL writes it."""
    return _SQL_NAMES.get(kind, kind.typeName())


def _unknown(name: str) -> str:
    known = sorted(WRITTEN)
    nearest = get_close_matches(name.lower(), known, n=1)
    advice = f"is '{nearest[0]}' meant?" if nearest else f"messages are made of {_listed(known)}"
    return f"messages have no '{name}'; {advice} What else is to go with a message goes into application_properties"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none at all"
