"""Where a stream that only looks begins: what can be said about it, and what not."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.errors import SparkOptionError
from pairbus.spark.starting_offsets import Position, StartingOffsets

NUMBERS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("text", ["earliest", "EARLIEST", " earliest ", "{}"])
def test_everything_from_its_beginning(text: str) -> None:
    found = StartingOffsets.parse(text)
    assert found == StartingOffsets()
    assert found.of("orders") is Position.EARLIEST
    assert found.are_earliest
    assert not found.have_latest


def test_only_what_is_to_come() -> None:
    found = StartingOffsets.parse("Latest")
    assert found.of("orders") is Position.LATEST
    assert found.have_latest
    assert not found.are_earliest


def test_d1_offsets_are_sequence_numbers() -> None:
    found = StartingOffsets.parse('{"orders": 17, "news/Subscriptions/Audit": "latest", "old": "earliest"}')
    assert found.of("Orders") == 17
    assert found.of("news/subscriptions/audit") is Position.LATEST
    assert found.of("old") is Position.EARLIEST
    assert found.of("others") is Position.EARLIEST
    assert found.have_latest
    assert not found.are_earliest


def test_what_is_named_as_it_would_be_anyway_is_earliest() -> None:
    assert StartingOffsets.parse('{"orders": "earliest"}').are_earliest
    assert not StartingOffsets.parse('{"orders": 0}').are_earliest


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), NUMBERS, max_size=4))
def test_numbers_are_those_that_were_written(numbers: dict[str, int]) -> None:
    found = StartingOffsets.parse(json.dumps(numbers))
    assert {name: found.of(name) for name in numbers} == numbers
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    assert hash(found) == hash(StartingOffsets.parse(json.dumps(numbers)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "startingOffsets is ''; it is earliest, latest, or JSON"),
        ("newest", "startingOffsets is 'newest'; it is earliest"),
        ("17", "startingOffsets is '17'; it is earliest"),
        ("[17]", "startingOffsets is '[17]'; it is earliest"),
        ('{"orders": 17', "it is earliest, latest, or JSON"),
        ('{"orders": -1}', "startingOffsets says -1 for 'orders'; it is a sequence number from 0"),
        ('{"orders": 9223372036854775808}', "startingOffsets says 9223372036854775808 for 'orders'"),
        ('{"orders": true}', "startingOffsets says True for 'orders'"),
        ('{"orders": 1.5}', "startingOffsets says 1.5 for 'orders'"),
        ('{"orders": null}', "startingOffsets says None for 'orders'"),
        ('{"orders": {"0": 1}}', "for 'orders'; it is a sequence number"),
        ('{"orders": "newest"}', "startingOffsets says 'newest' for 'orders'"),
        ('{"orders": 1, "Orders": 2}', "startingOffsets names 'Orders' twice"),
        ("[" * 100_000, "it is earliest, latest, or JSON"),
        ('{"orders": ' + "9" * 10_000 + "}", "it is earliest, latest, or JSON"),
    ],
    ids=lambda given: given[:30],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)) as caught:
        StartingOffsets.parse(text)
    assert len(str(caught.value)) < 400


def test_an_entity_that_is_not_read_is_refused() -> None:
    found = StartingOffsets.parse('{"Orders": 17, "ordres": 3}')
    with pytest.raises(SparkOptionError, match="startingOffsets names 'ordres', which is none of the entities"):
        found.check(["orders", "news/subscriptions/audit"])
    found.check(["orders", "ORDRES"])
