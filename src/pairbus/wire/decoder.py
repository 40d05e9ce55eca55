"""Decoding of AMQP values (part 1 of the standard).

Every reader takes ``(data, position, depth)`` with the position *after* the format code, and returns the value and the
position after it. Readers may run past the end of ``data``; the public functions convert that into a ``DecodeError``.
The memory for the decoded values is bounded by the number of bytes: counts are checked against the remaining bytes,
nesting against ``MAX_DEPTH``, and arrays with elements of zero bytes against ``MAX_EMPTY_ELEMENTS``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from pairbus.wire.errors import DecodeError
from pairbus.wire.interpreter import give_way
from pairbus.wire.types import (
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
)

MAX_DEPTH: Final = 64
"""The maximum nesting of lists, maps, arrays and described values; the Azure SDK's decoder has the same limit."""

MAX_EMPTY_ELEMENTS: Final = 16
"""The maximum length of an array with elements of zero bytes, such as an array of null."""

MAX_PAIRS_DEPTH: Final = 10
"""The maximum nesting of a map that no ``dict`` can hold."""

MAX_ARRAY_DESCRIPTORS: Final = 4
"""The maximum number of nested descriptors in the constructor of an array; each costs an object per element."""

Reader = Callable[[bytes, int, int], tuple[object, int]]

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")
_U32_U32: Final = struct.Struct(">II")

_SHORT_COMPOUNDS: Final = frozenset({0xC0, 0xC1})
_LONG_COMPOUNDS: Final = frozenset({0xD0, 0xD1})
_ARRAYS: Final = frozenset({0xE0, 0xF0})

_SYMBOLS: Final[dict[bytes, Symbol]] = {}
_MAX_SYMBOLS: Final = 1024
_MAX_SYMBOL_SIZE: Final = 64

_FEW_KEYS: Final = 32
"""The maximum number of keys of a map with the same hash."""
_MANY_KEYS: Final = 4096
"""The maximum number of non-string keys of a ``dict``: numbers can be chosen to make it slow without equal hashes."""

_STRETCH: Final = 4096
"""The number of values, or bytes of nested values, after which a decoder gives way to other threads."""

_HIGHEST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


def decode(data: bytes) -> object:
    """Decode ``data``, which must hold exactly one value."""
    value, end = decode_at(data, 0)
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes follow the value")
    return value


def decode_at(data: bytes, position: int) -> tuple[object, int]:
    """Decode the value at ``position``; return it and the position after it."""
    try:
        values, end = read_items(data, position, 1, 0)
    except (IndexError, struct.error) as error:
        raise DecodeError("the value is cut off") from error
    except ValueError as error:
        raise DecodeError(f"a string or symbol is not valid text: {error}") from error
    if end > len(data):
        raise DecodeError("the value is cut off")
    return values[0], end


def decode_list(data: bytes, position: int) -> list[object]:
    """Decode the list at ``position``."""
    if data[position : position + 1] == b"\x45":
        return []
    return _decode_members(data, position, 0xC0, 0xD0)


def decode_map(data: bytes, position: int) -> dict[Any, Any]:
    """Decode the map at ``position``, whose keys must be such that a ``dict`` can hold it."""
    pairs = to_map(_decode_members(data, position, 0xC1, 0xD1))
    if isinstance(pairs, Map):
        raise DecodeError("the keys of the map are not all different, simple values")
    return pairs


def _decode_members(data: bytes, position: int, short: int, long: int) -> list[object]:
    """Decode the items of the list or map at ``position``, which has one of the two format codes."""
    try:
        code = data[position]
        position += 1
        if code == short:
            return _read_members(data, position + 2, data[position + 1], position + 1 + data[position], 0)
        if code == long:
            size, count = _U32_U32.unpack_from(data, position)
            return _read_members(data, position + 8, count, position + 4 + size, 0)
    except (IndexError, struct.error) as error:
        raise DecodeError("the list or map is cut off") from error
    except ValueError as error:
        raise DecodeError(f"a string or symbol is not valid text: {error}") from error
    raise DecodeError(f"0x{code:02x} where 0x{short:02x} or 0x{long:02x} is expected")


def skip(data: bytes, position: int) -> int:
    """Return the position after the value at ``position`` without decoding it.

    Checks only constructors and lengths: the content may still be invalid.
    """
    try:
        end = _skip(data, position)
    except (IndexError, struct.error) as error:
        raise DecodeError("the value is cut off") from error
    if end > len(data):
        raise DecodeError("the value is cut off")
    return end


