"""Consuming streams in virtual time: each message is read before it is removed, whatever fails (D1)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import pytest

from pairbus.broker import EntityStatus, QueueDescription
from pairbus.client.errors import EntityDisabledError, EntityNotFoundError, MessagingError
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.errors import MessagesGoneError
from pairbus.spark.offset import ConsumeOffset
from tests.faults.fault import Fault, Kind, Outage, Schedule, Way
from tests.faults.world import ORDERS, VISITS, World, run
from tests.spark.scenes import Driver, Others, driving, in_order, numbered, read
from tests.thoroughness import times

NO_WAIT = timedelta(0)
SHORT_MS = 5_000
"""The shortest lock that a queue can have."""


# Batches.


def test_d1_batch_is_repeatable_until_the_next_is_planned() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, maxMessagesPerTrigger=4) as driver:
            partitions = await driver.plan()
            assert await driver.read(partitions) == await driver.read(partitions) == numbered(range(4))
            await asyncio.sleep(300)
            assert await others.look() == numbered(range(10))
            assert await driver.batch() == numbered(range(4, 8))
            await asyncio.sleep(1)
            assert await others.look() == numbered(range(4, 10))

    run(scenario)


def test_d1_long_batch_keeps_its_locks() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, maxMessagesPerTrigger=4) as driver:
            await driver.plan()
            receiver = await others.receiver()
            found = await receiver.receive(10, timedelta(hours=2))
            assert [message.text() for message in found] == numbered(range(8, 10))  # four are held, four wait

    run(scenario)


@pytest.mark.parametrize("name", [ORDERS.upper(), ORDERS.title()])
def test_d1_restart_with_other_spelling_uses_the_checkpoint(name: str) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        first = Driver(world.factory(), maxMessagesPerTrigger=4)
        await first.start()
        assert await first.batch() == numbered(range(4))
        await first.die()
        async with driving(world, name, known=first.offset, maxMessagesPerTrigger=4) as again:
            assert await again.read(again.consumption.partitions(again.offset)) == numbered(range(4))
            assert await again.until(2) == numbered(range(4, 6))  # and none of the batch that existed already
            assert [*again.offset.held] == [ORDERS]
            assert await again.batch() == []
            await others.until_empty()

    run(scenario)


def test_d1_last_batch_is_removed_without_new_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        async with driving(world) as driver:
            assert await driver.batch() == numbered(range(3))
            assert await driver.batch() == []
            assert await others.look() == []

    run(scenario)


def test_d1_batch_size_is_limited() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(100)))
        async with driving(world, maxMessagesPerTrigger=7) as driver:
            sizes = [len(await driver.batch()) for _ in range(15)]
            assert sizes[:14] == [7] * 14
            assert driver.rows == numbered(range(100))

    run(scenario)


def test_d1_messages_over_many_links_are_read_once() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        for start in range(0, 4_500, 500):
            await others.send(numbered(range(start, start + 500)))
        async with driving(world, maxMessagesPerTrigger=4_000) as driver:
            rows = await driver.until(4_500)
            assert rows == numbered(range(4_500))
            await driver.batch()
            assert await others.look() == []

    run(scenario)


def test_d1_several_partitions_read_the_same_as_one() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, partitionsPerQueue=4) as driver:
            partitions = await driver.plan()
            assert len(partitions) == 4
            parts = [[message.text() for message in await read(driver.factory, one)] for one in partitions]
            assert [row for part in parts for row in part] == numbered(range(10))
            assert all(parts)

    run(scenario)


def test_d1_all_entities_are_read() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        paths = [f"orders-{number}" for number in range(5)]
        for path in paths:
            world.namespace.create_queue(path)
            await others.send([f"{path} {number}" for number in range(20)], path)
        async with driving(world, *paths, maxMessagesPerTrigger=10) as driver:
            first = await driver.batch()
            assert {row.split()[0] for row in first} == set(paths)  # each entity has a share
            rows = await driver.until(100)
            assert sorted(rows) == sorted(f"{path} {number}" for path in paths for number in range(20))

    run(scenario)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_d1_busy_entities_do_not_starve_others(most: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        paths = [f"orders-{number}" for number in range(4)]
        for path in paths:
            world.namespace.create_queue(path)
        await others.send(["late"] * 50, paths[-1])  # the busiest of all
        async with driving(world, *paths, maxMessagesPerTrigger=most) as driver:
            for _ in range(30):
                for path in paths[:-1]:
                    await others.send(["early"], path)
                await driver.batch()
            assert "late" in driver.rows
            assert "early" in driver.rows

    run(scenario)


# Other receivers of the same queue.


def test_d1_two_streams_on_a_queue_get_different_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        async with driving(world, maxMessagesPerTrigger=5) as one, driving(world, maxMessagesPerTrigger=5) as other:
            await others.send(numbered(range(100)))
            for _ in range(20):
                await asyncio.gather(one.batch(), other.batch())
            assert one.rows
            assert other.rows
            assert sorted(one.rows + other.rows, key=int) == numbered(range(100))
            await asyncio.gather(one.batch(), other.batch())
            assert await others.look() == []

    run(scenario)


def test_d1_replay_is_identical_beside_other_receivers() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        receiver = await others.receiver()
        await others.send(numbered(range(30)))
        mine = await receiver.receive(10, NO_WAIT)
        async with driving(world, maxMessagesPerTrigger=10) as driver:
            for message in mine[::2]:
                await receiver.abandon(message)
            partitions = await driver.plan()
            before = await driver.read(partitions)
            assert len(before) == 10
            await receiver.complete(mine[1::2])
            again = await driver.read(driver.consumption.partitions(driver.offset))
            assert again == before
            rest = await driver.until(25)
            assert sorted(before + rest, key=int) == numbered([*range(0, 10, 2), *range(10, 30)])
            await driver.batch()
            assert await others.look() == []

    run(scenario)


def test_d1_messages_of_another_consumer_are_neither_read_nor_removed() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        receiver = await others.receiver()
        await others.send(numbered(range(9)))
        mine = await receiver.receive(3, NO_WAIT)
        async with driving(world) as driver:
            assert await driver.batch() == numbered(range(3, 9))
            await driver.batch()
            assert await others.look() == numbered(range(3))
            for message in mine:
                await receiver.abandon(message)
            assert sorted(await driver.until(9), key=int) == numbered(range(9))

    run(scenario)


def test_d1_deferred_and_scheduled_messages_are_not_read() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        receiver = await others.receiver()
        await others.send(["deferred"])
        (message,) = await receiver.receive(1, NO_WAIT)
        await receiver.defer(message)
        sender = await others.factory.create_message_sender(ORDERS)
        later = datetime.fromtimestamp(world.wall_s() + 3_600, UTC)
        await sender.schedule(BrokeredMessage("scheduled"), later)
        await others.send(["plain"])
        async with driving(world) as driver:
            assert await driver.batch() == ["plain"]
            assert await driver.batch() == []
            assert sorted(await others.look()) == ["deferred", "scheduled"]
            await asyncio.sleep(3_600)
            assert await driver.batch() == ["scheduled"]  # its time has come
            await driver.batch()
            assert await others.look() == ["deferred"]

    run(scenario)


def test_d1_message_deferred_after_lost_lock_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        receiver = await others.receiver()
        await others.send(["mine"])
        driver = Driver(world.factory())
        await driver.start()
        assert await driver.batch() == ["mine"]
        await driver.die()
        await asyncio.sleep(61)
        (message,) = await receiver.receive(1, NO_WAIT)
        await receiver.defer(message)
        async with driving(world, known=driver.offset) as again:
            for _ in range(4):
                assert await again.batch() == []
            await others.send(["other"])
            assert await again.batch() == ["other"]
            assert not again.offset.left  # leftovers are not kept forever
            assert sorted(await others.look()) == ["mine", "other"]

    run(scenario)


def test_messages_that_expire_in_a_batch_are_read() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)), time_to_live=timedelta(seconds=30))
        async with driving(world) as driver:
            partitions = await driver.plan()
            await asyncio.sleep(100)
            assert await driver.read(partitions) == numbered(range(5))
            await driver.batch()
            assert await others.look() == []
            assert await others.look(f"{ORDERS}/$DeadLetterQueue") == []
            assert not driver.consumption._left()

    run(scenario)


# Lost locks.


def test_d1_shortest_lock_is_renewed_from_the_first_message() -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=SHORT_MS))
        others = Others(world)
        async with driving(world, "brief", maxMessagesPerTrigger=5) as driver:
            await asyncio.sleep(0.5)
            await others.send(numbered(range(5)), "brief")
            assert await driver.batch() == numbered(range(5))
            await asyncio.sleep(60)
            receiver = await others.receiver("brief")
            assert [message.delivery_count for message in await receiver.peek(5)] == [0] * 5  # none was redelivered

    run(scenario)


@pytest.mark.parametrize("away_s", [8, 30, 200])
def test_d1_message_with_lost_lock_is_planned_once_and_removed_on_redelivery(away_s: int) -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("brief", QueueDescription(lock_duration_ms=SHORT_MS, max_delivery_count=1_000))
        others = Others(world)
        await others.send(numbered(range(6)), "brief")
        async with driving(world, "brief", maxMessagesPerTrigger=3) as driver:
            assert await driver.batch() == numbered(range(3))
            world.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=away_s),)))
            await asyncio.sleep(away_s + 10)
            rows = await driver.until(6)
            assert sorted(rows) == numbered(range(6))
            for _ in range(3):
                assert await driver.batch() == []
            await others.until_empty("brief")

    run(scenario)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_d1_stream_continues_after_namespace_restart(how: str) -> None:
    """A restarted namespace has forgotten all locks."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(40)))
        async with driving(world, maxMessagesPerTrigger=10) as driver:
            assert await driver.batch() == numbered(range(10))
            await asyncio.sleep(5)  # the next ten are received by now, so that there is no room for more
            await _away(world, how, 20)
            await asyncio.sleep(120)  # a long batch
            rows = await driver.until(40)
            assert sorted(rows, key=int) == numbered(range(40))
            await driver.batch()
            await others.until_empty()

    run(scenario)


