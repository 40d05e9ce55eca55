"""Messages as Arrow record batches (D1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, IsNull, Not
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.delivered import Stamp, stamp
from pairbus.spark.record_batches import RecordBatches
from pairbus.spark.schema import EXTRA_SCHEMA, MESSAGE_SCHEMA, arrow_schema
from pairbus.spark.value_text import text_of
from pairbus.testing import running_namespace
from pairbus.wire import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    Header,
    Message,
    Properties,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode,
    encode_message,
)
from tests.client.stage import factory_of, make_queue, play
from tests.dialect.test_transfer import STAMPS, messages
from tests.wire.values import amqp_values, examples

EVERYTHING = StructType([*MESSAGE_SCHEMA, *EXTRA_SCHEMA])
ENQUEUED = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
ENQUEUED_MS = 1_893_553_445_678
STAMP = Stamp(5, 3, ENQUEUED_MS, 2, 1, 60_000, bytes(16), ENQUEUED_MS + 30_000, "news/subscriptions/a", 3)
TOKEN = str(UUID(int=7))


def columns(*names: str) -> StructType:
    return StructType([EVERYTHING[name] for name in names])


def rows(*payloads: bytes, schema: StructType = EVERYTHING, tokens: dict[int, str] | None = None) -> list[Any]:
    batch = RecordBatches(schema).of("orders", [ReceivedMessage(payload) for payload in payloads], tokens)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(schema)
    return batch.to_pylist()  # type: ignore[no-any-return]


def row(payload: bytes, schema: StructType = EVERYTHING) -> dict[str, Any]:
    (only,) = rows(payload, schema=schema)
    return dict(only)


def annotated(annotations: dict[Any, Any], **rest: Any) -> bytes:
    return encode_message(Message(message_annotations=annotations, body=(b"x",), **rest))


def test_d1_every_column_is_filled() -> None:
    sent = BrokeredMessage(
        b"espresso",
        message_id="m",
        session_id="s",
        correlation_id=UUID(int=1),
        label="l",
        content_type="text/plain",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
        partition_key="s",
        via_partition_key="v",
        scheduled_enqueue_time=ENQUEUED - timedelta(hours=1),
        application_properties={"DeadLetterReason": "why", "DeadLetterErrorDescription": "because", "n": 5, "no": None},
    )
    payload = stamp(encode_brokered(sent), STAMP)
    assert rows(payload, tokens={5: TOKEN}) == [
        {
            "entity": "orders",
            "sequence_number": 5,
            "enqueued_time": ENQUEUED,
            "body": b"espresso",
            "body_kind": "data",
            "message_id": "m",
            "session_id": "s",
            "correlation_id": str(UUID(int=1)),
            "label": "l",
            "content_type": "text/plain",
            "to": "t",
            "reply_to": "r",
            "reply_to_session_id": "rs",
            "partition_key": "s",
            "via_partition_key": "v",
            "time_to_live_ms": 60_000,
            "expires_at": ENQUEUED + timedelta(minutes=1),
            "scheduled_enqueue_time": ENQUEUED - timedelta(hours=1),
            "delivery_count": 2,
            "state": "deferred",
            "enqueued_sequence_number": 3,
            "partition_id": 3,
            "dead_letter_source": "news/subscriptions/a",
            "dead_letter_reason": "why",
            "dead_letter_error_description": "because",
            "application_properties": [
                ("DeadLetterReason", "why"),
                ("DeadLetterErrorDescription", "because"),
                ("n", "5"),
                ("no", None),
            ],
            "payload": payload,
            "lock_token": TOKEN,
            "headers": [
                {"key": "DeadLetterReason", "value": "why", "type": "string"},
                {"key": "DeadLetterErrorDescription", "value": "because", "type": "string"},
                {"key": "n", "value": "5", "type": "long"},
                {"key": "no", "value": None, "type": "null"},
            ],
        }
    ]


def test_d1_empty_message_has_nulls() -> None:
    found = row(encode_message(Message(body=(b"",))))
    assert {name: value for name, value in found.items() if value is not None} == {
        "entity": "orders",
        "sequence_number": -1,
        "body": b"",
        "body_kind": "data",
        "delivery_count": 0,
        "state": "active",
        "application_properties": [],
        "payload": b"\x00\x53\x75\xa0\x00",
        "headers": [],
    }


def test_d1_row_matches_the_azure_sdk() -> None:
    peeked: list[ReceivedMessage] = []
    received: list[ReceivedMessage] = []

    async def scenario(path: str) -> None:
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            for number in range(3):
                await sender.send(BrokeredMessage(b"%d" % number, application_properties={"n": number}))
            peeked.extend(await receiver.peek(3))
            while len(received) < 3:
                received.extend(await receiver.receive(3 - len(received)))

    with running_namespace() as namespace:
        path = make_queue(namespace)
        play(scenario(path))
    batches = RecordBatches(EVERYTHING)
    tokens = {message.sequence_number: str(message.lock_token) for message in received}
    for page in (peeked, received):
        found = batches.of(path, page, tokens).to_pylist()
        for message, one in zip(page, found, strict=True):
            assert one["entity"] == path
            assert one["sequence_number"] == message.sequence_number
            assert one["enqueued_time"] == message.enqueued_time
            assert (one["message_id"], one["body"]) == (message.message_id, message.body)
            assert one["application_properties"] == [("n", message.body.decode())]
            assert one["payload"] == message.payload
            assert one["lock_token"] == tokens[message.sequence_number]


@examples(100)
@given(messages(), STAMPS)
def test_d1_row_matches_the_message(message: Message, facts: Stamp) -> None:
    received = ReceivedMessage(stamp(encode_message(message), facts))
    found = row(received.payload)
    same = {
        "sequence_number",
        "session_id",
        "label",
        "content_type",
        "to",
        "reply_to",
        "reply_to_session_id",
        "partition_key",
        "via_partition_key",
        "enqueued_sequence_number",
        "partition_id",
        "dead_letter_source",
    }
    assert {name: found[name] for name in same} == {name: getattr(received, name) for name in same}
    for name in ("enqueued_time", "expires_at", "scheduled_enqueue_time"):
        assert found[name] == _to_the_millisecond(getattr(received, name))
    assert found["delivery_count"] in {received.delivery_count, None}
    assert (found["delivery_count"] is None) == (received.delivery_count >= 2**31)
    assert found["state"] == received.state.name.lower()
    assert found["body_kind"] == received.body_kind.name.lower()
    length = received.time_to_live
    assert found["time_to_live_ms"] == (None if length is None else length // timedelta(milliseconds=1))
    assert dict(found["application_properties"]) == {
        name: text_of(value) for name, value in (message.application_properties or {}).items()
    }


def _to_the_millisecond(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


# Bodies, ids and times.


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (AMQP_VALUE, ("text",), b"text"),
        (AMQP_VALUE, (b"\x00\xff",), b"\x00\xff"),
        (AMQP_VALUE, (5,), b"5"),
        (AMQP_VALUE, (None,), None),
        (AMQP_VALUE, ({"a": [1, True]},), b'{"a":[1,true]}'),
        (AMQP_SEQUENCE, ([1], [], ["two"]), b'[1,"two"]'),
    ],
)
def test_d1_body_without_bytes_is_text(kind: int, body: tuple[Any, ...], expected: bytes | None) -> None:
    found = row(encode_message(Message(body=body, body_kind=kind)))
    assert (found["body"], found["body_kind"]) == (expected, "value" if kind == AMQP_VALUE else "sequence")


def test_d1_body_sections_are_joined() -> None:
    assert row(encode_message(Message(body=(b"a", b"", b"b"))))["body"] == b"ab"
    assert row(encode_message(Message(properties=Properties(message_id="m"))))["body"] == b""


@pytest.mark.parametrize(
    ("message_id", "text"),
    [("m", "m"), (b"\x00\xff", "00ff"), (ULong(12), "12"), (UUID(int=7), str(UUID(int=7))), (None, None)],
    ids=repr,
)
def test_d1_id_is_the_text_of_duplicate_detection(message_id: object, text: str | None) -> None:
    properties = Properties(message_id=message_id, correlation_id=message_id)
    found = row(encode_message(Message(properties=properties, body=(b"x",))))
    assert (found["message_id"], found["correlation_id"]) == (text, text)


def test_d1_time_to_live_beyond_the_header_is_computed() -> None:
    length = timedelta(days=90)
    payload = stamp(encode_brokered(BrokeredMessage(time_to_live=length)), STAMP._replace(time_to_live_ms=2**40))
    found = row(payload, columns("time_to_live_ms", "expires_at"))
    assert found == {"time_to_live_ms": length // timedelta(milliseconds=1), "expires_at": ENQUEUED + length}


@pytest.mark.parametrize("time_ms", [2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_900_000])
def test_e3_times_out_of_range_are_clamped(time_ms: int) -> None:
    names = (Symbol("x-opt-enqueued-time"), Symbol("x-opt-scheduled-enqueue-time"))
    found = row(annotated(dict.fromkeys(names, Timestamp(time_ms)), header=Header(ttl=UInt(60_000))))
    edge = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC) if time_ms > 0 else datetime(1, 1, 1, tzinfo=UTC)
    assert (found["enqueued_time"], found["scheduled_enqueue_time"]) == (edge, edge)
    assert found["expires_at"] in {None, edge}


# Batches for Spark.


@pytest.mark.parametrize("schema", [MESSAGE_SCHEMA, EVERYTHING, columns("lock_token", "payload", "entity")])
def test_d1_spark_accepts_the_batches(schema: StructType) -> None:
    payloads = [stamp(encode_brokered(BrokeredMessage(b"x")), STAMP), b"garbage"]
    batch = RecordBatches(schema).of("orders", [ReceivedMessage(payload) for payload in payloads], {})
    source: Any = None
    assert list(records_to_arrow_batches(iter([batch]), 100, schema, source)) == [batch]


def test_d1_empty_page_is_an_empty_batch() -> None:
    assert RecordBatches(EVERYTHING).of("orders", [], None).num_rows == 0


def test_d1_equal_messages_give_equal_batches() -> None:
    payloads = [stamp(encode_brokered(BrokeredMessage(b"x")), STAMP._replace(sequence=number)) for number in range(9)]
    batches = RecordBatches(EVERYTHING)
    first, second = (
        batches.of("orders", [ReceivedMessage(payload) for payload in payloads], {3: TOKEN}) for _ in range(2)
    )
    assert first.equals(second)
    assert first.column("lock_token").to_pylist() == [None, None, None, TOKEN, None, None, None, None, None]


def test_d1_columns_are_in_schema_order() -> None:
    assert list(row(b"", columns("payload", "sequence_number", "body"))) == ["payload", "sequence_number", "body"]


# Malformed messages.

READABLE = stamp(encode_brokered(BrokeredMessage(b"good", message_id="good", label="l")), STAMP)


def test_e3_malformed_message_does_not_stop_others() -> None:
    before, broken, after = rows(READABLE, b"garbage", READABLE)
    assert before == after == row(READABLE)
    assert {name: value for name, value in broken.items() if value is not None} == {
        "entity": "orders",
        "sequence_number": -1,
        "payload": b"garbage",
    }


def test_e3_readable_parts_of_a_malformed_message_are_kept() -> None:
    cut = row(READABLE[:-1])
    assert (cut["sequence_number"], cut["enqueued_time"], cut["payload"]) == (5, ENQUEUED, READABLE[:-1])
    assert (cut["body"], cut["body_kind"], cut["message_id"], cut["delivery_count"]) == (None, None, None, None)
    properties = row(READABLE + b"\x00\x53\x74" + encode({UInt(1): 1}))
    assert properties["application_properties"] is None
    assert (properties["dead_letter_reason"], properties["message_id"], properties["body"]) == (None, "good", b"good")
    body = row(b"\x00\x53\x75\x45" + encode(Properties(message_id="m")))
    assert (body["body"], body["body_kind"], body["message_id"]) == (None, "data", "m")


ANNOTATIONS = [
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-scheduled-enqueue-time",
    "x-opt-message-state",
    "x-opt-partition-id",
    "x-opt-partition-key",
    "x-opt-via-partition-key",
    "x-opt-deadletter-source",
]


@pytest.mark.parametrize("value", [[1], {"a": 1}, "text", b"\xff", None, 1.5, True, ULong(2**64 - 1)], ids=repr)
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_e3_value_of_wrong_type_affects_only_itself(name: str, value: object) -> None:
    odd, good = rows(annotated({Symbol(name): value}, properties=Properties(message_id="m")), READABLE)
    assert good == row(READABLE)
    assert (odd["message_id"], odd["body"]) == ("m", b"x")
    assert odd["sequence_number"] == -1
    assert odd["state"] in {"active", "deferred"}


@examples(100)
@given(st.dictionaries(st.sampled_from(ANNOTATIONS).map(Symbol), amqp_values), amqp_values)
def test_e3_no_value_stops_the_stream(annotations: dict[Any, Any], body: Any) -> None:
    message = Message(message_annotations=annotations, body=(body,), body_kind=AMQP_VALUE)
    assert len(rows(encode_message(message), READABLE)) == 2


@examples(200)
@given(st.binary(max_size=80), st.integers(0, 1_000), st.integers(1, 255))
def test_e3_no_bytes_stop_the_stream(garbage: bytes, index: int, change: int) -> None:
    changed = bytearray(READABLE)
    changed[index % len(changed)] ^= change
    odd, other, good = rows(garbage, bytes(changed), READABLE)
    assert (odd["payload"], other["payload"]) == (garbage, bytes(changed))
    assert good == row(READABLE)


# Filters.


def test_filters_select_rows_before_other_columns_are_decoded() -> None:
    payloads = [
        stamp(encode_brokered(BrokeredMessage(f"{number}", label="odd" if number % 2 else None)), STAMP)
        for number in range(6)
    ]
    messages = [ReceivedMessage(payload) for payload in payloads]
    schema = columns("label", "body")
    for condition, expected in (
        (EqualTo(("label",), "odd"), [b"1", b"3", b"5"]),
        (IsNull(("label",)), [b"0", b"2", b"4"]),
        (Not(EqualTo(("label",), "odd")), []),  # a comparison with null is not true
    ):
        batch = RecordBatches(schema, [condition]).of("orders", messages)
        assert [row["body"] for row in batch.to_pylist()] == expected