def count_values(data: bytes, position: int, limit: int) -> int:
    """Count the values in the value at ``position``, including nested ones and itself; stop above ``limit``.

    Reads no more than ``limit`` constructors, so it bounds the cost of decoding beforehand. Each byte of an array
    counts as a value. A count above ``limit`` only means that there are too many.
    """
    left, seen = 1, 0
    try:
        while left and seen + left <= limit:
            seen += 1
            left -= 1
            code = data[position]
            if code == 0x00:  # a described value: its descriptor and the value follow
                left += 2
                position += 1
            elif code in _SHORT_COMPOUNDS:
                left += data[position + 2]
                position += 3
            elif code in _LONG_COMPOUNDS:
                left += _U32.unpack_from(data, position + 5)[0]
                position += 9
            else:
                end = _skip(data, position)
                if code in _ARRAYS:
                    seen += end - position
                position = end
    except (IndexError, struct.error) as error:
        raise DecodeError("the value is cut off") from error
    return seen + left


def _skip(data: bytes, position: int) -> int:
    code = data[position]
    position += 1
    depth = 0
    while code == 0x00:  # a described value: skip the descriptor, continue with the value
        depth += 1
        if depth > MAX_DEPTH:
            raise DecodeError(f"values nest deeper than {MAX_DEPTH}")
        if data[position] == 0x00:
            raise DecodeError("a descriptor is itself a described value")
        position = _skip(data, position)
        code = data[position]
        position += 1
    if READERS[code] is _read_unknown:
        raise DecodeError(f"0x{code:02x} is not a format code")
    category = code >> 4
    if category >= 0xA:
        if category & 1:
            width: int = _U32.unpack_from(data, position)[0]
            return position + 4 + width
        return position + 1 + data[position]
    if category == 0x4:
        return position
    return position + (1 << (category - 5))


def read_items(data: bytes, position: int, count: int, depth: int) -> tuple[list[object], int]:
    """Read ``count`` values, each with its own constructor.

    The most frequent types are read inline instead of through ``READERS``: a call per value would double the cost. A
    truncated string shows only in the end position, which callers have to check.
    """
    values: list[object] = []
    for _ in range(count):
        code = data[position]
        if code == 0xA1:
            end = position + 2 + data[position + 1]
            values.append(data[position + 2 : end].decode())
            position = end
        elif code == 0x40:
            values.append(None)
            position += 1
        elif code == 0xA3:
            end = position + 2 + data[position + 1]
            values.append(to_symbol(data[position + 2 : end]))
            position = end
        elif code == 0x41:
            values.append(True)
            position += 1
        elif code == 0x42:
            values.append(False)
            position += 1
        elif code == 0x55:
            octet = data[position + 1]
            values.append(octet - 256 if octet > 127 else octet)
            position += 2
        else:
            value, position = READERS[code](data, position + 1, depth)
            values.append(value)
    return values, position


def to_symbol(text: bytes) -> Symbol:
    """Create a symbol; the first few are cached, because the same few names occur over and over."""
    symbol = _SYMBOLS.get(text)
    if symbol is None:
        symbol = Symbol(text.decode("ascii"))
        if len(_SYMBOLS) < _MAX_SYMBOLS and len(text) <= _MAX_SYMBOL_SIZE:
            _SYMBOLS[text] = symbol
    return symbol


def _read_unknown(data: bytes, position: int, depth: int) -> tuple[object, int]:
    raise DecodeError(f"0x{data[position - 1]:02x} is not a format code")


