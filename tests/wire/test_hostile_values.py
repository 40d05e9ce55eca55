"""Bytes that are no AMQP values, or that want to be larger, deeper or slower than they are long."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pairbus.wire import Array, Described, Map, Symbol, UInt, decode, encode
from pairbus.wire.decoder import (
    MAX_DEPTH,
    MAX_EMPTY_ELEMENTS,
    MAX_PAIRS_DEPTH,
    READERS,
    count_values,
    decode_at,
    decode_list,
    decode_map,
    skip,
)
from pairbus.wire.errors import DecodeError
from tests.wire.values import amqp_values, examples, identity, primitives

CODES = [code for code, reader in enumerate(READERS) if reader is not READERS[0xFF]]
MOST = 0xFFFFFFFF

MEMORY_PER_BYTE = 512
"""The maximum memory for a byte of input. An empty list in a list, one byte, takes about 70 bytes in Python."""

CALLS_PER_KEY = 60
"""The number of calls that the decoder may make for a key of a map."""


def compound(code: int, count: int, body: bytes) -> bytes:
    """A list, map or array with lengths of 32 bits."""
    return bytes((code,)) + (len(body) + 4).to_bytes(4) + count.to_bytes(4) + body


def array_of(constructor: str, elements: list[bytes]) -> bytes:
    return compound(0xF0, len(elements), bytes.fromhex(constructor) + b"".join(elements))


def map_of(keys: list[bytes]) -> bytes:
    return compound(0xD1, 2 * len(keys), b"".join(key + b"\x40" for key in keys))


def assert_refused(data: bytes) -> None:
    """The decoder refuses the value, alone and wherever it may stand."""
    for whole in (data, compound(0xD0, 1, data), compound(0xD1, 2, b"\x40" + data), map_of([data]), b"\x00\x44" + data):
        with pytest.raises(DecodeError):
            decode(whole)
        with pytest.raises(DecodeError):
            decode_at(b"\xff" + whole + b"\xff", 1)


# Cut off and changed.


@examples(150)
@given(amqp_values)
def test_truncated_value_is_rejected_at_every_position(value: object) -> None:
    encoded = encode(value)
    for end in range(len(encoded)):
        with pytest.raises(DecodeError):
            decode(encoded[:end])
        with pytest.raises(DecodeError):
            skip(encoded[:end], 0)


@examples(50)
@given(amqp_values, st.binary(min_size=1, max_size=4))
def test_trailing_bytes_are_rejected(value: object, more: bytes) -> None:
    with pytest.raises(DecodeError, match=f"{len(more)} bytes follow"):
        decode(encode(value) + more)


def judge(data: bytes) -> None:
    """Any bytes are rejected, or decode to a value that can be encoded again."""
    try:
        value = decode(data)
    except DecodeError:
        return
    assert identity(decode(encode(value))) == identity(value)
    assert skip(data, 0) == len(data)


@examples(300)
@given(amqp_values, st.data())
def test_corrupted_value_is_rejected_or_decoded(value: object, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(CODES)))
    judge(bytes(encoded))


@examples(300)
@given(st.lists(st.one_of(st.sampled_from(CODES), st.integers(0, 8), st.integers(0, 255)), max_size=24))
def test_random_bytes_are_rejected_or_decoded(octets: list[int]) -> None:
    judge(bytes(octets))
    for reader in (decode_list, decode_map):
        with suppress(DecodeError):
            reader(bytes(octets), 0)


# Sizes and counts.


@pytest.mark.parametrize("code", [0xD0, 0xD1, 0xF0])
@pytest.mark.parametrize("count", [2, 1000, 2**31, MOST - 1, MOST])
def test_count_beyond_bytes_is_rejected(code: int, count: int) -> None:
    for body in ("", "5001", "a100", "70000000"):
        assert_refused(compound(code, count, bytes.fromhex(body)))


@pytest.mark.parametrize("code", [code for code in CODES if code >= 0xA0])
def test_size_beyond_end_is_rejected(code: int) -> None:
    for size in (256, 2**31, MOST) if code & 0x10 else (255,):
        data = bytes((code,)) + size.to_bytes(4 if code & 0x10 else 1) + bytes(250)
        assert_refused(data)
        with pytest.raises(DecodeError):
            skip(data, 0)


@pytest.mark.parametrize("constructor", ["40", "41", "42", "43", "44", "45", "00a3016140"])
@pytest.mark.parametrize("count", [MAX_EMPTY_ELEMENTS + 1, 257, 2**16, 2**31, MOST])
def test_long_array_of_empty_elements_is_rejected(constructor: str, count: int) -> None:
    assert_refused(compound(0xF0, count, bytes.fromhex(constructor)))
    assert_refused(compound(0xF0, count, bytes.fromhex(constructor) + bytes(300)))


CONTENT = {0xC0: "520541", 0xC1: "520541", 0xE0: "500102", 0xD0: "520541", 0xD1: "520541", 0xF0: "500102"}
"""Lists, maps and arrays that hold two values."""


def resized(code: int, size_error: int, count_error: int) -> bytes:
    body = bytes.fromhex(CONTENT[code])
    width = 4 if code & 0x10 else 1
    size = width + len(body) + size_error
    return bytes((code,)) + size.to_bytes(width) + (2 + count_error).to_bytes(width) + body


@pytest.mark.parametrize("code", CONTENT)
@pytest.mark.parametrize("error", [-2, -1, 1, 2])
def test_inconsistent_size_or_count_is_rejected(code: int, error: int) -> None:
    decode(resized(code, 0, 0))
    for data in (resized(code, error, 0), resized(code, 0, error)):
        with pytest.raises(DecodeError):
            decode_at(data + b"\x40\x40", 0)


@pytest.mark.parametrize("code", CONTENT)
def test_size_without_count_is_rejected(code: int) -> None:
    width = 4 if code & 0x10 else 1
    for size in range(width):
        with pytest.raises(DecodeError):
            decode_at(bytes((code,)) + size.to_bytes(width) + bytes(width) + b"\x40" * 8, 0)


@pytest.mark.parametrize(("code", "width"), [(0xE0, 1), (0xF0, 4)])
def test_only_empty_array_may_omit_constructor(code: int, width: int) -> None:
    start = bytes((code,)) + width.to_bytes(width)
    assert decode(start + bytes(width)) == Array(())
    assert skip(start + bytes(width), 0) == len(start) + width
    assert decode(encode(decode(start + bytes(width)))) == Array(())
    for count in (1, 2, 255):
        with pytest.raises(DecodeError):
            decode_at(start + count.to_bytes(width) + b"\x40" * 8, 0)


@examples(100)
@given(st.lists(primitives, min_size=1, max_size=4), st.integers(-4, 4).filter(bool))
def test_list_with_wrong_size_is_rejected(items: list[object], error: int) -> None:
    data = compound(0xD0, len(items), b"".join(encode(item) for item in items))
    size = int.from_bytes(data[1:5]) + error
    with pytest.raises(DecodeError):
        decode_at(data[:1] + size.to_bytes(4) + data[5:] + b"\x40" * 4, 0)


@pytest.mark.parametrize("data", ["c1020140", "c10403404040", "d10000000500000001" + "40"])
def test_map_with_key_without_value_is_rejected(data: str) -> None:
    assert_refused(bytes.fromhex(data))
    with pytest.raises(DecodeError, match="key without a value"):
        decode_map(bytes.fromhex(data), 0)


# Text, and numbers that mean nothing.

BROKEN_TEXT = {
    "a NUL in two bytes": "c080",
    "a slash in two bytes": "c0af",
    "a slash in three bytes": "e080af",
    "a euro sign in four bytes": "f08282ac",
    "half of a surrogate pair": "eda080",
    "a surrogate pair": "eda080edb080",
    "beyond Unicode": "f4908080",
    "five bytes": "f888808080",
    "a first byte alone": "e282",
    "a second byte alone": "80",
    "no UTF-8 at all": "ff",
}


@pytest.mark.parametrize("octets", BROKEN_TEXT.values(), ids=BROKEN_TEXT)
def test_invalid_utf_8_string_is_rejected(octets: str) -> None:
    text = bytes.fromhex(octets)
    short = bytes((len(text),)) + text
    long = len(text).to_bytes(4) + text
    for data in (b"\xa1" + short, b"\xb1" + long, array_of("a1", [short]), array_of("b1", [long])):
        assert_refused(data)


@pytest.mark.parametrize("octet", [0x80, 0xC3, 0xFF])
def test_non_ascii_symbol_is_rejected(octet: int) -> None:
    text = b"a" + bytes((octet,))
    short = b"\x02" + text
    long = b"\x00\x00\x00\x02" + text
    for data in (b"\xa3" + short, b"\xb3" + long, array_of("a3", [short]), array_of("b3", [long])):
        assert_refused(data)


@pytest.mark.parametrize("octet", [2, 0x41, 0xFF])
def test_boolean_other_than_0_or_1_is_rejected(octet: int) -> None:
    assert_refused(bytes((0x56, octet)))
    assert_refused(array_of("56", [b"\x01", bytes((octet,))]))


@pytest.mark.parametrize("number", [0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0x110000, 2**31, MOST])
def test_invalid_char_is_rejected(number: int) -> None:
    assert_refused(b"\x73" + number.to_bytes(4))
    assert_refused(array_of("73", [number.to_bytes(4)]))


@pytest.mark.parametrize("constructor", ["01", "3f", "46", "57", "99", "a2", "b2", "c2", "d2", "e1", "f1", "ff"])
def test_array_with_unknown_constructor_is_rejected(constructor: str) -> None:
    assert_refused(array_of(constructor, []))
    assert_refused(array_of(constructor, [bytes(20)]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_described_descriptor_is_rejected(count: int) -> None:
    data = b"\x00" * count + b"\x00\x44\x40" + b"\x40" * count
    assert_refused(data)
    with pytest.raises(DecodeError):
        skip(data, 0)
    assert_refused(compound(0xF0, 1, data))


# Keys.


@examples(100)
@given(amqp_values, amqp_values)
def test_duplicate_key_is_rejected(key: object, other: object) -> None:
    assume(decode(encode(key)) == key)  # a NaN is never the same key
    assert_refused(map_of([encode(key), encode(key)]))
    if identity(key) != identity(other):
        assert_refused(map_of([encode(key), encode(other), encode(key)]))


def test_duplicate_key_in_any_encoding_is_rejected() -> None:
    for first, second in (("43", "5200"), ("5205", "7000000005"), ("a10161", "b10000000161"), ("41", "5601")):
        assert_refused(map_of([bytes.fromhex(first), bytes.fromhex(second)]))


def test_duplicate_array_key_in_any_encoding_is_rejected() -> None:
    assert_refused(map_of([array_of("52", [b"\x05"]), array_of("70", [b"\x00\x00\x00\x05"])]))


def test_keys_equal_only_in_python_are_distinct() -> None:
    keys = [UInt(1), 1, True, 1.0, Symbol("a"), "a", Described("d", 1), Described("d", UInt(1)), [1], [UInt(1)]]
    decoded = decode(map_of([encode(key) for key in keys]))
    assert isinstance(decoded, Map)
    assert [identity(key) for key, _ in decoded.pairs] == [identity(key) for key in keys]
    with pytest.raises(DecodeError):
        decode_map(map_of([encode(key) for key in keys]), 0)


# Depth.


def list_bomb(depth: int) -> bytes:
    data = b"\x40"
    for _ in range(depth):
        data = compound(0xD0, 1, data)
    return data


def map_bomb(depth: int) -> bytes:
    data = b"\x40"
    for _ in range(depth):
        data = compound(0xD1, 2, b"\x40" + data)
    return data


def key_bomb(depth: int) -> bytes:
    data = b"\x40"
    for _ in range(depth):
        data = compound(0xD1, 2, data + b"\x40")
    return data


def array_bomb(depth: int) -> bytes:
    data = compound(0xF0, 0, b"\x40")
    for _ in range(depth - 1):
        data = compound(0xF0, 1, data)
    return data


def described_bomb(depth: int) -> bytes:
    return b"\x00\x44" * depth + b"\x40"


def descriptor_bomb(depth: int) -> bytes:
    """A list in a descriptor in a list in a descriptor and so on."""
    data = list_bomb(depth % 2)
    for _ in range(depth // 2):
        data = b"\x00" + compound(0xD0, 1, data) + b"\x40"
    return data


BOMBS = [list_bomb, map_bomb, key_bomb, array_bomb, described_bomb, descriptor_bomb]


def test_maps_beyond_dict_have_lower_nesting_limit() -> None:
    data = key_bomb(MAX_PAIRS_DEPTH + 1)
    assert encode(decode(data))
    with pytest.raises(DecodeError, match="nest deeper"):
        decode(key_bomb(MAX_PAIRS_DEPTH + 3))


@pytest.mark.parametrize("bomb", [bomb for bomb in BOMBS if bomb is not key_bomb])
def test_values_nest_up_to_limit(bomb: Callable[[int], bytes]) -> None:
    data = bomb(MAX_DEPTH)
    assert decode_at(data, 0) == (decode(data), len(data))
    assert skip(data, 0) == len(data)
    assert encode(decode(data))


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2000])
def test_nesting_beyond_limit_is_rejected(bomb: Callable[[int], bytes], depth: int) -> None:
    data = bomb(depth)
    for read in (decode, lambda data: decode_at(data, 0)):
        with pytest.raises(DecodeError, match="nest deeper"):
            read(data)


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2000])
def test_deep_value_is_skipped_or_rejected(bomb: Callable[[int], bytes], depth: int) -> None:
    data = bomb(depth)
    if bomb is described_bomb:
        with pytest.raises(DecodeError, match="nest deeper"):
            skip(data, 0)
    else:
        assert skip(data, 0) == len(data)


def described_array_bomb(depth: int) -> bytes:
    """Arrays in arrays, whose elements have four descriptors each."""
    data = compound(0xF0, 0, b"\x40")
    for _ in range(depth - 1):
        data = compound(0xF0, 1, b"\x00\x40" * 4 + data)
    return data


@pytest.mark.parametrize("bomb", [*BOMBS, described_array_bomb])
def test_value_at_nesting_limit_is_rejected_or_usable(bomb: Callable[[int], bytes]) -> None:
    data = bomb(MAX_DEPTH - 1)
    try:
        value = decode(data)
    except DecodeError:
        return
    assert value == decode(data)
    assert repr(value)
    assert encode(value)


@pytest.mark.parametrize("bomb", [*BOMBS, described_array_bomb])
def test_duplicate_deep_key_is_rejected(bomb: Callable[[int], bytes]) -> None:
    key = bomb(MAX_DEPTH - 1)
    with pytest.raises(DecodeError):
        decode(map_of([key, key]))


# Memory and time.


def peak_memory(data: bytes) -> int:
    tracemalloc.start()
    try:
        with suppress(DecodeError):
            decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


EXPANDING = {
    "empty lists in a list": compound(0xD0, 4000, b"\x45" * 4000),
    "empty maps in a list": compound(0xD0, 1000, b"\xc1\x01\x00" * 1000),
    "described nulls in a list": compound(0xD0, 1000, b"\x00\x40\x40" * 1000),
    "maps that a dict cannot hold": compound(0xD0, 500, b"\xc1\x05\x04\x45\x40\x43\x40" * 500),
    "an array of described octets": array_of("00400040004000" + "4050", [b"\x01"] * 4000),
    "arrays of null in an array": array_of("f0", [b"\x00\x00\x00\x05\x00\x00\x01\x00\x40"] * 400),
    "short arrays of null in an array": array_of("e0", [b"\x02\xff\x40"] * 1000),
    "short arrays of empty lists in an array": array_of("e0", [b"\x02\xff\x45"] * 1000),
    "short arrays of described nulls in an array": array_of("e0", [b"\x0a\xff" + b"\x00\x40" * 4 + b"\x40"] * 300),
    "arrays of null in a list": compound(0xD0, 1000, b"\xe0\x02\xff\x40" * 1000),
    "arrays of arrays of null": array_of(
        "f0", [array_of("f0", [b"\x00\x00\x00\x05\x00\x00\x00\x10\x40"] * 20)[1:] for _ in range(20)]
    ),
    "small arrays of null in an array": array_of("e0", [b"\x02\x10\x40"] * 1000),
    "small arrays of empty lists in an array": array_of("e0", [b"\x02\x10\x45"] * 1000),
    "small arrays of described nulls in an array": array_of("e0", [b"\x0a\x10" + b"\x00\x40" * 4 + b"\x40"] * 300),
    "a list that claims to be long": compound(0xD0, MOST, b"\x40" * 4000),
    "an array that claims to be long": compound(0xF0, MOST, b"\x40" * 4000),
    "an array of nulls that is too long": compound(0xF0, 4000, b"\x40" * 4000),
}


@pytest.mark.parametrize("data", EXPANDING.values(), ids=EXPANDING)
def test_memory_of_value_is_bounded_by_its_length(data: bytes) -> None:
    assert peak_memory(data) < MEMORY_PER_BYTE * len(data)


def calls_made(work: Callable[[], object]) -> int:
    """Count the calls of Python functions that some work makes: a measure of time that is the same on every machine."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        with suppress(DecodeError):
            work()
    finally:
        sys.setprofile(previous)
    return calls


