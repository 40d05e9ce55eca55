"""Conversion of rows to messages, with derived message ids: a retried task sends the same ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
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
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.validation import from_milliseconds, from_ms, shown
from pairbus.dialect.delivered import forwarded
from pairbus.dialect.paths import takes_messages
from pairbus.spark.errors import SchemaError
from pairbus.spark.schema import EXTRA_SCHEMA, HEADERS, MESSAGE_SCHEMA
from pairbus.spark.value_text import value_of
from pairbus.wire import Byte, Decimal128, EncodeError, Float, Int, ProtocolError, Short, Timestamp
from pairbus.wire.types import decimal128

_DIGEST_BYTES: Final = 16
_MAX_COUNTED: Final = 200_000
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The part that the ids of one task's messages share."""

    prefix: str | None = None
    """Prefix of the ids."""

    nonce: str
    """Random value that distinguishes a write from all others without a prefix."""

    query: str | None = None
    batch: str | None = None
    partition: int = 0

    @classmethod
    def of_this_task(cls, prefix: str | None, nonce: str, *, is_stream: bool) -> Scope:
        """Return the scope of the current task; a stream is identified by its query, also after a restart."""
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty(_QUERY)
        # A write within foreachBatch is one of many that the batch may do, so it is only identified by a prefix.
        is_known = prefix is not None or (is_stream and query is not None)
        return cls(
            prefix=prefix,
            nonce="" if is_known else nonce,
            query=query,
            batch=None if task is None else task.getLocalProperty(_BATCH),
            partition=0 if task is None else task.partitionId(),
        )


class MessageIds:
    """Generates the ids of one task's messages."""

    def __init__(self, scope: Scope, max_counted: int = _MAX_COUNTED) -> None:
        self._start = "" if scope.prefix is None else f"{scope.prefix}-"
        self._seed = blake2b(repr(scope).encode(), digest_size=_DIGEST_BYTES)
        self._max_counted = max_counted
        self._occurrences: dict[bytes, int] = {}
        self._position = 0

    def next_id(self, content: bytes, rest: Sequence[object]) -> str:
        """Return the id of the next message, derived from its content and its other columns."""
        content_hash = self._seed.copy()
        content_hash.update(repr((len(content), rest)).encode("utf-8", "surrogatepass"))
        content_hash.update(content)
        digest = content_hash.digest()
        self._position += 1
        occurrence = self._occurrences.get(digest, 0)
        if occurrence:
            content_hash.update(b"#%d" % occurrence)
        elif len(self._occurrences) >= self._max_counted:
            content_hash.update(b"@%d" % self._position)
            return self._start + content_hash.hexdigest()
        self._occurrences[digest] = occurrence + 1
        return self._start + content_hash.hexdigest()


Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value other than null to that of a message."""


def same(value: Any) -> Any:
    return value


def _datetime(micros: int) -> datetime:
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
    "scheduled_enqueue_time": {TimestampType: _datetime},
    "application_properties": {MapType: same, StructType: same},
    "headers": {ArrayType: same},
}
"""The columns that messages are made from, with the types that they may have."""

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
"""The AMQP type of an application property for each Spark type."""

_SQL_NAMES: Final[dict[type[DataType], str]] = {
    ByteType: "tinyint",
    IntegerType: "int",
    LongType: "bigint",
    ShortType: "smallint",
}
_READ_ONLY: Final = frozenset({*MESSAGE_SCHEMA.names, *EXTRA_SCHEMA.names}) - WRITTEN.keys()
"""Columns that only received messages have; they are ignored, so that rows can be written as they were read."""


def converter(name: str, kind: DataType) -> Convert:
    """Return the converter of a column's values, which gets points in time as microseconds."""
    if name == "headers":
        return _headers
    return _properties(kind) if name == "application_properties" else WRITTEN[name].get(type(kind), same)


