"""Messages of a partition, page by page, by peeking: read once more, they are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.enqueued import is_scheduled, read_enqueued
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import factory_of, on_loop
from pairbus.spark.partition import MessagePartition
from pairbus.spark.sequence_marks import partition_of
from pairbus.spark.sequence_ranges import SequenceRanges


class Pages:
    """Peeks at the next page while the last one is being worked on."""

    def __init__(self, factory: MessagingFactory, partition: MessagePartition, size: int) -> None:
        self._factory = factory
        self._partition = partition
        self._size = size
        self._rest: SequenceRanges = partition.portion.numbers
        self.beside: list[ReceivedMessage] = []
        """What came along with the last page: it lies between the messages of the partition."""

        self._receiver: MessageReceiver | None = None
        self._coming: asyncio.Task[list[ReceivedMessage]] | None = None

    async def next(self) -> list[ReceivedMessage] | None:
        """The messages of the next page, which may be none; ``None`` at the end."""
        if self._receiver is None:
            self._receiver = await self._factory.create_message_receiver(self._partition.entity)
        if self._coming is None:
            self._ask(self._receiver)
        coming = self._coming
        if coming is None:
            return None
        page = await coming
        self._rest = self._rest.since(page[-1].sequence_number + 1) if page else SequenceRanges()
        self._ask(self._receiver)
        wanted = [message for message in page if self._is_wanted(message)]
        if len(wanted) < len(page):
            chosen = set(map(id, wanted))
            self.beside = [message for message in page if id(message) not in chosen]
        else:
            self.beside = []
        return wanted

    def _ask(self, receiver: MessageReceiver) -> None:
        """Ask for the next page. What lies between the wanted numbers comes with them.

        A page spans one partition of the entity: between the wanted numbers of two there may be many messages.
        """
        self._coming = None
        if self._rest:
            first = self._rest.ranges[0].first
            last = max(run.last for run in self._rest.ranges if partition_of(run.first) == partition_of(first))
            asking = receiver.peek(min(self._size, last - first + 1), first)
            self._coming = asyncio.get_running_loop().create_task(asking)

    def _is_wanted(self, message: ReceivedMessage) -> bool:
        if self._partition.skips_scheduled and is_scheduled(message.payload):
            return False
        enqueued = read_enqueued(message.payload)
        number, time_ms = enqueued.sequence_number, enqueued.time_ms
        return number is not None and time_ms is not None and self._partition.portion.holds(number, time_ms)

    async def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.wait((self._coming,))
        if self._receiver is not None:
            await self._receiver.close()


def pages(connection: ConnectionReference, partition: MessagePartition, size: int) -> Iterator[list[ReceivedMessage]]:
    """The same for code that is not asynchronous, such as a task of Spark."""
    found = Pages(factory_of(connection), partition, size)
    try:
        while (page := on_loop(found.next)) is not None:
            if page:
                yield page
    finally:
        on_loop(found.close)
