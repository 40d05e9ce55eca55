"""What a stream or table reads of its entities by peeking: nothing is locked, and nothing removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.numbers import first_message, first_number, last_number, last_numbers
from pairbus.spark.offset import BrowseOffset, Portion, SingleNumberOffset
from pairbus.spark.options import SourceOptions
from pairbus.spark.partition import MessagePartition, partitions
from pairbus.spark.sequence_marks import SequenceMarks, partition_of, start_of
from pairbus.spark.sequence_ranges import Range, SequenceRanges
from pairbus.spark.starting_offsets import Position

_log = logging.getLogger(__name__)

_WHENEVER: Final = 2**63 - 1
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0
"""How long Spark waits for an answer when there is nothing new."""


class Browsing:
    """Knows up to which number each partition of each entity has been read.

    A batch is one range of numbers for each partition. It is limited by how many numbers there are, which are as many
    as there are messages, or more: so nothing has to be counted.

    A scheduled message gets a new number, at the end of its partition, when it is enqueued. A stream reads it then, and
    not before: so it reads each message once. A table has it in any case.
    """

    def __init__(self, factory: MessagingFactory, entities: Iterable[str], options: SourceOptions) -> None:
        self._factory = factory
        self._entities = tuple(entities)
        self._options = options
        self._receivers: dict[str, MessageReceiver] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._targets: dict[str, SequenceMarks] | None = None

    async def _receiver(self, path: str) -> MessageReceiver:
        if path not in self._receivers:
            self._receivers[path] = await self._factory.create_message_receiver(path)
        return self._receivers[path]

    # Where a query begins.

    async def beginning(self) -> BrowseOffset:
        """Return where a query begins that has no checkpoint yet."""
        return BrowseOffset(seen={path: await self._before(path) for path in self._entities})

    async def _before(self, path: str) -> SequenceMarks:
        start = self._options.starting_offsets.of(path)
        if start is Position.EARLIEST:
            return SequenceMarks()
        if start is Position.LATEST:
            return await last_numbers(await self._receiver(path))
        first = int(start)
        return SequenceMarks() if first == start_of(partition_of(first)) else SequenceMarks.of([first - 1])

    async def upgraded(self, offset: SingleNumberOffset) -> BrowseOffset:
        """Return where a stream is whose checkpoint an earlier version wrote."""
        return BrowseOffset(seen={path: await self._marks(path, last) for path, last in offset.seen.items()})

    async def _marks(self, path: str, last: int) -> SequenceMarks:
        """Find the marks that one number stands for.

        Nothing behind it was read. It does not say how far lower partitions were read: at least up to what was enqueued
        when the message with that number was. What they got between that and the end of the batch is read again.
        """
        partition = partition_of(last)
        if partition <= 0:
            return SequenceMarks.of([max(0, last)])
        receiver = await self._receiver(path)
        start = start_of(partition)
        known = await last_number(receiver, start, lambda message: message.sequence_number <= last)
        message = await first_message(receiver, known) if known > start else None
        if message is None:
            _log.warning("lower partitions are read again entity=%s: the last message read is gone", path)
            return SequenceMarks.of([last])
        until = message.enqueued_time
        earlier = [
            await last_number(receiver, start_of(lower), lambda message: message.enqueued_time <= until)
            for lower in range(partition)
        ]
        return SequenceMarks.of([*earlier, last])

    # Batches.

    async def until_now(self) -> None:
        """Read nothing that arrives later."""
        self._targets = {path: await last_numbers(await self._receiver(path)) for path in self._entities}

    async def plan(self, start: BrowseOffset, most: int | None) -> BrowseOffset:
        """Return where the next batch ends; ``start`` itself if there is nothing new for a while."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _LONGEST_WAIT_S
        while True:
            seen = await self._look(start, most)
            if seen != start.seen:
                self._pause_s = _FIRST_PAUSE_S
                return BrowseOffset(seen=seen)
            left_s = ends_s - loop.time()
            if self._targets is not None or left_s <= 0:
                return start
            await asyncio.sleep(min(self._pause_s, left_s))
            self._pause_s = min(2 * self._pause_s, _LONGEST_WAIT_S)

    async def _look(self, start: BrowseOffset, most: int | None) -> dict[str, SequenceMarks]:
        share = None if most is None else max(1, most // len(self._entities))
        seen = dict(start.seen)
        spelled = {path.lower(): path for path in seen}  # an entity is the same however its path is capitalised
        for path in self._entities:
            known = spelled.get(path.lower(), path)
            marks = seen.get(known, SequenceMarks())
            seen[known] = marks.advanced(_ends(await self._unread(path, marks), share))
        return seen

    async def _unread(self, path: str, seen: SequenceMarks) -> list[Range]:
        """Find the numbers behind the marks, one range for each partition that has any.

        An entity without partitions costs one peek if there is nothing new, and each partition that has messages costs
        one more.
        """
        receiver = await self._receiver(path)
        found: list[Range] = []
        first = await first_number(receiver, seen.end(0) + 1)
        while first is not None:
            partition = partition_of(first)
            after = seen.end(partition)
            if first > after:
                last = await self._last(path, receiver, first)
                if first <= last:
                    found.append(Range(first, last))
                after = start_of(partition + 1)
            first = await first_number(receiver, after + 1)
        return found

    async def _last(self, path: str, receiver: MessageReceiver, first: int) -> int:
        """Find the last number to read in the partition of one."""
        if self._targets is None:
            return await last_number(receiver, first)
        return self._targets[path].end(partition_of(first))

    def partitions(
        self, start: BrowseOffset | SingleNumberOffset, end: BrowseOffset | SingleNumberOffset
    ) -> list[MessagePartition]:
        """Return what the tasks of a batch read."""
        return [
            part
            for path, numbers in _between(start, end)
            for part in self._partitions(path, numbers, skips_scheduled=True)
        ]

    def _partitions(self, path: str, numbers: SequenceRanges, *, skips_scheduled: bool) -> list[MessagePartition]:
        portion = Portion(numbers=numbers, until_ms=_WHENEVER)
        return partitions(path, portion, self._options.partitions_per_queue, skips_scheduled=skips_scheduled)

    async def everything(self) -> list[MessagePartition]:
        """Return what the tasks of a table read, which is all that there is now."""
        start = await self.beginning()
        found: list[MessagePartition] = []
        for path, marks in start.seen.items():
            numbers = SequenceRanges(await self._unread(path, marks))
            found += self._partitions(path, numbers, skips_scheduled=False)
        return found

    async def close(self) -> None:
        for receiver in self._receivers.values():
            await receiver.close()


def _ends(unread: Sequence[Range], most: int | None) -> Iterator[int]:
    """Yield where a batch ends in each partition.

    Each gets the same share of ``most``, as far as it can use it, and at least one message.
    """
    room = most
    for index, run in enumerate(sorted(unread, key=lambda run: run.size)):
        if room is None:
            yield run.last
            continue
        size = min(run.size, max(1, room // (len(unread) - index)))
        room -= size
        yield run.first + size - 1


def _between(
    start: BrowseOffset | SingleNumberOffset, end: BrowseOffset | SingleNumberOffset
) -> Iterator[tuple[str, SequenceRanges]]:
    match start, end:
        case BrowseOffset(), BrowseOffset():
            for path, marks in end.seen.items():
                yield path, marks.since(start.seen.get(path, SequenceMarks()))
        case SingleNumberOffset(), SingleNumberOffset():  # an earlier version has planned it
            for path, last in end.seen.items():
                first = start.seen.get(path, 0) + 1
                yield path, SequenceRanges([(first, last)] if first <= last else [])
        case _:  # the offset is upgraded, which is a batch without messages
            return
