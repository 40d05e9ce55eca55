"""Starting offsets of browsing streams: valid and invalid values."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.errors import SparkOptionError
from pairbus.spark.options import Position, StartingOffsets

NUMBERS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("text", ["earliest", "EARLIEST", " earliest ", "{}"])
def test_earliest_applies_to_all_entities(text: str) -> None:
    found = StartingOffsets.parse(text)
    assert found == StartingOffsets()
    assert found.of("orders") is Position.EARLIEST
    assert found.are_earliest
    assert not found.have_latest


def test_latest_applies_to_all_entities() -> None:
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


def test_entity_listed_as_earliest_is_earliest() -> None:
    assert StartingOffsets.parse('{"orders": "earliest"}').are_earliest
    assert not StartingOffsets.parse('{"orders": 0}').are_earliest


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), NUMBERS, max_size=4))
def test_numbers_are_parsed_as_written(numbers: dict[str, int]) -> None:
    found = StartingOffsets.parse(json.dumps(numbers))
    assert {name: found.of(name) for name in numbers} == numbers
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    assert hash(found) == hash(StartingOffsets.parse(json.dumps(numbers)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "startingOffsets must be earliest, latest, or JSON"),
        ("newest", "startingOffsets must be earliest"),
        ("17", "startingOffsets must be earliest"),
        ("[17]", "startingOffsets must be earliest"),
        ('{"orders": 17', "startingOffsets must be earliest, latest, or JSON"),
        ('{"orders": -1}', "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got -1"),
        (
            '{"orders": 9223372036854775808}',
            "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got 9223372036854775808",
        ),
        (
            '{"orders": true}',
            "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got True",
        ),
        ('{"orders": 1.5}', "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got 1.5"),
        (
            '{"orders": null}',
            "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got None",
        ),
        ('{"orders": {"0": 1}}', "startingOffsets of 'orders' must be a sequence number"),
        (
            '{"orders": "newest"}',
            "startingOffsets of 'orders' must be a sequence number >= 0, earliest or latest, got 'newest'",
        ),
        ('{"orders": 1, "Orders": 2}', "startingOffsets lists 'Orders' twice"),
        ("[" * 100_000, "startingOffsets must be earliest, latest, or JSON"),
        ('{"orders": ' + "9" * 10_000 + "}", "startingOffsets must be earliest, latest, or JSON"),
    ],
    ids=lambda given: given[:30],
)
def test_invalid_starting_offsets_are_rejected(text: str, message: str) -> None:
    with pytest.raises(SparkOptionError, match=re.escape(message)) as caught:
        StartingOffsets.parse(text)
    assert len(str(caught.value)) < 400


def test_entity_that_is_not_read_is_rejected() -> None:
    found = StartingOffsets.parse('{"Orders": 17, "ordres": 3}')
    with pytest.raises(SparkOptionError, match="startingOffsets lists 'ordres', which is not among the entities"):
        found.check(["orders", "news/subscriptions/audit"])
    found.check(["orders", "ORDRES"])