@pytest.mark.parametrize("waits_s", [0.0, 10.0, 31.0, 45.0, 100.0])
def test_d1_unplanned_message_with_lost_lock_is_redelivered(waits_s: float) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(8)))
        async with driving(world, maxMessagesPerTrigger=2) as driver:
            assert await driver.batch() == numbered(range(2))
            await asyncio.sleep(1)
            world.namespace.kill()
            world.namespace.start()
            await asyncio.sleep(waits_s)
            assert sorted(set(await driver.until(8)), key=int) == numbered(range(8))
            await driver.batch()
            await others.until_empty()

    run(scenario)


async def _away(world: World, how: str, lasts_s: float) -> None:
    if how == "stop":
        await world.namespace.stop()
    else:
        world.namespace.kill()
    await asyncio.sleep(lasts_s)
    world.namespace.start()


def test_d1_failed_removal_is_retried_after_an_outage() -> None:
    """Locks of five minutes outlive an outage of one: no other receiver gets the messages meanwhile."""

    async def scenario(world: World) -> None:
        world.namespace.create_queue("long", QueueDescription(lock_duration_ms=300_000))
        others = Others(world)
        for start in range(0, 3_000, 1_000):
            await others.send(numbered(range(start, start + 1_000)), "long")
        async with driving(world, "long", maxMessagesPerTrigger=3_000) as driver:
            await driver.until(3_000)
            world.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=90.0),)))
            await driver.batch()
            await asyncio.sleep(400)
            for _ in range(10):
                await driver.batch()
            assert sorted(driver.rows, key=int) == numbered(range(3_000))
            await others.until_empty("long")

    run(scenario)


