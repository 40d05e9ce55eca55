"""The diverted form of a message, and the way back (C11, C12, C16)."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.message import AmqpView, BodyKind, BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.delivered import Stamp, stamp
from pairbus.dialect.sent import read_sent
from pairbus.dialect.transfer import (
    PATH,
    RESERVED,
    SCHEDULED_ENQUEUE_TIME,
    SESSION_ID,
    TIME_TO_LIVE,
    DivertedMessage,
    TransferError,
    divert,
    growth_bytes,
    header_bytes,
    read_transfer,
    restore,
)
from pairbus.wire import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Array,
    Described,
    Header,
    Int,
    Map,
    Message,
    Properties,
    ProtocolError,
    Sections,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    decode_message,
    encode,
    encode_message,
)
from tests.wire.values import ONE_OF_EACH, PRIMITIVES, amqp_values, examples, identity, primitives

LONGEST_TTL_MS = 0xFFFFFFFF
LATEST_MS = 253_402_300_799_999
NOW_MS = 1_800_000_000_000
TOKEN = bytes(range(16))
LOCKED = Stamp(5, 3, NOW_MS, 2, 0, 60_000, TOKEN, NOW_MS + 30_000, "backlog", 3)
"""All that a service can say of a message; the time to live is the backlog queue's own."""

FULL = Message(
    header=Header(durable=True, priority=7, ttl=60_000),
    delivery_annotations={Symbol("d"): Int(1)},
    message_annotations={
        Symbol("x-opt-partition-key"): "s1",
        Symbol("x-opt-via-partition-key"): "via",
        Symbol("own"): UByte(2),
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS + 5_000),
    },
    properties=Properties(
        message_id="m1",
        user_id=b"user",
        to="to",
        subject="label",
        reply_to="reply",
        correlation_id=ULong(7),
        content_type=Symbol("text/plain"),
        content_encoding=Symbol("utf-8"),
        absolute_expiry_time=Timestamp(NOW_MS + 60_000),
        creation_time=Timestamp(NOW_MS),
        group_id="s1",
        group_sequence=UInt(3),
        reply_to_group_id="r1",
    ),
    application_properties={"colour": "red", "size": Int(5)},
    body=(b"one", b"espresso"),
    footer={Symbol("f"): "end"},
)
"""A message that has everything."""


def back(payload: bytes, facts: Stamp | None = None, **options: Any) -> bytes:
    """Divert a message, deliver it if a service stamps it, and restore it; return the result."""
    diverted = divert(payload, "orders")
    delivered = diverted if facts is None else stamp(diverted, facts)
    return restore(delivered, read_transfer(delivered), **options)


def kept(payload: bytes) -> dict[str, Any]:
    """The application properties of a message in its diverted form that are the transfer's."""
    named = Sections(divert(payload, "orders")).application_properties()
    return {name: value for name, value in named.items() if name in RESERVED}


def body_of(payload: bytes) -> bytes:
    return b"".join(payload[start:end] for _, start, _, end in Sections(payload).body)


def content(payload: bytes) -> object:
    """Return the content of a message, with the types of all its values."""
    return identity(decode_message(payload))


# What is cleared and kept.


def test_c11_cleared_values_are_kept_as_properties() -> None:
    named = kept(encode_message(FULL))
    assert identity(named) == identity(
        {
            "x-ms-path": "orders",
            "x-ms-sessionid": "s1",
            "x-ms-timetolive": 60_000,
            "x-ms-scheduledenqueuetimeutc": Timestamp(NOW_MS + 5_000),
        }
    )


def test_c11_diverted_message_has_no_session_ttl_or_schedule() -> None:
    payload = encode_message(FULL)
    sent = read_sent(divert(payload, "orders"), lambda: "made-up")
    assert (sent.session_id, sent.time_to_live_ms, sent.scheduled_ms) == (None, None, None)
    assert sent.message_id == "m1"
    assert sent.partition_key == "s1"


