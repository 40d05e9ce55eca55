"""Decimal numbers as their bytes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.wire import Decimal32, Decimal64, Decimal128
from pairbus.wire.types import decimal_of


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        ("32800000", "0"),
        ("32800001", "1"),
        ("b2800001", "-1"),
        ("3200007b", "12.3"),
        ("31800096", "1.50"),
        ("00000001", "1E-101"),
        ("6cb8967f", "9999999"),
        ("77f8967f", "9.999999E+96"),
        ("6cb89680", "0"),
        ("78000000", "Infinity"),
        ("f8000000", "-Infinity"),
        ("7c000000", "NaN"),
        ("31c0000000000001", "1"),
        ("3180000000000096", "1.50"),
        ("6c7386f26fc0ffff", "9999999999999999"),
        ("30400000000000000000000000000001", "1"),
        ("b03c00000000000000000000000004d2", "-12.34"),
        ("3041ed09bead87c0378d8e63ffffffff", "9999999999999999999999999999999999"),
        ("78000000000000000000000000000000", "Infinity"),
    ],
)
def test_reference_numbers_are_decoded(octets: str, text: str) -> None:
    raw = bytes.fromhex(octets)
    kind = {4: Decimal32, 8: Decimal64, 16: Decimal128}[len(raw)]
    assert str(decimal_of(kind(raw))) == text


@given(st.binary(min_size=4, max_size=4) | st.binary(min_size=8, max_size=8) | st.binary(min_size=16, max_size=16))
def test_e3_any_bytes_are_decoded(octets: bytes) -> None:
    kind = {4: Decimal32, 8: Decimal64, 16: Decimal128}[len(octets)]
    number = decimal_of(kind(octets))
    assert not number.is_finite() or len(number.as_tuple().digits) <= {4: 7, 8: 16, 16: 34}[len(octets)]


@given(st.booleans(), st.integers(0, 10**34 - 1), st.integers(-6176, 6111))
def test_number_of_thirty_four_digits_is_exact(negative: bool, coefficient: int, exponent: int) -> None:
    octets = (negative << 127 | (exponent + 6176) << 113 | coefficient).to_bytes(16)
    expected = Decimal((int(negative), tuple(map(int, str(coefficient))), exponent))
    assert str(decimal_of(Decimal128(octets))) == str(expected)
