"""Columns of messages, and errors for others (D1)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pairbus.spark.errors import SchemaError
from pairbus.spark.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA, arrow_schema, check_schema

EVERYTHING = StructType([*MESSAGE_SCHEMA, *EXTRA_SCHEMA])


def one(name: str, kind: DataType, *, nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable)])


def test_d1_default_columns() -> None:
    assert {field.name: field.dataType.simpleString() for field in MESSAGE_SCHEMA} == {
        "entity": "string",
        "sequence_number": "bigint",
        "enqueued_time": "timestamp",
        "body": "binary",
        "body_kind": "string",
        "message_id": "string",
        "session_id": "string",
        "correlation_id": "string",
        "label": "string",
        "content_type": "string",
        "to": "string",
        "reply_to": "string",
        "reply_to_session_id": "string",
        "partition_key": "string",
        "via_partition_key": "string",
        "time_to_live_ms": "bigint",
        "expires_at": "timestamp",
        "scheduled_enqueue_time": "timestamp",
        "delivery_count": "int",
        "state": "string",
        "enqueued_sequence_number": "bigint",
        "partition_id": "int",
        "dead_letter_source": "string",
        "dead_letter_reason": "string",
        "dead_letter_error_description": "string",
        "application_properties": "map<string,string>",
    }
    assert [field.name for field in MESSAGE_SCHEMA if not field.nullable] == ["entity", "sequence_number"]


def test_d1_columns_can_be_selected_in_any_order() -> None:
    for schema in (MESSAGE_SCHEMA, EVERYTHING, StructType(EVERYTHING.fields[::-1]), *(map(_alone, EVERYTHING))):
        assert check_schema(schema) == schema
    assert check_schema(one("entity", StringType())) == one("entity", StringType())  # as Spark creates it from SQL


def _alone(field: StructField) -> StructType:
    return StructType([field])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType([]), "no columns"),
        (
            one("colour", StringType()),
            r"no column 'colour'; available: entity, .*application_properties, payload, lock",
        ),
        (one("Body", BinaryType()), "no column 'Body'"),
        (one("body", StringType()), "'body' has type binary, got string"),
        (one("sequence_number", IntegerType()), "'sequence_number' has type bigint, got int"),
        (one("delivery_count", LongType()), "'delivery_count' has type int, got bigint"),
        (one("enqueued_time", TimestampNTZType()), "'enqueued_time' has type timestamp, got timestamp_ntz"),
        (
            one("application_properties", MapType(StringType(), LongType())),
            "map<string,string>, got map<string,bigint>",
        ),
        (one("application_properties", MapType(StringType(), StringType(), valueContainsNull=False)), "without nulls"),
        (one("label", StringType(), nullable=False), "'label' is null for messages .* NOT NULL"),
        (StructType([*MESSAGE_SCHEMA, MESSAGE_SCHEMA["label"]]), "'label' more than once"),
    ],
)
def test_e4_unknown_columns_are_rejected_by_name(schema: StructType, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        check_schema(schema)


def test_e4_error_text_is_bounded() -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(one("x" * 10_000, StringType()))
    assert len(str(caught.value)) < 1_000
    with pytest.raises(SchemaError) as caught:
        check_schema(one("body", StructType([StructField(f"f{index}", StringType()) for index in range(1_000)])))
    assert len(str(caught.value)) < 1_000


def test_d1_arrow_has_the_types_that_spark_reads() -> None:
    found = arrow_schema(EVERYTHING)
    assert found.names == EVERYTHING.fieldNames()
    assert found.field("enqueued_time").type == pa.timestamp("us", tz="UTC")
    assert found.field("body").type == pa.binary()
    assert found.field("application_properties").type == pa.map_(pa.string(), pa.string())
    assert not found.field("entity").nullable
    assert arrow_schema(one("enqueued_time", TimestampType())).names == ["enqueued_time"]
