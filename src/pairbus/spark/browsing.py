"""Reading of entities by peeking: nothing is locked, and nothing is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import Filter

from pairbus.backoff import Backoff
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.errors import MessagesGoneError
from pairbus.spark.filters import numbers_of, selects_entity
from pairbus.spark.gathering import of_each
from pairbus.spark.offset import BrowseOffset, Portion, SingleNumberOffset
from pairbus.spark.options import Bound, Position, SourceOptions
from pairbus.spark.partition import MessagePartition, partitions
from pairbus.spark.sequences import (
    NO_NUMBERS,
    Range,
    SequenceMarks,
    SequenceRanges,
    first_message,
    first_number,
    last_number,
    last_numbers,
    last_numbers_before,
    partition_of,
    start_of,
)

_log = logging.getLogger(__name__)

_NO_LIMIT_MS: Final = 2**63 - 1
_MAX_WAIT_S: Final = 5.0
"""Maximum time for which planning waits for new messages."""

_BACKOFF: Final = Backoff(0.2, _MAX_WAIT_S)


@dataclass(slots=True)
class _Sizes:
    """The messages peeked while planning, from which the size of the others is estimated."""

    messages: int = 0
    size_bytes: int = 0

    def note(self, message: ReceivedMessage) -> bool:
        self.messages += 1
        self.size_bytes += len(message.payload)
        return True


class Browsing:
    """Tracks the number up to which each partition of each entity has been read.

    A batch is one range of sequence numbers for each partition. Its limit applies to the size of the range, which is at
    least the number of messages, so that messages need not be counted.

    A scheduled message gets a new number, at the end of its partition, when it is enqueued. A stream reads it only
    then, so that it reads each message once. A table includes scheduled messages.
    """

    def __init__(self, factory: MessagingFactory, entities: Iterable[str], options: SourceOptions) -> None:
        self._factory = factory
        self.entities = tuple(entities)
        self._options = options
        self._receivers: dict[str, MessageReceiver] = {}
        self._pause_s = _BACKOFF.first_s
        self._targets: dict[str, SequenceMarks] | None = None
        self._firsts: dict[str, SequenceRanges] = {}
        """The first unread message of each partition, which exists; by path in lower case."""

        self._sizes = _Sizes()
        self.behind = 0
        """Number of messages after the last batch, or more: there may be gaps between their numbers."""

    async def _receiver(self, path: str) -> MessageReceiver:
        if path not in self._receivers:
            self._receivers[path] = await self._factory.create_message_receiver(path)
        return self._receivers[path]

    # Start of a query.

    async def beginning(self) -> BrowseOffset:
        """Return the offset at which a query without a checkpoint starts."""
        return BrowseOffset(seen=await of_each(self.entities, self._before))

    async def _before(self, path: str) -> SequenceMarks:
        start = self._options.start_of(path)
        if isinstance(start, int) and self._options.fail_on_data_loss:
            await self._expect_first(path, start)
        return await self._marks_before(path, start)

    async def _marks_before(self, path: str, bound: Bound) -> SequenceMarks:
        """Return the marks of the messages before a position."""
        match bound:
            case Position.EARLIEST:
                return SequenceMarks()
            case Position.LATEST:
                return await last_numbers(await self._receiver(path))
            case datetime():
                return await last_numbers_before(await self._receiver(path), bound)
        return SequenceMarks() if bound == start_of(partition_of(bound)) else SequenceMarks.of([bound - 1])

    async def _expect_first(self, path: str, number: int) -> None:
        """Raise ``MessagesGoneError`` if messages are gone from a number on: those after it are still there."""
        found = await first_number(await self._receiver(path), number)
        least = max(number, start_of(partition_of(number)) + 1)
        if found is not None and partition_of(found) == partition_of(number) and found > least:
            raise MessagesGoneError(path, found - least, least)

    async def upgraded(self, offset: SingleNumberOffset) -> BrowseOffset:
        """Convert the offset of a checkpoint that an earlier version wrote."""
        return BrowseOffset(seen={path: await self._marks(path, last) for path, last in offset.seen.items()})

    async def _marks(self, path: str, last: int) -> SequenceMarks:
        """Return the marks that correspond to one number of an earlier version.

        No message after that number was read. Lower partitions were read at least up to the messages enqueued when the
        message with that number was. Messages they got between that and the end of the batch are read again.
        """
        partition = partition_of(last)
        if partition <= 0:
            return SequenceMarks.of([max(0, last)])
        receiver = await self._receiver(path)
        start = start_of(partition)
        known = await last_number(receiver, start, lambda message: message.sequence_number <= last)
        message = await first_message(receiver, known) if known > start else None
        if message is None:
            _log.warning('lower partitions are read again entity=%s reason="the last message read is gone"', path)
            return SequenceMarks.of([last])
        until = message.enqueued_time
        earlier = [
            await last_number(receiver, start_of(lower), lambda message: message.enqueued_time <= until)
            for lower in range(partition)
        ]
        return SequenceMarks.of([*earlier, last])

    # Batches.

    async def until_now(self) -> None:
        """Ignore messages that arrive from now on."""
        self._targets = await of_each(self.entities, self._last_numbers)

    async def _last_numbers(self, path: str) -> SequenceMarks:
        return await last_numbers(await self._receiver(path))

    async def plan(self, start: BrowseOffset, limit: int | None) -> BrowseOffset:
        """Return the end of the next batch, or ``start`` if no new message arrives for a while."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _MAX_WAIT_S
        while True:
            seen = await self._next_ends(start, limit)
            if seen != start.seen:
                self._pause_s = _BACKOFF.first_s
                return BrowseOffset(seen=seen)
            left_s = ends_s - loop.time()
            if self._targets is not None or left_s <= 0:
                return start
            await asyncio.sleep(min(self._pause_s, left_s))
            self._pause_s = _BACKOFF.after(self._pause_s)

    async def _next_ends(self, start: BrowseOffset, limit: int | None) -> dict[str, SequenceMarks]:
        share = None if limit is None else max(1, limit // len(self.entities))
        seen = dict(start.seen)
        spelled = {path.lower(): path for path in seen}  # entity paths are case-insensitive

        def marks_of(path: str) -> SequenceMarks:
            return seen.get(spelled.get(path.lower(), path), SequenceMarks())

        unread = await of_each(self.entities, lambda path: self._unread(path, marks_of(path)))
        self.behind = 0
        for path, ranges in unread.items():
            seen[spelled.get(path.lower(), path)] = marks_of(path).advanced(_ends(ranges, self._affordable(share)))
            self._firsts[path.lower()] = SequenceRanges.of(run.first for run in ranges)
            self.behind += len(SequenceRanges(ranges)) - len(SequenceRanges(ranges) & marks_of(path).ranges)
        return seen

    def _affordable(self, share: int | None) -> int | None:
        """Return the limit of an entity, reduced to the number of messages that probably fit into its bytes."""
        most_bytes = self._options.max_bytes_per_trigger
        if most_bytes is None or not self._sizes.messages:
            return share
        fitting = max(1, most_bytes // len(self.entities) * self._sizes.messages // max(1, self._sizes.size_bytes))
        return fitting if share is None else min(share, fitting)

    async def _unread(self, path: str, seen: SequenceMarks) -> list[Range]:
        """Return the unread numbers, one range for each partition that has any.

        An entity without partitions costs one peek if there is nothing new, and one more for each partition that has
        messages.
        """
        receiver = await self._receiver(path)
        found: list[Range] = []
        first = await self._first_number(receiver, seen.end(0) + 1)
        while first is not None:
            partition = partition_of(first)
            after = seen.end(partition)
            if first > after:
                last = await self._last(path, receiver, first)
                if first <= last:
                    found.append(Range(first, last))
                after = start_of(partition + 1)
            first = await self._first_number(receiver, after + 1)
        return found

    async def _first_number(self, receiver: MessageReceiver, least: int) -> int | None:
        message = await first_message(receiver, least)
        if message is None:
            return None
        self._sizes.note(message)
        return message.sequence_number

    async def _last(self, path: str, receiver: MessageReceiver, first: int) -> int:
        """Return the last number to read in the partition of ``first``."""
        if self._targets is None:
            return await last_number(receiver, first, self._sizes.note)
        return self._targets[path].end(partition_of(first))

    def partitions(
        self, start: BrowseOffset | SingleNumberOffset, end: BrowseOffset | SingleNumberOffset
    ) -> list[MessagePartition]:
        """Return the partitions of a batch, one for each task."""
        return [
            part
            for path, numbers in _between(start, end)
            for part in self._partitions(path, numbers, skips_scheduled=True)
        ]

    def _partitions(self, path: str, numbers: SequenceRanges, *, skips_scheduled: bool) -> list[MessagePartition]:
        options = self._options
        firsts = self._firsts.get(path.lower(), NO_NUMBERS) if options.fail_on_data_loss else NO_NUMBERS
        return partitions(
            path,
            Portion(numbers=numbers, until_ms=_NO_LIMIT_MS),
            options.partitions_per_queue,
            skips_scheduled=skips_scheduled,
            expected=firsts & numbers,
        )

    async def everything(self, conditions: Sequence[Filter] = ()) -> list[MessagePartition]:
        """Return the partitions of a table, one for each task, with all messages that exist now.

        Rows that filters exclude by their entity or sequence number are not read.
        """
        self.entities = tuple(path for path in self.entities if selects_entity(conditions, path))
        chosen = numbers_of(conditions)
        numbers = await of_each(self.entities, self._numbers)
        return [
            part
            for path, ranges in numbers.items()
            for part in self._partitions(path, ranges & chosen, skips_scheduled=False)
        ]

    async def _numbers(self, path: str) -> SequenceRanges:
        """Return the numbers to read of an entity, between its starting and its ending offset."""
        unread = await self._unread(path, await self._before(path))
        self._firsts[path.lower()] = SequenceRanges.of(run.first for run in unread)
        ending = self._options.end_of(path)
        if ending is Position.LATEST:
            return SequenceRanges(unread)
        if isinstance(ending, int):  # it applies to its own partition only
            beyond = SequenceRanges([(ending, start_of(partition_of(ending) + 1))])
            return SequenceRanges(unread) - beyond
        return SequenceRanges(unread) & (await self._marks_before(path, ending)).ranges

    async def close(self) -> None:
        for receiver in self._receivers.values():
            await receiver.close()


def _ends(unread: Sequence[Range], limit: int | None) -> Iterator[int]:
    """Yield the end of a batch in each partition.

    Each partition gets an equal share of ``limit``, as far as it can use it, and at least one message.
    """
    room = limit
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
        case SingleNumberOffset(), SingleNumberOffset():  # planned by an earlier version
            for path, last in end.seen.items():
                first = start.seen.get(path, 0) + 1
                yield path, SequenceRanges([(first, last)] if first <= last else [])
        case _:  # the batch that upgrades the offset has no messages
            return