def _read_null(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return None, position


def _read_true(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return True, position


def _read_false(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return False, position


def _read_boolean(data: bytes, position: int, depth: int) -> tuple[object, int]:
    value = data[position]
    if value > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {value}")
    return value == 1, position + 1


def _read_ubyte(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UByte(data[position]), position + 1


def _read_byte(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Byte(_signed(data[position])), position + 1


def _read_ushort(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UShort(_U16.unpack_from(data, position)[0]), position + 2


def _read_short(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Short(_I16.unpack_from(data, position)[0]), position + 2


def _read_uint(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UInt(_U32.unpack_from(data, position)[0]), position + 4


def _read_smalluint(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UInt(data[position]), position + 1


def _read_uint0(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UInt(0), position


def _read_int(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Int(_I32.unpack_from(data, position)[0]), position + 4


def _read_smallint(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Int(_signed(data[position])), position + 1


def _read_ulong(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return ULong(_U64.unpack_from(data, position)[0]), position + 8


def _read_smallulong(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return ULong(data[position]), position + 1


def _read_ulong0(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return ULong(0), position


def _read_long(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return _I64.unpack_from(data, position)[0], position + 8


def _read_smalllong(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return _signed(data[position]), position + 1


def _signed(octet: int) -> int:
    return octet - 256 if octet > 127 else octet


def _read_float(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Float(_F32.unpack_from(data, position)[0]), position + 4


def _read_double(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return _F64.unpack_from(data, position)[0], position + 8


def _read_decimal32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Decimal32(_octets(data, position, 4)), position + 4


def _read_decimal64(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Decimal64(_octets(data, position, 8)), position + 8


def _read_decimal128(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Decimal128(_octets(data, position, 16)), position + 16


def _read_char(data: bytes, position: int, depth: int) -> tuple[object, int]:
    number: int = _U32.unpack_from(data, position)[0]
    if number > _HIGHEST_CHARACTER or number in _SURROGATES:
        raise DecodeError(f"0x{number:x} is not a Unicode character")
    return Char(chr(number)), position + 4


def _read_timestamp(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return Timestamp(_I64.unpack_from(data, position)[0]), position + 8


def _read_uuid(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return UUID(bytes=_octets(data, position, 16)), position + 16


def _octets(data: bytes, position: int, width: int) -> bytes:
    octets = data[position : position + width]
    if len(octets) < width:
        raise IndexError
    return octets


def _read_binary8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width = data[position]
    return _octets(data, position + 1, width), position + 1 + width


def _read_binary32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width: int = _U32.unpack_from(data, position)[0]
    return _octets(data, position + 4, width), position + 4 + width


def _read_string8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width = data[position]
    return _octets(data, position + 1, width).decode("utf-8"), position + 1 + width


def _read_string32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width: int = _U32.unpack_from(data, position)[0]
    return _octets(data, position + 4, width).decode("utf-8"), position + 4 + width


def _read_symbol8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width = data[position]
    return to_symbol(_octets(data, position + 1, width)), position + 1 + width


def _read_symbol32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    width: int = _U32.unpack_from(data, position)[0]
    return to_symbol(_octets(data, position + 4, width)), position + 4 + width


def _read_list0(data: bytes, position: int, depth: int) -> tuple[object, int]:
    return [], position


def _read_list8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    end = position + 1 + data[position]
    return _read_members(data, position + 2, data[position + 1], end, depth), end


def _read_list32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    size, count = _U32_U32.unpack_from(data, position)
    end: int = position + 4 + size
    return _read_members(data, position + 8, count, end, depth), end


def _read_map8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    end = position + 1 + data[position]
    return to_map(_read_members(data, position + 2, data[position + 1], end, depth), depth), end


def _read_map32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    size, count = _U32_U32.unpack_from(data, position)
    end: int = position + 4 + size
    return to_map(_read_members(data, position + 8, count, end, depth), depth), end


def _read_members(data: bytes, position: int, count: int, end: int, depth: int) -> list[object]:
    """Read the items of a list or map that ends at ``end``."""
    if end > len(data) or position > end:
        raise IndexError
    if count > end - position:
        raise DecodeError(f"{count} values do not fit into {end - position} bytes")
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values nest deeper than {MAX_DEPTH}")
    if position // _STRETCH != end // _STRETCH:  # lists within a stretch do not give way one by one
        give_way()
    values, behind = read_items(data, position, min(count, _STRETCH), depth + 1)
    while len(values) < count:
        give_way()
        more, behind = read_items(data, behind, min(count - len(values), _STRETCH), depth + 1)
        values += more
    if behind != end:
        raise DecodeError("a list or map does not end where its size says")
    return values


def to_map(values: list[object], depth: int = 0) -> dict[Any, Any] | Map:
    """Create a map from alternating keys and values: a ``dict``, or a ``Map`` if a ``dict`` would lose a pair."""
    if len(values) & 1:
        raise DecodeError("a map has a key without a value")
    pairs: dict[Any, Any] = {}
    try:
        if len(values) > 2 * _FEW_KEYS:
            keys = values[::2]
            if len(keys) > _MANY_KEYS and not all(isinstance(key, str) for key in keys):
                return _to_pairs(keys, values[1::2], depth)
            _check_hashes(keys)
        for index in range(0, len(values), 2):
            pairs[values[index]] = values[index + 1]
    except TypeError:  # an unhashable key, such as a list
        return _to_pairs(values[::2], values[1::2], depth)
    if len(pairs) * 2 < len(values):
        return _to_pairs(values[::2], values[1::2], depth)
    return pairs


def _check_hashes(keys: list[object]) -> None:
    """Reject keys that were chosen to have the same hash, which would make a ``dict`` slow.

    Python hashes strings with a secret, but a peer can compute any number of UUIDs or arrays with the same hash.
    """
    counts: dict[int, int] = {}
    for key in keys:
        number = hash(key)
        counts[number] = counts.get(number, 0) + 1
        if counts[number] > _FEW_KEYS:
            raise DecodeError("the keys of a map all have the same hash")


def _to_pairs(keys: list[object], values: list[object], depth: int) -> Map:
    if depth > MAX_PAIRS_DEPTH:  # comparing keys costs their size, at every level
        raise DecodeError(f"maps that no dict can hold nest deeper than {MAX_PAIRS_DEPTH}")
    seen: set[tuple[type, str]] = set()
    for key in keys:
        if not len(seen) % _STRETCH:
            give_way()
        identity = (type(key), repr(key))
        if identity in seen:
            raise DecodeError(f"a map has the key {key!r:.200} twice")
        seen.add(identity)
    return Map(tuple(zip(keys, values, strict=True)))


def _read_array8(data: bytes, position: int, depth: int) -> tuple[object, int]:
    end = position + 1 + data[position]
    return _read_elements(data, position + 2, data[position + 1], end, depth), end


def _read_array32(data: bytes, position: int, depth: int) -> tuple[object, int]:
    size, count = _U32_U32.unpack_from(data, position)
    end: int = position + 4 + size
    return _read_elements(data, position + 8, count, end, depth), end


def _read_elements(data: bytes, position: int, count: int, end: int, depth: int) -> Array:
    """Read an array that ends at ``end``: one constructor, then ``count`` values without one."""
    if end > len(data) or position > end:
        raise IndexError
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values nest deeper than {MAX_DEPTH}")
    if position == end and count == 0:  # the Azure SDK for Python omits the constructor of an empty array
        return Array(())
    start = position
    descriptors: list[object] = []
    while data[position] == 0x00:
        if len(descriptors) >= MAX_ARRAY_DESCRIPTORS:
            raise DecodeError(f"the constructor of an array has more than {MAX_ARRAY_DESCRIPTORS} descriptors")
        if data[position + 1] == 0x00:
            raise DecodeError("a descriptor is itself a described value")
        found, position = read_items(data, position + 1, 1, depth + 1)
        descriptors.append(found[0])
    code = data[position]
    position += 1
    constructor = data[start:position]
    if count > end - position and (code >> 4 != 0x4 or count > MAX_EMPTY_ELEMENTS):
        raise DecodeError(f"{count} elements do not fit into {end - position} bytes")
    reader = READERS[code]
    if reader is _read_unknown:
        raise DecodeError(f"0x{code:02x} is not a format code")
    items: list[object] = []
    depth += 1 + len(descriptors)
    if depth > MAX_DEPTH:
        raise DecodeError(f"values nest deeper than {MAX_DEPTH}")
    for _ in range(count):
        if not len(items) % _STRETCH:
            give_way()
        value, position = reader(data, position, depth)
        for descriptor in reversed(descriptors):
            value = Described(descriptor, value)
        items.append(value)
    if position != end:
        raise DecodeError("an array does not end where its size says")
    return Array(tuple(items), constructor)


def _read_described(data: bytes, position: int, depth: int) -> tuple[object, int]:
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values nest deeper than {MAX_DEPTH}")
    if data[position] == 0x00:
        raise DecodeError("a descriptor is itself a described value")
    values, position = read_items(data, position, 2, depth + 1)
    return Described(values[0], values[1]), position


READERS: Final[list[Reader]] = [_read_unknown] * 256
"""The reader of each format code."""

READERS[0x00] = _read_described
READERS[0x40] = _read_null
READERS[0x41] = _read_true
READERS[0x42] = _read_false
READERS[0x43] = _read_uint0
READERS[0x44] = _read_ulong0
READERS[0x45] = _read_list0
READERS[0x50] = _read_ubyte
READERS[0x51] = _read_byte
READERS[0x52] = _read_smalluint
READERS[0x53] = _read_smallulong
READERS[0x54] = _read_smallint
READERS[0x55] = _read_smalllong
READERS[0x56] = _read_boolean
READERS[0x60] = _read_ushort
READERS[0x61] = _read_short
READERS[0x70] = _read_uint
READERS[0x71] = _read_int
READERS[0x72] = _read_float
READERS[0x73] = _read_char
READERS[0x74] = _read_decimal32
READERS[0x80] = _read_ulong
READERS[0x81] = _read_long
READERS[0x82] = _read_double
READERS[0x83] = _read_timestamp
READERS[0x84] = _read_decimal64
READERS[0x94] = _read_decimal128
READERS[0x98] = _read_uuid
READERS[0xA0] = _read_binary8
READERS[0xA1] = _read_string8
READERS[0xA3] = _read_symbol8
READERS[0xB0] = _read_binary32
READERS[0xB1] = _read_string32
READERS[0xB3] = _read_symbol32
READERS[0xC0] = _read_list8
READERS[0xC1] = _read_map8
READERS[0xD0] = _read_list32
READERS[0xD1] = _read_map32
READERS[0xE0] = _read_array8
READERS[0xF0] = _read_array32
