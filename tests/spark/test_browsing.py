"""Browsing streams and tables, in virtual time: every message is read once, and none is changed (D1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan

from pairbus.client.errors import EntityNotFoundError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.browsing import Browsing
from pairbus.spark.errors import MessagesGoneError
from pairbus.spark.offset import BrowseOffset, SingleNumberOffset, read_browse_offset
from pairbus.spark.sequences import partition_of, start_of
from tests.faults.fault import Fault, Kind, Way
from tests.faults.world import ORDERS, World, run
from tests.spark.scenes import Others, numbered, options, read


class Browser:
    """A browsing query, as Spark runs it."""

    def __init__(self, factory: MessagingFactory, *entities: str, **given: Any) -> None:
        self.options = options(*entities, mode="browse", **given)
        self.factory = factory
        self.browsing = Browsing(factory, self.options.entities, self.options)
        self.offset = BrowseOffset()

    async def batch(self, most: int | None = None) -> list[str]:
        end = await self.browsing.plan(self.offset, most or self.options.max_messages_per_trigger)
        assert read_browse_offset(end.to_json()) == end
        parts = [] if end == self.offset else self.browsing.partitions(self.offset, end)
        self.offset = end
        return [message.text() for one in parts for message in await read(self.factory, one)]


@asynccontextmanager
async def browsing(world: World, *entities: str, **given: Any) -> AsyncIterator[Browser]:
    browser = Browser(world.factory(), *entities, **given)
    browser.offset = await browser.browsing.beginning()
    try:
        yield browser
    finally:
        await browser.browsing.close()


async def table(world: World, *entities: str, **given: Any) -> list[str]:
    """Return the rows of ``spark.read``."""
    browser = Browser(world.factory(), *entities, is_stream=False, **given)
    try:
        parts = await browser.browsing.everything()
        return [message.text() for one in parts for message in await read(browser.factory, one)]
    finally:
        await browser.browsing.close()


async def take(others: Others, *numbers: int, path: str = ORDERS) -> None:
    """Consume these messages as another receiver."""
    receiver = await others.receiver(path)
    found = await receiver.receive(1_000, timedelta(seconds=1))
    await receiver.complete([message for message in found if message.sequence_number in numbers])
    await receiver.abandon([message for message in found if message.sequence_number not in numbers])


def test_d1_checkpoint_matches_entity_case_insensitively() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)))
        async with browsing(world) as browser:
            assert await browser.batch() == numbered(range(5))
            offset = browser.offset
        await others.send(numbered(range(5, 7)))
        async with browsing(world, ORDERS.upper()) as browser:
            browser.offset = offset
            assert await browser.batch() == numbered(range(5, 7))
            assert browser.offset.seen.keys() == offset.seen.keys()

    run(scenario)


def test_d1_messages_are_read_once_and_stay() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)))
        async with browsing(world) as browser:
            assert await browser.batch() == numbered(range(5))
            assert await browser.batch() == []
            await others.send(numbered(range(5, 8)))
            assert await browser.batch() == numbered(range(5, 8))
        assert await others.look() == numbered(range(8))
        receiver = await others.receiver()
        found = await receiver.receive(10, timedelta(seconds=1))
        assert [message.delivery_count for message in found] == [0] * 8

    run(scenario)


def test_d1_batch_size_is_limited() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(25)))
        async with browsing(world, maxMessagesPerTrigger=10) as browser:
            found = [await browser.batch() for _ in range(3)]
            assert [len(rows) for rows in found] == [10, 10, 5]
            assert [row for rows in found for row in rows] == numbered(range(25))

    run(scenario)


def test_d1_batch_is_shared_between_entities() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        world.namespace.create_queue("second")
        await others.send(numbered(range(30)))
        await others.send(numbered(range(100, 103)), "second")
        async with browsing(world, ORDERS, "second", maxMessagesPerTrigger=10) as browser:
            assert await browser.batch() == [*numbered(range(5)), *numbered(range(100, 103))]
            rows = [row for _ in range(5) for row in await browser.batch()]
            assert rows == numbered(range(5, 30))

    run(scenario)


def test_d1_gaps_in_numbers_cause_no_empty_batches() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(100)))
        await take(others, *range(1, 91))
        async with browsing(world, maxMessagesPerTrigger=4) as browser:
            assert [await browser.batch() for _ in range(3)] == [
                numbered(range(90, 94)),
                numbered(range(94, 98)),
                numbered(range(98, 100)),
            ]

    run(scenario)


def test_d1_batch_omits_messages_consumed_meanwhile() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with browsing(world, partitionsPerQueue=2) as browser:
            end = await browser.browsing.plan(browser.offset, 10)
            parts = browser.browsing.partitions(browser.offset, end)
            await take(others, 1, 2, 3)
            assert [message.text() for one in parts for message in await read(browser.factory, one)] == ["3", "4", "5"]

    run(scenario)


@pytest.mark.parametrize(
    ("start", "seen"),
    [
        ("earliest", [*range(10), 10]),
        ("latest", [10]),
        ('{"orders": 7}', [6, 7, 8, 9, 10]),
        ('{"Orders": 0}', [*range(10), 10]),
        ('{"orders": 100}', []),
        ('{"orders": "latest"}', [10]),
    ],
)
def test_d1_stream_starts_at_starting_offset(start: str, seen: list[int]) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with browsing(world, startingOffsets=start) as browser:
            await others.send(["10"])
            rows = await browser.batch()
            assert rows == numbered(seen)
            assert await browser.batch() == []

    run(scenario)


def test_d1_latest_of_an_empty_queue_is_its_start() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with browsing(world, startingOffsets="latest") as browser:
            await others.send(numbered(range(3)))
            assert await browser.batch() == numbered(range(3))

    run(scenario)


@pytest.mark.parametrize("most", [3, 100])
def test_d1_available_now_reads_messages_present_at_start(most: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with browsing(world, maxMessagesPerTrigger=most) as browser:
            await browser.browsing.until_now()
            await others.send(numbered(range(10, 20)))
            rows: list[str] = []
            start_s = world.loop.time()
            while found := await browser.batch():
                rows += found
            assert rows == numbered(range(10))
            assert world.loop.time() - start_s < 5

    run(scenario)


def test_d1_available_now_ends_if_last_messages_are_gone() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with browsing(world, maxMessagesPerTrigger=5) as browser:
            await browser.browsing.until_now()
            assert await browser.batch() == numbered(range(5))
            await take(others, *range(6, 11))
            assert await browser.batch() == []
            assert await browser.batch() == []

    run(scenario)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_d1_several_partitions_read_the_same_as_one(parts: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(20)))
        await take(others, 3, 4, 5, 17)
        kept = [number for number in range(20) if number + 1 not in (3, 4, 5, 17)]
        assert await table(world, partitionsPerQueue=parts) == numbered(kept)
        async with browsing(world, partitionsPerQueue=parts) as browser:
            assert await browser.batch() == numbered(kept)

    run(scenario)


async def schedule(others: Others, body: str, delay_s: float, **properties: Any) -> None:
    sender = await others.factory.create_message_sender(ORDERS)
    due = datetime.fromtimestamp(others.world.wall_s() + delay_s, UTC)
    await sender.schedule(BrokeredMessage(body, **properties), due)


def test_d1_deferred_and_locked_messages_are_read() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(["deferred", "locked"])
        receiver = await others.receiver()
        first, _ = await receiver.receive(2, timedelta(0))
        await receiver.defer(first)
        async with browsing(world) as browser:
            assert await browser.batch() == ["deferred", "locked"]

    run(scenario)


def test_d1_scheduled_message_is_read_once_when_it_is_enqueued() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await schedule(others, "scheduled", 60)
        await others.send(["sent"])
        async with browsing(world) as browser:
            assert await browser.batch() == ["sent"]
            assert await table(world) == ["scheduled", "sent"]
            await asyncio.sleep(61)
            assert await browser.batch() == ["scheduled"]
            assert await browser.batch() == []
            assert await table(world) == ["sent", "scheduled"]

    run(scenario)


# Partitioned entities: each partition has its own numbers.

KEYS = 8


class Partitioned:
    """A partitioned queue that gets messages for every key, round by round."""

    def __init__(self, world: World) -> None:
        self.others = Others(world)
        self.others.make_anew(partitioned=True)
        self._rounds = 0

    async def send(self, count: int = 3) -> set[str]:
        """Send some messages for every key, and return their bodies."""
        self._rounds += 1
        bodies = [[f"{self._rounds}.{key}.{number}" for number in range(count)] for key in range(KEYS)]
        for key, some in enumerate(bodies):
            await self.others.send(some, partition_key=f"key {key}")
        return {body for some in bodies for body in some}

    async def send_last(self) -> None:
        """Send a message that gets the largest number of all."""
        receiver = await self.others.receiver()
        (message,) = await receiver.peek(1, max(await self.others.numbers()))
        await self.others.send(["last"], partition_key=message.partition_key)

    async def partitions(self) -> int:
        return len({partition_of(number) for number in await self.others.numbers()})


def each_once(rows: list[str]) -> set[str]:
    assert len(rows) == len(set(rows))
    return set(rows)


@pytest.mark.parametrize("given", [{}, {"maxMessagesPerTrigger": 5}, {"partitionsPerQueue": 3}], ids=str)
@pytest.mark.parametrize("until_now", [False, True])
def test_d1_every_message_of_a_partitioned_queue_is_read_once(given: dict[str, int], until_now: bool) -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        offset = BrowseOffset()
        for _ in range(3):
            sent = await queue.send()
            async with browsing(world, **given) as browser:
                browser.offset = offset
                if until_now:
                    await browser.browsing.until_now()
                    await queue.others.send(["later"])
                rows: list[str] = []
                while found := await browser.batch():
                    rows += found
                offset = browser.offset
            assert each_once([row for row in rows if row != "later"]) == sent
        assert await queue.partitions() > 1
        assert len(offset.seen[ORDERS].last) <= 16

    run(scenario)


def test_d1_batch_of_a_partitioned_queue_is_limited() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        sent = await queue.send(20)
        async with browsing(world, maxMessagesPerTrigger=50) as browser:
            batches: list[list[str]] = []
            while found := await browser.batch():
                batches.append(found)
        assert all(len(rows) <= 50 for rows in batches)
        assert len(batches) == -(-len(sent) // 50)
        assert each_once([row for rows in batches for row in rows]) == sent

    run(scenario)


def test_d1_latest_of_a_partitioned_queue_is_that_of_each_partition() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        await queue.send()
        async with browsing(world, startingOffsets="latest") as browser:
            sent = await queue.send()
            assert each_once(await browser.batch()) == sent

    run(scenario)


def test_d1_starting_number_applies_to_its_partition() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        sent = await queue.send()
        highest = max(await queue.others.numbers())
        receiver = await queue.others.receiver()
        before = {
            message.text() for message in await receiver.peek(100, start_of(partition_of(highest)))
            if message.sequence_number < highest
        }  # fmt: skip
        for start in (highest, start_of(partition_of(highest))):
            expected = sent - before if start == highest else sent
            found = await table(world, startingOffsets=f'{{"orders": {start}}}')
            assert each_once(found) == expected
            async with browsing(world, startingOffsets=f'{{"orders": {start}}}') as browser:
                assert each_once(await browser.batch()) == expected

    run(scenario)


def test_d1_scheduled_message_of_a_partitioned_queue_is_read_once() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        sent = await queue.send()
        for key in range(KEYS):
            await schedule(queue.others, f"scheduled {key}", 60, partition_key=f"key {key}")
        async with browsing(world) as browser:
            assert each_once(await browser.batch()) == sent
            assert await browser.batch() == []
            await asyncio.sleep(61)
            assert each_once(await browser.batch()) == {f"scheduled {key}" for key in range(KEYS)}

    run(scenario)


def test_d3_idle_stream_peeks_once_for_each_partition() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        await queue.send()
        async with browsing(world) as browser:
            await browser.batch()
            await browser.browsing.until_now()
            peeks = _count_peeks(browser)
            assert await browser.batch() == []
            assert len(peeks) <= await queue.partitions() + 1

    run(scenario)


# Checkpoints of earlier versions, with one number for each entity.


async def resumed(world: World, last: int) -> list[str]:
    """Return the rows of a stream whose checkpoint has one number."""
    async with browsing(world) as browser:
        start = SingleNumberOffset(seen={ORDERS: last})
        browser.offset = await browser.browsing.upgraded(start)
        assert browser.browsing.partitions(start, browser.offset) == []
        return await browser.batch()


@pytest.mark.parametrize("last", [-1, 0, 1, 4, 5])
def test_d1_earlier_checkpoint_of_a_queue_continues_after_its_number(last: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)))
        assert await resumed(world, last) == numbered(range(max(0, last), 5))

    run(scenario)


def test_d1_earlier_checkpoint_of_a_partitioned_queue_continues_without_loss() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        await queue.send()
        await asyncio.sleep(1)
        await queue.send_last()
        last = max(await queue.others.numbers())
        await asyncio.sleep(1)
        sent = await queue.send()
        assert each_once(await resumed(world, last)) == sent
        await take(queue.others, last)
        assert each_once(await resumed(world, last)) >= sent

    run(scenario)


def test_d1_earlier_checkpoint_whose_partition_was_emptied_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        await queue.send()
        numbers = await queue.others.numbers()
        last = max(numbers)
        sent = await queue.send()
        await take(queue.others, *(number for number in numbers if partition_of(number) == partition_of(last)))
        assert each_once(await resumed(world, last)) >= sent
        assert "lower partitions are read again entity=orders" in caplog.text

    run(scenario)


def test_d1_batch_planned_by_an_earlier_version_is_read_unchanged() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        sent = await queue.send()
        async with browsing(world, partitionsPerQueue=2) as browser:
            start, end = SingleNumberOffset(), SingleNumberOffset(seen={ORDERS: max(await queue.others.numbers())})
            parts = browser.browsing.partitions(start, end)
            rows = [message.text() for one in parts for message in await read(browser.factory, one)]
            assert each_once(rows) == sent
            assert browser.browsing.partitions(end, end) == []

    run(scenario)


def test_table_of_an_empty_queue_has_no_rows() -> None:
    async def scenario(world: World) -> None:
        assert await table(world) == []
        assert await table(world, startingOffsets='{"orders": 17}') == []

    run(scenario)


def test_table_starts_at_starting_offset() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        assert await table(world, startingOffsets='{"orders": 8}') == numbered(range(7, 10))

    run(scenario)


def test_e4_missing_entity_is_an_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(EntityNotFoundError, match="nothing"):
            await table(world, "nothing")
        async with browsing(world) as browser:
            world.namespace.delete(ORDERS)
            with pytest.raises(EntityNotFoundError):
                await browser.batch()

    run(scenario)


def test_d1_stream_continues_after_namespace_restart() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        async with browsing(world) as browser:
            assert await browser.batch() == numbered(range(3))
            world.namespace.kill()
            world.namespace.start()
            await others.send(numbered(range(3, 5)))
            assert await browser.batch() == numbered(range(3, 5))

    run(scenario)


@pytest.mark.parametrize("entities", [1, 3])
def test_d3_idle_stream_pauses_between_peeks(entities: int) -> None:
    """Each peek is billed, and Spark asks again as soon as planning returns."""

    async def scenario(world: World) -> None:
        paths = [f"orders-{number}" for number in range(entities)]
        for path in paths:
            world.namespace.create_queue(path)
        async with browsing(world, *paths) as browser:
            assert await browser.batch() == []
            world.proxy.apply(Fault(kind=Kind.DELAY, way=Way.BOTH, pause_s=0.001))
            peeks = _count_peeks(browser)
            ends_s = world.loop.time() + 300
            while world.loop.time() < ends_s and len(peeks) < 1_000:
                assert await browser.batch() == []
                await asyncio.sleep(0.01)
            assert len(peeks) <= 300 * entities

    run(scenario)


def _count_peeks(browser: Browser) -> list[int]:
    """Return a list to which a number is appended for each peek from now on."""
    peeks: list[int] = []

    def watch(receiver: MessageReceiver) -> None:
        peek = receiver.peek

        async def counted(max_message_count: int = 1, from_sequence_number: int | None = None) -> list[ReceivedMessage]:
            peeks.append(max_message_count)
            return await peek(max_message_count, from_sequence_number)

        receiver.peek = counted  # type: ignore[method-assign]

    for receiver in browser.browsing._receivers.values():
        watch(receiver)
    return peeks


# Bounds, sizes, and messages that are gone.


@pytest.mark.parametrize(
    ("ending", "seen"),
    [
        ("latest", range(10)),
        ('{"orders": 4}', range(3)),
        ('{"Orders": "latest"}', range(10)),
        ('{"orders": 0}', range(0)),
        ('{"orders": 100}', range(10)),
    ],
)
def test_d1_table_ends_before_ending_offset(ending: str, seen: range) -> None:
    async def scenario(world: World) -> None:
        await Others(world).send(numbered(range(10)))
        assert await table(world, endingOffsets=ending) == numbered(seen)

    run(scenario)


def test_d1_table_of_a_partitioned_queue_ends_before_the_number_of_its_partition() -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        sent = await queue.send()
        highest = max(await queue.others.numbers())
        receiver = await queue.others.receiver()
        [last] = await receiver.peek(1, highest)
        ending = f'{{"orders": {highest}}}'
        assert each_once(await table(world, endingOffsets=ending)) == sent - {last.text()}

    run(scenario)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_d1_bounds_by_time(is_partitioned: bool) -> None:
    async def scenario(world: World) -> None:
        queue = Partitioned(world)
        if not is_partitioned:
            queue.others.make_anew()
        rounds: list[set[str]] = []
        times: list[str] = []
        for _ in range(3):
            times.append(datetime.fromtimestamp(world.wall_s(), UTC).isoformat())
            await asyncio.sleep(60)
            await schedule(queue.others, f"scheduled {len(rounds)}", 3_600)  # it is no message of this time
            rounds.append(await queue.send())
            await asyncio.sleep(60)
        scheduled = {f"scheduled {number}" for number in range(3)}
        for index, time in enumerate(times):
            later = set().union(*rounds[index:])
            async with browsing(world, startingTimestamp=time) as browser:
                assert each_once(await browser.batch(1_000)) == later
            found = each_once(await table(world, startingTimestamp=time))
            assert found - scheduled == later
            earlier = each_once(await table(world, endingOffsetsByTimestamp=f'{{"orders": "{time}"}}'))
            assert earlier - scheduled == set().union(*rounds[:index])
        between = await table(world, startingOffsetsByTimestamp=f'{{"orders": "{times[1]}"}}', endingTimestamp=times[2])
        assert each_once(between) - scheduled == rounds[1]

    run(scenario)


def test_d1_many_entities_are_read_in_order() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        paths = [f"orders-{number:03}" for number in range(60)]
        for path in paths:
            world.namespace.create_queue(path)
            await others.send([f"{path} {number}" for number in range(2)], path)
        expected = [f"{path} {number}" for path in paths for number in range(2)]
        assert await table(world, *paths) == expected
        async with browsing(world, *paths) as browser:
            assert await browser.batch() == expected
        world.namespace.delete(paths[30])
        with pytest.raises(EntityNotFoundError, match=paths[30]):
            await table(world, *paths)

    run(scenario)


def test_d1_size_of_a_batch_is_limited_by_an_estimate() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        bodies = [f"{number}".rjust(1_000) for number in range(100)]
        await others.send(bodies)
        async with browsing(world, maxBytesPerTrigger=20_000) as browser:
            batches: list[list[str]] = []
            while found := await browser.batch():
                batches.append(found)
        assert [row for rows in batches for row in rows] == bodies
        assert all(10 <= len(rows) <= 20 for rows in batches[:-1])

    run(scenario)


def test_e4_gone_messages_fail_a_query_that_asks_for_it() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with browsing(world, failOnDataLoss="true") as browser:
            end = await browser.browsing.plan(browser.offset, 10)
            parts = browser.browsing.partitions(browser.offset, end)
            await take(others, 1, 2)
            with pytest.raises(MessagesGoneError, match=r"a message of 'orders' is gone, .* sequence number 1: "):
                await read(browser.factory, parts[0])
        with pytest.raises(MessagesGoneError, match=r"2 messages of 'orders' are gone, .* sequence number 1: "):
            await table(world, failOnDataLoss="true", startingOffsets='{"orders": 1}')
        assert await table(world, startingOffsets='{"orders": 1}') == numbered(range(2, 10))
        assert await table(world, failOnDataLoss="true", startingOffsets='{"orders": 3}') == numbered(range(2, 10))
        assert await table(world, failOnDataLoss="true", startingOffsets='{"orders": 11}') == []

    run(scenario)


def test_d1_filters_leave_out_entities_and_numbers() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        world.namespace.create_queue("second")
        await others.send(numbered(range(10)))
        await others.send(numbered(range(10)), "second")
        browser = Browser(world.factory(), ORDERS, "second")
        conditions = [EqualTo(("entity",), "second"), GreaterThan(("sequence_number",), 7)]
        parts = await browser.browsing.everything(conditions)
        assert [(part.entity, [*part.portion.numbers]) for part in parts] == [("second", [8, 9, 10])]
        await browser.browsing.close()

    run(scenario)


def test_c19_messages_after_the_last_batch_are_counted() -> None:
    async def scenario(world: World) -> None:
        await Others(world).send(numbered(range(25)))
        async with browsing(world, maxMessagesPerTrigger=10) as browser:
            behind: list[int] = []
            while await browser.batch():
                behind.append(browser.browsing.behind)
            assert behind == [15, 5, 0]

    run(scenario)
