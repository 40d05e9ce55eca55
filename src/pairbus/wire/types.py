"""AMQP types without a Python equivalent.

Python's own types represent the AMQP types of the same meaning: ``None`` (null), ``bool``, ``int`` (long),
``float`` (double), ``str`` (string), ``bytes`` (binary), ``uuid.UUID``, ``list`` and ``dict`` (map). The classes
below represent the rest. Each is a subclass of the Python type that it behaves like, so ``UInt(5) == 5`` and
``Symbol("a") == "a"``; encoding them restores the type that they were decoded from.

``decimal_of`` and the functions beside it convert AMQP decimals, which have binary integer coefficients (IEEE 754).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

from pairbus.wire.errors import EncodeError

_WRITTEN_BITS: Final = 256


class _Number(int):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class UByte(_Number):
    """An unsigned integer of 8 bits."""

    __slots__ = ()


class UShort(_Number):
    """An unsigned integer of 16 bits."""

    __slots__ = ()


class UInt(_Number):
    """An unsigned integer of 32 bits."""

    __slots__ = ()


class ULong(_Number):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class Byte(_Number):
    """A signed integer of 8 bits."""

    __slots__ = ()


class Short(_Number):
    """A signed integer of 16 bits."""

    __slots__ = ()


class Int(_Number):
    """A signed integer of 32 bits."""

    __slots__ = ()


class Timestamp(_Number):
    """A point in time: milliseconds since the Unix epoch, signed, 64 bits."""

    __slots__ = ()


INTEGER_RANGES: Final[dict[type[int], tuple[str, range]]] = {
    UByte: ("ubyte", range(2**8)),
    UShort: ("ushort", range(2**16)),
    UInt: ("uint", range(2**32)),
    ULong: ("ulong", range(2**64)),
    Byte: ("byte", range(-(2**7), 2**7)),
    Short: ("short", range(-(2**15), 2**15)),
    Int: ("int", range(-(2**31), 2**31)),
    int: ("long", range(-(2**63), 2**63)),
    Timestamp: ("timestamp", range(-(2**63), 2**63)),
}
"""The name and the range of each integer type."""


def misfit(value: int, kind: type[int]) -> str | None:
    """Return the reason why a number does not fit an AMQP type; ``None`` if it fits."""
    name, numbers = INTEGER_RANGES[kind]
    if int(value) in numbers:
        return None
    # Python does not convert numbers of many thousand digits.
    written = str(int(value)) if value.bit_length() <= _WRITTEN_BITS else f"a number of {value.bit_length()} bits"
    return f"{written} does not fit {name} ({numbers.start} to {numbers.stop - 1})"


class Float(float):
    """A floating point number of 32 bits (Python's ``float`` is AMQP's double)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)!r})"


class Char(str):
    """A single Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Symbol(str):
    """A name from a constrained domain; ASCII only."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class _Decimal(bytes):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self)!r})"


class Decimal32(_Decimal):
    """The 4 bytes of an IEEE 754 decimal32, passed through undecoded."""

    __slots__ = ()


class Decimal64(_Decimal):
    """The 8 bytes of an IEEE 754 decimal64, passed through undecoded."""

    __slots__ = ()


class Decimal128(_Decimal):
    """The 16 bytes of an IEEE 754 decimal128, passed through undecoded."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that defines its meaning."""

    descriptor: object
    value: object


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type, encoded with one constructor.

    ``constructor`` is the constructor as decoded, so that a decoded array, even an empty one, is encoded unchanged.
    Without it the encoder chooses one that fits every item. It is not part of the value: arrays with the same items are
    equal.
    """

    items: tuple[object, ...]
    constructor: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Map:
    """A map that no ``dict`` can hold, as its pairs in order.

    AMQP allows any value as a key, and distinguishes ``UInt(1)`` from ``1`` and ``Symbol("a")`` from ``"a"``; Python
    does neither. A map is decoded to a ``dict`` unless that would lose a pair; only then it is decoded to this.
    """

    pairs: tuple[tuple[object, object], ...]


class _Format(NamedTuple):
    """The bit fields after the sign, as in table 3.6 of IEEE 754."""

    exponent_bits: int
    coefficient_bits: int
    bias: int
    digits: int


_FORMATS: Final = {4: _Format(8, 23, 101, 7), 8: _Format(10, 53, 398, 16), 16: _Format(14, 113, 6176, 34)}


def decimal_of(value: Decimal32 | Decimal64 | Decimal128) -> Decimal:
    """Return the number that the bytes encode, with its original number of digits."""
    layout = _FORMATS[len(value)]
    bits = int.from_bytes(value)
    sign = bits >> (8 * len(value) - 1)
    lead = bits >> (8 * len(value) - 6) & 0b11111
    if lead >= 0b11110:
        return Decimal("NaN" if lead & 1 else "-Infinity" if sign else "Infinity")
    exponent, coefficient = _parts(bits, layout, is_large=lead >= 0b11000)
    if coefficient >= 10**layout.digits:  # the standard treats a coefficient with too many digits as zero
        coefficient = 0
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - layout.bias))


def _parts(bits: int, layout: _Format, *, is_large: bool) -> tuple[int, int]:
    """Return the exponent and the coefficient. A large coefficient begins with the bits 100, which are implied."""
    width = layout.coefficient_bits - 2 if is_large else layout.coefficient_bits
    exponent = bits >> width & ((1 << layout.exponent_bits) - 1)
    coefficient = bits & ((1 << width) - 1)
    return exponent, coefficient | (0b100 << width if is_large else 0)


def decimal128(number: Decimal) -> Decimal128:
    """Encode a finite number; raises ``EncodeError`` if it has too many digits."""
    layout = _FORMATS[16]
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"{number} is not a finite number")
    while len(digits) > layout.digits and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    biased = exponent + layout.bias
    if len(digits) > layout.digits or biased not in range(2 * layout.bias - 64):
        raise EncodeError(f"{number} has more digits than the {layout.digits} of a decimal128")
    coefficient = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | biased << layout.coefficient_bits | coefficient).to_bytes(16))