def test_c11_other_fields_are_untouched() -> None:
    diverted = decode_message(divert(encode_message(FULL), "orders"))
    own = {name: value for name, value in (diverted.application_properties or {}).items() if name not in RESERVED}
    annotations = dict(FULL.message_annotations or {})
    del annotations["x-opt-scheduled-enqueue-time"]
    assert identity(own) == identity(FULL.application_properties)
    assert identity(diverted.message_annotations) == identity(annotations)
    assert diverted.header == FULL.header._replace(ttl=None)
    assert identity(diverted.properties) == identity(FULL.properties._replace(group_id=None, absolute_expiry_time=None))
    assert identity(diverted.delivery_annotations) == identity(FULL.delivery_annotations)
    assert identity(diverted.footer) == identity(FULL.footer)
    assert diverted.body == FULL.body


def test_c11_only_set_values_are_kept() -> None:
    payload = encode_message(Message(properties=Properties(message_id="m"), body=(b"x",)))
    assert kept(payload) == {"x-ms-path": "orders"}
    assert read_transfer(divert(payload, "orders")) == DivertedMessage("orders", None, None, None)


def test_c11_empty_session_id_is_kept() -> None:
    payload = encode_message(Message(properties=Properties(message_id="m", group_id=""), body=(b"x",)))
    assert kept(payload)[SESSION_ID] == ""
    assert back(payload) == payload


def test_c11_expiry_without_time_to_live_is_kept() -> None:
    properties = Properties(message_id="m", absolute_expiry_time=Timestamp(5), creation_time=Timestamp(3))
    payload = encode_message(Message(properties=properties, body=(b"x",)))
    assert decode_message(divert(payload, "orders")).properties == properties
    assert back(payload) == payload


def test_c11_reserved_property_is_rejected() -> None:
    for name in sorted(RESERVED):
        payload = encode_message(Message(application_properties={"a": 1, name: "mine"}, body=(b"x",)))
        with pytest.raises(TransferError, match=name) as caught:
            divert(payload, "orders")
        assert caught.value.path == "orders"


@pytest.mark.parametrize("value", [None, "soon", True, [1]], ids=repr)
def test_c11_invalid_scheduled_time_is_left_to_service(value: object) -> None:
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): value}
    payload = encode_message(Message(message_annotations=annotations, body=(b"x",)))
    assert kept(payload) == {"x-ms-path": "orders"}
    assert decode_message(divert(payload, "orders")).message_annotations == annotations


@pytest.mark.parametrize("value", [NOW_MS, UInt(5), ULong(2**64 - 1)], ids=repr)
def test_c11_scheduled_time_is_kept_as_timestamp(value: int) -> None:
    payload = encode_message(Message(message_annotations={"x-opt-scheduled-enqueue-time": value}, body=(b"x",)))
    time = kept(payload)[SCHEDULED_ENQUEUE_TIME]
    assert type(time) is Timestamp
    assert time == min(value, 2**63 - 1)


VALUES = [*ONE_OF_EACH, 1.5, Array((), b"\x70"), Described(Symbol("d"), [None]), Map(((UInt(1), 1), (1, 2)))]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_c11_values_keep_their_types_at_any_depth(value: object) -> None:
    payload = encode_message(
        Message(
            header=Header(ttl=5),
            delivery_annotations={Symbol("d"): value},
            message_annotations={Symbol("m"): value, Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1)},
            properties=Properties(message_id="m", group_id="s"),
            application_properties={"p": value},
            body=(value,),
            body_kind=AMQP_VALUE,
            footer={Symbol("f"): value},
        )
    )
    diverted = decode_message(divert(payload, "orders"))
    found = [
        (diverted.delivery_annotations or {})["d"],
        (diverted.message_annotations or {})["m"],
        (diverted.application_properties or {})["p"],
        (diverted.footer or {})["f"],
        diverted.body[0],
    ]
    assert [identity(one) for one in found] == [identity(value)] * 5
    assert back(payload) == payload
    assert back(payload, LOCKED) == payload


