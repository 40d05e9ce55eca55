"""The Spark task that delivers messages: it peeks each one, restores and sends it, and only then removes it.

Spark moves only the sequence numbers and lock tokens of the messages. Their bodies go from one namespace to the other
through the process that runs the task, and not through the JVM and back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import pyarrow as pa

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.errors import EntityNotFoundError, InvalidMessageError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.sent import is_deferred, read_enqueued
from pairbus.dialect.transfer import TransferError
from pairbus.jobs.syphon.outcome import DeliveryOutcome, outcomes_of, record_batch
from pairbus.pairing.events import PairEvent
from pairbus.pairing.syphon.delivery import DeliveryEngine
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth
from pairbus.pairing.syphon.interface import Held, TimeToLive, destination_key
from pairbus.pairing.syphon.message import BacklogMessage, DeadLetterReason, UndeliverableMessage, read_diverted
from pairbus.pairing.syphon.source import OutcomeKind, SettlementReport, Settler, SyphonMessage
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop
from pairbus.spark.offset import Portion
from pairbus.spark.partition import MessagePartition, Pages
from pairbus.spark.sequences import SequenceRanges

_log = logging.getLogger(__name__)
T = TypeVar("T")

_Waiting: TypeAlias = dict[tuple[str, str], OutcomeKind]
"""The outcomes of undelivered messages, by backlog queue and destination key."""

_BEHIND: Final = "earlier messages wait for the same destination"

REFERENCES: Final = "entity string, sequence_number long, lock_token string"
"""The columns of the messages that the task gets."""

_PAGE: Final = 500
_LOAD: Final = 4_000
_LOAD_BYTES: Final = 8 * 1024 * 1024
"""Limits of the messages that are loaded at a time: one page has few messages for each of many destinations."""

_ATTEMPT_S: Final = 5.0
"""Timeout of a send: longer than that a destination must not delay the others."""

_PATIENCE_S: Final = 5.0
_NO_LIMIT_MS: Final = 2**63 - 1


# The state of an executor process.


class ExecutorContext:
    """The connections and the state of the two namespaces that an executor process keeps from task to task.

    It remembers destinations that are down, so that not every task waits for them.
    """

    def __init__(self, primary: MessagingFactory, secondary: MessagingFactory) -> None:
        self.primary: Final = primary
        self.secondary: Final = secondary
        self.health: Final = NamespaceHealth(primary, _ignore)
        self._held = Held()
        self._destinations: dict[str, DeliveryDestination] = {}
        self._receivers: dict[str, MessageReceiver] = {}

    def hold(self, held: Held) -> None:
        """Set which entities the pair does not send to, as of the plan of the current task."""
        self._held = held
        for destination in self._destinations.values():
            if not destination.is_held:
                destination.resume()

    def destination(self, path: str) -> DeliveryDestination:
        key = destination_key(path)
        if key not in self._destinations:
            self._destinations[key] = DeliveryDestination(path.strip("/"), self.primary, self._is_held, _ignore)
        return self._destinations[key]

    def _is_held(self, path: str) -> bool:
        return self._held.holds(path)

    async def settling_receiver(self, queue: str) -> MessageReceiver:
        """Return the receiver that settles messages of a backlog queue; it never receives."""
        if queue not in self._receivers:
            self._receivers[queue] = await self.secondary.create_message_receiver(queue)
        return self._receivers[queue]


def _ignore(*_event: PairEvent) -> None:
    """Ignore events: the driver reports what happens."""


_CONTEXTS: Final[dict[tuple[ConnectionReference, ConnectionReference], ExecutorContext]] = {}
"""The contexts of this process, which are kept for the same reason as connections."""


def context_of(primary: ConnectionReference, secondary: ConnectionReference) -> ExecutorContext:
    """Return the context of this process for a pair; a new one if its connections have changed."""
    factories = factory_of(primary), factory_of(secondary)
    known = _CONTEXTS.get((primary, secondary))
    if known is not None and (known.primary, known.secondary) == factories:
        return known

    async def create() -> ExecutorContext:
        factories[0].limit_send_attempts(_ATTEMPT_S)
        return ExecutorContext(*factories)

    context = _CONTEXTS[primary, secondary] = on_loop(create)
    return context


# The task.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTask:
    """The function of ``mapInArrow``; it is pickled with the plan."""

    primary: ConnectionReference
    secondary: ConnectionReference
    time_to_live: TimeToLive
    held: Held
    """The entities that the pair does not send to."""

    busy: frozenset[tuple[str, str]]
    """The backlog queues and destinations with parked messages, which others must not overtake."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: _Waiting = dict.fromkeys(self.busy, OutcomeKind.PARKED)
        for batch in batches:
            context = context_of(self.primary, self.secondary)
            yield record_batch(on_loop(self._deliver, _partitions(batch), context, waiting))

    async def _deliver(
        self, partitions: list[MessagePartition], context: ExecutorContext, waiting: _Waiting
    ) -> list[DeliveryOutcome]:
        """Deliver several queues at a time: while one is peeked, another is sent."""
        context.hold(self.held)
        runs = [_PartitionRun(self, context, waiting).run(partition) for partition in partitions]
        return [outcome for outcomes in await _all(runs) for outcome in outcomes]


