"""What a stream or table sees of its entities by looking at them: nothing is locked, and nothing removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.numbers import first_number, last_number
from pairbus.spark.offset import BrowseOffset, Portion
from pairbus.spark.options import SourceOptions
from pairbus.spark.partition import MessagePartition, partitions
from pairbus.spark.sequence_ranges import SequenceRanges
from pairbus.spark.starting_offsets import Position

_WHENEVER: Final = 2**63 - 1
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_WAIT_S: Final = 5.0
"""How long Spark waits for an answer when there is nothing new."""


class Browsing:
    """Knows up to which number each entity has been seen.

    A batch is a range of numbers. It is limited by how many numbers there are, which are as many as there are messages,
    or more: so nothing has to be counted.
    """

    def __init__(self, factory: MessagingFactory, entities: Iterable[str], options: SourceOptions) -> None:
        self._factory = factory
        self._entities = tuple(entities)
        self._options = options
        self._receivers: dict[str, MessageReceiver] = {}
        self._pause_s = _FIRST_PAUSE_S
        self._targets: dict[str, int] | None = None

    async def _receiver(self, path: str) -> MessageReceiver:
        if path not in self._receivers:
            self._receivers[path] = await self._factory.create_message_receiver(path)
        return self._receivers[path]

    async def beginning(self) -> BrowseOffset:
        """Where a query begins that has no checkpoint yet."""
        return BrowseOffset(seen={path: await self._before(path) for path in self._entities})

    async def _before(self, path: str) -> int:
        start = self._options.starting_offsets.of(path)
        if start is Position.EARLIEST:
            return 0
        if start is Position.LATEST:
            return await last_number(await self._receiver(path))
        return int(start) - 1

    async def until_now(self) -> None:
        """See nothing that comes later."""
        self._targets = {path: await last_number(await self._receiver(path)) for path in self._entities}

    async def plan(self, start: BrowseOffset, most: int | None) -> BrowseOffset:
        """How far the next batch sees; ``start`` itself if there is nothing new for a while."""
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

    async def _look(self, start: BrowseOffset, most: int | None) -> dict[str, int]:
        share = None if most is None else max(1, most // len(self._entities))
        seen = dict(start.seen)
        spelled = {path.lower(): path for path in seen}  # an entity is the same however its path is capitalised
        for path in self._entities:
            known = spelled.get(path.lower(), path)
            seen[known] = await self._further(path, seen.get(known, 0), share)
        return seen

    async def _further(self, path: str, last: int, share: int | None) -> int:
        receiver = await self._receiver(path)
        first = await first_number(receiver, last + 1)
        if first is None:
            return last
        found = await last_number(receiver, first) if self._targets is None else self._targets[path]
        if found < first:
            return last
        return found if share is None else min(found, first + share - 1)

    def partitions(self, start: BrowseOffset, end: BrowseOffset) -> list[MessagePartition]:
        found: list[MessagePartition] = []
        for path, last in end.seen.items():
            first = start.seen.get(path, 0) + 1
            if first <= last:
                portion = Portion(numbers=SequenceRanges([(first, last)]), until_ms=_WHENEVER)
                found += partitions(path, portion, self._options.partitions_per_queue)
        return found

    async def everything(self) -> list[MessagePartition]:
        """What a table has, which is all that there is now."""
        start = await self.beginning()
        start = BrowseOffset(seen={path: await self._gap(path, last) for path, last in start.seen.items()})
        return self.partitions(start, BrowseOffset(seen=await self._look(start, None)))

    async def _gap(self, path: str, last: int) -> int:
        """The last number before the first message, so that its partitions are about the same size."""
        first = await first_number(await self._receiver(path), last + 1)
        return last if first is None else first - 1

    async def close(self) -> None:
        for receiver in self._receivers.values():
            await receiver.close()
