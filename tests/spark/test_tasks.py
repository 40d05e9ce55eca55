"""Tasks of a batch: small partitions share one, large ones are split."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from uuid import UUID

import pytest
from pyspark.sql.datasource import InputPartition

from pairbus.spark.offset import Portion
from pairbus.spark.partition import MessagePartition, PartitionGroup, partitions, tasks
from pairbus.spark.sequences import SequenceRanges


def part(name: str, count: int) -> MessagePartition:
    return MessagePartition(entity=name, portion=Portion(numbers=SequenceRanges([(1, count)]), until_ms=9))


def parts_of(found: Iterable[InputPartition]) -> list[MessagePartition]:
    flat: list[MessagePartition] = []
    for one in found:
        assert isinstance(one, PartitionGroup | MessagePartition)
        flat += one.partitions if isinstance(one, PartitionGroup) else (one,)
    return flat


def read(found: Iterable[InputPartition]) -> list[tuple[str, int]]:
    return [(one.entity, number) for one in parts_of(found) for number in one.portion.numbers]


def test_few_partitions_are_tasks_of_their_own() -> None:
    given = [part(f"q{index}", 1) for index in range(16)]
    assert tasks(given, None) == given


@pytest.mark.parametrize(("count", "size"), [(17, 1), (1_000, 10), (40, 5_000)])
def test_d1_small_entities_share_tasks(count: int, size: int) -> None:
    given = [part(f"q{index}", size) for index in range(count)]
    found = tasks(given, None)
    assert read(found) == read(given)
    assert min(count, 16) <= len(found) <= max(16, -(-count * size // 2_000))


def test_d1_unequal_entities_share_the_tasks_that_are_wanted() -> None:
    given = [part("huge", 100_000), *(part(f"q{index}", 9) for index in range(30))]
    for minimum in (17, 20, 30):
        found = tasks(given, minimum)
        assert read(found) == read(given)
        assert len(found) >= minimum


def test_large_entities_keep_their_tasks() -> None:
    given = [part(f"q{index}", 100_000) for index in range(100)]
    assert parts_of(tasks(given, None)) == given
    assert len(tasks(given, None)) == 100


@pytest.mark.parametrize("minimum", [2, 7, 50])
def test_d1_partitions_are_split_until_there_are_enough(minimum: int) -> None:
    given = [part("large", 900), part("small", 100)]
    found = tasks(given, minimum)
    assert len(found) >= minimum
    assert len(found) <= minimum + len(given)
    assert read(found) == read(given)


def test_fewer_messages_than_tasks() -> None:
    assert len(tasks([part("q", 3)], 10)) == 3
    assert tasks([], 10) == []


def test_sessions_are_not_split() -> None:
    whole = MessagePartition(entity="q", portion=Portion(numbers=SequenceRanges([(1, 9)])), is_whole=True)
    assert tasks([whole], 5) == [whole]


def test_split_partition_keeps_what_it_is_read_with() -> None:
    numbers = SequenceRanges([(1, 4)])
    tokens = {number: UUID(int=number) for number in numbers}
    [first, second] = partitions("q", Portion(numbers=numbers), 2, tokens, skips_scheduled=True, expected=numbers)
    assert first.tokens == {1: UUID(int=1), 2: UUID(int=2)}
    assert [*second.expected] == [3, 4]
    assert second.skips_scheduled
    group = PartitionGroup((first, second))
    assert pickle.loads(pickle.dumps(group)) == group  # noqa: S301