def test_leftovers_that_are_gone_are_forgotten_under_load() -> None:
    """Another receiver settles one message of each batch; the checkpoint must not grow with each of them."""

    async def scenario(world: World) -> None:
        others = Others(world)
        receiver = await others.receiver()
        async with driving(world) as driver:
            for number in range(150):
                await others.send([f"{number}"])
                (part,) = await driver.plan()
                await receiver.complete([ReceivedMessage(b"", lock_token=token) for token in part.tokens.values()])
                await asyncio.sleep(0.2)
            assert len(driver.offset.to_json()["left"].get(ORDERS, [])) < 60

    run(scenario)


# Restarts.


@pytest.mark.parametrize("after_s", [0, 30, 100])
def test_d1_committed_batch_is_removed_by_the_next_driver(after_s: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        first = Driver(world.factory(), maxMessagesPerTrigger=3)
        await first.start()
        assert await first.batch() == numbered(range(3))
        await first.die()
        await asyncio.sleep(after_s)
        async with driving(world, known=first.offset, maxMessagesPerTrigger=3) as second:
            assert sorted(await second.until(3)) == numbered(range(3, 6))
            for _ in range(12):
                assert await second.batch() == []
            await others.until_empty()

    run(scenario)


@pytest.mark.parametrize("after_s", [0, 30, 100])
def test_d1_uncommitted_batch_is_repeated_by_the_next_driver(after_s: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        first = Driver(world.factory(), maxMessagesPerTrigger=3)
        await first.start()
        rows = await first.batch()
        await first.die()
        await asyncio.sleep(after_s)
        async with driving(world, known=first.offset, maxMessagesPerTrigger=3) as second:
            again = second.consumption.partitions(second.offset)
            await asyncio.sleep(100)  # longer than the locks of the first driver
            assert await second.read(again) == rows == numbered(range(3))
            assert sorted(await second.until(3)) == numbered(range(3, 6))
            for _ in range(12):
                assert await second.batch() == []
            await others.until_empty()

    run(scenario)


def test_d1_leftovers_of_two_drivers_are_removed_by_the_third() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(9)))
        offset = ConsumeOffset()
        rows: list[str] = []
        for _ in range(3):
            driver = Driver(world.factory(), known=offset, maxMessagesPerTrigger=3)
            await driver.start()
            rows += await driver.until(3)
            offset = driver.offset
            await driver.die()
        async with driving(world, known=offset, maxMessagesPerTrigger=3) as last:
            for _ in range(30):
                rows += await last.batch()
            assert sorted(rows) == numbered(range(9))
            assert await others.look() == []

    run(scenario)


