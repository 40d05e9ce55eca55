"""A message as a receiver gets it (A3, A9)."""

from __future__ import annotations

from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.delivered import (
    STAMPED,
    DeliveredChanges,
    Stamp,
    is_lock_alone,
    is_stamp_alone,
    lock_token_uuid_bytes,
    read_stamp,
    stamp,
)
from pairbus.wire import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Int,
    Message,
    Properties,
    Sections,
    Short,
    Symbol,
    Timestamp,
    decode_message,
    encode_message,
)

PLAIN = Stamp(5, 3, 1_700_000_000_000, 2, 0)
TOKEN = bytes(range(16))


def delivered(message: Message, facts: Stamp) -> Message:
    return decode_message(stamp(encode_message(message), facts))


def test_service_annotations_have_types_of_sdks() -> None:
    facts = Stamp(5, 3, 1_700_000_000_000, 0, 1, 9_000, TOKEN, 1_700_000_060_000, "orders", 3)
    message = delivered(Message(properties=Properties(message_id="m"), body=(b"x",)), facts)
    assert message.header == Header(ttl=9_000)
    assert message.delivery_annotations == {"x-opt-lock-token": UUID(bytes_le=TOKEN)}
    assert message.message_annotations == {
        "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
        "x-opt-sequence-number": 5,
        "x-opt-enqueue-sequence-number": 3,
        "x-opt-message-state": Int(1),
        "x-opt-locked-until": Timestamp(1_700_000_060_000),
        "x-opt-deadletter-source": "orders",
        "x-opt-partition-id": Short(3),
    }
    types = {name: type(value) for name, value in message.message_annotations.items()}
    assert types == {
        "x-opt-enqueued-time": Timestamp,
        "x-opt-sequence-number": int,
        "x-opt-enqueue-sequence-number": int,
        "x-opt-message-state": Int,
        "x-opt-locked-until": Timestamp,
        "x-opt-deadletter-source": str,
        "x-opt-partition-id": Short,
    }


def test_sequence_numbers_are_encoded_in_eight_bytes() -> None:
    payload = stamp(encode_message(Message(body=(b"",))), PLAIN)
    name = b"x-opt-sequence-number"
    assert payload[payload.index(name) + len(name) :].startswith(b"\x81" + (5).to_bytes(8))


RECORDED_HEADER = b"\x00\x53\x70\xc0\x0a\x05\x40\x40\x70\x48\x19\x08\x00\x40\x43"
RECORDED_ANNOTATIONS = (
    b"\xa3\x13x-opt-enqueued-time\x83\x00\x00\x01\x5b\xa3\x6e\x6a\x63"
    b"\xa3\x15x-opt-sequence-number\x81\x00\x00\x00\x00\x00\x00\x03\x96"
    b"\xa3\x12x-opt-locked-until\x83\x00\x00\x01\x5b\xa3\x6e\xdf\xa3"
)
"""As Azure Service Bus delivered a message that was sent to a queue."""


def test_message_is_stamped_as_by_service() -> None:
    facts = Stamp(0x396, None, 0x15BA36E6A63, 0, 0, 1_209_600_000, TOKEN, 0x15BA36EDFA3)
    payload = stamp(encode_message(Message(body=(b"",))), facts)
    assert payload.startswith(RECORDED_HEADER)
    assert Sections(payload).raw(MESSAGE_ANNOTATIONS).endswith(RECORDED_ANNOTATIONS)
    assert Sections(payload).message_annotations().keys() == {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
    }