@pytest.mark.parametrize("message_id", ["m", UUID(int=7), b"\x00\xff", ULong(12), None], ids=repr)
def test_c11_message_id_keeps_its_type(message_id: object) -> None:
    payload = encode_message(Message(properties=Properties(message_id=message_id, group_id="s"), body=(b"x",)))
    assert identity(decode_message(divert(payload, "orders")).properties.message_id) == identity(message_id)
    assert back(payload) == payload


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (DATA, ()),
        (DATA, (b"",)),
        (DATA, (b"one", b"", b"x" * 300)),
        (AMQP_VALUE, (None,)),
        (AMQP_VALUE, ({"a": [Int(1), 2.5]},)),
        (AMQP_SEQUENCE, ([1, "two"], [], [UInt(3)])),
    ],
    ids=["none", "empty", "several data", "null", "value", "sequences"],
)
def test_c11_body_of_any_kind_is_unchanged(kind: int, body: tuple[Any, ...]) -> None:
    message = Message(header=FULL.header, properties=FULL.properties, body=body, body_kind=kind, footer=FULL.footer)
    payload = encode_message(message)
    assert body_of(divert(payload, "orders")) == body_of(payload)
    assert back(payload, LOCKED) == payload


def usual(**properties: Any) -> bytes:
    """A message as our client writes most of them."""
    return encode_brokered(BrokeredMessage(b"x" * 300, **properties))


USUAL: Final = [
    usual(message_id="m"),
    usual(message_id="m", application_properties={"colour": "red", "size": 5, "ok": True, "weight": 0.5}),
    usual(message_id="m", label="l", content_type="text/plain", correlation_id="c", to="t", reply_to="r"),
    usual(message_id="m", application_properties={"long": "x" * 240}),
    usual(message_id="m", application_properties={"longer": "x" * 300}),
    usual(message_id="é", application_properties={"é": "é"}),
    encode_brokered(BrokeredMessage("", message_id="m")),
]


@pytest.mark.parametrize("payload", USUAL, ids=repr)
def test_c11_usual_message_gets_its_destination_alone(payload: bytes) -> None:
    sent, diverted = decode_message(payload), decode_message(divert(payload, "orders"))
    added = {**(sent.application_properties or {}), PATH: "orders"}
    assert identity(diverted) == identity(replace(sent, application_properties=added))
    assert back(payload, LOCKED) == payload


@pytest.mark.parametrize("payload", USUAL, ids=repr)
def test_e3_damaged_usual_message_is_rejected_or_diverted_as_it_is(payload: bytes) -> None:
    head = len(payload) - 300
    for position in range(max(head, 0)):
        for value in {0x00, 0x40, 0x45, 0xA1, 0xB1, 0xFF, payload[position] ^ 1, payload[position] + 1 & 0xFF}:
            damaged = payload[:position] + bytes((value,)) + payload[position + 1 :]
            try:
                diverted = divert(damaged, "orders")
            except TransferError:
                continue
            with suppress(ProtocolError):
                sent = decode_message(damaged)
                transfer = read_transfer(diverted)
                assert content(restore(diverted, transfer)) == identity(sent)


# How long a message lives.


@pytest.mark.parametrize(
    "length_ms", [1, 255, 60_000, LONGEST_TTL_MS - 1, LONGEST_TTL_MS, LONGEST_TTL_MS + 1, 10 * LONGEST_TTL_MS]
)
def test_c16_time_to_live_of_any_length_is_restored_in_full(length_ms: int) -> None:
    length = timedelta(milliseconds=length_ms)
    payload = encode_brokered(BrokeredMessage(b"x", time_to_live=length))
    assert identity(kept(payload)[TIME_TO_LIVE]) == identity(length_ms)
    restored = back(payload, LOCKED)
    assert restored == payload
    assert ReceivedMessage(restored).time_to_live == length


def test_c16_time_to_live_is_clamped_to_last_year() -> None:
    payload = encode_brokered(BrokeredMessage(b"x", time_to_live=timedelta(days=9_999 * 366)))
    restored = back(payload, LOCKED)
    assert restored == payload
    assert decode_message(restored).properties.absolute_expiry_time == LATEST_MS