def uuid_keys(count: int) -> list[bytes]:
    """Keys that are all different and hash alike: Python hashes whole numbers modulo 2**61 - 1."""
    keys = [UUID(int=number * (2**61 - 1)) for number in range(1, count + 1)]
    assert len({hash(key) for key in keys}) == 1
    return [encode(key) for key in keys]


def array_keys(count: int) -> list[bytes]:
    """Keys that are all different and hash alike: -1 and -2 have the same hash."""
    keys = [Array(items) for items in itertools.islice(itertools.product((-1, -2), repeat=12), count)]
    assert len({hash(key) for key in keys}) == 1
    return [encode(key) for key in keys]


def described_keys(count: int) -> list[bytes]:
    return [b"\x00\x44" + key for key in uuid_keys(count)]


@pytest.mark.parametrize("keys", [uuid_keys, array_keys, described_keys])
def test_time_for_map_is_bounded_with_equal_hashes(
    keys: Callable[[int], list[bytes]],
) -> None:
    data = map_of(keys(400))
    assert calls_made(lambda: decode(data)) < CALLS_PER_KEY * 400


def test_map_with_many_non_text_keys_is_decoded_as_pairs() -> None:
    numbers = Map(tuple((number, None) for number in range(5000)))
    assert decode(encode(numbers)) == numbers
    words = {f"key {number}": None for number in range(5000)}
    assert decode(encode(words)) == words
    with pytest.raises(DecodeError):
        decode_map(encode(numbers), 0)