HEADERS = {
    "none": (b"", b"\x40\x40"),
    "empty": (b"\x00\x53\x70\x45", b"\x40\x40"),
    "durable": (b"\x00\x53\x70\xc0\x02\x01\x41", b"\x41\x40"),
    "not durable": (b"\x00\x53\x70\xc0\x02\x01\x42", b"\x42\x40"),
    "priority": (b"\x00\x53\x70\xc0\x04\x02\x40\x50\x04", b"\x40\x50\x04"),
    "a long descriptor": (b"\x00\x80" + bytes(7) + b"\x70\xc0\x04\x02\x41\x50\x09", b"\x41\x50\x09"),
    "what only a service knows": (b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x41\x43", b"\x40\x40"),
}


@pytest.mark.parametrize(("sent", "expected"), HEADERS.values(), ids=HEADERS)
def test_header_has_fields_set_by_sender(sent: bytes, expected: bytes) -> None:
    payload = stamp(sent + encode_message(Message(body=(b"",))), PLAIN._replace(delivery_count=0))
    assert payload.startswith(b"\x00\x53\x70\xc0" + bytes((len(expected) + 4, 5)) + expected + b"\x40\x40\x43")


def test_delivery_annotations_are_empty_without_a_lock() -> None:
    payload = stamp(encode_message(Message(body=(b"",))), PLAIN)
    assert Sections(payload).raw(DELIVERY_ANNOTATIONS) == b"\x00\x53\x71\xc1\x01\x00"


def test_assigned_id_is_delivered_and_rest_is_unchanged() -> None:
    message = Message(
        properties=Properties(subject="label", content_type=Symbol("text/plain")),
        application_properties={"n": 1.5},
        body=([1, "two"], [3]),
        body_kind=AMQP_SEQUENCE,
        footer={Symbol("f"): b"x"},
    )
    for changes in (None, DeliveredChanges({}, frozenset(), {"To": "there"})):
        found = delivered(message, PLAIN._replace(message_id="assigned", changes=changes))
        to = None if changes is None else "there"
        assert found.properties == message.properties._replace(message_id="assigned", to=to)
        assert (found.application_properties, found.body, found.footer) == ({"n": 1.5}, message.body, message.footer)


def test_own_id_is_kept() -> None:
    sent = Message(properties=Properties(message_id="mine"), body=(b"",))
    changes = DeliveredChanges({}, frozenset(), {"To": "there"})
    for facts in (PLAIN, PLAIN._replace(changes=changes)):
        assert delivered(sent, facts._replace(message_id="assigned")).properties.message_id == "mine"


def test_empty_message_is_delivered_with_null_body() -> None:
    message = decode_message(stamp(b"", PLAIN._replace(message_id="assigned")))
    assert (message.body_kind, message.body) == (AMQP_VALUE, (None,))


def test_binary_partition_key_is_delivered_as_text() -> None:
    keys = {Symbol("x-opt-partition-key"): b"a", Symbol("x-opt-via-partition-key"): b"\xff", Symbol("mine"): b"c"}
    annotations = delivered(Message(message_annotations=keys, body=(b"",)), PLAIN).message_annotations or {}
    assert [annotations[name] for name in keys] == ["a", "\N{REPLACEMENT CHARACTER}", b"c"]


def test_service_annotations_of_sender_are_dropped() -> None:
    forged = {"x-opt-sequence-number": 99, "x-opt-message-state": Int(7), "x-opt-locked-until": Timestamp(1), "own": 1}
    message = delivered(
        Message(message_annotations=forged, delivery_annotations={"x-opt-lock-token": "mine"}, body=(b"",)), PLAIN
    )
    annotations = message.message_annotations or {}
    assert annotations["x-opt-sequence-number"] == 5
    assert not {"x-opt-message-state", "x-opt-locked-until"} & annotations.keys()
    assert annotations["own"] == 1
    assert message.delivery_annotations is None


def test_lock_token_has_dotnet_byte_order() -> None:
    assert lock_token_uuid_bytes(TOKEN) == UUID(bytes_le=TOKEN).bytes


def test_changed_properties_are_case_insensitive() -> None:
    sent = Message(
        properties=Properties(message_id="m", subject="old", content_type=Symbol("a/b")),
        application_properties={"Colour": "red", "size": 1, "gone": True},
        body=(b"x",),
    )
    changes = DeliveredChanges(
        {"colour": "blue", "DeadLetterReason": "why"}, frozenset({"GONE"}), {"Label": "new", "To": None}
    )
    message = delivered(sent, PLAIN._replace(changes=changes))
    assert message.application_properties == {"size": 1, "colour": "blue", "DeadLetterReason": "why"}
    assert message.properties == sent.properties._replace(subject="new")


NAMES = st.text(max_size=5).filter(lambda name: not name.startswith("x-opt"))
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8)
MAPS = st.none() | st.dictionaries(NAMES.filter(str.isascii).map(Symbol), VALUES, min_size=1, max_size=3)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from([DATA, AMQP_VALUE, AMQP_SEQUENCE]))
    bodies: dict[int, Any] = {
        DATA: st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(tuple),
        AMQP_VALUE: VALUES.map(lambda value: (value,)),
        AMQP_SEQUENCE: st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=3).map(tuple),
    }
    return Message(
        header=Header(draw(st.booleans()), draw(st.integers(0, 9))),
        delivery_annotations=draw(MAPS),
        message_annotations=draw(MAPS),
        properties=Properties(message_id=draw(st.text(max_size=8))),
        application_properties=draw(st.none() | st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)),
        body=draw(bodies[kind]),
        body_kind=kind,
        footer=draw(MAPS),
    )