@pytest.mark.parametrize("left_ms", [1, 59_999, LONGEST_TTL_MS + 5])
def test_c16_remaining_time_to_live_can_be_restored(left_ms: int) -> None:
    payload = encode_brokered(BrokeredMessage(b"x", time_to_live=timedelta(days=90)))
    created_ms = decode_message(payload).properties.creation_time or 0
    restored = back(payload, LOCKED, time_to_live_ms=left_ms)
    message = decode_message(restored)
    assert message.header.ttl == min(left_ms, LONGEST_TTL_MS)
    assert message.properties.creation_time == created_ms
    assert message.properties.absolute_expiry_time == created_ms + left_ms
    assert ReceivedMessage(restored).time_to_live == timedelta(milliseconds=left_ms)


def test_c16_message_without_expiry_gets_no_time_to_live() -> None:
    payload = encode_brokered(BrokeredMessage(b"x"))
    assert back(payload, LOCKED) == payload
    assert ReceivedMessage(back(payload, LOCKED)).time_to_live is None


@pytest.mark.parametrize(
    ("ttl", "created_ms", "expires_ms"),
    [
        (60_000, NOW_MS, None),
        (60_000, None, NOW_MS),
        (60_000, NOW_MS, NOW_MS + 5),
        (LONGEST_TTL_MS, NOW_MS, None),
        (LONGEST_TTL_MS, NOW_MS, NOW_MS - 5),
        (LONGEST_TTL_MS, None, NOW_MS),
    ],
)
def test_c16_inconsistent_times_give_time_to_live_of_receiver(
    ttl: int, created_ms: int | None, expires_ms: int | None
) -> None:
    properties = Properties(message_id="m", creation_time=created_ms, absolute_expiry_time=expires_ms)
    payload = encode_message(Message(header=Header(ttl=ttl), properties=properties, body=(b"x",)))
    restored = back(payload, LOCKED)
    message = decode_message(restored)
    assert ReceivedMessage(restored).time_to_live == ReceivedMessage(payload).time_to_live
    assert message.properties.creation_time == created_ms
    assert message.properties.absolute_expiry_time == (None if created_ms is None else created_ms + ttl)


def test_c16_times_of_any_size_can_be_diverted_and_restored() -> None:
    for created_ms, expires_ms in ((-(2**63), 2**63 - 1), (2**63 - 1, -(2**63)), (2**63 - 1, 2**63 - 1)):
        properties = Properties(message_id="m", creation_time=created_ms, absolute_expiry_time=expires_ms)
        payload = encode_message(Message(header=Header(ttl=LONGEST_TTL_MS), properties=properties, body=(b"x",)))
        assert decode_message(back(payload)).header.ttl == LONGEST_TTL_MS


def test_c16_zero_time_to_live_is_undeliverable() -> None:
    payload = encode_message(Message(header=Header(ttl=0), body=(b"x",)))
    with pytest.raises(TransferError, match=r"x-ms-timetolive must be .*, got 0") as caught:
        read_transfer(divert(payload, "orders"))
    assert caught.value.path == "orders"


# The way back.


def test_c14_service_annotations_are_removed() -> None:
    payload = encode_message(FULL)
    delivered = stamp(divert(payload, "orders"), LOCKED)
    assert restore(delivered, read_transfer(delivered)) == payload


def test_c11_resent_dead_letter_keeps_its_reason() -> None:
    reasons = {"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
    payload = encode_message(replace(FULL, application_properties=reasons))
    assert back(payload, LOCKED) == payload


def test_c14_schedule_of_backlog_is_not_restored() -> None:
    payload = encode_message(Message(properties=Properties(message_id="m"), body=(b"x",)))
    later = b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS)})
    diverted = later + divert(payload, "orders")
    assert restore(diverted, read_transfer(diverted)) == payload