def test_d1_stopped_stream_abandons_unplanned_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(8)))
        async with driving(world, maxMessagesPerTrigger=4) as driver:
            await driver.batch()
            await asyncio.sleep(1)
        await driver.close()  # closing twice is allowed
        receiver = await others.receiver()
        found = await receiver.receive(10, timedelta(seconds=1))
        assert sorted(message.text() for message in found) == numbered(range(4, 8))

    run(scenario)


def test_messages_of_an_entity_no_longer_read_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("second")
        others = Others(world)
        await others.send(["first"])
        driver = Driver(world.factory(), ORDERS, "second")
        await driver.start()
        await driver.batch()
        await driver.die()
        await others.send(["other"], "second")
        async with driving(world, "second", known=driver.offset) as again:
            assert again.consumption.partitions(again.offset)  # it can be read again
            assert await again.batch() == ["other"]
            assert await others.look() == ["first"]

    run(scenario)
    assert f"messages not removed entity={ORDERS}" in caplog.text


# Deleted and recreated queues.


def test_d1_deleted_entity_ends_the_stream() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(["one"])
        async with driving(world) as driver:
            await driver.batch()
            world.namespace.delete(ORDERS)
            with pytest.raises(EntityNotFoundError):
                await driver.until(3)

    run(scenario)


def test_d1_deleted_entity_ends_the_stream_despite_other_messages() -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("second")
        others = Others(world)
        async with driving(world, ORDERS, "second", maxMessagesPerTrigger=4) as driver:
            world.namespace.delete("second")
            await others.send(numbered(range(200)))
            with pytest.raises(EntityNotFoundError):
                await driver.until(200)

    run(scenario)


def test_d1_stream_that_waits_for_missing_entities_reads_the_others_meanwhile() -> None:
    async def scenario(world: World) -> None:
        world.namespace.create_queue("second")
        others = Others(world)
        async with driving(world, ORDERS, "second", "third", onMissing="wait") as driver:
            world.namespace.delete("second")
            await others.send(numbered(range(200)))
            assert await driver.until(200) == numbered(range(200))
            assert driver.consumption.report()["missing"] == ["second", "third"]
            world.namespace.create_queue("second")
            await asyncio.sleep(31)
            assert driver.consumption.report()["missing"] == ["third"]
            await others.send(["back"], "second")
            assert (await driver.until(201))[200:] == ["back"]

    run(scenario)


def test_d1_run_that_ends_fails_on_a_missing_entity_though_it_would_wait_otherwise() -> None:
    async def scenario(world: World) -> None:
        driver = Driver(world.factory(), ORDERS, "nothing", onMissing="wait")
        with pytest.raises(EntityNotFoundError, match="nothing"):
            await driver.start(until_now=True)

    run(scenario)