def test_sections_are_delivered_in_the_standard_order() -> None:
    message = Message(
        header=Header(durable=True),
        properties=Properties(message_id="m"),
        application_properties={"kind": "order"},
        footer={Symbol("f"): 1},
        body=(b"first", b"second"),
    )
    sections = Sections(encode_message(message))
    body = sections.payload[sections.body[0][1] : sections.body[-1][3]]
    parts = [*map(sections.raw, (HEADER, PROPERTIES, APPLICATION_PROPERTIES, FOOTER)), body]
    for count in (2, 3, 4, 5):
        for order in permutations(parts, count):
            received = stamp(b"".join(order), PLAIN)
            found = Sections(received)
            spans = [*found.spans.values(), *((start, value, end) for _, start, value, end in found.body)]
            codes = [received[start + 2] for start, _, _ in sorted(spans)]
            assert codes == sorted(codes)
            assert {part for part in parts[1:] if part in received} == {part for part in order if part != parts[0]}


@given(messages(), st.none() | st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1))
def test_sender_content_is_delivered(sent: Message, token: bytes | None, count: int) -> None:
    message = delivered(sent, PLAIN._replace(lock_token=token, delivery_count=count))
    assert message.body == sent.body
    assert message.body_kind == sent.body_kind
    assert message.properties == sent.properties
    assert message.application_properties == sent.application_properties
    assert message.footer == sent.footer
    assert message.header.durable == sent.header.durable
    assert message.header.priority == sent.header.priority
    assert message.header.delivery_count == count
    annotations = message.message_annotations or {}
    assert {name: annotations[name] for name in sent.message_annotations or {}} == (sent.message_annotations or {})
    kept = {name: value for name, value in (message.delivery_annotations or {}).items() if name != "x-opt-lock-token"}
    assert kept == (sent.delivery_annotations or {})


# Recognition of stamps without decoding.


def annotations_of(payload: bytes) -> tuple[bytes, bytes]:
    sections = Sections(payload)
    return sections.raw(MESSAGE_ANNOTATIONS), sections.raw(DELIVERY_ANNOTATIONS)


@given(
    st.integers(0, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 2),
    st.none() | st.integers(0, 2**62),
    st.none() | st.binary(min_size=16, max_size=16),
)
def test_common_stamp_is_recognized_and_read(
    number: int, original: int | None, state: int, locked_until_ms: int | None, token: bytes | None
) -> None:
    facts = Stamp(number, original, number // 2, 0, state, None, token, locked_until_ms)
    noted, locked = annotations_of(stamp(encode_message(Message(body=(b"x",))), facts))
    assert is_stamp_alone(noted)
    assert read_stamp(noted) == (number, number // 2, locked_until_ms)
    assert is_lock_alone(locked)


def test_extra_annotations_are_not_mistaken_for_stamp() -> None:
    own = {"x-opt-partition-key": "p"}
    locked = Stamp(5, 3, 1_700_000_000_000, 2, 0, None, TOKEN, 1_700_000_060_000)
    for message, facts in (
        (Message(message_annotations=own, delivery_annotations=own), locked),
        (Message(message_annotations=own, delivery_annotations={"x-opt-lock-token": 5, "a": 1}), PLAIN),
        (Message(delivery_annotations={"a": 1}), locked._replace(dead_letter_source="orders")),
        (Message(delivery_annotations={"a": 1}), locked._replace(partition_id=3)),
    ):
        noted, token = annotations_of(stamp(encode_message(message), facts))
        assert not is_stamp_alone(noted)
        assert read_stamp(noted) is None
        assert not is_lock_alone(token)
    assert not is_stamp_alone(b"")
    assert not is_lock_alone(b"")


@given(st.integers(0, 400), st.integers(1, 255))
def test_recognized_stamp_is_a_stamp(index: int, change: int) -> None:
    """A change of any byte changes one of the numbers, or the stamp is not recognized."""
    for facts in (PLAIN, PLAIN._replace(locked_until_ms=5, lock_token=TOKEN)):
        for section in annotations_of(stamp(encode_message(Message(body=(b"x",))), facts)):
            changed = bytearray(section)
            if changed:
                changed[index % len(changed)] ^= change
            if is_stamp_alone(bytes(changed)):
                assert set(Sections(bytes(changed)).message_annotations()) <= STAMPED
            if is_lock_alone(bytes(changed)):
                assert set(Sections(bytes(changed)).delivery_annotations()) <= {"x-opt-lock-token"}
