"""AMQP values to bytes and back."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from contextlib import suppress
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Float,
    Int,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from pairbus.wire.decoder import (
    MAX_ARRAY_DESCRIPTORS,
    MAX_DEPTH,
    MAX_EMPTY_ELEMENTS,
    READERS,
    decode_at,
    decode_list,
    decode_map,
    skip,
)
from tests.wire.values import PRIMITIVES, SHAPES, amqp_values, examples, identity, values

SAMPLES: dict[int, list[tuple[str, object]]] = {
    0x40: [("", None)],
    0x41: [("", True)],
    0x42: [("", False)],
    0x43: [("", UInt(0))],
    0x44: [("", ULong(0))],
    0x45: [("", [])],
    0x50: [("00", UByte(0)), ("ff", UByte(255))],
    0x51: [("7f", Byte(127)), ("80", Byte(-128)), ("ff", Byte(-1))],
    0x52: [("00", UInt(0)), ("ff", UInt(255))],
    0x53: [("00", ULong(0)), ("ff", ULong(255))],
    0x54: [("7f", Int(127)), ("80", Int(-128))],
    0x55: [("7f", 127), ("80", -128)],
    0x56: [("01", True), ("00", False)],
    0x60: [("0102", UShort(258)), ("ffff", UShort(65535))],
    0x61: [("0102", Short(258)), ("8000", Short(-32768))],
    0x70: [("00000005", UInt(5)), ("ffffffff", UInt(2**32 - 1))],
    0x71: [("00000005", Int(5)), ("80000000", Int(-(2**31)))],
    0x72: [("3fc00000", Float(1.5)), ("ff800000", Float("-inf")), ("7fc00000", Float("nan"))],
    0x73: [("00000041", Char("A")), ("0010ffff", Char("\U0010ffff"))],
    0x74: [("22500001", Decimal32(b"\x22\x50\x00\x01"))],
    0x80: [("0000000000000005", ULong(5)), ("ffffffffffffffff", ULong(2**64 - 1))],
    0x81: [("0000000000000005", 5), ("8000000000000000", -(2**63))],
    0x82: [("3ff8000000000000", 1.5), ("8000000000000000", -0.0), ("7ff8000000000000", float("nan"))],
    0x83: [("00000132f4d2bb80", Timestamp(0x132F4D2BB80)), ("ffffffffffffffff", Timestamp(-1))],
    0x84: [("2234000000000001", Decimal64(b"\x22\x34\x00\x00\x00\x00\x00\x01"))],
    0x94: [("22" + "00" * 14 + "01", Decimal128(b"\x22" + bytes(14) + b"\x01"))],
    0x98: [("000102030405060708090a0b0c0d0e0f", UUID("00010203-0405-0607-0809-0a0b0c0d0e0f"))],
    0xA0: [("00", b""), ("0200ff", b"\x00\xff")],
    0xA1: [("00", ""), ("03e282ac", "€")],
    0xA3: [("00", Symbol("")), ("026162", Symbol("ab"))],
    0xB0: [("00000000", b""), ("0000000200ff", b"\x00\xff")],
    0xB1: [("00000000", ""), ("00000003e282ac", "€")],
    0xB3: [("00000000", Symbol("")), ("000000026162", Symbol("ab"))],
    0xC0: [("0100", []), ("05025205a000", [UInt(5), b""])],
    0xC1: [("0100", {}), ("0602a301615501", {Symbol("a"): 1})],
    0xD0: [("0000000400000000", []), ("0000000500000001" + "41", [True])],
    0xD1: [("0000000400000000", {}), ("0000000900000002" + "a301615501", {Symbol("a"): 1})],
    0xE0: [("020040", Array(())), ("0402500102", Array((UByte(1), UByte(2))))],
    0xF0: [
        ("00000005" + "00000000" + "a3", Array(())),
        ("0000000f" + "00000002" + "b1" + "0000000161" * 2, Array(("a", "a"))),
    ],
}
"""For every format code, what may stand behind it and what it means."""

ENCODED = [
    pytest.param(bytes((code,)) + bytes.fromhex(rest), value, id=f"{code:02x}-{rest}")
    for code, samples in SAMPLES.items()
    for rest, value in samples
]
"""Every sample with its format code in front, and its value."""


def array8(constructor: bytes, elements: list[bytes]) -> bytes:
    body = bytes((len(elements),)) + constructor + b"".join(elements)
    return b"\xe0" + bytes((len(body),)) + body


def array32(constructor: bytes, elements: list[bytes]) -> bytes:
    body = len(elements).to_bytes(4) + constructor + b"".join(elements)
    return b"\xf0" + len(body).to_bytes(4) + body


def elements_of(code: int) -> tuple[list[bytes], tuple[object, ...]]:
    """The samples of a format code as the elements of an array, and their values."""
    samples = SAMPLES[code]
    return [bytes.fromhex(rest) for rest, _ in samples], tuple(value for _, value in samples)


def nest(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


# There and back.


@pytest.mark.parametrize("name", PRIMITIVES)
@examples(60)
@given(data=st.data())
def test_primitive_value_round_trips(name: str, data: st.DataObject) -> None:
    value = data.draw(PRIMITIVES[name])
    assert identity(decode(encode(value))) == identity(value)


@pytest.mark.parametrize("shape", SHAPES)
@examples(150)
@given(data=st.data())
def test_compound_value_round_trips(shape: str, data: st.DataObject) -> None:
    value = data.draw(values((shape,)))
    assert identity(decode(encode(value))) == identity(value)


@examples(300)
@given(amqp_values)
def test_decoded_value_encodes_to_same_bytes(value: object) -> None:
    encoded = encode(value)
    assert encode(decode(encoded)) == encoded


@examples(200)
@given(amqp_values, st.binary(max_size=8), st.binary(max_size=8))
def test_decode_and_skip_end_at_same_position(value: object, before: bytes, behind: bytes) -> None:
    encoded = encode(value)
    data = before + encoded + behind
    end = len(before) + len(encoded)
    decoded, decoded_end = decode_at(data, len(before))
    assert identity(decoded) == identity(value)
    assert decoded_end == end
    assert skip(data, len(before)) == end


@examples(100)
@given(values(("list",)), values(("map",)), st.binary(max_size=8))
def test_list_and_map_are_decoded_inside_other_bytes(
    items: list[Any], pairs: dict[Any, Any] | Map, before: bytes
) -> None:
    position = len(before)
    assert identity(decode_list(before + encode(items) + b"\xff", position)) == identity(items)
    if isinstance(pairs, dict):
        assert identity(decode_map(before + encode(pairs) + b"\xff", position)) == identity(pairs)


# Every format code.


def test_every_format_code_has_a_sample() -> None:
    unknown = READERS[0xFF]
    assert set(SAMPLES) | {0x00} == {code for code, reader in enumerate(READERS) if reader is not unknown}


@pytest.mark.parametrize(("encoded", "value"), ENCODED)
def test_every_format_code_is_decoded(encoded: bytes, value: object) -> None:
    assert identity(decode(encoded)) == identity(value)
    assert skip(encoded, 0) == len(encoded)


@pytest.mark.parametrize(("encoded", "value"), ENCODED)
def test_reencoding_is_not_longer_and_equal(encoded: bytes, value: object) -> None:
    again = encode(decode(encoded))
    assert len(again) <= len(encoded)
    assert identity(decode(again)) == identity(value)
    assert encode(decode(again)) == again


@pytest.mark.parametrize(("encoded", "value"), ENCODED)
def test_every_format_code_is_decoded_inside_compounds(encoded: bytes, value: object) -> None:
    assert identity(decode(b"\xc0" + bytes((1 + len(encoded), 1)) + encoded)) == identity([value])
    assert identity(decode(b"\xc1" + bytes((2 + len(encoded), 2)) + b"\x40" + encoded)) == identity({None: value})
    assert identity(decode(b"\x00\x44" + encoded)) == identity(Described(ULong(0), value))


@pytest.mark.parametrize("code", SAMPLES)
def test_array_of_every_format_code_is_reencoded_unchanged(code: int) -> None:
    elements, items = elements_of(code)
    encoded = array8(bytes((code,)), elements)
    array = decode(encoded)
    assert identity(array) == identity(Array(items))
    assert encode(array) == encoded
    assert skip(encoded, 0) == len(encoded)
    assert identity(decode(array32(bytes((code,)), elements))) == identity(Array(items))


@pytest.mark.parametrize("code", SAMPLES)
def test_empty_array_keeps_constructor(code: int) -> None:
    encoded = array8(bytes((code,)), [])
    array = decode(encoded)
    assert isinstance(array, Array)
    assert array.items == ()
    assert array.constructor == bytes((code,))
    assert encode(array) == encoded
    assert encode(decode(array32(bytes((code,)), []))) == encoded


@pytest.mark.parametrize("code", SAMPLES)
def test_array_of_described_values_is_reencoded_unchanged(code: int) -> None:
    elements, items = elements_of(code)
    encoded = array8(bytes((0x00, 0x53, 0x24, code)), elements)
    array = decode(encoded)
    assert identity(array) == identity(Array(tuple(Described(ULong(0x24), item) for item in items)))
    assert encode(array) == encoded


@pytest.mark.parametrize(
    ("octets", "descriptor"),
    [
        ("44", ULong(0)),
        ("5324", ULong(0x24)),
        ("800000000000000024", ULong(0x24)),
        ("a30161", Symbol("a")),
        ("b30000000161", Symbol("a")),
    ],
)
def test_array_keeps_encoding_of_descriptor(octets: str, descriptor: object) -> None:
    encoded = array8(b"\x00" + bytes.fromhex(octets) + b"\x50", [b"\x01", b"\x02"])
    array = decode(encoded)
    assert identity(array) == identity(Array((Described(descriptor, UByte(1)), Described(descriptor, UByte(2)))))
    assert encode(array) == encoded


def test_array_of_multiply_described_values_is_reencoded_unchanged() -> None:
    encoded = array8(bytes.fromhex("00 a30161 00 5307 50"), [b"\x01", b"\x02"])
    array = decode(encoded)
    assert array == Array(tuple(Described(Symbol("a"), Described(ULong(7), UByte(number))) for number in (1, 2)))
    assert encode(array) == encoded


def test_empty_array_of_described_values_keeps_constructor() -> None:
    encoded = array8(bytes.fromhex("00 a30161 45"), [])
    assert encode(decode(encoded)) == encoded


def test_array_with_long_lengths_keeps_them() -> None:
    strings = Array(("a", "b" * 300))
    assert encode(strings)[9:10] == b"\xb1"
    assert decode(encode(strings)) == strings


@pytest.mark.parametrize("count", [255, 256, 300])
def test_long_array_round_trips(count: int) -> None:
    array = Array(tuple(UByte(number % 256) for number in range(count)))
    assert decode(encode(array)) == array


# The shortest encoding.


@pytest.mark.parametrize(
    ("value", "start", "size"),
    [
        (None, "40", 1),
        (True, "41", 1),
        (False, "42", 1),
        (UByte(0), "5000", 2),
        (UShort(0), "600000", 3),
        (UInt(0), "43", 1),
        (UInt(1), "5201", 2),
        (UInt(255), "52ff", 2),
        (UInt(256), "7000000100", 5),
        (UInt(2**32 - 1), "70ffffffff", 5),
        (ULong(0), "44", 1),
        (ULong(1), "5301", 2),
        (ULong(255), "53ff", 2),
        (ULong(256), "800000000000000100", 9),
        (ULong(2**64 - 1), "80ffffffffffffffff", 9),
        (Byte(-128), "5180", 2),
        (Short(-1), "61ffff", 3),
        (Int(127), "547f", 2),
        (Int(-128), "5480", 2),
        (Int(128), "7100000080", 5),
        (Int(-129), "71ffffff7f", 5),
        (127, "557f", 2),
        (-128, "5580", 2),
        (128, "810000000000000080", 9),
        (-129, "81ffffffffffffff7f", 9),
        (Timestamp(0), "830000000000000000", 9),
        (Float(1.5), "723fc00000", 5),
        (1.5, "823ff8000000000000", 9),
        (Char("A"), "7300000041", 5),
        (b"x" * 255, "a0ff78", 257),
        (b"x" * 256, "b00000010078", 261),
        ("x" * 255, "a1ff78", 257),
        ("x" * 256, "b10000010078", 261),
        ("€" * 85, "a1ffe282ac", 257),
        ("€" * 86, "b100000102e282ac", 263),
        (Symbol("x" * 255), "a3ff78", 257),
        (Symbol("x" * 256), "b30000010078", 261),
        ([], "45", 1),
        ([None] * 254, "c0fffe40", 257),
        ([None] * 255, "d000000103000000ff40", 264),
        (["x" * 252], "c0ff01a1fc", 257),
        (["x" * 253], "d00000010300000001a1fd", 264),
        ({}, "c10100", 3),
        ({1: "x" * 250}, "c1ff025501a1fa", 257),
        ({1: "x" * 251}, "d100000103000000025501a1fb", 264),
        (Array((None,) * 3), "e0020340", 4),
        (Array((UByte(1),) * 253), "e0fffd5001", 257),
        (Array((UByte(1),) * 254), "f000000103000000fe5001", 264),
        (Array(()), "e0020040", 4),
        (Array((True, False)), "e00402560100", 6),
        (Array((UInt(0), UInt(1))), "e00a02700000000000000001", 12),
        (Described(ULong(0x24), []), "00532445", 4),
    ],
)
def test_shortest_encoding_is_chosen(value: object, start: str, size: int) -> None:
    encoded = encode(value)
    assert encoded.hex().startswith(start)
    assert len(encoded) == size
    assert identity(decode(encoded)) == identity(value)


@pytest.mark.parametrize("count", [127, 128])
def test_large_map_round_trips(count: int) -> None:
    pairs = {UInt(number): None for number in range(count)}
    assert identity(decode(encode(pairs))) == identity(pairs)
    assert encode(pairs)[5:9] == (2 * count).to_bytes(4)


# Subclasses, and types that stand for others.


class Colour(IntEnum):
    RED = 3


class Word(StrEnum):
    YES = "yes"


class Name(str):
    __slots__ = ()


class Port(UInt):
    __slots__ = ()


class Mechanism(Symbol):
    __slots__ = ()


class Blob(bytes):
    __slots__ = ()


class Ratio(float):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


class Row(list[object]):
    pass


class Token(UUID):
    pass


ZERO_UUID = UUID(int=0)


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Colour.RED, 3),
        (Word.YES, "yes"),
        (Name("n"), "n"),
        (Port(5), UInt(5)),
        (Mechanism("m"), Symbol("m")),
        (Blob(b"b"), b"b"),
        (Ratio(0.5), 0.5),
        (Point(1, 2), [1, 2]),
        (Row([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        (Token(int=0), ZERO_UUID),
        (bytearray(b"b"), b"b"),
        (memoryview(b"b"), b"b"),
        ((1, 2), [1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclass_is_encoded_as_its_base(value: object, base: object) -> None:
    assert identity(decode(encode(value))) == identity(base)
    assert identity(decode(encode([value]))) == identity([base])
    assert identity(decode(encode(Array((base, value))))) == identity(Array((base, base)))
    assert identity(decode(encode(Array((value,))))) == identity(Array((base,)))


# What cannot be encoded.


@pytest.mark.parametrize(
    "value",
    [
        UByte(-1),
        UByte(256),
        UShort(-1),
        UShort(65536),
        UInt(-1),
        UInt(2**32),
        ULong(-1),
        ULong(2**64),
        Byte(-129),
        Byte(128),
        Short(-32769),
        Short(32768),
        Int(-(2**31) - 1),
        Int(2**31),
        -(2**63) - 1,
        2**63,
        Timestamp(-(2**63) - 1),
        Timestamp(2**63),
        Float(1e39),
        Char(""),
        Char("ab"),
        Char("\ud800"),
        "\udfff",
        Symbol("é"),
        Decimal32(b"123"),
        Decimal64(b"123456789"),
        Decimal128(b""),
        Fraction(1, 2),
        {1, 2},
        object(),
        1j,
    ],
)
def test_unencodable_value_is_rejected_at_any_depth(value: object) -> None:
    for whole in (value, [value], Map(((value, 1),)), {"a": value}, Described(ULong(1), value), Array((value,))):
        with pytest.raises(EncodeError):
            encode(whole)


@pytest.mark.parametrize(
    "items",
    [
        ("a", Symbol("a")),
        (Symbol("a"), "a"),
        (1, UInt(1)),
        (UInt(1), 1),
        (1, True),
        (True, 1),
        (1, Timestamp(1)),
        (UInt(1), ULong(1)),
        (1.0, Float(1.0)),
        (None, 1),
        (1, None),
        ([], {}),
        ("a", b"a"),
        (b"four", Decimal32(b"four")),
        (Described(ULong(1), 1), 1),
        (1, Described(ULong(1), 1)),
        (Described(ULong(1), 1), Described(ULong(2), 1)),
        (Described(ULong(1), 1), Described(Symbol("a"), 1)),
        (Described(ULong(1), 1), Described(1, 1)),
        (Described("a", 1), Described(Symbol("a"), 1)),
        (Described(0.0, 1), Described(-0.0, 1)),
        (Described([1], 1), Described([True], 1)),
        (Described(ULong(1), 1), Described(ULong(1), Described(ULong(1), 1))),
        (Described(ULong(1), 1), Described(ULong(1), "a")),
    ],
    ids=repr,
)
def test_array_of_mixed_types_is_rejected(items: tuple[object, ...]) -> None:
    with pytest.raises(EncodeError):
        encode(Array(items))


@pytest.mark.parametrize(
    ("constructor", "item"),
    [
        (b"\x52", UInt(256)),
        (b"\x53", ULong(256)),
        (b"\x54", Int(128)),
        (b"\x55", 128),
        (b"\x43", UInt(1)),
        (b"\x45", [1]),
        (b"\x41", False),
        (b"\xa1", "x" * 256),
        (b"\xc0", ["x" * 256]),
        (b"\xe0", Array(("x" * 256,))),
        (b"\x70", ULong(1)),
    ],
    ids=repr,
)
def test_array_values_outside_constructor_are_rejected(constructor: bytes, item: object) -> None:
    with pytest.raises(EncodeError):
        encode(Array((item,), constructor))


def test_integer_out_of_range_is_reported_at_any_depth() -> None:
    for value in (
        UInt(-1),
        [1, UInt(-1)],
        {"a": True, "b": [UInt(-1)]},
        Array((UInt(-1),)),
        Described(Symbol("a"), UInt(-1)),
    ):
        with pytest.raises(EncodeError, match=re.escape("-1 does not fit uint (0 to 4294967295)")):
            encode(value)
    itself: list[object] = ["\ud800"]
    itself.append(itself)
    with pytest.raises(EncodeError, match="a value does not fit its AMQP type"):
        encode(itself)


def test_described_descriptor_is_rejected() -> None:
    with pytest.raises(EncodeError):
        encode(Described(Described(ULong(1), 1), 1))
    with pytest.raises(EncodeError):
        encode(Array((Described(Described(ULong(1), 1), 1),)))


# Depth.


def test_values_nest_up_to_limit_only() -> None:
    deepest = nest(None, MAX_DEPTH)
    assert decode(encode(deepest)) == deepest
    for value in (nest(None, MAX_DEPTH + 1), nest(None, 100_000)):
        with pytest.raises(EncodeError, match="nest deeper"):
            encode(value)


def test_self_containing_list_is_rejected() -> None:
    items: list[object] = []
    items.append(items)
    with pytest.raises(EncodeError, match="nest deeper"):
        encode(items)


@pytest.mark.parametrize("depth", range(MAX_DEPTH - 1, MAX_DEPTH + 2))
@pytest.mark.parametrize(
    "innermost",
    [None, [], {}, [None], Array(()), Array((None,)), Described(None, None), Array((Described(None, None),))],
    ids=repr,
)
def test_encodable_depth_is_decodable(innermost: object, depth: int) -> None:
    value = nest(innermost, depth)
    try:
        encoded = encode(value)
    except EncodeError:
        assert depth >= MAX_DEPTH - 1
    else:
        assert identity(decode(encoded)) == identity(value)


@examples(150)
@given(amqp_values, st.integers(MAX_DEPTH - 6, MAX_DEPTH))
def test_deep_value_is_rejected_or_round_trips(innermost: object, depth: int) -> None:
    value = nest(innermost, depth)
    with suppress(EncodeError):
        encoded = encode(value)
        assert identity(decode(encoded)) == identity(value)


@pytest.mark.parametrize("count", [MAX_EMPTY_ELEMENTS - 1, MAX_EMPTY_ELEMENTS, MAX_EMPTY_ELEMENTS + 1, 1000])
@pytest.mark.parametrize("item", [None, Described(Symbol("a"), None)], ids=repr)
def test_undecodable_array_of_empty_elements_is_not_encoded(item: object, count: int) -> None:
    array = Array((item,) * count)
    if count <= MAX_EMPTY_ELEMENTS:
        assert decode(encode(array)) == array
    else:
        with pytest.raises(EncodeError):
            encode(array)


@pytest.mark.parametrize("nan", [0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000001])
def test_array_described_by_nan_round_trips(nan: int) -> None:
    (descriptor,) = struct.unpack(">d", nan.to_bytes(8))
    array = Array((Described(descriptor, 1), Described(descriptor, 2)))
    assert identity(decode(encode(array))) == identity(array)
    assert encode(decode(encode(array))) == encode(array)


@pytest.mark.parametrize("count", range(1, MAX_ARRAY_DESCRIPTORS + 3))
def test_array_with_too_many_descriptors_is_not_encoded(count: int) -> None:
    item: object = None
    for _ in range(count):
        item = Described(None, item)
    array = Array((item,))
    if count <= MAX_ARRAY_DESCRIPTORS:
        assert decode(encode(array)) == array
    else:
        with pytest.raises(EncodeError):
            encode(array)