def test_d1_stream_that_fails_to_start_locks_nothing() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        driver = Driver(world.factory(), ORDERS, "nothing")
        with pytest.raises(EntityNotFoundError, match="nothing"):
            await driver.start(until_now=True)
        await asyncio.sleep(120)
        receiver = await others.receiver()
        assert len(await receiver.receive(10, NO_WAIT)) == 3

    run(scenario)


@pytest.mark.parametrize("path", ["nothing", "news/Subscriptions/nobody"])
def test_e4_missing_entity_is_an_error(path: str) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(EntityNotFoundError, match=path.split("/", maxsplit=1)[0]):
            async with driving(world, path) as driver:
                await driver.batch()

    run(scenario)


def test_e4_queue_with_sessions_is_rejected_with_a_hint() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(MessagingError, match="session"):
            async with driving(world, VISITS) as driver:
                await driver.batch()

    run(scenario)


def test_e4_disabled_queue_is_an_error() -> None:
    async def scenario(world: World) -> None:
        world.namespace.disable(ORDERS, EntityStatus.DISABLED)
        with pytest.raises(EntityDisabledError):
            async with driving(world) as driver:
                await driver.batch()

    run(scenario)


@pytest.mark.parametrize("per_batch", [3, 10])
@pytest.mark.parametrize("before", [3, 10])
def test_d1_messages_of_a_recreated_queue_are_not_removed_unread(before: int, per_batch: int) -> None:
    """Its numbers start again, and equal those of processed messages."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(before)))
        async with driving(world, maxMessagesPerTrigger=max(per_batch, before)) as driver:
            assert await driver.batch() == numbered(range(before))
            others.make_anew()
            await asyncio.sleep(1)
        new = numbered(range(100, 120))
        await others.send(new)
        async with driving(world, known=driver.offset, maxMessagesPerTrigger=per_batch) as driver:
            rows = await driver.until(20)
            assert rows == new
            await driver.batch()
            await others.until_empty()

    run(scenario)


def test_d1_leftover_does_not_match_message_of_a_recreated_queue() -> None:
    """The old queue has the leftovers 1 to 10; another receiver had 5 of the new one meanwhile, and abandons it."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        first = Driver(world.factory())
        await first.start()
        assert await first.batch() == numbered(range(10))
        await first.die()
        others.make_anew()
        receiver = await others.receiver()
        await asyncio.sleep(1)
        await others.send(numbered(range(100, 110)))
        mine = await receiver.receive(5, NO_WAIT)
        async with driving(world, known=first.offset) as driver:
            assert await driver.batch() == numbered(range(105, 110))
            assert await driver.batch() == []  # 5 of the new queue is removed, those of the old one may be left
            for message in mine:
                await receiver.abandon(message)
            assert sorted(await driver.until(10), key=int) == numbered(range(100, 110))

    run(scenario)


def test_d1_queue_recreated_under_a_stream_is_read_from_its_start() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, maxMessagesPerTrigger=10) as driver:
            assert await driver.batch() == numbered(range(10))
            others.make_anew()
            await others.send(numbered(range(100, 130)))
            try:
                while len(driver.rows) < 40 and await driver.batch():
                    pass
            except EntityNotFoundError:  # then the query is restarted
                async with driving(world, known=driver.offset, maxMessagesPerTrigger=10) as again:
                    driver.rows += await again.until(30)
            assert driver.rows[10:] == numbered(range(100, 130))

    run(scenario)


# Runs that end.


def test_d1_available_now_reads_and_removes_present_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(25)))
        async with driving(world, until_now=True, maxMessagesPerTrigger=10) as driver:
            await others.send(numbered(range(25, 50)))
            while await driver.batch():
                pass
            assert driver.rows == numbered(range(25))
            assert await others.look() == numbered(range(25, 50))
            receiver = await others.receiver()
            assert len(await receiver.receive(50, timedelta(seconds=1))) == 25  # none of them is locked any more

    run(scenario)


