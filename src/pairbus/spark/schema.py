"""The columns of a message, and the check of a query's schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pairbus.spark.errors import SchemaError

MESSAGE_SCHEMA: Final = StructType(
    [
        StructField("entity", StringType(), nullable=False),
        StructField("sequence_number", LongType(), nullable=False),
        StructField("enqueued_time", TimestampType()),
        StructField("body", BinaryType()),
        StructField("body_kind", StringType()),
        StructField("message_id", StringType()),
        StructField("session_id", StringType()),
        StructField("correlation_id", StringType()),
        StructField("label", StringType()),
        StructField("content_type", StringType()),
        StructField("to", StringType()),
        StructField("reply_to", StringType()),
        StructField("reply_to_session_id", StringType()),
        StructField("partition_key", StringType()),
        StructField("via_partition_key", StringType()),
        StructField("time_to_live_ms", LongType()),
        StructField("expires_at", TimestampType()),
        StructField("scheduled_enqueue_time", TimestampType()),
        StructField("delivery_count", IntegerType()),
        StructField("state", StringType()),
        StructField("enqueued_sequence_number", LongType()),
        StructField("partition_id", IntegerType()),
        StructField("dead_letter_source", StringType()),
        StructField("dead_letter_reason", StringType()),
        StructField("dead_letter_error_description", StringType()),
        StructField("application_properties", MapType(StringType(), StringType())),
    ]
)
"""The columns of a query that does not name a schema."""

HEADERS: Final = ArrayType(
    StructType(
        [StructField("key", StringType()), StructField("value", StringType()), StructField("type", StringType())]
    )
)

EXTRA_SCHEMA: Final = StructType(
    [
        StructField("payload", BinaryType()),
        StructField("lock_token", StringType()),
        StructField("headers", HEADERS),
    ]
)
"""Columns available on request: the complete encoded message, its lock token, and its properties with their types."""

_KNOWN: Final = {field.name: field for field in (*MESSAGE_SCHEMA, *EXTRA_SCHEMA)}


def schema_of(columns: Sequence[str] | None, *, include_headers: bool) -> StructType:
    """Return the schema of a query that does not name one. Raise ``SchemaError``."""
    names = [*(MESSAGE_SCHEMA.names if columns is None else columns)]
    if include_headers and "headers" not in names:
        names.append("headers")
    return check_schema(StructType([_KNOWN.get(name) or StructField(name, StringType()) for name in names]))


def check_schema(schema: StructType) -> StructType:
    """Return the schema if it has known columns only, in any order. Raise ``SchemaError`` otherwise."""
    if not schema.fields:
        raise SchemaError("the schema has no columns; name at least one")
    names = schema.fieldNames()
    for field in schema:
        _check_field(field)
        if names.count(field.name) > 1:
            raise SchemaError(f"the schema has the column {field.name!r:.100} more than once; name it once")
    return schema


def _check_field(field: StructField) -> None:
    known = _KNOWN.get(field.name)
    if known is None:
        raise SchemaError(f"messages have no column {field.name!r:.100}; available: {', '.join(_KNOWN)}")
    if field.dataType != known.dataType:
        raise SchemaError(f"the column {field.name!r} has type {_shown(known.dataType)}, got {_shown(field.dataType)}")
    if known.nullable and not field.nullable:
        raise SchemaError(f"the column {field.name!r} is null for messages without a value; remove NOT NULL")


def _shown(kind: DataType) -> str:
    name = f"{kind.simpleString():.100}"
    return f"{name} without nulls" if isinstance(kind, MapType) and not kind.valueContainsNull else name


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, built as Spark builds the one that it compares a source's batches with."""
    return to_arrow_schema(schema, timezone="UTC")
