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
from typing import Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from pairbus.client.errors import MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.enqueued import is_deferred, read_enqueued
from pairbus.dialect.transfer import TransferError
from pairbus.jobs.syphon.outcome import Kind, Outcome, record_batch
from pairbus.jobs.syphon.quay import Quay, quay_of
from pairbus.jobs.syphon.restoration import Homecomer, Outcast, Restoration
from pairbus.jobs.syphon.settlement import Settlement
from pairbus.pairing.homecoming.bound import bound_for, key_of
from pairbus.pairing.homecoming.delivery import Delivery
from pairbus.pairing.syphon import Held
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import on_loop
from pairbus.spark.offset import Portion
from pairbus.spark.pages import Pages
from pairbus.spark.partition import MessagePartition
from pairbus.spark.sequence_ranges import SequenceRanges

_Waiting: TypeAlias = dict[tuple[str, str], Kind]
"""What has become of messages of a backlog queue for a destination that were not delivered."""

_BEHIND: Final = "others wait before them, or the pair sends nothing to it"

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
        waiting: _Waiting = dict.fromkeys(self.busy, Kind.PARKED)
        for batch in batches:
            quay = quay_of(self.primary, self.secondary)
            yield record_batch(on_loop(self._land, _partitions(batch), quay, waiting))

    async def _land(self, partitions: list[MessagePartition], quay: Quay, waiting: _Waiting) -> list[Outcome]:
        """Several queues at a time: while one is being fetched, another is sent."""
        tasks = (_Task(self, quay, waiting).run(partition) for partition in partitions)
        found = await asyncio.gather(*tasks, return_exceptions=True)  # none goes on behind the back of another try
        outcomes: list[Outcome] = []
        for one in found:
            if isinstance(one, BaseException):
                raise one
            outcomes += one
        return outcomes


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

    def __init__(self, landing: Landing, quay: Quay, waiting: _Waiting) -> None:
        self._landing = landing
        self._quay = quay
        self._waiting = waiting

    async def run(self, partition: MessagePartition) -> list[Outcome]:
        settlement = Settlement(await self._quay.desk(partition.entity))
        pages = Pages(self._quay.secondary, partition, _PAGE)
        try:
            is_more = True
            while is_more:
                groups, is_more = await self._load(partition, pages, settlement)
                await self._land(groups, settlement)
        finally:
            await pages.close()
            outcomes = await settlement.finish()
        return outcomes

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
            self._see(partition.entity, pages.beside, settlement)
            parked = [message for message in page if is_deferred(message.payload)]
            if parked:  # by this task, when it was run before
                self._see(partition.entity, parked, settlement)
                page = [message for message in page if not is_deferred(message.payload)]
            for message in page:
                found = self._restored(partition, message, now_ms)
                if isinstance(found, Homecomer):
                    groups[found.key].append(found)
                elif found is not None:
                    settlement.cast_out(found)
                size_bytes += len(message.payload)
            count += len(page)
        return [*groups.values()], True

    def _see(self, queue: str, beside: list[ReceivedMessage], settlement: Settlement) -> None:
        """What lies parked between the messages was left there by somebody else. It is told of, and waited for."""
        for message in beside:
            if is_deferred(message.payload):
                with suppress(TransferError):
                    transfer = bound_for(message.payload)
                    settlement.found_parked(queue, message.sequence_number, transfer)
                    self._waiting[queue, key_of(transfer.path)] = Kind.PARKED

    def _restored(
        self, partition: MessagePartition, message: ReceivedMessage, now_ms: int
    ) -> Homecomer | Outcast | None:
        number = read_enqueued(message.payload).sequence_number
        token = None if number is None else partition.tokens.get(number)
        if number is None or token is None:
            return None
        return self._landing.restoration.restored(partition.entity, message, number, token, now_ms)

    async def _land(self, groups: list[list[Homecomer]], settlement: Settlement) -> None:
        """Bring messages home. What goes where something waits goes the same way as that, so as to stay behind it."""
        landings = [_Group(self._quay, settlement, group) for group in groups]
        await asyncio.gather(
            *(one.land(self._waiting.get(one.line), is_held=self._landing.held.holds(one.key)) for one in landings)
        )
        self._waiting.update({one.line: one.left for one in landings if one.left is not None})


class _Group:
    """Messages of one backlog queue for one destination, in order."""

    def __init__(self, quay: Quay, settlement: Settlement, messages: list[Homecomer]) -> None:
        self.first = messages[0]
        self.key = self.first.key
        self.line = self.first.queue, self.key
        self.left: Kind | None = None
        """What has become of those that were not delivered."""

        self._settlement = settlement
        self._rest = messages
        self._contact = quay.contact
        self._destination = quay.destination(self.first.destination)
        self._delivery: Delivery[Homecomer] = Delivery(self._destination, quay.contact, self, self, self._landed)

    async def land(self, waiting: Kind | None, *, is_held: bool) -> None:
        """Deliver what can be, and leave the rest; all of it if others are ``waiting`` before it, in the same way."""
        if waiting is None and is_held:
            waiting = Kind.GIVEN_BACK if await self._is_away() else Kind.PARKED
        if waiting is None:
            await self._try()
        if not self._rest:
            return
        away, down = self._contact.cause, self._destination.cause
        if waiting is Kind.GIVEN_BACK or (waiting is None and away is not None):
            self.left = Kind.GIVEN_BACK
            self._settlement.give_back(self._rest, str(away or _BEHIND))
        else:
            self.left = Kind.PARKED
            self._settlement.park(self._rest, str(down or _BEHIND))

    async def _is_away(self) -> bool:
        """What the pair holds may be held because the namespace is away: then nothing is parked for it."""
        since_s = asyncio.get_running_loop().time() - _PATIENCE_S
        return await self._contact.doubt(self._destination.path, since_s)

    async def _wait_for_primary(self) -> None:
        """A little. Whoever has planned this has reached it, and what is given back comes again at once."""
        self._contact.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._contact.wait()

    async def _try(self) -> None:
        """Deliver as far as that goes; one that was down is tried with one message, if it is time to."""
        destination = self._destination
        if self._contact.is_away:
            await self._wait_for_primary()
        if self._contact.is_away:
            return
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
