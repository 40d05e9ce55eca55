"""Conversion of rows to messages: valid columns, values, and invalid rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.delivered import Stamp, stamp
from pairbus.spark.errors import SchemaError
from pairbus.spark.outgoing import MessageIds, OutgoingMessages, Scope
from pairbus.spark.record_batches import RecordBatches
from pairbus.spark.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA, arrow_schema
from pairbus.wire import Byte, Float, Int, Sections, Short, Timestamp
from pairbus.wire.types import decimal128

AT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_912, tzinfo=UTC)
TEXTS: Final = (
    "message_id",
    "session_id",
    "correlation_id",
    "label",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
    "via_partition_key",
)


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def sent(schema: StructType, rows: Sequence[dict[str, Any]], entity: str | None = "orders") -> list[ReceivedMessage]:
    return [ReceivedMessage(payload) for _, payload in made(schema, rows, entity)]


def made(schema: StructType, rows: Sequence[dict[str, Any]], entity: str | None = "orders") -> list[tuple[str, bytes]]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(schema))
    return [*OutgoingMessages(schema, entity).of(batch, MessageIds(Scope(nonce="test")))]


def properties(kind: DataType, value: Any) -> dict[str, Any]:
    """Return the application properties of a message, with their types."""
    schema = columns(body=BinaryType(), application_properties=kind)
    ((_, payload),) = made(schema, [{"body": b"", "application_properties": value}])
    return Sections(payload).application_properties()


# Values.


def test_every_column_is_converted() -> None:
    kinds: dict[str, DataType] = {name: StringType() for name in TEXTS}
    schema = columns(
        body=BinaryType(), **kinds, time_to_live_ms=LongType(), scheduled_enqueue_time=TimestampType()
    ).add("application_properties", MapType(StringType(), StringType()))
    row = {name: f"the {name}" for name in TEXTS}
    rest = {"time_to_live_ms": 90_500, "scheduled_enqueue_time": AT, "application_properties": {"a": "b", "c": None}}
    (message,) = sent(schema, [{"body": b"\x00\xff", **row, **rest}])
    assert message.body == b"\x00\xff"
    assert {name: getattr(message, name) for name in TEXTS} == row
    assert message.time_to_live == timedelta(seconds=90.5)
    assert message.scheduled_enqueue_time == AT.replace(microsecond=678_000)
    assert message.application_properties == {"a": "b", "c": None}


def test_partition_key_equal_to_session_is_accepted() -> None:
    schema = columns(body=BinaryType(), session_id=StringType(), partition_key=StringType())
    (message,) = sent(schema, [{"body": b"", "session_id": "s", "partition_key": "s"}])
    assert (message.session_id, message.partition_key) == ("s", "s")


def test_null_values_are_omitted() -> None:
    kinds: dict[str, DataType] = {name: StringType() for name in TEXTS}
    schema = columns(body=StringType(), **kinds, time_to_live_ms=IntegerType(), scheduled_enqueue_time=TimestampType())
    schema = schema.add("application_properties", MapType(StringType(), StringType()))
    (message,) = sent(schema, [dict.fromkeys(schema.names)])
    assert message.body == b""
    assert message.message_id
    assert {getattr(message, name) for name in TEXTS if name != "message_id"} == {None}
    assert (message.time_to_live, message.scheduled_enqueue_time) == (None, None)
    assert message.application_properties == {}


def test_text_body_is_sent_as_utf8() -> None:
    assert [message.body for message in sent(columns(body=StringType()), [{"body": "süß"}])] == ["süß".encode()]


def test_column_of_nulls_may_have_no_type() -> None:
    schema = columns(body=BinaryType(), label=NullType(), application_properties=NullType())
    (message,) = sent(schema, [{"body": b"x", "label": None, "application_properties": None}])
    assert (message.body, message.label, message.application_properties) == (b"x", None, {})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (StringType(), "text", "text"),
        (BinaryType(), b"\x00", b"\x00"),
        (BooleanType(), True, True),
        (ByteType(), -3, Byte(-3)),
        (ShortType(), 300, Short(300)),
        (IntegerType(), 70_000, Int(70_000)),
        (LongType(), 2**40, 2**40),
        (FloatType(), 0.5, Float(0.5)),
        (DoubleType(), 0.1, 0.1),
        (DecimalType(10, 2), Decimal("12.50"), decimal128(Decimal("12.50"))),
        (TimestampType(), AT, Timestamp(1_893_553_445_678)),
    ],
)
def test_application_properties_keep_their_types(kind: DataType, value: Any, expected: Any) -> None:
    found = properties(columns(one=kind, none=kind), {"one": value, "none": None})
    assert found == {"one": expected}  # a struct cannot omit a field, so null does
    assert type(found["one"]) is type(expected)
    mapped = properties(MapType(StringType(), kind), {"one": value, "none": None})
    assert mapped == {"one": expected, "none": None}
    assert type(mapped["one"]) is type(expected)


def test_time_before_the_epoch_is_rounded_down() -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert properties(columns(at=TimestampType()), {"at": before}) == {"at": Timestamp(-1)}


def test_very_long_time_to_live_is_omitted() -> None:
    (message,) = sent(columns(body=BinaryType(), time_to_live_ms=LongType()), [{"body": b"", "time_to_live_ms": 2**62}])
    assert message.time_to_live is None


def test_many_rows_are_converted_in_order() -> None:
    rows = [{"body": f"{number}", "label": f"{number}"} for number in range(1_250)]
    messages = sent(columns(body=StringType(), label=StringType()), rows)
    assert [(message.body.decode(), message.label) for message in messages] == [
        (row["body"], row["label"]) for row in rows
    ]


def test_e3_large_rows_are_converted_in_small_slices() -> None:
    schema = columns(body=BinaryType())
    batch = pa.RecordBatch.from_pylist([{"body": bytes(200_000)}] * 200, schema=arrow_schema(schema))
    messages = OutgoingMessages(schema, "orders").of(batch, MessageIds(Scope(nonce="test")))
    tracemalloc.start()
    try:
        for _ in messages:
            pass
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 5 << 20


# Ids.


def test_given_message_id_is_kept_and_missing_one_generated() -> None:
    schema = columns(body=StringType(), message_id=StringType())
    rows: list[dict[str, Any]] = [
        {"body": "x", "message_id": "mine"},
        {"body": "x", "message_id": None},
        {"body": "x", "message_id": None},
    ]
    ids = [message.message_id for message in sent(schema, rows)]
    assert ids[0] == "mine"
    assert len(set(ids)) == 3
    assert ids == [message.message_id for message in sent(schema, rows)]


def test_ids_do_not_depend_on_time() -> None:
    """A message with a time to live contains its creation time; the id must not depend on that."""
    schema = columns(body=StringType(), time_to_live_ms=LongType())
    rows = [{"body": "x", "time_to_live_ms": 5_000}]
    assert sent(schema, rows)[0].message_id == sent(schema, rows)[0].message_id


# Payloads.


def test_payload_is_sent_without_annotations_of_the_service() -> None:
    payload = encode_brokered(BrokeredMessage("x", message_id="1", application_properties={"n": Int(5)}))
    received = stamp(payload, Stamp(7, 7, 1_700_000_000_000, 3, 0, None, bytes(16), 1_700_000_060_000))
    schema = columns(payload=BinaryType())
    assert made(schema, [{"payload": payload}, {"payload": received}]) == [("orders", payload), ("orders", payload)]


def test_payload_takes_precedence_over_other_columns() -> None:
    payload = encode_brokered(BrokeredMessage("x", message_id="1", label="one"))
    schema = columns(payload=BinaryType(), body=BinaryType(), label=StringType(), lock_token=StringType())
    (message,) = sent(schema, [{"payload": payload, "body": b"y", "label": "two", "lock_token": "t"}])
    assert (message.body, message.label) == (b"x", "one")


@pytest.mark.parametrize(("payload", "reason"), [(None, "its payload is null"), (b"x", "is not a valid AMQP message")])
def test_invalid_payload_is_rejected(payload: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=rf"'orders': .*{reason}"):
        made(columns(payload=BinaryType()), [{"payload": payload}])


# Destinations.


def test_row_is_sent_to_its_entity() -> None:
    rows = [{"entity": entity, "body": b""} for entity in ("orders", "news/eu", "Orders")]
    found = made(columns(entity=StringType(), body=BinaryType()), rows, None)
    assert [entity for entity, _ in found] == ["orders", "news/eu", "Orders"]


def test_option_takes_precedence_over_column() -> None:
    """Rows that were read contain their entity, and are copied elsewhere with the option, as in Kafka's sink."""
    rows = [{"entity": "orders/$DeadLetterQueue", "body": b""}]
    assert made(columns(entity=StringType(), body=BinaryType()), rows, "archive")[0][0] == "archive"


