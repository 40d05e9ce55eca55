"""Depths of the entities of a stream and the age of their messages, for the progress of its query."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pairbus.client.errors import MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.received_message import MessageState
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.paths import EntityPath, SubQueue, split_entity_path
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.gathering import of_each
from pairbus.spark.sequences import partition_of, start_of

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
"""Spark waits for the progress between two batches."""

_MAX_PEEKED: Final = 1_000
"""Maximum number of messages of an entity among which the deferred ones are counted: no other operation counts them."""

_PAGE: Final = 100


class Depths:
    """Counts the messages of entities, and finds the age of the oldest one, once in an interval."""

    def __init__(self, connection: ConnectionReference, entities: Iterable[str], interval: timedelta) -> None:
        self._connection = connection
        self._entities = tuple(entities)
        self._interval_s = interval.total_seconds()
        self._known: dict[str, int] = {}
        self._next_s = 0.0
        self._has_counts = True
        """False once the key has turned out not to have the Manage claim, which only the counts require."""

    async def read(self, factory: MessagingFactory) -> dict[str, int]:
        """Return the figures; those of the last time if they are recent, or cannot be read now."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s:
            return self._known
        self._next_s = now_s + self._interval_s
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._known = {**self._known, **await self._count_if_allowed()}  # kept if the peeks take too long
                self._known = {**self._known, **await self._peek(factory)}
        except (MessagingError, TimeoutError) as error:
            _log.info('depths not read error="%s"', error)
        return self._known

    async def _count_if_allowed(self) -> dict[str, int]:
        if not self._has_counts:
            return {}
        try:
            return await self._count()
        except UnauthorizedError as error:
            self._has_counts = False
            _log.warning('depths not read reason="the key has no Manage claim" error="%s"', error)
            return {}

    async def _count(self) -> dict[str, int]:
        async with NamespaceManager.from_connection_string(self._connection.resolve()) as manager:

            async def count(path: str) -> Counter[str]:
                found = split_entity_path(path)
                return Counter() if found is None else await _count_one(manager, found)

            counts = await of_each(self._entities, count)
        total = Counter({"depth": 0, "scheduled": 0, "dead_lettered": 0})
        for one in counts.values():
            total.update(one)
        return dict(total)

    async def _peek(self, factory: MessagingFactory) -> dict[str, int]:
        async def peek(path: str) -> _Peeked:
            async with await factory.create_message_receiver(path) as receiver:
                return await _peek_one(receiver)

        found = (await of_each(self._entities, peek)).values()
        oldest = min((one.oldest for one in found if one.oldest is not None), default=None)
        return {
            "parked": sum(one.parked for one in found),
            "oldest_age_s": 0 if oldest is None else max(0, round(time.time() - oldest.timestamp())),
        }


@dataclass(slots=True, kw_only=True)
class _Peeked:
    """The messages of an entity that were peeked."""

    parked: int = 0
    """Number of deferred messages."""

    oldest: datetime | None = None
    """The time at which the oldest active message was enqueued."""


async def _peek_one(receiver: MessageReceiver) -> _Peeked:
    """Peek the first messages, and of the partitions that they do not reach, the first one of each."""
    found = _Peeked()
    least, room = 1, _MAX_PEEKED
    while page := await receiver.peek(min(_PAGE, room) or 1, least):
        for message in page:
            if message.state is MessageState.DEFERRED:
                found.parked += 1
            elif message.state is MessageState.ACTIVE:
                found.oldest = min(found.oldest or message.enqueued_time, message.enqueued_time)
        room = max(0, room - len(page))
        last = page[-1].sequence_number
        least = last + 1 if room else start_of(partition_of(last) + 1) + 1
    return found


async def _count_one(manager: NamespaceManager, path: EntityPath) -> Counter[str]:
    info = (
        await manager.get_queue_runtime_info(path.entity)
        if path.subscription is None
        else await manager.get_subscription_runtime_info(path.entity, path.subscription)
    )
    if path.sub_queue is SubQueue.DEAD_LETTER:
        return Counter({"depth": info.dead_letter_message_count})
    if path.sub_queue is not None:
        return Counter({"depth": info.transfer_dead_letter_message_count})
    return Counter(
        {
            "depth": info.active_message_count,
            "scheduled": getattr(info, "scheduled_message_count", 0),
            "dead_lettered": info.dead_letter_message_count,
        }
    )
