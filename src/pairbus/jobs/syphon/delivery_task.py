"""The Spark task of the syphon: it receives messages of the backlog, delivers them, and only then removes them.

Spark moves no messages, only the names of queues to the tasks and outcomes back. What a task does with a queue is what
the in-process syphon does, for a limited number of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from pairbus.client.factory import MessagingFactory
from pairbus.jobs.syphon.outcome import DeliveryOutcome, record_batch
from pairbus.jobs.syphon.share_runner import ShareRunner
from pairbus.pairing.events import PairEvent
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth
from pairbus.pairing.syphon.interface import Held, SyphonContext, SyphonSettings, TimeToLive, destination_key
from pairbus.pairing.syphon.send_limit import SendLimit
from pairbus.spark.connections import ConnectionReference, factory_of, on_loop

T = TypeVar("T")

_ATTEMPT_S: Final = 5.0
"""Timeout of a send: longer than that a destination must not delay the others."""

_MAX_LOCKED: Final = 2_000
"""Maximum number of messages of each queue that are locked at a time: more of them are more for each destination."""

MAX_REPEATS: Final = 500
"""Maximum number of messages that a process has sent and not yet removed: if it is killed they are sent again."""

_CLOSE_S: Final = 4.0


# The state of an executor process.


class ExecutorContext:
    """The connections and the state of the two namespaces that an executor process keeps from task to task.

    It remembers destinations that are down, so that not every task waits for them.
    """

    def __init__(self, primary: MessagingFactory, secondary: MessagingFactory, time_to_live: TimeToLive) -> None:
        self.primary: Final = primary
        self.secondary: Final = secondary
        self._health: Final = NamespaceHealth(primary, self._wake)
        self._held = Held()
        self._destinations: dict[str, DeliveryDestination] = {}
        self._runners: dict[str, ShareRunner] = {}
        self._limit = SendLimit(MAX_REPEATS)
        self._syphon_context = SyphonContext(
            primary=primary,
            secondary=secondary,
            backlog_queues=(),
            settings=SyphonSettings(time_to_live=time_to_live, max_messages=_MAX_LOCKED),
            is_held=self._is_held,
            publish=_ignore,
        )

    def hold(self, held: Held) -> None:
        """Set which entities the pair does not send to, as of the plan of the current task."""
        self._held = held
        for destination in self._destinations.values():
            if not destination.is_held:
                destination.resume()

    def _is_held(self, path: str) -> bool:
        return self._held.holds(path)

    def _find_destination(self, path: str) -> DeliveryDestination:
        key = destination_key(path)
        if key not in self._destinations:
            self._destinations[key] = DeliveryDestination(path.strip("/"), self.primary, self._is_held, _ignore)
        return self._destinations[key]

    def _wake(self) -> None:
        for destination in self._destinations.values():
            destination.wake()

    async def deliver(self, share: QueueShare, busy: frozenset[tuple[str, str]]) -> list[DeliveryOutcome]:
        """Deliver a share of a backlog queue. Raise ``MessagingError``."""
        runner = self._runners.get(share.queue)
        if runner is None:
            receiver = await self.secondary.create_message_receiver(share.queue)
            runner = ShareRunner(receiver, self._syphon_context, self._health, self._find_destination, self._limit)
            self._runners[share.queue] = runner
        queue = share.queue.lower()
        try:
            return await runner.deliver(share.messages, (key for path, key in busy if path.lower() == queue))
        except BaseException:
            del self._runners[share.queue]
            await runner.source.close(_CLOSE_S)
            raise


def _ignore(*_event: PairEvent) -> None:
    """Ignore events: the driver reports what happens."""


_CONTEXTS: Final[dict[tuple[ConnectionReference, ConnectionReference, TimeToLive], ExecutorContext]] = {}
"""The contexts of this process, which are kept for the same reason as connections."""


def context_of(
    primary: ConnectionReference, secondary: ConnectionReference, time_to_live: TimeToLive
) -> ExecutorContext:
    """Return the context of this process for a pair; a new one if its connections have changed."""
    factories = factory_of(primary), factory_of(secondary)
    known = _CONTEXTS.get((primary, secondary, time_to_live))
    if known is not None and (known.primary, known.secondary) == factories:
        return known

    async def create() -> ExecutorContext:
        factories[0].limit_send_attempts(_ATTEMPT_S)
        return ExecutorContext(*factories, time_to_live)

    context = _CONTEXTS[primary, secondary, time_to_live] = on_loop(create)
    return context


# The task.


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShare:
    """A share of a backlog queue, which one task delivers."""

    queue: str
    messages: int
    """Maximum number of messages."""


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
        shares = [QueueShare(**row) for batch in batches for row in batch.to_pylist()]
        if shares:
            context = context_of(self.primary, self.secondary, self.time_to_live)
            yield record_batch(on_loop(self._deliver, shares, context))

    async def _deliver(self, shares: list[QueueShare], context: ExecutorContext) -> list[DeliveryOutcome]:
        """Deliver several queues at a time: while one is received, another is sent."""
        context.hold(self.held)
        found = await _all(context.deliver(share, self.busy) for share in shares)
        return [outcome for outcomes in found for outcome in outcomes]


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of them, and raise the first error after that: none may continue beside a retry of the task."""
    results: list[T] = []
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
