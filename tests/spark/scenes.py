"""Streams in virtual time: a driver that acts as Spark does, a sender, and other receivers of the same queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

from pairbus.broker import QueueDescription
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.consumption import Consumption
from pairbus.spark.offset import ConsumeOffset
from pairbus.spark.options import SourceOptions
from pairbus.spark.partition import MessagePartition, Pages
from tests.faults.world import ORDERS, World

NOWHERE: Final = (
    "Endpoint=sb://localhost:1;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
)
"""Worlds in virtual time have a separate factory."""


def options(*entities: str, is_stream: bool = True, **given: Any) -> SourceOptions:
    named = {"connection": NOWHERE, "entities": ",".join(entities or (ORDERS,))}
    texts = {name: str(value) for name, value in given.items()}
    return SourceOptions.from_options({**named, **texts}, is_stream=is_stream)


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"{number}" for number in numbers]


class Driver:
    """A consuming query: it plans, reads and commits as Spark does, and stores its offsets as JSON."""

    def __init__(self, factory: MessagingFactory, *entities: str, known: ConsumeOffset | None = None, **given: Any):
        self.options = options(*entities, **given)
        self.factory = factory
        self.consumption = Consumption(factory, self.options.entities, self.options)
        self.offset = known or ConsumeOffset()
        """The position of the query: the end of the last planned batch."""

        self.rows: list[str] = []
        """All rows read so far."""

    async def start(self, *, until_now: bool = False) -> None:
        await self.consumption.start(self.offset, until_now=until_now)

    async def plan(self) -> list[MessagePartition]:
        """Commit the last batch, and return the partitions of the next; none if there is nothing new."""
        most = self.options.max_messages_per_trigger
        end = through_json(await self.consumption.plan(self.offset, most))
        is_new = end.to_json() != self.offset.to_json()
        self.offset = end
        return self.consumption.partitions(end) if is_new else []

    async def read(self, partitions: Iterable[MessagePartition]) -> list[str]:
        """Return the bodies that the tasks read."""
        return [message.text() for one in partitions for message in await read(self.factory, one)]

    async def batch(self) -> list[str]:
        """Commit the last batch, and run the next one."""
        found = await self.read(await self.plan())
        self.rows += found
        return found

    async def until(self, count: int) -> list[str]:
        """Run batches until this many rows were read, or no message arrived for ten minutes."""
        loop = asyncio.get_running_loop()
        quiet_s = loop.time()
        while len(self.rows) < count and loop.time() - quiet_s < 600:
            if await self.batch():
                quiet_s = loop.time()
        return self.rows

    async def die(self) -> None:
        """Act as a killed process: abandon nothing, and renew no lock."""
        for receiver in self.consumption._receivers.values():
            await receiver._background.close()
            if receiver._settler is not None:
                await receiver._settler.close()
                receiver._settler = None

    async def close(self) -> None:
        await self.consumption.close()


def through_json(offset: ConsumeOffset) -> ConsumeOffset:
    """Return the offset as read from the checkpoint."""
    return ConsumeOffset.from_json(json.loads(json.dumps(offset.to_json())))


@asynccontextmanager
async def driving(
    world: World, *entities: str, known: ConsumeOffset | None = None, until_now: bool = False, **given: Any
) -> AsyncIterator[Driver]:
    """Run a query with a separate connection, which ends with the block."""
    driver = Driver(world.factory(), *entities, known=known, **given)
    await driver.start(until_now=until_now)
    try:
        yield driver
    finally:
        await driver.close()


async def read(factory: MessagingFactory, partition: MessagePartition, size: int = 500) -> list[ReceivedMessage]:
    """Return the rows that a task reads."""
    pages = Pages(factory, partition, size)
    found: list[ReceivedMessage] = []
    try:
        while (page := await pages.next()) is not None:
            found += page
    finally:
        await pages.close()
    return found


class Others:
    """Other users of the namespace, with a separate connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.factory = world.factory()
        self._receivers: dict[str, MessageReceiver] = {}

    async def send(self, bodies: Iterable[str], path: str = ORDERS, **properties: Any) -> None:
        """Send messages one after the other, at the same virtual time."""
        sender = await self.factory.create_message_sender(path)
        await sender.send([BrokeredMessage(body, **properties) for body in bodies])
        await sender.close()

    async def receiver(self, path: str = ORDERS) -> MessageReceiver:
        if path not in self._receivers:
            self._receivers[path] = await self.factory.create_message_receiver(path)
        return self._receivers[path]

    async def look(self, path: str = ORDERS) -> list[str]:
        """Peek all messages, locked or not."""
        receiver = await self.factory.create_message_receiver(path)
        found: list[str] = []
        while page := await receiver.peek(1_000):
            found += [message.text() for message in page]
        await receiver.close()
        return found

    async def numbers(self, path: str = ORDERS) -> list[int]:
        """Return the sequence numbers of all messages."""
        receiver = await self.factory.create_message_receiver(path)
        found: list[int] = []
        while page := await receiver.peek(1_000, found[-1] + 1 if found else 1):
            found += [message.sequence_number for message in page]
        await receiver.close()
        return found

    async def until_empty(self, path: str = ORDERS) -> None:
        """Wait up to five minutes until the entity is empty."""
        for _ in range(300):
            if not await self.look(path):
                return
            await asyncio.sleep(1)
        assert await self.look(path) == []

    def make_anew(self, path: str = ORDERS, **description: Any) -> None:
        """Delete a queue with its messages, and recreate it; its numbers start from one."""
        self.world.namespace.delete(path)
        self.world.namespace.create_queue(path, QueueDescription(**description))


def in_order(rows: list[str]) -> bool:
    return all(before <= after for before, after in pairwise(map(int, rows)))


def duplicates(rows: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for row in rows:
        if row in seen:
            yield row
        seen.add(row)
