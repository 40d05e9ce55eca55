"""Offsets survive the checkpoint, and those of other streams are rejected."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.errors import OffsetError
from pairbus.spark.offset import (
    NO_LEFTOVERS,
    NOTHING,
    BrowseOffset,
    ConsumeOffset,
    Leftovers,
    Portion,
    SingleNumberOffset,
    read_browse_offset,
)
from pairbus.spark.partition import MessagePartition, partitions
from pairbus.spark.sequences import SequenceMarks, SequenceRanges

NUMBERS = st.sets(st.integers(1, 60))
MOMENTS = st.integers(0, 1_000)
PORTIONS = st.builds(
    lambda numbers, until_ms: Portion(numbers=SequenceRanges.of(numbers), until_ms=until_ms),
    NUMBERS.filter(bool),
    MOMENTS,
)
TABLES = st.dictionaries(st.sampled_from(["orders", "Orders/$DeadLetterQueue", "é/subscriptions/x"]), PORTIONS)
LEFTOVERS = st.lists(PORTIONS, max_size=3).map(lambda portions: Leftovers(portions=tuple(portions)))
LEFT = st.dictionaries(st.sampled_from(["orders", "é/subscriptions/x"]), LEFTOVERS.filter(bool))
CONSUMED = st.builds(
    lambda batch, held, left: ConsumeOffset(batch=batch, held=held, left=left), st.integers(0), TABLES, LEFT
)


def through_json(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value as read from a checkpoint."""
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


# Portions.


@given(PORTIONS, st.integers(0, 61), MOMENTS)
def test_d1_portion_excludes_later_messages_with_its_numbers(portion: Portion, number: int, at_ms: int) -> None:
    assert portion.holds(number, at_ms) == (number in portion.numbers and at_ms <= portion.until_ms)
    assert not NOTHING.holds(number, at_ms)
    assert portion
    assert not NOTHING


@given(PORTIONS, NUMBERS)
def test_portion_is_restricted_and_reduced(portion: Portion, numbers: set[int]) -> None:
    only, rest = portion.only(numbers), portion.without(numbers)
    assert set(only.numbers) == set(portion.numbers) & numbers
    assert set(rest.numbers) == set(portion.numbers) - numbers
    assert only.until_ms == rest.until_ms == portion.until_ms


# Leftovers.


@given(LEFTOVERS, PORTIONS, st.integers(0, 61), MOMENTS)
def test_d1_leftovers_of_several_batches_are_kept_separately(
    left: Leftovers, portion: Portion, number: int, at_ms: int
) -> None:
    """The number of one portion with the time of another is in neither."""
    more = left + portion
    assert more.holds(number, at_ms) == (left.holds(number, at_ms) or portion.holds(number, at_ms))
    assert len(more) == len(left) + len(portion.numbers)
    assert left + NOTHING == left


@given(LEFTOVERS, st.lists(st.tuples(st.integers(1, 60), MOMENTS)), st.integers(1, 60), MOMENTS)
def test_d1_removed_messages_are_no_leftovers(
    left: Leftovers, gone: list[tuple[int, int]], number: int, at_ms: int
) -> None:
    rest = left.without(gone)
    assert not any(rest.holds(*message) for message in gone)
    assert all(rest.portions)
    if number not in {one for one, _ in gone}:
        assert rest.holds(number, at_ms) == left.holds(number, at_ms)


def test_d1_messages_with_one_number_are_distinguished_by_time() -> None:
    """The queue was recreated between them."""
    old, new = (Portion(numbers=SequenceRanges.of([1, 2]), until_ms=until_ms) for until_ms in (10, 20))
    left = Leftovers(portions=(old, new))
    assert left.without([(1, 15)]) == Leftovers(portions=(old, new.without([1])))
    assert not left.without([(1, 5), (2, 5)])


# Offsets.


@given(CONSUMED)
def test_d1_consume_offset_survives_the_checkpoint(offset: ConsumeOffset) -> None:
    assert ConsumeOffset.from_json(through_json(offset.to_json())) == offset
    assert pickle.loads(pickle.dumps(offset)) == offset  # noqa: S301 (ours)


@given(CONSUMED)
def test_equal_offsets_are_serialized_equally(offset: ConsumeOffset) -> None:
    """Spark compares the serialized offsets."""
    turned = ConsumeOffset(
        batch=offset.batch,
        held=dict(reversed([*offset.held.items()])),
        left=dict(reversed([*offset.left.items()])),
    )
    assert json.dumps(turned.to_json()) == json.dumps(offset.to_json())