def test_c14_every_client_message_is_restored_byte_for_byte() -> None:
    view = AmqpView(
        durable=False,
        priority=9,
        user_id=b"u",
        content_encoding="gzip",
        group_sequence=4,
        annotations={"a": 1, "b": "two"},
        delivery_annotations={"d": Int(4)},
        footer={"f": datetime(2026, 1, 1, tzinfo=UTC)},
    )
    options: list[dict[str, Any]] = [
        {},
        {"session_id": "s"},
        {"session_id": "s", "partition_key": "s", "via_partition_key": "v"},
        {"scheduled_enqueue_time": datetime(2030, 1, 1, tzinfo=UTC)},
        {"time_to_live": timedelta(minutes=1)},
        {"application_properties": {"n": 1, "t": datetime(2026, 1, 1, tzinfo=UTC), "x": "y" * 300}},
        {"body_kind": BodyKind.VALUE, "time_to_live": timedelta(days=60), "session_id": "s"},
        {"amqp": view, "partition_key": "p", "scheduled_enqueue_time": datetime(2030, 1, 1, tzinfo=UTC)},
        {"amqp": view, "time_to_live": timedelta(seconds=1), "session_id": "s", "label": "l", "to": "t"},
        {"amqp": AmqpView(durable=False), "time_to_live": timedelta(seconds=1)},
        {"amqp": AmqpView(durable=False)},
    ]
    for given_options in options:
        payload = encode_brokered(BrokeredMessage(b"espresso", **given_options))
        assert back(payload) == payload
        assert back(payload, LOCKED) == payload


def test_c14_maps_of_every_size_are_restored_byte_for_byte() -> None:
    """Among them those that just fit, and just do not fit, lengths of eight bits."""
    for size in range(300):
        names = {"x": b"y" * size}
        annotations = {Symbol(name): value for name, value in names.items()}
        payload = encode_message(
            Message(message_annotations=annotations, application_properties=names, body=(b"x",), footer=annotations)
        )
        assert back(payload, LOCKED) == payload


def test_c11_empty_section_is_omitted() -> None:
    payload = encode_message(Message(header=Header(ttl=5), properties=Properties(group_id="s"), body=(b"x",)))
    assert list(Sections(divert(payload, "orders")).spans) == [APPLICATION_PROPERTIES]
    assert back(payload) == payload


def test_c16_foreign_time_to_live_is_clamped_to_last_year() -> None:
    properties = Properties(message_id="m", creation_time=NOW_MS)
    kept_by_others = {PATH: "orders", TIME_TO_LIVE: ULong(2**64 - 1)}
    diverted = encode_message(Message(properties=properties, application_properties=kept_by_others, body=(b"x",)))
    message = decode_message(restore(diverted, read_transfer(diverted)))
    assert message.header.ttl == LONGEST_TTL_MS
    assert message.properties.absolute_expiry_time == LATEST_MS


# Messages of every shape.

