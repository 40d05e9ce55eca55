"""Encoding of AMQP values (part 1 of the standard), each in its shortest form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from pairbus.wire.decoder import MAX_ARRAY_DESCRIPTORS, MAX_DEPTH, MAX_EMPTY_ELEMENTS, MAX_PAIRS_DEPTH, decode_at
from pairbus.wire.errors import DecodeError, EncodeError
from pairbus.wire.types import (
    INTEGER_RANGES,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
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
    misfit,
)

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")

_CODES: Final[list[bytes]] = [bytes((code,)) for code in range(256)]

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"


def encode(value: object) -> bytes:
    """Encode one value."""
    try:
        return encode_nested(value, 0)
    except (struct.error, OverflowError, UnicodeEncodeError, AttributeError, TypeError) as error:
        raise EncodeError(_misfit_in(value) or f"a value does not fit its AMQP type: {error}") from error


def _misfit_in(value: object, depth: int = 0) -> str | None:
    """Find the first integer in a value that does not fit its type, and return the reason."""
    own = type(value)  # when compiled, ``case int()`` converts the value to a plain int
    match value:
        case bool():
            return None
        case _ if depth > MAX_DEPTH:  # a list may contain itself
            return None
        case int():
            return misfit(value, next((kind for kind in own.__mro__ if kind in INTEGER_RANGES), int))
        case dict():
            parts: Iterable[object] = (*value.keys(), *value.values())
        case list():
            parts = value
        case Array():
            parts = value.items
        case Described():
            parts = (value.value,)
        case _:
            return None
    return next((found for part in parts if (found := _misfit_in(part, depth + 1)) is not None), None)


def encode_nested(value: object, depth: int) -> bytes:
    """Encode a value at nesting level ``depth``."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        encoder = _find_encoder(value)
    return encoder(value, depth)


def _find_encoder(value: object) -> Callable[[Any, int], bytes]:
    return _ENCODERS[_kind_of(value)]


def _kind_of(value: object) -> type:
    """Find the nearest base class with an encoder, so that subclasses such as an ``IntEnum`` are encoded like it."""
    for kind in type(value).__mro__:
        if kind in _ENCODERS:
            return kind
    raise EncodeError(f"{type(value).__name__} is not an AMQP type: {value!r:.200}")


def register(kind: type, encoder: Callable[[Any, int], bytes]) -> None:
    """Register the encoder of a class that is encoded as a described type."""
    _ENCODERS[kind] = encoder


def encode_null(value: None, depth: int = 0) -> bytes:
    return NULL


def encode_boolean(value: bool, depth: int = 0) -> bytes:
    return TRUE if value else FALSE


def encode_ubyte(value: int, depth: int = 0) -> bytes:
    return b"\x50" + _octet(value)


def encode_ushort(value: int, depth: int = 0) -> bytes:
    return b"\x60" + _U16.pack(value)


def encode_uint(value: int, depth: int = 0) -> bytes:
    if 0 < value < 256:
        return b"\x52" + _CODES[value]
    return b"\x43" if value == 0 else b"\x70" + _U32.pack(value)


def encode_ulong(value: int, depth: int = 0) -> bytes:
    if 0 < value < 256:
        return b"\x53" + _CODES[value]
    return b"\x44" if value == 0 else b"\x80" + _U64.pack(value)


def encode_byte(value: int, depth: int = 0) -> bytes:
    return b"\x51" + _I8.pack(value)


def encode_short(value: int, depth: int = 0) -> bytes:
    return b"\x61" + _I16.pack(value)


def encode_int(value: int, depth: int = 0) -> bytes:
    if -128 <= value < 128:
        return b"\x54" + _I8.pack(value)
    return b"\x71" + _I32.pack(value)


def encode_long(value: int, depth: int = 0) -> bytes:
    if -128 <= value < 128:
        return b"\x55" + _I8.pack(value)
    return b"\x81" + _I64.pack(value)


def encode_float(value: float, depth: int = 0) -> bytes:
    return b"\x72" + _F32.pack(value)


def encode_double(value: float, depth: int = 0) -> bytes:
    return b"\x82" + _F64.pack(value)


def encode_char(value: str, depth: int = 0) -> bytes:
    if len(value) != 1:
        raise EncodeError(f"a char is one character, not {len(value)}")
    number = ord(value)
    if 0xD800 <= number < 0xE000:
        raise EncodeError(f"0x{number:x} is half of a surrogate pair, not a character")
    return b"\x73" + _U32.pack(number)


def encode_timestamp(value: int, depth: int = 0) -> bytes:
    return b"\x83" + _I64.pack(value)


def encode_uuid(value: UUID, depth: int = 0) -> bytes:
    return b"\x98" + value.bytes


