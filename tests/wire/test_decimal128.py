"""Decimal numbers on the wire, beside the examples that others publish."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import EncodeError, decode, encode
from pairbus.wire.decimals import decimal128, decimal_of

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
def test_numbers_are_written_as_others_write_them(number: str, written: str) -> None:
    assert decimal128(Decimal(number)).hex() == written


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=9))
def test_every_number_is_found_in_its_bytes(number: Decimal) -> None:
    found = decimal_of(decimal128(number))
    assert (found, found.is_signed()) == (number, number.is_signed())


def test_a_number_passes_the_wire() -> None:
    written = decimal128(Decimal("12.50"))
    found = decode(encode(written))
    assert (type(found), found) == (type(written), written)


def test_zeros_at_the_end_do_not_count_as_digits() -> None:
    assert decimal128(EXACT.create_decimal("1" + "0" * 37)) == decimal128(Decimal("1" + "0" * 33 + "E+4"))


@pytest.mark.parametrize("number", ["1" * 35, "1E-6177", "1E+6112", "NaN", "Infinity"])
def test_what_has_no_place_is_refused(number: str) -> None:
    with pytest.raises(EncodeError, match=r"digits"):
        decimal128(Decimal(number))