NAMES = st.text(max_size=5) | st.text(max_size=3).map(lambda name: name * 90)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=5).map(Symbol)
MAPS: st.SearchStrategy[Any] = st.none() | st.dictionaries(SYMBOLS, amqp_values, min_size=1, max_size=3)
MOMENTS = st.integers(0, LATEST_MS // 2).map(Timestamp)
TEXTS = st.none() | st.text(max_size=5)
IDS = st.none() | st.text(max_size=8) | st.uuids() | st.binary(max_size=8) | PRIMITIVES["ulong"]
SESSIONS = st.none() | st.text(max_size=5) | st.text(min_size=1, max_size=3).map(lambda part: part * 100)
LENGTHS = st.sampled_from([1, LONGEST_TTL_MS - 1, LONGEST_TTL_MS, LONGEST_TTL_MS + 1]) | st.integers(1, LATEST_MS // 2)
BODIES: dict[int, Any] = {
    DATA: st.lists(st.binary(max_size=300), max_size=3).map(tuple),
    AMQP_VALUE: amqp_values.map(lambda value: (value,)),
    AMQP_SEQUENCE: st.lists(st.lists(primitives, max_size=3), min_size=1, max_size=3).map(tuple),
}


@st.composite
def lifetimes(draw: st.DrawFn) -> tuple[int | None, int | None, int | None]:
    """A time to live, when the message was made and when it ends; as clients write them."""
    if draw(st.booleans()):
        return None, draw(st.none() | MOMENTS), draw(st.none() | MOMENTS)
    length_ms = draw(LENGTHS)
    if length_ms <= LONGEST_TTL_MS and draw(st.booleans()):
        return length_ms, None, None
    created_ms = draw(MOMENTS)
    return min(length_ms, LONGEST_TTL_MS), created_ms, Timestamp(created_ms + length_ms)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(list(BODIES)))
    ttl, created_ms, expires_ms = draw(lifetimes())
    annotations = dict(draw(MAPS) or {})
    if draw(st.booleans()):
        annotations[Symbol("x-opt-partition-key")] = draw(st.text(max_size=5))
    if draw(st.booleans()):
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = draw(PRIMITIVES["timestamp"])
    return Message(
        header=Header(draw(st.booleans()), draw(st.integers(0, 255)), ttl),
        delivery_annotations=draw(MAPS),
        message_annotations=annotations or None,
        properties=Properties(
            message_id=draw(IDS),
            user_id=draw(st.none() | st.binary(max_size=5)),
            to=draw(TEXTS),
            subject=draw(TEXTS),
            reply_to=draw(TEXTS),
            correlation_id=draw(IDS),
            content_type=draw(st.none() | SYMBOLS),
            content_encoding=draw(st.none() | SYMBOLS),
            absolute_expiry_time=expires_ms,
            creation_time=created_ms,
            group_id=draw(SESSIONS),
            group_sequence=draw(st.none() | PRIMITIVES["uint"]),
            reply_to_group_id=draw(TEXTS),
        ),
        application_properties=draw(st.none() | st.dictionaries(NAMES, primitives, min_size=1, max_size=3)),
        body=draw(BODIES[kind]),
        body_kind=kind,
        footer=draw(MAPS),
    )


STAMPS = st.builds(
    Stamp,
    sequence=st.integers(0, 2**63 - 1),
    original_sequence=st.none() | st.integers(0, 2**63 - 1),
    enqueued_ms=MOMENTS,
    delivery_count=st.integers(0, 2**32 - 1),
    state=st.integers(0, 2),
    time_to_live_ms=st.none() | LENGTHS,
    lock_token=st.none() | st.binary(min_size=16, max_size=16),
    locked_until_ms=st.none() | MOMENTS,
    dead_letter_source=st.none() | st.text(max_size=5),
    partition_id=st.none() | st.integers(0, 2**15 - 1),
    changes=st.none(),
    message_id=st.none(),
)


def loosened(payload: bytes) -> bytes:
    """The same message as one might write it who saves no bytes: long descriptors and maps, the sections reversed."""
    sections = Sections(payload)
    spans = [(code, *span) for code, span in sections.spans.items()]
    parts = [_loose_section(payload, *span) for span in spans[::-1]]
    parts += [_loose_section(payload, *span) for span in sections.body]
    return b"".join(parts)


def _loose_section(payload: bytes, code: int, _start: int, value: int, end: int) -> bytes:
    written = payload[value:end]
    if code in {MESSAGE_ANNOTATIONS, DELIVERY_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER} and written[0] == 0xC1:
        written = b"\xd1" + (written[1] + 3).to_bytes(4) + written[2].to_bytes(4) + written[3:]
    return b"\x00\x80" + code.to_bytes(8) + written


@examples(100)
@given(messages())
def test_c11_message_of_any_shape_is_restored(message: Message) -> None:
    payload = encode_message(message)
    assert back(payload) == payload


@examples(100)
@given(messages(), STAMPS)
def test_c11_message_of_any_shape_is_restored_from_service(message: Message, facts: Stamp) -> None:
    payload = encode_message(message)
    assert content(back(payload, facts)) == content(payload)
    assert body_of(back(payload, facts)) == body_of(payload)


@examples(100)
@given(messages(), STAMPS)
def test_c11_unusual_encoding_is_restored_with_same_content(message: Message, facts: Stamp) -> None:
    payload = loosened(encode_message(message))
    assert content(back(payload)) == content(payload)
    assert content(back(payload, facts)) == content(payload)
    assert body_of(back(payload, facts)) == body_of(payload)


@examples(100)
@given(messages())
def test_c11_service_accepts_every_diverted_message_without_acting_on_it(message: Message) -> None:
    sent = read_sent(divert(encode_message(message), "orders"), lambda: "made-up")
    assert (sent.session_id, sent.time_to_live_ms, sent.scheduled_ms) == (None, None, None)


@examples(100)
@given(messages())
def test_c11_values_read_equal_values_set(message: Message) -> None:
    payload = encode_message(message)
    sent = read_sent(payload, lambda: "made-up")
    transfer = read_transfer(divert(payload, "orders"))
    assert (transfer.path, transfer.session_id, transfer.scheduled_ms) == ("orders", sent.session_id, sent.scheduled_ms)
    length_ms = transfer.time_to_live_ms
    assert (None if length_ms is None else min(length_ms, LONGEST_TTL_MS)) == sent.time_to_live_ms


@examples(100)
@given(messages(), st.text(min_size=1, max_size=260))
def test_c12_growth_is_within_bound(message: Message, path: str) -> None:
    payload = encode_message(message)
    assert len(divert(payload, path)) - len(payload) <= growth_bytes(path)
    loose = loosened(payload)
    assert len(divert(loose, path)) - len(loose) <= growth_bytes(path)


@examples(100)
@given(messages())
def test_c12_body_is_not_counted_as_header(message: Message) -> None:
    payload = encode_message(message)
    assert header_bytes(payload) == len(payload) - len(body_of(payload))
    assert header_bytes(payload) == read_sent(payload, lambda: "").header_bytes or message.properties.message_id is None


@pytest.mark.parametrize("letter", ["a", "\N{GREEK SMALL LETTER PI}", "\N{HOT BEVERAGE}", "\N{CROISSANT}"])
def test_c12_longest_path_and_session_id_fit_bound(letter: str) -> None:
    path, session_id = letter * 260, letter * 128
    for properties in ({}, {"x": b"y" * 200}, {"x": b"y" * 300}):
        payload = encode_brokered(
            BrokeredMessage(
                b"x",
                session_id=session_id,
                time_to_live=timedelta(days=60),
                scheduled_enqueue_time=datetime(2030, 1, 1, tzinfo=UTC),
                application_properties=properties,
            )
        )
        diverted = divert(payload, path)
        assert len(diverted) - len(payload) <= growth_bytes(path)
        transfer = read_transfer(diverted)
        assert (transfer.path, transfer.session_id) == (path, session_id)
        assert restore(stamp(diverted, LOCKED), transfer) == payload


def test_c12_bound_is_tight() -> None:
    """A few dozen bytes, so that hardly any message near the limit needs a closer look."""
    header = encode(Header(ttl=256, delivery_count=1))
    payload = header + encode(Properties(group_id="", reply_to_group_id="")) + b"\x00\x53\x75\xa0\x00"
    path = "p" * 260
    assert 0 <= growth_bytes(path) - (len(divert(payload, path)) - len(payload)) < 48


# What can never be delivered.


def diverted_with(properties: dict[str, Any]) -> bytes:
    return encode_message(Message(application_properties=properties, body=(b"x",)))


@pytest.mark.parametrize("properties", [{}, {"a": 1}, {PATH: None}, {PATH: ""}, {SESSION_ID: "s"}], ids=repr)
def test_c15_message_without_path_is_undeliverable(properties: dict[str, Any]) -> None:
    with pytest.raises(TransferError, match="x-ms-path") as caught:
        read_transfer(diverted_with(properties))
    assert caught.value.path is None


@pytest.mark.parametrize("path", [5, b"orders", Symbol("orders"), True, ["orders"]], ids=repr)
def test_c15_path_that_is_not_text_is_reported(path: object) -> None:
    with pytest.raises(TransferError, match="must be a path") as caught:
        read_transfer(diverted_with({PATH: path}))
    assert caught.value.path is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SESSION_ID, 5),
        (SESSION_ID, b"s"),
        (SESSION_ID, Symbol("s")),
        (TIME_TO_LIVE, "60000"),
        (TIME_TO_LIVE, 1.5),
        (TIME_TO_LIVE, True),
        (TIME_TO_LIVE, 0),
        (TIME_TO_LIVE, -1),
        (TIME_TO_LIVE, Timestamp(5)),
        (SCHEDULED_ENQUEUE_TIME, "soon"),
        (SCHEDULED_ENQUEUE_TIME, NOW_MS),
        (SCHEDULED_ENQUEUE_TIME, True),
    ],
    ids=repr,
)
def test_c15_wrong_type_is_reported_with_path(name: str, value: object) -> None:
    with pytest.raises(TransferError, match=name) as caught:
        read_transfer(diverted_with({PATH: "orders", name: value}))
    assert caught.value.path == "orders"


