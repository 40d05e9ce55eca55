"""Decimal numbers as AMQP writes them: IEEE 754 decimal128, its coefficient a binary integer."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from pairbus.wire.errors import EncodeError
from pairbus.wire.types import Decimal128

_DIGITS: Final = 34
_BIAS: Final = 6176
_COEFFICIENT_BITS: Final = 113
_EXPONENTS: Final = range(2 * _BIAS - 64)


def decimal128(number: Decimal) -> Decimal128:
    """The bytes of a finite number; raises ``EncodeError`` for one with more digits than they hold."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"{number} is no number that has digits")
    while len(digits) > _DIGITS and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    biased = exponent + _BIAS
    if len(digits) > _DIGITS or biased not in _EXPONENTS:
        raise EncodeError(f"{number} has more digits than the {_DIGITS} of a decimal128")
    coefficient = int("".join(map(str, digits)))
    return Decimal128((sign << 127 | biased << _COEFFICIENT_BITS | coefficient).to_bytes(16))
