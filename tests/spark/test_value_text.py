"""AMQP values as text (D1)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from pairbus.spark.value_text import text_of
from pairbus.wire import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from tests.wire.values import amqp_values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", ""),
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        (Symbol("name"), "name"),
        (Char("c"), "c"),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (-(2**63), "-9223372036854775808"),
        (ULong(2**64 - 1), "18446744073709551615"),
        (UInt(7), "7"),
        (Byte(-1), "-1"),
        (1.5, "1.5"),
        (1e300, "1e+300"),
        (Float(0.5), "0.5"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (Float("-inf"), "-Infinity"),
        (Timestamp(1_893_553_445_678), "2030-01-02T03:04:05.678Z"),
        (Timestamp(0), "1970-01-01T00:00:00.000Z"),
        (Timestamp(2**63 - 1), "9999-12-31T23:59:59.999Z"),
        (Timestamp(-(2**63)), "0001-01-01T00:00:00.000Z"),
        (UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
        (b"\x00\xff", "AP8="),
        (Decimal32(bytes.fromhex("31800096")), "1.50"),
        (Decimal128(bytes.fromhex("f8") + bytes(15)), "-Infinity"),
        ([Decimal32(bytes.fromhex("31800096"))], '["1.50"]'),
        ([], "[]"),
        ([1, "a", None, True, UInt(2), 1.5, float("nan"), b"\x00"], '[1,"a",null,true,2,1.5,"NaN","AA=="]'),
        (Array((Int(1), Int(2))), "[1,2]"),
        ({"a": {Symbol("b"): [Timestamp(0)]}}, '{"a":{"b":["1970-01-01T00:00:00.000Z"]}}'),
        (Map(((UInt(1), "x"), (1, "y"))), '[["1","x"],["1","y"]]'),
        (Map((([1], "x"), (None, "y"))), '{"[1]":"x","null":"y"}'),
        (Described(Symbol("d"), [1]), '{"descriptor":"d","value":[1]}'),
    ],
    ids=repr,
)
def test_d1_every_type_has_its_text(value: object, text: str | None) -> None:
    assert text_of(value) == text
    assert type(text_of(value)) in {str, type(None)}


@given(amqp_values)
def test_e3_every_value_has_a_text(value: Any) -> None:
    text = text_of(value)
    assert (text is None) == (value is None)


@given(amqp_values)
def test_d1_containers_are_json(value: Any) -> None:
    assert len(json.loads(text_of([value]) or "")) == 1