@pytest.mark.parametrize(
    "entity",
    [None, "", "news/Subscriptions/audit", "orders/$DeadLetterQueue", "orders/$management", "$cbs", "a*", "/a"],
)
def test_row_without_valid_entity_is_rejected(entity: str | None) -> None:
    with pytest.raises(InvalidMessageError, match=r"its entity is "):
        made(columns(entity=StringType(), body=BinaryType()), [{"entity": entity, "body": b""}], None)


# Columns.


def test_read_rows_can_be_written() -> None:
    payload = encode_brokered(BrokeredMessage("x"))
    row = {**dict.fromkeys(MESSAGE_SCHEMA.names), "entity": "orders", "sequence_number": 1, "body": b"x"}
    assert made(MESSAGE_SCHEMA, [row], None)[0][0] == "orders"
    whole = StructType([*MESSAGE_SCHEMA, *EXTRA_SCHEMA])
    assert made(whole, [{**row, "payload": payload, "lock_token": "t"}], None) == [("orders", payload)]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (columns(label=StringType()), "the rows need a column 'body' or 'payload'; available: label"),
        (columns(), "the rows need a column 'body' or 'payload'"),
        (columns(body=BinaryType(), lable=StringType()), "messages have no column 'lable'; did you mean 'label'?"),
        (columns(body=BinaryType(), Body=BinaryType()), "messages have no column 'Body'; did you mean 'body'?"),
        (columns(body=BinaryType(), amount=LongType()), "messages have no column 'amount'; available:"),
        (columns(body=LongType()), "the column 'body' must have type binary or string, got bigint"),
        (columns(payload=StringType()), "the column 'payload' must have type binary, got string"),
        (
            columns(body=BinaryType(), time_to_live_ms=StringType()),
            "'time_to_live_ms' must have type bigint or",
        ),
        (columns(body=BinaryType(), scheduled_enqueue_time=DateType()), "must have type timestamp, got date"),
        (
            columns(body=BinaryType(), application_properties=MapType(LongType(), StringType())),
            "'application_properties.key' must have type string, got bigint",
        ),
        (
            columns(body=BinaryType(), application_properties=MapType(StringType(), ArrayType(LongType()))),
            "'application_properties.value' must have type ",
        ),
        (
            columns(body=BinaryType(), application_properties=columns(on=DateType())),
            "'application_properties.on' must have type ",
        ),
        (
            StructType([StructField("body", BinaryType()), StructField("body", BinaryType())]),
            "there are 2 columns named 'body'",
        ),
    ],
)
def test_invalid_columns_are_rejected(schema: StructType, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        OutgoingMessages(schema, "orders")
    assert reason in str(caught.value)


def test_missing_destination_is_rejected() -> None:
    with pytest.raises(SchemaError, match="set the option 'entity', or add a column 'entity'"):
        OutgoingMessages(columns(body=BinaryType()), None)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("session_id", "s" * 129, "session_id has 129 characters"),
        ("time_to_live_ms", 0, "time_to_live must be at least one millisecond, got 0:00:00"),
    ],
)
def test_invalid_row_is_rejected(name: str, value: Any, reason: str) -> None:
    kind = LongType() if isinstance(value, int) else StringType()
    with pytest.raises(InvalidMessageError, match=reason):
        made(columns(body=BinaryType(), **{name: kind}), [{"body": b"", name: value}])


