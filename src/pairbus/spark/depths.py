"""Depths of the entities of a stream, for the progress of its query."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from pairbus.client.errors import MessagingError, UnauthorizedError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.paths import EntityPath, SubQueue, split_entity_path
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.gathering import of_each

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
"""Spark waits for the progress between two batches."""


class Depths:
    """Counts the messages of entities, once in an interval."""

    def __init__(self, connection: ConnectionReference, entities: Iterable[str], interval: timedelta) -> None:
        self._connection = connection
        self._entities = tuple(entities)
        self._interval_s = interval.total_seconds()
        self._known: dict[str, int] = {}
        self._next_s = 0.0

    async def read(self) -> dict[str, int]:
        """Return the counts; those of the last time if they are recent, or cannot be read now."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s:
            return self._known
        self._next_s = now_s + self._interval_s
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._known = await self._count()
        except UnauthorizedError as error:
            self._next_s = float("inf")
            _log.warning('depths not read reason="the key has no Manage claim" error="%s"', error)
        except (MessagingError, TimeoutError) as error:
            _log.info('depths not read error="%s"', error)
        return self._known

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