def encode_binary(value: bytes | bytearray | memoryview, depth: int = 0) -> bytes:
    return _variable(b"\xa0", b"\xb0", bytes(value))


def encode_string(value: str, depth: int = 0) -> bytes:
    return _variable(b"\xa1", b"\xb1", value.encode("utf-8"))


def encode_symbol(value: str, depth: int = 0) -> bytes:
    return _variable(b"\xa3", b"\xb3", value.encode("ascii"))


def encode_list(items: list[object] | tuple[object, ...], depth: int = 0) -> bytes:
    check_depth(depth)
    return enclose_list([encode_nested(item, depth + 1) for item in items])


def encode_map(pairs: dict[Any, Any], depth: int = 0) -> bytes:
    return _encode_pairs(list(pairs.items()), depth)


def _encode_map_pairs(value: Map, depth: int) -> bytes:
    if depth > MAX_PAIRS_DEPTH:
        raise EncodeError(f"maps that no dict can hold nest deeper than {MAX_PAIRS_DEPTH}")
    return _encode_pairs(list(value.pairs), depth)


def _encode_pairs(pairs: list[tuple[object, object]], depth: int) -> bytes:
    check_depth(depth)
    parts = [encode_nested(member, depth + 1) for pair in pairs for member in pair]
    return _compound(b"\xc1", b"\xd1", len(parts), b"".join(parts))


def enclose_map(size: int, body: bytes) -> bytes:
    """Return a map of ``size`` keys, each followed by its value, that are already encoded and joined."""
    return _compound(b"\xc1", b"\xd1", 2 * size, body)


def _encode_described(value: Described, depth: int) -> bytes:
    check_depth(depth)
    return _encode_descriptor(value.descriptor, depth) + encode_nested(value.value, depth + 1)


def _encode_descriptor(descriptor: object, depth: int) -> bytes:
    if isinstance(descriptor, Described):
        raise EncodeError("a descriptor cannot be a described value itself")
    return b"\x00" + encode_nested(descriptor, depth + 1)


def check_depth(depth: int) -> None:
    """Reject nesting that our decoder would not accept."""
    if depth >= MAX_DEPTH:
        raise EncodeError(f"values nest deeper than {MAX_DEPTH}")


def enclose_list(parts: list[bytes]) -> bytes:
    """Return a list of encoded values."""
    if not parts:
        return b"\x45"
    return enclose_fields(len(parts), b"".join(parts))


def enclose_fields(count: int, body: bytes) -> bytes:
    """Return a list of ``count`` values that are already encoded and joined."""
    return _compound(b"\xc0", b"\xd0", count, body)


def _compound(short: bytes, long: bytes, count: int, body: bytes) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return short + _CODES[size + 1] + _CODES[count] + body
    return long + _U32.pack(size + 4) + _U32.pack(count) + body


def _variable(short: bytes, long: bytes, body: bytes) -> bytes:
    size = len(body)
    if size < 256:
        return short + _CODES[size] + body
    return long + _U32.pack(size) + body


def _octet(value: int) -> bytes:
    if not 0 <= value < 256:
        raise EncodeError(str(misfit(value, UByte)))
    return _CODES[value]


def encode_symbols(names: tuple[str, ...] | str) -> bytes:
    """Encode an array of symbols, the form of a field with several symbols."""
    if isinstance(names, str):
        raise EncodeError(f"several symbols must be a tuple, got {names!r:.200}")
    return encode(Array(tuple(Symbol(name) for name in names), None if names else b"\xa3"))


# Arrays. Elements are written without a constructor, because all elements share one. Unless the caller sets it,
# integers have their full width, and variable and compound types have 32-bit lengths, which fit every element.


def _encode_array(array: Array, depth: int) -> bytes:
    check_depth(depth)
    constructor = array.constructor
    if constructor is None:
        constructor = _choose_constructor(array.items[0], depth) if array.items else NULL
    descriptors = _descriptors_of(constructor)
    depth += 1 + len(descriptors)
    if depth > MAX_DEPTH or len(descriptors) > MAX_ARRAY_DESCRIPTORS:
        raise EncodeError(f"the elements of an array have more than {MAX_ARRAY_DESCRIPTORS} descriptors")
    if constructor[-1] >> 4 == 0x4 and len(array.items) > MAX_EMPTY_ELEMENTS:
        raise EncodeError(f"an array has at most {MAX_EMPTY_ELEMENTS} elements that take no bytes")
    elements = [_encode_element(item, descriptors, constructor[-1], depth) for item in array.items]
    return _compound(b"\xe0", b"\xf0", len(elements), constructor + b"".join(elements))


