"""The step that brings messages home: each is fetched, restored, sent to its destination, and only then removed.

What flows through Spark is which messages there are, and under which locks. Their bodies go from one namespace to the
other through the process that runs the task, and not through the JVM and back.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from pairbus.client.errors import MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.enqueued import read_enqueued
from pairbus.jobs.syphon.outcome import Outcome, record_batch
from pairbus.jobs.syphon.quay import Quay, quay_of
from pairbus.jobs.syphon.restoration import Homecomer, Outcast, Restoration
from pairbus.jobs.syphon.settlement import Settlement
from pairbus.pairing.homecoming.delivery import Delivery
from pairbus.pairing.syphon import Held
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import on_loop
from pairbus.spark.offset import Portion
from pairbus.spark.pages import Pages
from pairbus.spark.partition import MessagePartition
from pairbus.spark.sequence_ranges import SequenceRanges

REFERENCES: Final = "entity string, sequence_number long, lock_token string"
"""What the step needs to know of a message."""

_PAGE: Final = 500
_LOAD: Final = 4_000
_LOAD_BYTES: Final = 8 * 1024 * 1024
"""What is brought home at once: there are many destinations, and few messages for each of them in a page."""

_PATIENCE_S: Final = 5.0
_WHENEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Made for ``mapInArrow``, so it is pickled with the plan."""

    primary: ConnectionReference
    secondary: ConnectionReference
    restoration: Restoration
    held: Held
    """What the pair sends nothing to."""

    busy: frozenset[tuple[str, str]]
    """The backlog queues and destinations between which messages are parked: others have to wait behind them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield record_batch(on_loop(self._land, _partitions(batch), quay_of(self.primary, self.secondary)))

    async def _land(self, partitions: list[MessagePartition], quay: Quay) -> list[Outcome]:
        """Several queues at a time: while one is being fetched, another is sent."""
        found = await asyncio.gather(*(_Task(self, quay).run(partition) for partition in partitions))
        return [outcome for outcomes in found for outcome in outcomes]

    def must_wait(self, message: Homecomer) -> bool:
        return self.held.holds(message.key) or (message.queue, message.key) in self.busy


def _partitions(batch: pa.RecordBatch) -> list[MessagePartition]:
    """The messages of a batch, by backlog queue."""
    tokens: dict[str, dict[int, UUID]] = defaultdict(dict)
    for queue, number, token in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        tokens[queue][number] = UUID(token)
    return [
        MessagePartition(
            entity=queue, portion=Portion(numbers=SequenceRanges.of(found), until_ms=_WHENEVER), tokens=found
        )
        for queue, found in tokens.items()
    ]


class _Task:
    """Messages of one backlog queue: all destinations at once, each in the order of the queue."""

    def __init__(self, landing: Landing, quay: Quay) -> None:
        self._landing = landing
        self._quay = quay

    async def run(self, partition: MessagePartition) -> list[Outcome]:
        settlement = Settlement(await self._quay.desk(partition.entity))
        pages = Pages(self._quay.secondary, partition, _PAGE)
        parked: set[str] = set()
        try:
            is_more = True
            while is_more:
                groups, is_more = await self._load(partition, pages, settlement)
                await self._land(groups, settlement, parked)
        finally:
            await pages.close()
        return await settlement.finish()

    async def _load(
        self, partition: MessagePartition, pages: Pages, settlement: Settlement
    ) -> tuple[list[list[Homecomer]], bool]:
        """Messages by destination, enough for batches that are worth sending; and whether there may be more."""
        groups: dict[str, list[Homecomer]] = defaultdict(list)
        count = size_bytes = 0
        now_ms = int(time.time() * 1_000)
        while count < _LOAD and size_bytes < _LOAD_BYTES:
            page = await pages.next()
            if page is None:
                return [*groups.values()], False
            for message in page:
                found = self._restored(partition, message, now_ms)
                if isinstance(found, Homecomer):
                    groups[found.key].append(found)
                elif found is not None:
                    settlement.cast_out(found)
                size_bytes += len(message.payload)
            count += len(page)
        return [*groups.values()], True

    def _restored(
        self, partition: MessagePartition, message: ReceivedMessage, now_ms: int
    ) -> Homecomer | Outcast | None:
        number = read_enqueued(message.payload).sequence_number
        token = None if number is None else partition.tokens.get(number)
        if number is None or token is None:
            return None
        return self._landing.restoration.restored(partition.entity, message, number, token, now_ms)

    async def _land(self, groups: list[list[Homecomer]], settlement: Settlement, parked: set[str]) -> None:
        """Bring messages home. What goes where something was parked before waits behind it."""
        landings = [_Group(self._quay, settlement, group) for group in groups]
        await asyncio.gather(
            *(one.land(must_wait=one.key in parked or self._landing.must_wait(one.first)) for one in landings)
        )
        parked.update(one.key for one in landings if one.is_parked)


class _Group:
    """Messages of one backlog queue for one destination, in order."""

    def __init__(self, quay: Quay, settlement: Settlement, messages: list[Homecomer]) -> None:
        self.first = messages[0]
        self.key = self.first.key
        self.is_parked = False
        self._settlement = settlement
        self._rest = messages
        self._contact = quay.contact
        self._destination = quay.destination(self.first.destination)
        self._delivery: Delivery[Homecomer] = Delivery(self._destination, quay.contact, self, self, self._landed)

    async def land(self, *, must_wait: bool) -> None:
        if not must_wait:
            if self._contact.is_away:
                await self._wait_for_primary()
            if not self._contact.is_away:
                await self._try()
        if not self._rest:
            return
        away, down = self._contact.cause, self._destination.cause
        if away is not None and not must_wait:
            self._settlement.give_back(self._rest, str(away))
        else:
            self.is_parked = True
            self._settlement.park(self._rest, str(down or "others wait before them, or the pair sends nothing to it"))

    async def _wait_for_primary(self) -> None:
        """A little: it may be back soon, and what is given back comes again at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._contact.wait()

    async def _try(self) -> None:
        """Deliver as far as that goes; one that was down is tried with one message, if it is time to."""
        destination = self._destination
        try:
            if destination.is_down:
                if not destination.may_try(self):
                    return
                await self._delivery.deliver(self._rest[:1])
            if not destination.is_down:
                await self._delivery.deliver(self._rest)
        finally:
            destination.leave(self)

    def _landed(self, messages: Iterable[Homecomer]) -> None:
        gone = {message.number for message in messages}
        self._rest = [message for message in self._rest if message.number not in gone]

    def wake(self) -> None:
        """Nothing waits here: what cannot be delivered is parked."""

    # What the delivery asks and tells.

    def restored(self, message: Homecomer) -> bytes | None:
        return message.payload

    def delivered(self, messages: list[Homecomer]) -> None:
        self._settlement.delivered(messages)

    def refuse(self, messages: list[Homecomer], error: MessagingError) -> None:
        self._settlement.refuse(messages, error)
