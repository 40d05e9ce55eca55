"""Decimal numbers on the wire, beside the examples that others publish."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import EncodeError, decode, encode
from pairbus.wire.types import decimal128, decimal_of

EXACT: Final = Context(prec=60)


@pytest.mark.parametrize(
    ("number", "written"),
    [  # from the test corpus of BSON, which has the same format with its bytes the other way round
        ("1", "30400000000000000000000000000001"),
        ("-1", "b0400000000000000000000000000001"),
        ("0", "30400000000000000000000000000000"),
        ("-0", "b0400000000000000000000000000000"),
        ("0.001234", "303400000000000000000000000004d2"),
        ("9999999999999999999999999999999999", "3041ed09bead87c0378d8e63ffffffff"),
        ("1E+3", "30460000000000000000000000000001"),
        ("1E-6176", "00000000000000000000000000000001"),
        ("9.999999999999999999999999999999999E+6144", "5fffed09bead87c0378d8e63ffffffff"),
    ],
)
def test_numbers_have_reference_encoding(number: str, written: str) -> None:
    assert decimal128(Decimal(number)).hex() == written


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9))
def test_every_number_round_trips(number: Decimal) -> None:
    found = decimal_of(decimal128(number))
    assert (found, found.is_signed()) == (number, number.is_signed())


def test_number_survives_wire() -> None:
    written = decimal128(Decimal("12.50"))
    found = decode(encode(written))
    assert (type(found), found) == (type(written), written)


def test_trailing_zeros_are_not_counted_as_digits() -> None:
    assert decimal128(EXACT.create_decimal("1" + "0" * 37)) == decimal128(Decimal("1" + "0" * 33 + "E+4"))


@pytest.mark.parametrize("number", ["1" * 35, "1E-6177", "1E+6112", "NaN", "Infinity"])
def test_unrepresentable_number_is_rejected(number: str) -> None:
    with pytest.raises(EncodeError, match=r"digits|not a finite number"):
        decimal128(Decimal(number))