@pytest.mark.parametrize("settle", ["commit", "sink"])
def test_d1_available_now_reads_all_partitions_to_their_ends(settle: str) -> None:
    """Later messages of one partition say nothing about the others, and are not read in a lower one either."""

    async def scenario(world: World) -> None:
        others = Others(world)
        others.make_anew(partitioned=True)
        for key in range(8):
            await others.send(numbered(range(100 * key, 100 * key + 50)), partition_key=f"key {key}")
        async with driving(world, until_now=True, maxMessagesPerTrigger=20, settle=settle) as driver:
            for key in range(8):
                await others.send(["later"] * 20, partition_key=f"key {key}")
            start_s = world.loop.time()
            while await driver.batch():
                pass
            assert sorted(map(int, driver.rows)) == [100 * key + number for key in range(8) for number in range(50)]
            assert world.loop.time() - start_s < 120
            if settle == "commit":
                assert await others.look() == ["later"] * 160

    run(scenario)


def test_d1_available_now_ends_soon_on_an_empty_queue() -> None:
    async def scenario(world: World) -> None:
        start_s = world.loop.time()
        async with driving(world, until_now=True) as driver:
            assert await driver.batch() == []
        assert world.loop.time() - start_s < 5

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("trouble", ["busy", "cut", "stall", "kill"])
def test_d1_available_now_does_not_end_during_an_outage(trouble: str, after_s: float) -> None:
    """Only the namespace can report that there are no messages; an outage cannot."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(50)))
        async with driving(world, until_now=True, maxMessagesPerTrigger=10) as driver:
            await driver.batch()
            await asyncio.sleep(after_s)
            match trouble:
                case "busy":
                    world.namespace.busy_until_s = world.loop.time() + 30
                    world.namespace.drop_connections()
                case "cut":
                    world.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=30.0),)))
                case "stall":
                    world.proxy.apply(Fault(kind=Kind.STALL, way=Way.BOTH))
                case _:
                    world.namespace.kill()
                    world.namespace.start()
            while await driver.batch():
                pass
            rows = set(driver.rows)
            assert sorted(rows, key=int) == numbered(range(50))

    run(scenario)


def test_d1_available_now_removes_redelivered_messages() -> None:
    """The locks were lost while the batch was processed, and no other receiver has the messages."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)))
        async with driving(world, until_now=True) as driver:
            assert await driver.batch() == numbered(range(5))
            await asyncio.sleep(5)
            world.namespace.kill()
            world.namespace.start()
            assert await driver.batch() == []
            assert await others.look() == []

    run(scenario)


