"""AMQP values that Python has no type of its own for.

Python's own types stand for the AMQP types of the same meaning: ``None`` (null), ``bool``, ``int`` (long),
``float`` (double), ``str`` (string), ``bytes`` (binary), ``uuid.UUID``, ``list`` and ``dict`` (map). The classes
below stand for the rest. Each is a subclass of the Python type it behaves like, so ``UInt(5) == 5`` and
``Symbol("a") == "a"``; what they add is that encoding them gives back the type they were decoded from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

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
"""The name of each integer type, and the numbers that it can hold."""


def misfit(value: int, kind: type[int]) -> str | None:
    """Return why a number does not fit an AMQP type; ``None`` if it does."""
    name, numbers = INTEGER_RANGES[kind]
    if int(value) in numbers:
        return None
    # Python writes no number of many thousand digits.
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
    """A value with a descriptor that gives it a meaning."""

    descriptor: object
    value: object


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type, encoded with one constructor.

    ``constructor`` is the constructor as it stood on the wire, so that a decoded array, even an empty one, is encoded
    as it came. Without it the encoder chooses one that fits every item. It is no part of the value: arrays with the
    same items are equal.
    """

    items: tuple[object, ...]
    constructor: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Map:
    """A map that no ``dict`` can hold, as its pairs in order.

    AMQP allows any value as a key, and tells ``UInt(1)`` from ``1`` and ``Symbol("a")`` from ``"a"``; Python does
    neither. A map decodes to a ``dict`` unless that would lose a pair: then it decodes to this.
    """

    pairs: tuple[tuple[object, object], ...]