@pytest.mark.parametrize("name", [SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME])
def test_c15_null_counts_as_unset(name: str) -> None:
    payload = diverted_with({PATH: "orders", name: None})
    transfer = read_transfer(payload)
    assert transfer == DivertedMessage("orders", None, None, None)
    assert restore(payload, transfer) == encode_message(Message(body=(b"x",)))


@pytest.mark.parametrize("value", [60_000, UInt(60_000), ULong(60_000), Int(60_000)], ids=repr)
def test_c15_time_to_live_may_be_any_integer_type(value: int) -> None:
    transfer = read_transfer(diverted_with({PATH: "orders", TIME_TO_LIVE: value}))
    assert identity(transfer.time_to_live_ms) == identity(60_000)


def test_c15_path_of_partly_readable_message_is_known() -> None:
    payload = diverted_with({PATH: "orders"}) + b"\x00\x53\x78\x45"  # a footer that is a list
    with pytest.raises(TransferError, match="cannot be read") as caught:
        read_transfer(payload)
    assert caught.value.path == "orders"


def test_c15_session_id_is_restored_only_if_kept() -> None:
    session = encode(Properties(message_id="m", group_id="own"))
    diverted = session + diverted_with({PATH: "orders"})
    assert decode_message(restore(diverted, read_transfer(diverted))).properties.group_id == "own"