def test_d1_finished_run_can_be_planned_again_with_leftovers() -> None:
    """Spark does that after a batch without data, which some queries need at their end."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(["0"])
        receiver = await others.receiver()
        first = Driver(world.factory())
        await first.start()
        assert await first.batch() == ["0"]
        await first.die()
        (message,) = await receiver.receive(1, timedelta(minutes=2))
        kept = asyncio.create_task(_keep(receiver, message))
        try:
            async with driving(world, known=first.offset, until_now=True) as driver:
                assert await driver.batch() == []
                assert await driver.batch() == []
                assert await others.look() == ["0"]
        finally:
            kept.cancel()

    run(scenario)


async def _keep(receiver: MessageReceiver, message: ReceivedMessage) -> None:
    while True:
        await asyncio.sleep(20)
        await receiver.renew_lock(message)


@pytest.mark.parametrize("later", [0, 20])
def test_d1_available_now_waits_for_locks_of_a_killed_driver(later: int) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        first = Driver(world.factory(), maxMessagesPerTrigger=3)
        await first.start()
        await first.batch()
        await first.die()
        async with driving(world, known=first.offset, until_now=True, maxMessagesPerTrigger=3) as second:
            await others.send(numbered(range(6, 6 + later)))
            rows = [*first.rows]
            while found := await second.batch():
                rows += found
            assert sorted(rows) == numbered(range(6))
            assert await others.look() == numbered(range(6, 6 + later))
            receiver = await others.receiver()
            again = await receiver.receive(50, timedelta(seconds=1))
            assert [message.delivery_count for message in again] == [1] * len(again)  # abandoned once, at the end
            assert len(again) == later

    run(scenario)


def test_d1_available_now_ends_when_others_have_settled() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        receiver = await others.receiver()
        taken = await receiver.receive(1, timedelta(seconds=1))
        start_s = world.loop.time()
        async with driving(world, until_now=True) as driver:
            assert await driver.batch() == ["1", "2"]
            ending = asyncio.create_task(driver.batch())
            await asyncio.sleep(10)
            assert not ending.done()
            await receiver.complete(taken)
            assert await ending == []
        assert world.loop.time() - start_s < 15

    run(scenario)


def test_d1_available_now_waits_at_most_one_lock_for_others() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        receiver = await others.receiver()
        (message,) = await receiver.receive(1, timedelta(seconds=1))
        kept = asyncio.create_task(_keep(receiver, message))
        try:
            async with driving(world, until_now=True) as driver:
                assert await driver.batch() == ["1", "2"]
                assert await driver.batch() == []
                assert await others.look() == ["0"]
        finally:
            kept.cancel()

    run(scenario)


# Settlement by the sink.


def test_d2_source_does_not_remove_messages_settled_by_the_sink() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        async with driving(world, settle="sink", maxMessagesPerTrigger=3) as driver:
            partitions = await driver.plan()
            tokens = {number: token for one in partitions for number, token in one.tokens.items()}
            assert sorted(tokens) == [1, 2, 3]
            desk = await driver.factory.create_message_receiver(ORDERS)
            await desk.complete([ReceivedMessage(b"", lock_token=token) for token in tokens.values()])
            assert await others.look() == numbered(range(3, 6))
            assert await driver.batch() == numbered(range(3, 6))
            assert await driver.batch() == []
            assert await others.look() == numbered(range(3, 6))  # none of them is settled
            rows = await driver.until(6)
            assert rows == numbered(range(3, 6)) * 2  # so they are delivered again
            await desk.close()

    run(scenario)


def test_d2_batch_without_locks_is_empty_and_loses_nothing() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(6)))
        first = Driver(world.factory(), settle="sink", maxMessagesPerTrigger=3)
        await first.start()
        await first.plan()
        await first.die()
        async with driving(world, known=first.offset, settle="sink", maxMessagesPerTrigger=3) as second:
            assert await second.read(second.consumption.partitions(second.offset)) == []
            assert sorted(await second.until(6)) == numbered(range(6))

    run(scenario)


def test_d2_locks_of_a_long_batch_are_renewed_for_the_sink() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(3)))
        async with driving(world, settle="sink") as driver:
            partitions = await driver.plan()
            await asyncio.sleep(600)
            desk = await driver.factory.create_message_receiver(ORDERS)
            tokens = [token for one in partitions for token in one.tokens.values()]
            await desk.complete([ReceivedMessage(b"", lock_token=token) for token in tokens])
            assert await others.look() == []
            await desk.close()

    run(scenario)


# Cost.


def test_c14_idle_stream_receives_once_per_long_poll() -> None:
    async def scenario(world: World) -> None:
        async with driving(world) as driver:
            while world.loop.time() < 2 * 3_600:
                assert await driver.batch() == []
            assert 8 <= driver.consumption.report()["receives"] <= 9

    run(scenario)


def test_report_counts_unplanned_messages() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, maxMessagesPerTrigger=4) as driver:
            await driver.batch()
            await asyncio.sleep(1)
            assert driver.consumption.report() == {"receives": 2, "waiting": 4, "missing": []}

    run(scenario)


# Random failures.


@pytest.mark.parametrize("seed", range(times(40)))
def test_d1_random_failures_lose_no_message(seed: int) -> None:
    """Drivers are killed at any time, network and namespace fail: each message is read, then removed."""

    async def scenario(world: World) -> None:
        random = Random(seed)  # noqa: S311 (planned_faults)
        others = Others(world)
        offset, committed = ConsumeOffset(), ConsumeOffset()
        rows: list[str] = []
        sent = 0
        for _ in range(6):
            count = random.randint(0, 40)
            await others.send(numbered(range(sent, sent + count)))
            sent += count
            driver = Driver(world.factory(), known=offset, maxMessagesPerTrigger=random.choice((1, 5, 20)))
            await driver.start()
            if offset != committed:  # it died during a batch, which is run again
                rows += await driver.read(driver.consumption.partitions(offset))
            for _ in range(random.randint(0, 4)):
                rows += await driver.batch()
                await _planned_fault(world, random)
                removed = set(numbered(range(sent))) - set(await others.look())
                assert removed <= set(rows), "removed unread"
            offset = driver.offset
            committed = offset if random.random() < 0.5 else committed
            await (driver.die() if random.random() < 0.7 else driver.close())
        async with driving(world, known=offset) as last:
            rows += await last.read(last.consumption.partitions(offset))
            for _ in range(40):
                rows += await last.batch()
            assert set(rows) == set(numbered(range(sent)))
            assert await others.look() == []

    run(scenario, seed=seed)


async def _planned_fault(world: World, random: Random) -> None:
    match random.choice(("nothing", "wait", "cut", "away", "restart")):
        case "wait":
            await asyncio.sleep(random.choice((1, 20, 70)))
        case "cut":
            world.proxy.apply(Fault(kind=Kind.CUT))
        case "away":
            await _away(world, "kill", random.choice((1, 10)))
        case "restart":
            await _away(world, "stop", 0)


def test_rows_are_in_the_order_of_the_queue() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(500)))
        async with driving(world, maxMessagesPerTrigger=64) as driver:
            assert in_order(await driver.until(500))

    run(scenario)


# Order of messages settled by a sink.


@pytest.mark.parametrize("ending", ["close", "die"])
def test_c20_messages_of_an_ended_query_come_first(ending: str) -> None:
    """After the end of a query, its unsettled batch and the messages received for the next one are locked."""

    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(1, 41)))
        first = Driver(world.factory(), settle="sink", maxMessagesPerTrigger=10)
        await first.start()
        assert await first.batch() == numbered(range(1, 11))
        await asyncio.sleep(5)  # the next ones are received
        await (first.close() if ending == "close" else first.die())
        async with driving(world, settle="sink", maxMessagesPerTrigger=10) as second:
            assert await second.until(10) == numbered(range(1, 11))

    run(scenario)


def test_c15_long_lock_of_another_receiver_does_not_block_the_start() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(1, 11)))
        receiver = await others.receiver()
        [held] = await receiver.receive(1)
        async with driving(world, settle="sink") as driver:
            renewing = asyncio.create_task(_keep(receiver, held))
            assert await driver.until(9) == numbered(range(2, 11))
            renewing.cancel()

    run(scenario)


def test_c15_unsettled_messages_of_a_slow_sink_stay_locked() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(100)))
        async with driving(world, settle="sink", maxMessagesPerTrigger=100) as driver:
            tokens: dict[int, UUID] = {}
            while not tokens:
                for partition in await driver.plan():
                    tokens.update(partition.tokens)
            settled = [number for number in tokens if not 40 <= number < 60]
            await (await others.receiver()).complete(
                ReceivedMessage(b"", lock_token=tokens[number]) for number in settled
            )
            await asyncio.sleep(300)
            assert await driver.plan() == []  # unsettled messages were not delivered again
            assert len(await others.look()) == 100 - len(settled)

    run(scenario)


# Sizes, and messages that are gone.


def test_d1_size_of_a_batch_is_limited() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        world.namespace.create_queue("second")
        small = [f"{number:02}".ljust(900) for number in range(20)]
        await others.send(small)
        await others.send(["x" * 20_000, "y" * 20_000], "second")
        async with driving(world, ORDERS, "second", maxBytesPerTrigger=10_000, longPoll="1s") as driver:
            rows: list[str] = []
            while len(rows) < 22:
                found = await driver.batch()
                assert sum(map(len, found)) <= 10_000 + 20_000, "one message of each entity at least"
                assert sum(len(row) for row in found if len(row) < 1_000) <= 10_000
                rows += found
            assert [row for row in rows if len(row) < 1_000] == small

    run(scenario)


@pytest.mark.parametrize("fails", [True, False])
def test_e4_gone_messages_fail_a_stream_that_asks_for_it(fails: bool) -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(5)))
        async with driving(world, failOnDataLoss=fails) as driver:
            parts = await driver.plan()
            tokens = [token for one in parts for token in one.tokens.values()]
            settler = await others.receiver()
            await settler.complete([ReceivedMessage(b"", lock_token=token) for token in tokens[:2]])
            if fails:
                with pytest.raises(MessagesGoneError, match=r"2 messages of 'orders' are gone, the first .* 1: "):
                    await driver.read(parts)
            else:
                assert await driver.read(parts) == numbered(range(2, 5))

    run(scenario)


def test_c19_locked_messages_and_the_age_of_the_oldest_one_are_reported() -> None:
    async def scenario(world: World) -> None:
        others = Others(world)
        await others.send(numbered(range(10)))
        async with driving(world, maxMessagesPerTrigger=4) as driver:
            await driver.batch()
            await asyncio.sleep(1)
            found = driver.consumption.locks()
            assert found["locked"] == 8
            assert found["oldest_locked_age_s"] >= 0

    run(scenario)