def _choose_constructor(item: object, depth: int) -> bytes:
    check_depth(depth)
    if isinstance(item, Described):
        return _encode_descriptor(item.descriptor, depth) + _choose_constructor(item.value, depth + 1)
    code = _ARRAY_CODES.get(_kind_of(item))
    if code is None:
        raise EncodeError(f"{type(item).__name__} is not allowed in an array: {item!r:.200}")
    return _CODES[code]


def _descriptors_of(constructor: bytes) -> list[bytes]:
    """Return the encoded descriptors of an array's constructor, each in its shortest form."""
    descriptors: list[bytes] = []
    position = 0
    try:
        while constructor[position] == 0x00:
            descriptor, position = decode_at(constructor, position + 1)
            descriptors.append(encode(descriptor))
    except (IndexError, DecodeError) as error:
        raise EncodeError(f"{constructor!r:.200} is not the constructor of an array") from error
    return descriptors


def _encode_element(item: object, descriptors: list[bytes], code: int, depth: int) -> bytes:
    for descriptor in descriptors:
        if not isinstance(item, Described) or encode_nested(item.descriptor, depth) != descriptor:
            raise EncodeError("an array gives all its elements the same descriptor")
        item = item.value
    integer = _INTEGERS.get(code)
    if integer is not None and _kind_of(item) is integer[0]:
        return integer[1].pack(item)
    return _fit(encode_nested(item, depth), code)


def _fit(encoded: bytes, code: int) -> bytes:
    """Convert a value from its shortest encoding to an array element with the format code ``code``."""
    own = encoded[0]
    if own == code:
        return encoded[1:]
    if own == 0x45 and code == 0xC0:
        return b"\x01\x00"
    if own == 0x45 and code == 0xD0:
        return b"\x00\x00\x00\x04\x00\x00\x00\x00"
    if own | 0x10 == code and own >= 0xC0:
        return _U32.pack(encoded[1] + 3) + _U32.pack(encoded[2]) + encoded[3:]
    if own | 0x10 == code and own >= 0xA0:
        return _U32.pack(encoded[1]) + encoded[2:]
    raise EncodeError(f"an element does not fit an array of format code 0x{code:02x}")


def _decimal(code: bytes, width: int) -> Callable[[Any, int], bytes]:
    def encode_decimal(value: bytes, depth: int) -> bytes:
        if len(value) != width:
            raise EncodeError(f"a decimal{width * 8} has {width} bytes, not {len(value)}")
        return code + bytes(value)

    return encode_decimal


_ENCODERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    type(None): encode_null,
    bool: encode_boolean,
    int: encode_long,
    float: encode_double,
    str: encode_string,
    bytes: encode_binary,
    bytearray: encode_binary,
    memoryview: encode_binary,
    UUID: encode_uuid,
    list: encode_list,
    tuple: encode_list,
    dict: encode_map,
    Symbol: encode_symbol,
    UByte: encode_ubyte,
    UShort: encode_ushort,
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: encode_byte,
    Short: encode_short,
    Int: encode_int,
    Timestamp: encode_timestamp,
    Float: encode_float,
    Char: encode_char,
    Decimal32: _decimal(b"\x74", 4),
    Decimal64: _decimal(b"\x84", 8),
    Decimal128: _decimal(b"\x94", 16),
    Described: _encode_described,
    Array: _encode_array,
    Map: _encode_map_pairs,
}

_ARRAY_CODES: Final[dict[type, int]] = {
    type(None): 0x40,
    bool: 0x56,
    UByte: 0x50,
    UShort: 0x60,
    UInt: 0x70,
    ULong: 0x80,
    Byte: 0x51,
    Short: 0x61,
    Int: 0x71,
    int: 0x81,
    Float: 0x72,
    float: 0x82,
    Decimal32: 0x74,
    Decimal64: 0x84,
    Decimal128: 0x94,
    Char: 0x73,
    Timestamp: 0x83,
    UUID: 0x98,
    bytes: 0xB0,
    bytearray: 0xB0,
    memoryview: 0xB0,
    str: 0xB1,
    Symbol: 0xB3,
    list: 0xD0,
    tuple: 0xD0,
    dict: 0xD1,
    Map: 0xD1,
    Array: 0xF0,
}
"""The default format code of an array's elements."""

_INTEGERS: Final[dict[int, tuple[type, struct.Struct]]] = {
    0x56: (bool, struct.Struct(">?")),
    0x52: (UInt, struct.Struct(">B")),
    0x70: (UInt, _U32),
    0x53: (ULong, struct.Struct(">B")),
    0x80: (ULong, _U64),
    0x54: (Int, _I8),
    0x71: (Int, _I32),
    0x55: (int, _I8),
    0x81: (int, _I64),
}
"""The types whose shortest encoding depends on the value, which an element's encoding must not."""
