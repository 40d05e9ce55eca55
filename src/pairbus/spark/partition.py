"""Partitions of a batch: the messages that one task reads, page by page."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.sent import is_scheduled, read_enqueued
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop
from pairbus.spark.errors import MessagesGoneError
from pairbus.spark.offset import Portion
from pairbus.spark.sequences import NO_NUMBERS, SequenceRanges, partition_of


@dataclass(frozen=True, kw_only=True)
class MessagePartition(InputPartition):
    """Messages of one entity, in the order of their numbers."""

    entity: str
    portion: Portion
    tokens: Mapping[int, UUID] = field(default_factory=dict)
    """The lock tokens of the messages that the stream has locked."""

    skips_scheduled: bool = False
    """True if scheduled messages are skipped: they get a new number when they are enqueued, and are read then."""

    expected: SequenceRanges = NO_NUMBERS
    """The messages without which reading fails."""

    is_whole: bool = False
    """True if it must be read by one task, in order: the messages of a session."""

    def __reduce__(self) -> tuple[object, ...]:
        rest = {"skips_scheduled": self.skips_scheduled, "expected": self.expected, "is_whole": self.is_whole}
        return _partition, (self.entity, self.portion, dict(self.tokens), rest)

    @property
    def size(self) -> int:
        """The number of messages, or more: there may be gaps in a range that is browsed."""
        return len(self.portion.numbers)

    def split(self, parts: int) -> list[MessagePartition]:
        """Split the partition, unless it must stay whole; into fewer parts if it has fewer messages."""
        if parts == 1 or self.is_whole:
            return [self]
        return [
            replace(
                self,
                portion=Portion(numbers=numbers, until_ms=self.portion.until_ms),
                tokens={number: self.tokens[number] for number in numbers if number in self.tokens}
                if self.tokens
                else {},
                expected=self.expected & numbers,
            )
            for numbers in self.portion.numbers.split(parts)
        ]


def _partition(entity: str, portion: Portion, tokens: dict[int, UUID], rest: dict[str, Any]) -> MessagePartition:
    return MessagePartition(entity=entity, portion=portion, tokens=tokens, **rest)


@dataclass(frozen=True)
class PartitionGroup(InputPartition):
    """Partitions that one task reads, one after the other."""

    partitions: tuple[MessagePartition, ...]


_FEW: Final = 16
"""Maximum number of tasks that are planned although some of them have only few messages."""

_MANY_MESSAGES: Final = 2_000
"""A task with so many messages is worth its start."""


def tasks(parts: Sequence[MessagePartition], minimum: int | None) -> list[InputPartition]:
    """Return what each task of a batch reads: at least ``minimum`` tasks, if there are so many messages.

    Large partitions are split if that is needed, and small ones share a task, in order, if there are many.
    """
    total = sum(part.size for part in parts)
    if minimum is not None and len(parts) < minimum and total:
        return [piece for part in parts for piece in part.split(max(1, -(-minimum * part.size // total)))]
    least = max(_FEW, minimum or 0)
    if len(parts) <= least:
        return [*parts]
    return _grouped(parts, min(len(parts), max(least, -(-total // _MANY_MESSAGES))), total)


def _grouped(parts: Sequence[MessagePartition], count: int, total: int) -> list[InputPartition]:
    """Return ``count`` groups of about the same size, in order."""
    found: list[InputPartition] = []
    group: list[MessagePartition] = []
    size = 0
    for index, part in enumerate(parts):
        group.append(part)
        size += part.size
        rest, groups = len(parts) - index - 1, count - len(found) - 1
        if rest <= groups or size * count >= total * (len(found) + 1):
            found.append(group[0] if len(group) == 1 else PartitionGroup(tuple(group)))
            group = []
    return found


def partitions(
    entity: str,
    portion: Portion,
    parts: int,
    tokens: Mapping[int, UUID] | None = None,
    *,
    skips_scheduled: bool = False,
    expected: SequenceRanges = NO_NUMBERS,
) -> list[MessagePartition]:
    """Split a portion into ``parts`` partitions, or fewer if it has fewer messages."""
    whole = MessagePartition(
        entity=entity,
        portion=portion,
        tokens={number: token for number, token in (tokens or {}).items() if number in portion.numbers},
        skips_scheduled=skips_scheduled,
        expected=expected,
    )
    return whole.split(parts) if portion else []


class Pages:
    """The pages of a partition; the next one is prefetched while the last one is processed."""

    def __init__(self, factory: MessagingFactory, partition: MessagePartition, size: int) -> None:
        self._factory = factory
        self._partition = partition
        self._size = size
        self._rest: SequenceRanges = partition.portion.numbers
        self._expected = partition.expected
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
            self._check_complete()
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
        if self._expected:
            self._expected -= SequenceRanges.of(message.sequence_number for message in wanted)
        return wanted

    async def start(self) -> None:
        """Request the first page ahead of ``next``."""
        if self._receiver is None:
            self._receiver = await self._factory.create_message_receiver(self._partition.entity)
        if self._next_page is None:
            self._prefetch(self._receiver)

    def _check_complete(self) -> None:
        if self._expected:
            entity, gone = self._partition.entity, self._expected
            raise MessagesGoneError(entity, len(gone), gone.ranges[0].first)

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
            await asyncio.gather(self._next_page, return_exceptions=True)
        if self._receiver is not None:
            await self._receiver.close()


_AHEAD: Final = 8
"""Number of entities whose first pages are requested ahead of the one that is read."""


def pages(connection: ConnectionReference, partition: MessagePartition, size: int) -> Iterator[list[ReceivedMessage]]:
    """Yield the pages that have messages; for synchronous code, such as a Spark task."""
    return (page for _, page in pages_of(connection, (partition,), size))


def pages_of(
    connection: ConnectionReference, partitions: Iterable[MessagePartition], size: int
) -> Iterator[tuple[MessagePartition, list[ReceivedMessage]]]:
    """Yield the pages of several partitions, in order. The next ones are opened while one is read."""
    factory = factory_of(connection)
    rest = iter(partitions)
    opened: deque[tuple[MessagePartition, Pages]] = deque()
    try:
        while True:
            for partition in islice(rest, _AHEAD - len(opened)):
                opened.append((partition, Pages(factory, partition, size)))
                on_loop(opened[-1][1].start)
            if not opened:
                return
            partition, found = opened[0]
            while (page := on_loop(found.next)) is not None:
                if page:
                    yield partition, page
            on_loop(found.close)
            opened.popleft()
    finally:
        for _, left in opened:
            on_loop(left.close)