MAP_FAULTS = [
    b"\x45",
    b"\xc1\x00",
    b"\xc1\x01\x01",
    b"\xc1\x02\x01\x40",
    b"\xc1\x03\x04\x40\x40",
    b"\xd1\x00\x00\x00\x01\x00",
]


@pytest.mark.parametrize("fault", [*MAP_FAULTS, b"\xc1\x06\x02\xa1\x01p\xa1\x09"], ids=bytes.hex)
@pytest.mark.parametrize("code", [MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES])
def test_c15_invalid_map_is_unreadable_message(code: int, fault: bytes) -> None:
    section = bytes((0x00, 0x53, code)) + fault
    for payload in (section, section + b"\x00\x53\x75\xa0\x00"):
        with pytest.raises(TransferError, match="cannot be read"):
            divert(payload, "orders")
        with pytest.raises(TransferError, match="cannot be read"):
            restore(payload, DivertedMessage("orders", None, None, None))


def test_c15_unhashable_keys_do_not_prevent_diversion() -> None:
    odd = b"\x00\x53\x72" + encode(Map((([1], 1), ("a", 2), (Symbol("a"), 3))))
    payload = odd + b"\x00\x53\x75\xa0\x00"
    assert Sections(divert(payload, "orders")).raw(MESSAGE_ANNOTATIONS) == odd
    assert restore(divert(payload, "orders"), DivertedMessage("orders", None, None, None)) == payload


def survives(payload: bytes) -> None:
    """Any bytes are handled, or rejected with a reason."""
    with suppress(TransferError):
        header_bytes(payload)
    with suppress(TransferError):
        divert(payload, "orders")
    with suppress(TransferError):
        restore(payload, DivertedMessage("orders", "s", 5, NOW_MS))
    with suppress(TransferError):
        transfer = read_transfer(payload)
        assert transfer.path
        assert readable(restore(payload, transfer))


def readable(payload: bytes) -> bool:
    """Return True if a message can be read; raises ``ProtocolError`` if not, which no transfer error hides."""
    return decode_message(payload) is not None


@given(st.binary(max_size=80))
def test_c15_random_bytes_raise_transfer_error(payload: bytes) -> None:
    survives(payload)


@examples(100)
@given(messages(), st.data())
def test_c15_damaged_message_raises_transfer_error(message: Message, data: st.DataObject) -> None:
    payload = bytearray(stamp(divert(encode_message(message), "orders"), LOCKED))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    survives(bytes(payload))


def test_error_keeps_its_path_when_pickled() -> None:
    error = pickle.loads(pickle.dumps(TransferError("no", "orders")))  # noqa: S301 (our own bytes)
    assert (str(error), error.path) == ("no", "orders")