def _partitions(batch: pa.RecordBatch) -> list[MessagePartition]:
    """Return the messages of a batch by backlog queue."""
    tokens: dict[str, dict[int, UUID]] = defaultdict(dict)
    for queue, number, token in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        tokens[queue][number] = UUID(token)
    return [
        MessagePartition(
            entity=queue, portion=Portion(numbers=SequenceRanges.of(found), until_ms=_NO_LIMIT_MS), tokens=found
        )
        for queue, found in tokens.items()
    ]


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of them, and raise the first error after that: none may continue beside a retry of the task."""
    results: list[T] = []
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


class TaskSource:
    """The messages of one backlog queue in a task: the driver has locked them, and renews the locks meanwhile."""

    def __init__(self, receiver: MessageReceiver, partition: MessagePartition, pages: Pages) -> None:
        self.queue: Final = partition.entity
        self.outcomes: list[DeliveryOutcome] = []
        self._partition = partition
        self._pages = pages
        self._tasks = BackgroundTasks(self.queue, expected=MessagingError)
        self._settler = Settler(receiver, self._tasks, self._settled)

    async def load(self, waiting: _Waiting) -> tuple[dict[str, list[BacklogMessage]], bool]:
        """Return messages by destination key, enough for batches of useful size, and whether there may be more.

        Deferred messages among them are reported, and added to ``waiting``.
        """
        groups: dict[str, list[BacklogMessage]] = defaultdict(list)
        count = size_bytes = 0
        while count < _LOAD and size_bytes < _LOAD_BYTES:
            page = await self._next_page()
            if page is None:
                return groups, False
            self._note_deferred(self._pages.beside, waiting)
            for peeked in page:
                if is_deferred(peeked.payload):  # by an earlier run of this task
                    self._note_deferred([peeked], waiting)
                    continue
                count += 1
                size_bytes += len(peeked.payload)
                message = self._lock(peeked)
                if message is not None:
                    groups[destination_key(message.path)].append(message)
        return groups, True

    async def _next_page(self) -> list[ReceivedMessage] | None:
        """Return the next page; ``None`` at the end, and if the queue was deleted with all its messages."""
        try:
            return await self._pages.next()
        except EntityNotFoundError as error:
            _log.warning('backlog queue deleted, its messages are lost entity=%s error="%s"', self.queue, error)
            return None

    def _note_deferred(self, messages: Iterable[ReceivedMessage], waiting: _Waiting) -> None:
        """Report deferred messages, which another syphon has left, and which later ones must not overtake."""
        for message in messages:
            if is_deferred(message.payload):
                with suppress(TransferError):
                    transfer = read_diverted(message.payload)
                    waiting[self.queue, destination_key(transfer.path)] = OutcomeKind.PARKED
                    self.outcomes.append(
                        DeliveryOutcome(
                            kind=OutcomeKind.FOUND,
                            queue=self.queue,
                            destination=transfer.path,
                            session_id=transfer.session_id,
                            numbers=SequenceRanges.of([message.sequence_number]),
                        )
                    )

    def _lock(self, peeked: ReceivedMessage) -> BacklogMessage | None:
        """Return a message with the lock of the driver; dead-letter one without a valid destination."""
        number = read_enqueued(peeked.payload).sequence_number
        token = None if number is None else self._partition.tokens.get(number)
        if token is None:
            return None
        peeked.lock_token = token
        try:
            return BacklogMessage(peeked)
        except (TransferError, InvalidMessageError) as error:
            bad = UndeliverableMessage.because(peeked, error)
            self.dead_letter([bad], bad.reason, bad.description)
            return None

    # Settlement.

    def age(self, message: BacklogMessage) -> timedelta:
        return max(timedelta(), datetime.now(UTC) - message.message.enqueued_time)

    def complete(self, messages: list[BacklogMessage]) -> None:
        self._settler.complete(messages)

    def dead_letter(self, messages: Sequence[SyphonMessage], reason: DeadLetterReason, description: str) -> None:
        self._settler.dead_letter(messages, reason, description)

    async def defer(self, messages: list[BacklogMessage], cause: str) -> None:
        await self._settler.defer(messages, cause)

    async def abandon(self, messages: list[BacklogMessage], cause: str) -> None:
        await self._settler.abandon(messages, cause)

    def _settled(self, settlement: SettlementReport) -> None:
        self.outcomes += outcomes_of(self.queue, settlement)

    async def close(self) -> None:
        """Wait until all messages are settled that can be."""
        await self._pages.close()
        await self._tasks.finish()


class _PartitionRun:
    """Delivers the messages of one backlog queue: to all destinations at once, to each in the order of the queue."""

    def __init__(self, task: DeliveryTask, context: ExecutorContext, waiting: _Waiting) -> None:
        self._task = task
        self._context = context
        self._waiting = waiting

    async def run(self, partition: MessagePartition) -> list[DeliveryOutcome]:
        receiver = await self._context.settling_receiver(partition.entity)
        source = TaskSource(receiver, partition, Pages(self._context.secondary, partition, _PAGE))
        try:
            is_more = True
            while is_more:
                groups, is_more = await source.load(self._waiting)
                await _all(self._deliver(source, key, messages) for key, messages in groups.items())
        finally:
            await source.close()
        return source.outcomes

    async def _deliver(self, source: TaskSource, key: str, pending: list[BacklogMessage]) -> None:
        """Deliver messages for one destination, and settle the others.

        Messages behind undelivered ones are settled in the same way as those, so that they stay behind them.
        """
        destination, health = self._context.destination(pending[0].path), self._context.health
        kind = self._waiting.get((source.queue, key))
        if kind is None:
            engine = DeliveryEngine(source, destination, health, self._task.time_to_live)
            kind = await self._attempt(engine, destination, pending)
        if not pending:
            return
        self._waiting[source.queue, key] = kind
        if kind is OutcomeKind.GIVEN_BACK:
            await source.abandon(pending, str(health.cause or _BEHIND))
        else:
            await source.defer(pending, str(destination.cause or _BEHIND))

    async def _attempt(
        self, engine: DeliveryEngine, destination: DeliveryDestination, pending: list[BacklogMessage]
    ) -> OutcomeKind:
        """Deliver what can be delivered now; return how to settle what is left in ``pending``."""
        health = self._context.health
        if not destination.is_held:
            await self._wait_for_primary()
        if await engine.must_release():
            return OutcomeKind.GIVEN_BACK
        while pending and not health.is_away and (limit := engine.claim()):
            try:
                await engine.deliver(pending, limit)
            finally:
                engine.leave()
        return OutcomeKind.GIVEN_BACK if health.is_away else OutcomeKind.PARKED

    async def _wait_for_primary(self) -> None:
        """Wait a little for an unreachable primary: the driver has reached it, and a message that is given back would
        come again at once.
        """
        health = self._context.health
        if health.is_away:
            health.hurry()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await health.wait()
