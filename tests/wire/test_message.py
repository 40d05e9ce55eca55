"""Messages: where their sections lie, and what is in them."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Array,
    Described,
    EncodeError,
    Header,
    Message,
    Properties,
    ProtocolError,
    Sections,
    Symbol,
    UInt,
    ULong,
    decode_message,
    encode,
    encode_message,
)
from pairbus.wire.composites import LAYOUTS, from_list
from pairbus.wire.errors import DecodeError, InvalidFieldError
from pairbus.wire.sections import SECTION_CODES
from tests.wire.values import ONE_OF_EACH, PRIMITIVES, amqp_values, examples, identity, primitives, sparse_composites

OUTER = (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, FOOTER)
"""The sections that a message has at most one of."""

MAPS = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER)

BODIES: tuple[tuple[int, ...], ...] = (
    (),
    (DATA,),
    (DATA, DATA, DATA),
    (AMQP_SEQUENCE,),
    (AMQP_SEQUENCE, AMQP_SEQUENCE),
    (AMQP_VALUE,),
)
"""Every kind of body, as the codes of its sections."""

NAMES = {code: name for name, code in SECTION_CODES.items()}

VALID: dict[int, bytes] = {
    HEADER: encode([True, None, UInt(5)]),
    DELIVERY_ANNOTATIONS: encode({Symbol("d"): 1}),
    MESSAGE_ANNOTATIONS: encode({Symbol("m"): "x" * 300}),
    PROPERTIES: encode(["id", b"user"]),
    APPLICATION_PROPERTIES: encode({"a": True}),
    DATA: encode(b"data"),
    AMQP_SEQUENCE: encode([1, "two"]),
    AMQP_VALUE: encode(Described(Symbol("d"), [None])),
    FOOTER: encode({Symbol("f"): None}),
}
"""For each section a value that it may have."""

OPAQUE = [
    bytes.fromhex(octets)
    for octets in (
        "40",
        "45",
        "5601",
        "60ffff",
        "73ffffffff",  # no character
        "98" + "ee" * 16,
        "a002ffff",
        "a102ffff",  # no UTF-8
        "b300000002ffff",
        "c003ffffff",  # no list
        "d000000006ffffffffffff",
        "c10440404040",
        "e0020040",
        "f00000000300ffff",
        "00a30161c00100",
    )
]
"""Values that can be stepped over, though what is inside them may be invalid."""


def descriptors_of(code: int) -> list[bytes]:
    """All the ways to say which section it is."""
    name = NAMES[code].encode()
    return [
        bytes((0x00, 0x53, code)),
        b"\x00\x80" + code.to_bytes(8),
        b"\x00\xa3" + bytes((len(name),)) + name,
        b"\x00\xb3" + len(name).to_bytes(4) + name,
    ]


def section(code: int, value: bytes) -> bytes:
    return bytes((0x00, 0x53, code)) + value


def valid_section(code: int) -> bytes:
    return section(code, VALID[code])


def assert_found(parts: list[tuple[int, bytes, bytes]]) -> Sections:
    """The sections, each given as its code, descriptor and value, are found where they stand."""
    payload = b"".join(descriptor + value for _, descriptor, value in parts)
    sections = Sections(payload)
    spans = {}
    body = []
    start = 0
    for code, descriptor, value in parts:
        end = start + len(descriptor) + len(value)
        if DATA <= code <= AMQP_VALUE:
            body.append((code, start, start + len(descriptor), end))
        else:
            spans[code] = (start, start + len(descriptor), end)
            assert sections.raw(code) == payload[start:end]
        start = end
    assert sections.payload == payload
    assert sections.spans == spans
    assert sections.body == body
    return sections


# Where the sections lie.


@pytest.mark.parametrize("body", BODIES)
def test_sections_of_every_message_are_found(body: tuple[int, ...]) -> None:
    for count in range(len(OUTER) + 1):
        for outer in itertools.combinations(OUTER, count):
            codes = sorted(outer + body)
            parts = [(code, descriptors_of(code)[0], VALID[code]) for code in codes]
            sections = assert_found(parts)
            assert [sections.raw(code) for code in OUTER if code not in outer] == [b""] * (len(OUTER) - count)
            assert_found(parts[::-1])


@st.composite
def scattered(draw: st.DrawFn, values: st.SearchStrategy[bytes] | None = None) -> list[tuple[int, bytes, bytes]]:
    """Sections in any order, with descriptors in any encoding, and with values of any kind or only valid ones."""
    codes = draw(st.lists(st.sampled_from(OUTER), unique=True)) + list(draw(st.sampled_from(BODIES)))
    return [
        (
            code,
            draw(st.sampled_from(descriptors_of(code))),
            VALID[code] if values is None else draw(values),
        )
        for code in draw(st.permutations(codes))
    ]


@examples(200)
@given(scattered(st.sampled_from(OPAQUE)))
def test_sections_are_found_in_any_order_without_decoding(
    parts: list[tuple[int, bytes, bytes]],
) -> None:
    assert_found(parts)


@examples(100)
@given(scattered(amqp_values.map(encode)))
def test_sections_with_any_value_are_found(parts: list[tuple[int, bytes, bytes]]) -> None:
    assert_found(parts)


@examples(100)
@given(scattered())
def test_message_is_decoded_in_any_section_order(parts: list[tuple[int, bytes, bytes]]) -> None:
    payload = b"".join(descriptor + value for _, descriptor, value in parts)
    codes = [code for code, _, _ in parts]
    body = [code for code in codes if DATA <= code <= AMQP_VALUE]
    contents = {DATA: b"data", AMQP_SEQUENCE: [1, "two"], AMQP_VALUE: Described(Symbol("d"), [None])}
    assert decode_message(payload) == Message(
        header=Header(durable=True, ttl=5) if HEADER in codes else Header(),
        delivery_annotations={Symbol("d"): 1} if DELIVERY_ANNOTATIONS in codes else None,
        message_annotations={Symbol("m"): "x" * 300} if MESSAGE_ANNOTATIONS in codes else None,
        properties=Properties(message_id="id", user_id=b"user") if PROPERTIES in codes else Properties(),
        application_properties={"a": True} if APPLICATION_PROPERTIES in codes else None,
        body=tuple(contents[code] for code in body),
        body_kind=body[0] if body else DATA,
        footer={Symbol("f"): None} if FOOTER in codes else None,
    )


def test_message_may_be_empty() -> None:
    assert_found([])
    assert decode_message(b"") == Message()
    assert encode_message(Message()) == b""
    assert Sections(b"").data() == b""


@examples(100)
@given(scattered(st.sampled_from([*OPAQUE, *VALID.values()])))
def test_truncated_message_is_rejected(parts: list[tuple[int, bytes, bytes]]) -> None:
    payload = b"".join(descriptor + value for _, descriptor, value in parts)
    boundaries = {0, *itertools.accumulate(len(descriptor + value) for _, descriptor, value in parts)}
    for end in range(len(payload)):
        if end in boundaries:
            Sections(payload[:end])
        else:
            with pytest.raises(DecodeError):
                Sections(payload[:end])


@pytest.mark.parametrize("code", OUTER)
def test_repeated_section_is_rejected(code: int) -> None:
    for first, second in itertools.product(descriptors_of(code), repeat=2):
        for between in (b"", valid_section(DATA)):
            with pytest.raises(DecodeError, match="twice"):
                Sections(first + VALID[code] + between + second + VALID[code])


@pytest.mark.parametrize(
    "body",
    [
        (AMQP_VALUE, AMQP_VALUE),
        (DATA, AMQP_VALUE),
        (AMQP_VALUE, DATA),
        (DATA, AMQP_SEQUENCE),
        (DATA, DATA, AMQP_SEQUENCE),
        (AMQP_SEQUENCE, AMQP_VALUE),
        (AMQP_SEQUENCE, DATA),
    ],
)
def test_mixed_body_is_rejected(body: tuple[int, ...]) -> None:
    for between in (b"", valid_section(FOOTER)):
        with pytest.raises(DecodeError, match="a body must be"):
            Sections(between.join(valid_section(code) for code in body[:2]) + b"".join(map(valid_section, body[2:])))


@pytest.mark.parametrize("code", [*range(HEADER), *range(FOOTER + 1, 256)])
def test_unknown_section_code_is_rejected(code: int) -> None:
    for payload in (
        section(code, b"\x45"),
        b"\x00\x80" + code.to_bytes(8) + b"\x45",
        valid_section(HEADER) + section(code, b"\x45"),
    ):
        with pytest.raises(DecodeError, match="is not a section"):
            Sections(payload)


@pytest.mark.parametrize(
    "descriptor",
    [
        Symbol("amqp:header"),
        Symbol(""),
        "amqp:header:list",
        UInt(HEADER),
        HEADER,
        ULong(HEADER | 1 << 32),
        ULong(2**64 - 1),
        None,
        True,
        [],
        {},
        Array(()),
        Described(ULong(HEADER), []),
    ],
    ids=repr,
)
def test_unknown_section_descriptor_is_rejected(descriptor: object) -> None:
    with pytest.raises(DecodeError):
        Sections(b"\x00" + encode(descriptor) + b"\x45")


@pytest.mark.parametrize("value", [None, [], {}, "text", b"data", 1])
def test_undescribed_value_is_not_a_section(value: object) -> None:
    for payload in (encode(value), valid_section(HEADER) + encode(value)):
        with pytest.raises(DecodeError, match="described"):
            Sections(payload)


# What is in the sections.


def field_lists(kind: type) -> list[list[object]]:
    """Lists of fields with each type of value in each place, of each length, and one that is too long."""
    count = len(LAYOUTS[kind].fields)
    lists: list[list[object]] = [[None] * length for length in range(count + 2)]
    for index, value in itertools.product(range(count), ONE_OF_EACH):
        lists.append([None] * index + [value])
        lists.append([None] * index + [value] + [None] * (count - index - 1))
    return lists


def outcome_of(work: Any) -> object:
    try:
        return work()
    except ProtocolError as error:
        return type(error)


@pytest.mark.parametrize(("kind", "code"), [(Header, HEADER), (Properties, PROPERTIES)])
def test_header_and_properties_equal_tables(kind: type, code: int) -> None:
    seen = set()
    for values in field_lists(kind):
        sections = Sections(section(code, encode(values)))
        read = outcome_of(sections.header if code == HEADER else sections.properties)
        assert read == outcome_of(lambda values=values: from_list(LAYOUTS[kind], values))
        seen.add(read if isinstance(read, type) else type(read))
    assert seen == {kind, InvalidFieldError, DecodeError}


@pytest.mark.parametrize(("kind", "code"), [(Header, HEADER), (Properties, PROPERTIES)])
@examples(100)
@given(data=st.data())
def test_header_and_properties_round_trip(kind: type, code: int, data: st.DataObject) -> None:
    value = data.draw(sparse_composites(NAMES[code]))
    sections = Sections(encode(value))
    read = sections.header() if code == HEADER else sections.properties()
    assert type(read) is kind
    assert read == value


def test_missing_sections_are_empty() -> None:
    sections = Sections(b"")
    assert sections.header() == Header()
    assert sections.properties() == Properties()
    assert sections.application_properties() == {}
    assert sections.message_annotations() == {}
    assert sections.delivery_annotations() == {}
    assert sections.footer() == {}
    assert sections.decode_body() == []


@pytest.mark.parametrize("code", OUTER)
@pytest.mark.parametrize("value", ONE_OF_EACH, ids=repr)
def test_section_of_wrong_type_is_rejected(code: int, value: object) -> None:
    sections = Sections(section(code, encode(value)))
    if type(value) is (dict if code in MAPS else list):
        decode_message(sections.payload)
    else:
        with pytest.raises(DecodeError):
            decode_message(sections.payload)


@pytest.mark.parametrize("key", [key for key in ONE_OF_EACH if type(key) is not str], ids=repr)
def test_non_string_application_property_name_is_rejected(key: object) -> None:
    value = b"\xc1" + bytes((len(encode(key)) + 2, 2)) + encode(key) + b"\x40"
    sections = Sections(section(APPLICATION_PROPERTIES, value))
    with pytest.raises(InvalidFieldError if is_hashable(key) else DecodeError):
        sections.application_properties()


def is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("code", MAPS)
def test_map_with_keys_equal_in_python_is_rejected(code: int) -> None:
    content = encode("a") + encode(1) + encode(Symbol("a")) + encode(2)
    payload = section(code, b"\xc1" + bytes((len(content) + 1, 4)) + content)
    with pytest.raises(DecodeError, match="not all different"):
        decode_message(payload)


def test_data_in_several_sections_is_joined() -> None:
    short, long = b"\xa0\x03one", b"\xb0\x00\x00\x00\x03two"
    sections = Sections(section(DATA, short) + section(DATA, long) + section(DATA, b"\xa0\x00"))
    assert sections.data() == b"onetwo"
    assert sections.decode_body() == [b"one", b"two", b""]


@pytest.mark.parametrize("value", [value for value in ONE_OF_EACH if type(value) is not bytes], ids=repr)
def test_non_binary_data_is_rejected(value: object) -> None:
    sections = Sections(section(DATA, encode(value)))
    for read in (sections.data, sections.decode_body):
        with pytest.raises(DecodeError):
            read()


@pytest.mark.parametrize("code", [AMQP_SEQUENCE, AMQP_VALUE])
def test_body_without_data_sections_raises_on_data(code: int) -> None:
    with pytest.raises(DecodeError, match="does not consist of data"):
        Sections(valid_section(code)).data()


@pytest.mark.parametrize("value", [value for value in ONE_OF_EACH if type(value) is not list], ids=repr)
def test_non_list_sequence_is_rejected(value: object) -> None:
    with pytest.raises(DecodeError):
        Sections(section(AMQP_SEQUENCE, encode(value))).decode_body()


@pytest.mark.parametrize("code", [*OUTER, AMQP_SEQUENCE, AMQP_VALUE])
def test_invalid_section_fails_only_when_read(code: int) -> None:
    broken = section(code, bytes.fromhex("c003ffffff"))
    sections = Sections(broken + b"".join(valid_section(other) for other in OUTER if other != code))
    readers = {
        HEADER: sections.header,
        DELIVERY_ANNOTATIONS: sections.delivery_annotations,
        MESSAGE_ANNOTATIONS: sections.message_annotations,
        PROPERTIES: sections.properties,
        APPLICATION_PROPERTIES: sections.application_properties,
        FOOTER: sections.footer,
    }
    for other, read in readers.items():
        if other != code:
            read()
    with pytest.raises(DecodeError):
        readers.get(code, sections.decode_body)()


# Whole messages.

ANNOTATIONS = st.none() | st.dictionaries(
    PRIMITIVES["symbol"] | PRIMITIVES["ulong"], amqp_values, min_size=1, max_size=3
)
CONTENTS = {DATA: PRIMITIVES["binary"], AMQP_SEQUENCE: st.lists(amqp_values, max_size=3), AMQP_VALUE: amqp_values}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body = draw(st.sampled_from(BODIES))
    return Message(
        header=draw(sparse_composites(NAMES[HEADER])),
        delivery_annotations=draw(ANNOTATIONS),
        message_annotations=draw(ANNOTATIONS),
        properties=draw(sparse_composites(NAMES[PROPERTIES])),
        application_properties=draw(st.none() | st.dictionaries(st.text(), primitives, min_size=1, max_size=3)),
        body=tuple(draw(CONTENTS[code]) for code in body),
        body_kind=body[0] if body else DATA,
        footer=draw(ANNOTATIONS),
    )


def content_of(message: Message) -> object:
    """All of a message; its header and properties, which compare by value, apart from the rest."""
    rest = (
        message.delivery_annotations,
        message.message_annotations,
        message.application_properties,
        message.body,
        message.body_kind,
        message.footer,
    )
    return message.header, message.properties, identity(rest)


@examples(150)
@given(messages())
def test_message_round_trips(message: Message) -> None:
    assert content_of(decode_message(encode_message(message))) == content_of(message)


@examples(50)
@given(messages())
def test_sections_are_written_in_standard_order(message: Message) -> None:
    sections = Sections(encode_message(message))
    starts = {start: code for code, (start, _, _) in sections.spans.items()}
    starts |= {start: code for code, start, _, _ in sections.body}
    codes = [starts[start] for start in sorted(starts)]
    assert codes == sorted(codes)


def test_annotation_names_are_symbols() -> None:
    named: dict[Any, Any] = {"a": 1, Symbol("b"): 2, ULong(3): 3}
    annotated = Message(delivery_annotations=named, message_annotations=named, footer=named)
    message = decode_message(encode_message(annotated))
    for found in (message.delivery_annotations, message.message_annotations, message.footer):
        assert found is not None
        assert [type(name) for name in found] == [Symbol, Symbol, ULong]
        assert found == named


UNREADABLE = {
    "no value": Message(body=(), body_kind=AMQP_VALUE),
    "two values": Message(body=(1, 2), body_kind=AMQP_VALUE),
    "text as data": Message(body=("text",)),
    "a list as data": Message(body=([],)),
    "null as data": Message(body=(None,)),
    "bytes as a sequence": Message(body=(b"data",), body_kind=AMQP_SEQUENCE),
    "a map as a sequence": Message(body=({},), body_kind=AMQP_SEQUENCE),
    "a header as the body": Message(body=([],), body_kind=HEADER),
    "an unknown kind of body": Message(body=(b"",), body_kind=0x79),
    "a symbol as a name": Message(application_properties={Symbol("name"): 1}),
    "a number as a name": Message(application_properties={1: 1}),
    "a number as an id": Message(properties=Properties(message_id=5)),
    "a boolean as an id": Message(properties=Properties(message_id=True)),
    "a symbol as an id": Message(properties=Properties(correlation_id=Symbol("id"))),
    "a fraction as an id": Message(properties=Properties(correlation_id=1.5)),
}


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=UNREADABLE)
def test_undecodable_message_is_not_encoded(message: Message) -> None:
    try:
        payload = encode_message(message)
    except EncodeError:
        return
    assert decode_message(payload) == message


@examples(300)
@given(messages(), st.data())
def test_corrupted_message_is_rejected_or_decoded(message: Message, data: st.DataObject) -> None:
    payload = bytearray(encode_message(message) or valid_section(HEADER))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decode_message(bytes(payload))
    with suppress(ProtocolError):
        Sections(bytes(payload)).data()


@examples(200)
@given(st.lists(st.sampled_from(range(HEADER, FOOTER + 1)), min_size=1, max_size=4), st.binary(max_size=24))
def test_random_bytes_are_protocol_error_or_message(codes: list[int], octets: bytes) -> None:
    payload = b"".join(section(code, octets[index:]) for index, code in enumerate(codes))
    with suppress(ProtocolError):
        decode_message(payload)