def test_d1_batches_with_equal_messages_have_different_offsets() -> None:
    held = {"orders": Portion(numbers=SequenceRanges.of([1]), until_ms=5)}
    assert ConsumeOffset(batch=1, held=held).to_json() != ConsumeOffset(batch=2, held=held).to_json()


def test_empty_portions_are_not_serialized() -> None:
    assert ConsumeOffset(held={"orders": NOTHING}, left={"orders": NO_LEFTOVERS}).to_json() == ConsumeOffset().to_json()


MARKS = st.sets(st.integers(0, 2**63 - 1)).map(SequenceMarks.of)


@given(st.dictionaries(st.text(min_size=1), MARKS))
def test_d1_browse_offset_survives_the_checkpoint(seen: dict[str, SequenceMarks]) -> None:
    offset = BrowseOffset(seen=seen)
    assert read_browse_offset(through_json(offset.to_json())) == offset
    turned = BrowseOffset(seen=dict(reversed([*seen.items()])))
    assert json.dumps(turned.to_json()) == json.dumps(offset.to_json())


@given(st.dictionaries(st.text(min_size=1), st.integers(-1, 2**63 - 1)))
def test_d1_browse_offset_of_an_earlier_version_is_read(seen: dict[str, int]) -> None:
    offset = SingleNumberOffset(seen=seen)
    assert offset.to_json() == {"version": 1, "seen": seen}
    assert read_browse_offset(through_json(offset.to_json())) == offset


GOOD = ConsumeOffset(batch=3, held={"orders": Portion(numbers=SequenceRanges.of([1]), until_ms=5)}).to_json()


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "1",
        5,
        {},
        {**GOOD, "version": 2},
        {**GOOD, "more": 1},
        {name: value for name, value in GOOD.items() if name != "left"},
        {**GOOD, "batch": "3"},
        {**GOOD, "batch": 3.0},
        {**GOOD, "batch": True},
        {**GOOD, "batch": None},
        {**GOOD, "held": []},
        {**GOOD, "held": {"orders": "1..4"}},
        {**GOOD, "held": {"orders": {"numbers": "1..4"}}},
        {**GOOD, "held": {"orders": {"numbers": "4..1", "until": 5}}},
        {**GOOD, "held": {"orders": {"numbers": 4, "until": 5}}},
        {**GOOD, "left": {"orders": {"numbers": "1..4", "until": 5}}},
        {**GOOD, "left": {"orders": [{"numbers": "1..4", "until": "now"}]}},
        {**GOOD, "left": {"orders": 5}},
        {**GOOD, "left": None},
        BrowseOffset(seen={"orders": SequenceMarks.of([3])}).to_json(),
    ],
)
def test_e3_invalid_consume_offset_is_rejected(value: Any) -> None:
    with pytest.raises(OffsetError):
        ConsumeOffset.from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"version": 1, "seen": None},
        {"version": 1, "seen": ["orders"]},
        {"version": 1, "seen": {"orders": "3"}},
        {"version": 1, "seen": {"orders": False}},
        {"version": 1, "seen": {"orders": 3.5}},
        {"version": 2, "seen": None},
        {"version": 2, "seen": {"orders": 3}},
        {"version": 2, "seen": {"orders": ["3"]}},
        {"version": 2, "seen": {"orders": [True]}},
        {"version": 0, "seen": {}},
        {"version": 3, "seen": {}},
        GOOD,
    ],
)
def test_e3_invalid_browse_offset_is_rejected(value: Any) -> None:
    with pytest.raises(OffsetError):
        read_browse_offset(value)


def test_e4_offset_of_another_mode_is_rejected() -> None:
    with pytest.raises(OffsetError, match="a checkpoint belongs to one query with one mode"):
        ConsumeOffset.from_json(BrowseOffset(seen={"orders": SequenceMarks.of([3])}).to_json())


# Partitions of a portion.


@given(PORTIONS, st.integers(1, 70))
def test_d1_partitions_cover_the_portion(portion: Portion, parts: int) -> None:
    tokens = {number: str(number) for number in portion.numbers if number % 2}
    found = partitions("orders", portion, parts, tokens)  # type: ignore[arg-type]
    assert [number for one in found for number in one.portion.numbers] == list(portion.numbers)
    assert {number: token for one in found for number, token in one.tokens.items()} == tokens
    assert all(set(one.tokens) <= set(one.portion.numbers) for one in found)
    assert all((one.entity, one.portion.until_ms) == ("orders", portion.until_ms) for one in found)


@given(PORTIONS)
def test_d1_partition_survives_pickling(portion: Portion) -> None:
    sent = MessagePartition(entity="orders", portion=portion)
    assert pickle.loads(pickle.dumps(sent)) == sent  # noqa: S301 (ours)
