"""Search for the first and last number of an entity with few peeks, however sparse its numbers are."""

from __future__ import annotations

from datetime import timedelta
from math import log2

import pytest

from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.sequences import (
    SequenceMarks,
    first_number,
    last_number,
    last_numbers,
    last_numbers_of,
    partition_of,
)
from tests.faults.world import ORDERS, World, run
from tests.spark.scenes import Others, numbered

KEPT = [[], [1], [2], [1, 2, 3], [7], [1, 100], [50, 51, 99], [3, 64, 65, 100], [100]]


async def leave(others: Others, sent: int, kept: list[int]) -> None:
    """Send this many messages, and remove all but the given ones."""
    await others.send(numbered(range(sent)))
    receiver = await others.receiver()
    taken: list[ReceivedMessage] = []
    while len(taken) < sent:
        taken += await receiver.receive(sent, timedelta(seconds=1))
    await receiver.complete([message for message in taken if message.sequence_number not in kept])
    await receiver.abandon([message for message in taken if message.sequence_number in kept])


class Counting:
    """Counts the peeks of a receiver."""

    def __init__(self, receiver: MessageReceiver) -> None:
        self.count = 0
        peek = receiver.peek

        async def counted(max_message_count: int = 1, from_sequence_number: int | None = None) -> list[ReceivedMessage]:
            self.count += 1
            return await peek(max_message_count, from_sequence_number)

        receiver.peek = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_d1_last_number_is_found(kept: list[int]) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await leave(others, 100, kept)
        receiver = await world.factory().create_message_receiver(ORDERS)
        assert await last_number(receiver) == max(kept, default=0)
        for least in (0, 1, 49, 99, 100, 2_000):
            assert await last_number(receiver, least) == max([number for number in kept if number > least] or [least])
        assert await last_numbers_of(others.factory, ORDERS) == SequenceMarks.of(kept)

    run(scenario)


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_d1_first_number_from_a_minimum_is_found(kept: list[int]) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await leave(others, 100, kept)
        receiver = await world.factory().create_message_receiver(ORDERS)
        for least in (0, 1, 2, 51, 100, 101):
            assert await first_number(receiver, least) == min((n for n in kept if n >= least), default=None)

    run(scenario)


@pytest.mark.parametrize("sent", [1, 10, 1_000, 3_000])
def test_search_takes_few_peeks(sent: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        for start in range(0, sent, 1_000):
            await others.send(numbered(range(start, min(sent, start + 1_000))))
        receiver = await world.factory().create_message_receiver(ORDERS)
        counting = Counting(receiver)
        assert await last_numbers(receiver) == SequenceMarks.of([sent])
        assert counting.count <= 2 * log2(sent + 1) + 4

    run(scenario)


@pytest.mark.parametrize("sent", [1, 10, 99])
def test_search_in_a_short_entity_takes_at_most_four_peeks(sent: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(sent)))
        receiver = await world.factory().create_message_receiver(ORDERS)
        counting = Counting(receiver)
        assert await last_numbers(receiver) == SequenceMarks.of([sent])
        assert counting.count <= 4

    run(scenario)


def test_d1_last_number_is_found_behind_a_page_that_is_cut_short() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        for _ in range(20):
            await others.send(["x" * 100_000])
        receiver = await world.factory().create_message_receiver(ORDERS)
        assert len(await receiver.peek(100, 1)) < 20, "a response has a maximum size"
        assert await last_numbers(receiver) == SequenceMarks.of([20])

    run(scenario)


def test_d1_last_number_of_each_partition_is_found() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        others.make_anew(partitioned=True)
        for key in range(5):
            await others.send(numbered(range(key + 1)), partition_key=f"key {key}")
        everything = await others.numbers()
        marks = SequenceMarks.of(everything)
        assert len(marks.last) > 1
        receiver = await world.factory().create_message_receiver(ORDERS)
        assert await last_numbers(receiver) == marks
        for number in everything:
            assert await last_number(receiver, number) == marks.end(partition_of(number))

    run(scenario)


def test_last_number_stops_at_the_first_message_that_does_not_fit() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(20)))
        receiver = await world.factory().create_message_receiver(ORDERS)
        for most in range(21):
            assert await last_number(receiver, 0, lambda message: message.sequence_number <= most) == most  # noqa: B023

    run(scenario)