def count_of(value: object) -> int:
    """Return the number of values in a value, itself included; the naive way, and not for arrays."""
    match value:
        case Described():
            return 1 + count_of(value.descriptor) + count_of(value.value)
        case Map():
            return 1 + sum(count_of(key) + count_of(member) for key, member in value.pairs)
        case dict():
            return 1 + sum(count_of(key) + count_of(member) for key, member in value.items())
        case list():
            return 1 + sum(map(count_of, value))
    return 1


def holds_an_array(value: object) -> bool:
    return "Array(" in repr(value)


@examples(300)
@given(amqp_values)
def test_count_values_counts_every_nested_value(value: object) -> None:
    assume(not holds_an_array(value))
    data = encode(value)
    count = count_of(decode(data))
    assert count_values(b"??" + data, 2, count) == count
    assert count_values(b"??" + data, 2, count - 1) > count - 1


@pytest.mark.parametrize(
    "data",
    [
        compound(0xD0, 60_000, b"\x45" * 60_000),
        compound(0xD1, 60_000, b"\x40" * 60_000),
        compound(0xD0, 2, b"\x40" + compound(0xD0, 60_000, b"\x45" * 60_000)),
        b"\x00\x44" + compound(0xD0, 60_000, b"\x45" * 60_000),
        array_of("45", []) + b"",
        array_of("53", [b"\x01"] * 60_000),
        array_of("c0", [b"\x01\x00"] * 30_000),
        compound(0xD0, MOST, b""),
    ],
)
def test_count_values_stops_at_limit(data: bytes) -> None:
    calls = itertools.count()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            next(calls)

    sys.setprofile(count)
    try:
        is_small = count_values(data, 0, 512) <= 512
    finally:
        sys.setprofile(None)
    assert is_small is (len(data) < 512 and not data.startswith(b"\xd0"))
    assert next(calls) < 600


@given(st.binary(max_size=40), st.integers(0, 20))
def test_count_values_rejects_or_counts_truncated_values(data: bytes, limit: int) -> None:
    with suppress(DecodeError):
        count_values(data, 0, limit)
