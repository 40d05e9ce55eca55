"""Messages as lines of JSON: values and types survive a round trip."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.cli.message_lines import READ_ONLY, SENT, MessageLineError, document_of, line_of, message_of, read_batches
from pairbus.client import AmqpView, BodyKind, BrokeredMessage, ReceivedMessage
from pairbus.client.amqp_json import TYPED_TEXTS, json_of, value_from_text, value_of
from pairbus.client.message import encode_brokered
from pairbus.wire import (
    Array,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Sections,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from tests.wire.values import PRIMITIVES, amqp_values, examples, identity, primitives


def received(message: BrokeredMessage) -> ReceivedMessage:
    return ReceivedMessage(encode_brokered(message))


def again(message: BrokeredMessage) -> ReceivedMessage:
    """Return the message after export and import."""
    return received(message_of(line_of(received(message), "orders")))


# Values.


@given(value=amqp_values)
@example(value=Map(((1, "a"), (UInt(1), "b"))))
@example(value={"uint": 5})
@example(value=[{"map": None}, float("nan"), float("-inf"), -0.0, Float("nan")])
@example(value=Timestamp(1 << 62))
@examples(300)
def test_value_of_every_type_survives_a_round_trip(value: object) -> None:
    text = json.dumps(json_of(value), allow_nan=False)
    assert identity(value_of(json.loads(text))) == identity(value)


@given(properties=st.dictionaries(st.text(max_size=8), primitives, max_size=6))
@example(properties={"a": Decimal128(bytes(16)), "DeadLetterReason": "of the application's own"})
@examples(200)
def test_application_properties_of_every_type_survive_a_round_trip(properties: dict[str, Any]) -> None:
    message = BrokeredMessage(b"", application_properties=properties)
    found = Sections(again(message).payload).application_properties()
    assert identity(found) == identity(Sections(encode_brokered(message)).application_properties())


@given(body=st.one_of(st.binary(), st.text().map(str.encode)))
@example(body=b"\xff\xfe\x00")
@example(body="\u2028\x85\r\n \ufeff \x00 𝄞".encode())
def test_data_body_survives_a_round_trip(body: bytes) -> None:
    line = line_of(received(BrokeredMessage(body)), "orders")
    assert line.splitlines() == [line]
    assert received(message_of(line)).body == body


@given(value=amqp_values)
@example(value=Array((Described(Float(struct.unpack(">f", bytes.fromhex("7fcd8463"))[0]), None),)))
@examples(100)
def test_value_body_survives_a_round_trip(value: object) -> None:
    message = BrokeredMessage(value, body_kind=BodyKind.VALUE)
    before, after = (Sections(one.payload) for one in (received(message), again(message)))
    assert identity(after.decode_body()) == identity(before.decode_body())


@given(values=st.lists(amqp_values, max_size=3))
@examples(50)
def test_sequence_body_survives_a_round_trip(values: list[object]) -> None:
    message = again(BrokeredMessage(values, body_kind=BodyKind.SEQUENCE))
    assert message.body_kind is BodyKind.SEQUENCE
    assert identity([item for part in Sections(message.payload).decode_body() for item in part]) == identity(values)


MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
IDS = [("text", "order-1"), ("ulong", ULong(7)), ("uuid", UUID(int=1 << 100)), ("binary", b"\xff\x00")]


@pytest.mark.parametrize("identifier", [value for _, value in IDS], ids=[name for name, _ in IDS])
def test_all_sent_fields_survive_a_round_trip(identifier: Any) -> None:
    message = BrokeredMessage(
        "one espresso",
        message_id=identifier,
        correlation_id=identifier,
        session_id="table 4",
        partition_key="table 4",
        via_partition_key="v",
        label="order",
        content_type="text/plain",
        to="kitchen",
        reply_to="bar",
        reply_to_session_id="bar 1",
        time_to_live=timedelta(milliseconds=90_001),
        scheduled_enqueue_time=MOMENT,
        amqp=AmqpView(
            durable=False,
            priority=9,
            user_id=b"\xff",
            content_encoding="identity",
            group_sequence=3,
            annotations={"x-opt-of-mine": Int(3)},
            delivery_annotations={"x-opt-here": "y"},
            footer={"sum": Symbol("z")},
        ),
    )
    before, after = received(message), again(message)
    for name in (*BrokeredMessage.__slots__,):
        if name != "amqp":
            assert identity(getattr(after, name)) == identity(getattr(before, name)), name
    assert after.amqp is not None
    assert before.amqp is not None
    assert after.amqp.annotations == {"x-opt-of-mine": Int(3)}
    assert document_of(after, "orders")["amqp"] == document_of(before, "orders")["amqp"]


def test_times_without_time_to_live_survive_a_round_trip() -> None:
    view = AmqpView(creation_time=MOMENT, absolute_expiry_time=MOMENT + timedelta(days=1))
    assert again(BrokeredMessage(amqp=view)).amqp == view


def test_line_contains_only_readable_fields() -> None:
    document = document_of(received(BrokeredMessage("x", label="y")), "orders")
    assert document.keys() <= {*SENT, *READ_ONLY}
    assert "amqp" not in document


def test_dead_letter_properties_are_exported_and_not_sent_again() -> None:
    dead = received(
        BrokeredMessage(
            application_properties={"DeadLetterReason": "cold", "DeadLetterErrorDescription": "brr", "table": 4}
        )
    )
    document = document_of(dead, "orders/$DeadLetterQueue")
    assert (document["dead_letter_reason"], document["dead_letter_error_description"]) == ("cold", "brr")
    assert message_of(json.dumps(document)).application_properties == {"table": 4}


# Hand-written lines.


def test_hand_written_line_is_read() -> None:
    message = message_of('{"body": {"cups": 2}, "application_properties": {"table": {"int": 4}, "hot": true}}')
    found = received(message)
    assert (found.body, found.content_type) == (b'{"cups":2}', "application/json")
    assert identity(found.application_properties) == identity({"table": Int(4), "hot": True})


def test_message_without_an_id_gets_a_random_id() -> None:
    assert message_of("{}").message_id != message_of("{}").message_id


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "invalid JSON"),
        ("{'body': 1}", "at column 2"),
        ("[1]", "must be a JSON object"),
        (b'{"body": "\xff"}', "not valid UTF-8"),
        ('{"bdoy": "x"}', "unknown field 'bdoy'; did you mean 'body'?"),
        ('{"body": NaN}', "JSON has no NaN"),
        ('{"label": 5}', "label: 5 is not a text"),
        ('{"time_to_live_ms": "1h"}', "time_to_live_ms: '1h' is not a whole number"),
        ('{"time_to_live_ms": 1e300}', "time_to_live_ms: 1e+300 is not a whole number"),
        (f'{{"time_to_live_ms": {10**30}}}', "time_to_live_ms: "),
        ('{"scheduled_enqueue_time": "2030-01-02T03:04:05"}', "has no time zone"),
        ('{"scheduled_enqueue_time": "soon"}', "scheduled_enqueue_time: "),
        ('{"body_base64": "%"}', "body_base64: invalid base64"),
        ('{"body_base64": "AA==", "body": ""}', "body_base64 replaces body"),
        ('{"body_kind": "letter"}', "body_kind must be one of data, value, sequence, got 'letter'"),
        ('{"body_kind": "value", "body": 1}', "body must be a list of one item if body_kind is value"),
        ('{"application_properties": []}', "application_properties: must be a JSON object"),
        ('{"application_properties": {"a": {"uint": -1.5}}}', "application_properties: a: -1.5 is not a whole number"),
        ('{"application_properties": {"a": {"uit": 1}}}', "'uit'"),
        ('{"application_properties": {"a": {"uint": 1, "int": 1}}}', "is not an AMQP type"),
        ('{"application_properties": {"a": {"char": "ab"}}}', "'ab' is not one character"),
        ('{"application_properties": {"a": {"decimal32": "00"}}}', "'00' is not 4 bytes"),
        ('{"application_properties": {"a": {}}}', "is not an AMQP type"),
        ('{"amqp": {"colour": 1}}', "amqp: unknown field 'colour'"),
        ('{"amqp": {"durable": "no"}}', "amqp: durable: must be true or false, got 'no'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_line_is_rejected(line: str | bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (what it says is compared)
        message_of(line)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 3: invalid JSON"),
        ('{"body": "\\ud800"}', "line 3: "),
        ('{"application_properties": {"a": {"ubyte": 300}}}', "a: 300 does not fit ubyte (0 to 255)"),
        ('{"application_properties": {"a": [1]}}', "is a list"),
        (f'{{"session_id": "{"x" * 200}"}}', "session_id has 200 characters"),
        ('{"application_properties": {"a": {"symbol": "é"}}}', "the application property 'a'"),
    ],
)
def test_invalid_line_of_a_file_is_named_by_number(line: str, said: str) -> None:
    text = f'{{"body": "one"}}\n\n{line}\n{{"body": "two"}}\n'
    with pytest.raises(MessageLineError, match=r"^line 3: ") as caught:
        list(read_batches(io.BytesIO(text.encode())))
    assert said in str(caught.value)


class Drops(io.RawIOBase):
    """A pipe that returns a few bytes at a time."""

    def __init__(self, octets: bytes, size: int) -> None:
        self._left, self._size = octets, size

    def readable(self) -> bool:
        return True

    def read(self, _size: int = -1) -> bytes:
        given, self._left = self._left[: self._size], self._left[self._size :]
        return given


@pytest.mark.parametrize("size", [1, 7, 13, 1000])
@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n"], ids=["no end", "end", "more ends"])
def test_lines_are_complete_for_any_read_size(size: int, end: str) -> None:
    bodies = ["one", "\u2028", "", "two\nlines", "x" * 50]
    text = "\n".join(json.dumps({"body": body}, ensure_ascii=False) for body in bodies) + end
    file: Any = Drops(text.encode(), size)
    batches = list(read_batches(file))
    assert [message.body for batch in batches for message in batch.messages] == bodies
    assert [batch.first_line for batch in batches] == sorted({batch.first_line for batch in batches})
    assert batches[-1].last_line >= len(bodies)


def test_reading_starts_from_the_given_line() -> None:
    text = b'nonsense\n{"body": "one"}\n{"body": "two"}\n'
    (batch,) = read_batches(io.BytesIO(text), 2)
    assert ([message.body for message in batch.messages], batch.first_line) == (["one", "two"], 2)


# Typed values.


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "x", "x"),
        ("boolean", "true", True),
        ("int", "-4", Int(-4)),
        ("long", "4", 4),
        ("uint", "4", UInt(4)),
        ("double", "1e3", 1000.0),
        ("float", "NaN", Float("nan")),
        ("timestamp", "2030-01-02T03:04:05.678Z", Timestamp(1_893_553_445_678)),
        ("uuid", str(UUID(int=5)), UUID(int=5)),
        ("binary", "AP8=", b"\x00\xff"),
        ("symbol", "s", Symbol("s")),
    ],
)
def test_typed_value_is_parsed(kind: str, text: str, value: object) -> None:
    assert identity(value_from_text(kind, text)) == identity(value)


@pytest.mark.parametrize("kind", [kind for kind in TYPED_TEXTS if kind not in {"string", "symbol"}])
def test_invalid_typed_value_is_rejected(kind: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (each type has its own words)
        value_from_text(kind, "nothing")


def test_every_primitive_type_is_supported() -> None:
    assert {*TYPED_TEXTS, "null", "decimal32", "decimal64", "decimal128"} == PRIMITIVES.keys()