def test_rows_before_an_invalid_row_are_converted() -> None:
    """The error can name the row."""
    schema = columns(body=BinaryType(), application_properties=columns(amount=DecimalType(38, 0)))
    rows = [{"body": b"", "application_properties": {"amount": Decimal(amount)}} for amount in ("1", "2", "1" * 38)]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    messages = OutgoingMessages(schema, "orders").of(batch, MessageIds(Scope(nonce="test")))
    assert [next(messages)[0], next(messages)[0]] == ["orders", "orders"]
    with pytest.raises(InvalidMessageError, match="more digits than the 34 of a decimal128"):
        next(messages)


# Headers.


HEADERS_SCHEMA: Final = StructType([StructField("body", BinaryType()), EXTRA_SCHEMA["headers"]])


def test_headers_are_written_with_their_types() -> None:
    values = {
        "text": "x",
        "count": Int(3),
        "total": 5,
        "price": 2.5,
        "paid": True,
        "at": Timestamp(1_700_000_000_123),
        "raw": b"\x00\xff",
        "amount": decimal128(Decimal("12.50")),
        "none": None,
    }
    sent = encode_brokered(BrokeredMessage("x", application_properties=values))
    [read] = RecordBatches(HEADERS_SCHEMA).of("orders", [ReceivedMessage(sent)]).to_pylist()
    [(_, again)] = made(HEADERS_SCHEMA, [read], "orders")
    found = Sections(again).application_properties()
    assert found == values
    assert [type(value) for value in (found or {}).values()] == [type(value) for value in values.values()]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"key": "n", "value": "x", "type": "int"}, "'x' is not a value of type int"),
        ({"key": "n", "value": "300", "type": "byte"}, "300 does not fit byte"),
        ({"key": "n", "value": "[]", "type": "list"}, "a value of type 'list' cannot be written; available: null, "),
    ],
)
def test_invalid_header_is_rejected(header: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        made(HEADERS_SCHEMA, [{"body": b"", "headers": [header]}], "orders")


def test_headers_take_precedence_over_the_map() -> None:
    schema = StructType([*HEADERS_SCHEMA, MESSAGE_SCHEMA["application_properties"]])
    row = {"body": b"", "application_properties": {"n": "1"}}
    header = {"key": "n", "value": "1", "type": "long"}
    for headers, expected in (([header], {"n": 1}), (None, {"n": "1"})):
        [(_, payload)] = made(schema, [{**row, "headers": headers}], "orders")
        assert Sections(payload).application_properties() == expected


def test_headers_of_another_type_are_rejected() -> None:
    with pytest.raises(SchemaError, match="the column 'headers' must have type array<struct<key"):
        OutgoingMessages(columns(body=BinaryType(), headers=ArrayType(StringType())), "orders")
