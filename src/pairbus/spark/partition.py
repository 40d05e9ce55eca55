"""Partitions of a batch: the messages that one task reads, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.sent import is_scheduled, read_enqueued
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop
from pairbus.spark.offset import Portion
from pairbus.spark.sequences import SequenceRanges, partition_of


@dataclass(frozen=True, kw_only=True)
class MessagePartition(InputPartition):
    """Messages of one entity, in the order of their numbers."""

    entity: str
    portion: Portion
    tokens: Mapping[int, UUID] = field(default_factory=dict)
    """The lock tokens of the messages that the stream has locked."""

    skips_scheduled: bool = False
    """True if scheduled messages are skipped: they get a new number when they are enqueued, and are read then."""

    def __reduce__(self) -> tuple[object, ...]:
        return _partition, (self.entity, self.portion, dict(self.tokens), self.skips_scheduled)


def _partition(entity: str, portion: Portion, tokens: dict[int, UUID], skips_scheduled: bool) -> MessagePartition:
    return MessagePartition(entity=entity, portion=portion, tokens=tokens, skips_scheduled=skips_scheduled)


def partitions(
    entity: str,
    portion: Portion,
    parts: int,
    tokens: Mapping[int, UUID] | None = None,
    *,
    skips_scheduled: bool = False,
) -> list[MessagePartition]:
    """Split a portion into ``parts`` partitions, or fewer if it has fewer messages."""
    known = tokens or {}
    return [
        MessagePartition(
            entity=entity,
            portion=Portion(numbers=numbers, until_ms=portion.until_ms),
            tokens={number: known[number] for number in numbers if number in known} if known else {},
            skips_scheduled=skips_scheduled,
        )
        for numbers in portion.numbers.split(parts)
    ]


class Pages:
    """The pages of a partition; the next one is prefetched while the last one is processed."""

    def __init__(self, factory: MessagingFactory, partition: MessagePartition, size: int) -> None:
        self._factory = factory
        self._partition = partition
        self._size = size
        self._rest: SequenceRanges = partition.portion.numbers
        self.beside: list[ReceivedMessage] = []
        """Messages of the last page that do not belong to the partition, but lie between its messages."""

        self._receiver: MessageReceiver | None = None
        self._next_page: asyncio.Task[list[ReceivedMessage]] | None = None

    async def next(self) -> list[ReceivedMessage] | None:
        """Return the messages of the next page, which may be none; ``None`` at the end."""
        if self._receiver is None:
            self._receiver = await self._factory.create_message_receiver(self._partition.entity)
        if self._next_page is None:
            self._prefetch(self._receiver)
        next_page = self._next_page
        if next_page is None:
            return None
        page = await next_page
        self._rest = self._rest.since(page[-1].sequence_number + 1) if page else SequenceRanges()
        self._prefetch(self._receiver)
        wanted = [message for message in page if self._is_wanted(message)]
        if len(wanted) < len(page):
            chosen = set(map(id, wanted))
            self.beside = [message for message in page if id(message) not in chosen]
        else:
            self.beside = []
        return wanted

    def _prefetch(self, receiver: MessageReceiver) -> None:
        """Request the next page, which includes the messages between the wanted numbers.

        A page spans one partition of the entity: between the wanted numbers of two there may be many messages.
        """
        self._next_page = None
        if self._rest:
            first = self._rest.ranges[0].first
            last = max(run.last for run in self._rest.ranges if partition_of(run.first) == partition_of(first))
            peeking = receiver.peek(min(self._size, last - first + 1), first)
            self._next_page = asyncio.get_running_loop().create_task(peeking)

    def _is_wanted(self, message: ReceivedMessage) -> bool:
        if self._partition.skips_scheduled and is_scheduled(message.payload):
            return False
        enqueued = read_enqueued(message.payload)
        number, time_ms = enqueued.sequence_number, enqueued.time_ms
        return number is not None and time_ms is not None and self._partition.portion.holds(number, time_ms)

    async def close(self) -> None:
        if self._next_page is not None:
            self._next_page.cancel()
            await asyncio.wait((self._next_page,))
        if self._receiver is not None:
            await self._receiver.close()


def pages(connection: ConnectionReference, partition: MessagePartition, size: int) -> Iterator[list[ReceivedMessage]]:
    """Yield the pages that have messages; for synchronous code, such as a Spark task."""
    found = Pages(factory_of(connection), partition, size)
    try:
        while (page := on_loop(found.next)) is not None:
            if page:
                yield page
    finally:
        on_loop(found.close)