def _headers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the application properties that headers describe; of two with one name, the last."""
    try:
        return {row["key"]: value_of(row["value"], row["type"]) for row in rows}
    except ValueError as error:
        raise InvalidMessageError(f"its headers cannot be sent: {error}") from None


def _properties(kind: DataType) -> Convert:
    """Convert a map with its null values; of a struct, which has all fields in every row, omit the null ones."""
    if isinstance(kind, StructType):
        converts = {field.name: _TYPED[type(field.dataType)] for field in kind}
        return lambda row: {name: converts[name](value) for name, value in row.items() if value is not None}
    convert = _TYPED[type(kind.valueType)] if isinstance(kind, MapType) else same
    if convert is same:
        return dict
    return lambda row: {name: None if value is None else convert(value) for name, value in row}


# Checks of a schema.


def check_columns(schema: StructType, entity: str | None) -> None:
    names = schema.names
    for field in schema:
        if field.name in WRITTEN:
            _check_type(field.name, field.dataType)
        elif field.name not in _READ_ONLY:
            raise SchemaError(_unknown(field.name))
        if names.count(field.name) > 1:
            raise SchemaError(f"there are {names.count(field.name)} columns named '{field.name}'; name it once")
    if "body" not in names and "payload" not in names:
        raise SchemaError(f"the rows need a column 'body' or 'payload'; available: {_listed(names)}")
    if entity is None and "entity" not in names:
        raise SchemaError("the destination is missing: set the option 'entity', or add a column 'entity'")


def _check_type(name: str, kind: DataType) -> None:
    kinds = WRITTEN[name]
    if isinstance(kind, NullType):
        return
    if type(kind) not in kinds:
        wanted = " or ".join(_type_name(one) for one in kinds)
        raise SchemaError(f"the column '{name}' must have type {wanted}, got {kind.simpleString()}")
    if isinstance(kind, MapType):
        _check_property(name, "key", kind.keyType, {StringType})
        _check_property(name, "value", kind.valueType, _TYPED.keys())
    if isinstance(kind, ArrayType) and kind.simpleString() != HEADERS.simpleString():
        raise SchemaError(
            f"the column '{name}' must have type {HEADERS.simpleString()}, got {kind.simpleString():.100}"
        )
    if isinstance(kind, StructType):
        for field in kind:
            _check_property(name, field.name, field.dataType, _TYPED.keys())


def _check_property(column: str, name: str, kind: DataType, kinds: Iterable[type[DataType]]) -> None:
    if type(kind) not in set(kinds):
        wanted = " or ".join(sorted(_type_name(one) for one in kinds))
        raise SchemaError(f"'{column}.{name}' must have type {wanted}, got {kind.simpleString()}")


def _type_name(kind: type[DataType]) -> str:
    """Return the name of a type in Spark SQL."""
    return _SQL_NAMES.get(kind, kind.typeName())


def _unknown(name: str) -> str:
    known = sorted(WRITTEN)
    nearest = get_close_matches(name.lower(), known, n=1)
    advice = f"did you mean '{nearest[0]}'?" if nearest else f"available: {_listed(known)}."
    return f"messages have no column '{name}'; {advice} Put other values into application_properties"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none at all"


_MAX_ROWS: Final = 500
_MAX_BYTES: Final = 1 << 20
"""Limits of the rows converted to Python objects at a time; a batch of Spark may hold far more."""

EncodedMessage: TypeAlias = tuple[str, bytes]
"""The destination of a message, and its encoded form."""

_ATTRIBUTES: Final = {"time_to_live_ms": "time_to_live"}
"""The attributes of a message whose names differ from their columns."""


class OutgoingMessages:
    """Converts rows of one schema to messages. Raise ``SchemaError`` if that is not possible.

    The option ``entity`` takes precedence over the column. A row with a ``payload`` is sent as that message, and its
    other columns are ignored; otherwise the message is built from ``body`` and the other columns.
    """

    def __init__(self, schema: StructType, entity: str | None) -> None:
        check_columns(schema, entity)
        self._entity = entity
        self._schema = schema
        self._indexes = {name: index for index, name in enumerate(schema.names) if name in WRITTEN}
        given = [name for name in self._indexes if name not in {"entity", "payload", "body"}]
        self._names = tuple(_ATTRIBUTES.get(name, name) for name in given)
        self._columns = tuple(given)
        self._destinations: set[str] = set()

    def of(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[EncodedMessage]:
        """Yield the messages of a batch, in the order of the rows. Raise ``InvalidMessageError``."""
        rows = self._forward if "payload" in self._indexes else self._build
        rows_per_slice = _slice_rows(batch)
        for start in range(0, batch.num_rows, rows_per_slice):
            yield from rows(batch.slice(start, rows_per_slice), ids)

    def _forward(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[EncodedMessage]:
        for entity, payload in zip(self._entities(batch), self._values(batch, "payload"), strict=False):
            destination = self._destination(entity)
            if payload is None:
                raise InvalidMessageError("its payload is null", entity=destination)
            try:
                yield destination, forwarded(payload, lambda: ids.next_id(payload, (destination,)))  # noqa: B023
            except ProtocolError as error:
                reason = f"its payload is not a valid AMQP message: {error.description}"
                raise InvalidMessageError(reason, entity=destination) from error

    def _build(self, batch: pa.RecordBatch, ids: MessageIds) -> Iterator[EncodedMessage]:
        columns = [self._values(batch, name) for name in self._columns]
        rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if columns else repeat(())
        bodies = self._values(batch, "body")
        for entity, body, values in zip(self._entities(batch), bodies, rows, strict=False):
            destination = self._destination(entity)
            properties = dict(zip(self._names, values, strict=True))
            headers = properties.pop("headers", None)
            if headers is not None:  # they have the types that the map has not
                properties["application_properties"] = headers
            content = b"" if body is None else body
            if properties.get("message_id") is None:
                properties["message_id"] = ids.next_id(content, (destination, *values))
            try:
                yield destination, encode_brokered(BrokeredMessage(content, **properties))
            except InvalidMessageError as error:
                raise error.at(destination) from error

    def _entities(self, batch: pa.RecordBatch) -> Iterable[str | None]:
        return self._values(batch, "entity") if self._entity is None else repeat(self._entity)

    def _destination(self, entity: str | None) -> str:
        """Return the destination of a row; each destination is checked once."""
        if entity in self._destinations:
            return entity
        if entity is None:
            raise InvalidMessageError("its entity is null, and there is no option 'entity'")
        if not takes_messages(entity):
            raise InvalidMessageError(f"its entity is {shown(entity)}; it must be the name of a queue or topic")
        self._destinations.add(entity)
        return entity

    def _values(self, batch: pa.RecordBatch, name: str) -> Iterator[Any]:
        """Return a column's values; each is converted when its row is, so that an error is reported for that row."""
        index = self._indexes[name]
        values = _as_numbers(batch.column(index)).to_pylist()
        convert = converter(name, self._schema[index].dataType)
        if convert is same:
            return iter(values)
        return (None if value is None else convert(value) for value in values)


def _slice_rows(batch: pa.RecordBatch) -> int:
    fitting: int = _MAX_BYTES * batch.num_rows // max(1, batch.nbytes)
    return max(1, min(_MAX_ROWS, fitting))


def _as_numbers(column: pa.Array) -> pa.Array:
    """Convert points in time to integers, which need no time zone database: not every machine has one."""
    kind = _without_times(column.type)
    return column if kind == column.type else column.cast(kind)


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        item = _without_times(kind.item_type)
        return kind if item == kind.item_type else pa.map_(kind.key_type, item)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_times(field.type)) for field in fields])
    return kind
