"""Decimal numbers of AMQP as Python's and back: IEEE 754 decimals whose coefficients are binary integers."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple

from pairbus.wire.errors import EncodeError
from pairbus.wire.types import Decimal32, Decimal64, Decimal128


class _Format(NamedTuple):
    """How the bits behind the sign are shared out, as table 3.6 of IEEE 754 says."""

    exponent_bits: int
    coefficient_bits: int
    bias: int
    digits: int


_FORMATS: Final = {4: _Format(8, 23, 101, 7), 8: _Format(10, 53, 398, 16), 16: _Format(14, 113, 6176, 34)}


def decimal_of(value: Decimal32 | Decimal64 | Decimal128) -> Decimal:
    """The number that the bytes stand for, with as many digits as it was written with."""
    layout = _FORMATS[len(value)]
    bits = int.from_bytes(value)
    sign = bits >> (8 * len(value) - 1)
    lead = bits >> (8 * len(value) - 6) & 0b11111
    if lead >= 0b11110:
        return Decimal("NaN" if lead & 1 else "-Infinity" if sign else "Infinity")
    exponent, coefficient = _parts(bits, layout, is_large=lead >= 0b11000)
    if coefficient >= 10**layout.digits:  # the standard takes what has more digits than there can be for zero
        coefficient = 0
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - layout.bias))


def _parts(bits: int, layout: _Format, *, is_large: bool) -> tuple[int, int]:
    """The exponent and the coefficient. A large one begins with the bits 100, which are left out."""
    width = layout.coefficient_bits - 2 if is_large else layout.coefficient_bits
    exponent = bits >> width & ((1 << layout.exponent_bits) - 1)
    coefficient = bits & ((1 << width) - 1)
    return exponent, coefficient | (0b100 << width if is_large else 0)


def decimal128(number: Decimal) -> Decimal128:
    """The bytes of a finite number; raises ``EncodeError`` for one with more digits than they hold."""
    layout = _FORMATS[16]
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"{number} is no number that has digits")
    while len(digits) > layout.digits and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    biased = exponent + layout.bias
    if len(digits) > layout.digits or biased not in range(2 * layout.bias - 64):
        raise EncodeError(f"{number} has more digits than the {layout.digits} of a decimal128")
    coefficient = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | biased << layout.coefficient_bits | coefficient).to_bytes(16))
