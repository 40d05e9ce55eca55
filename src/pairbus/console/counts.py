"""Message counts of all entities, and the destinations of the messages in backlog queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from pairbus.broker import Address, BrokerError, EntityInfo, EntityNotFoundError, Namespace
from pairbus.dialect.paths import TRANSFER, is_backlog_path, is_drill_path
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.server.host import NamespaceHost

_PER_STEP: Final = 100
"""Number of entities that are counted before other tasks run."""

_PEEKED: Final = 10
_PEEKED_BYTES: Final = 256 * 1024
_MAX_DESTINATIONS: Final = 1_000
RECENT_MS: Final = 60_000
"""A destination is shown as diverted until this time after its last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCount:
    """The message counts of an entity."""

    kind: str
    path: str
    """For a subscription, this includes the topic."""

    address: Address
    status: str
    active: int
    scheduled: int
    dead_letters: int
    failed_transfers: int
    size_bytes: int
    arrived: int
    """Messages that have ever arrived."""

    @property
    def message_count(self) -> int:
        """The number of messages, without dead letters."""
        return self.active + self.scheduled

    @property
    def left(self) -> int:
        """Messages that have left: received, expired, deleted, dead-lettered or forwarded."""
        return self.arrived - self.message_count

    @property
    def primary(self) -> str | None:
        """The namespace that the backlog queue belongs to; ``None`` for other entities."""
        if self.kind != "queue" or not is_backlog_path(self.path):
            return None
        return self.path.rpartition("/")[0][: -len(TRANSFER) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCounts:
    """The counts of all entities at about the same time."""

    at_ms: int
    entities: dict[str, EntityCount]
    """By path, in the order of creation; subscriptions follow their topic."""

    @property
    def active(self) -> int:
        return sum(entity.active for entity in self.entities.values())

    @property
    def dead_letters(self) -> int:
        return sum(entity.dead_letters + entity.failed_transfers for entity in self.entities.values())

    @property
    def size_bytes(self) -> int:
        """The size of all queues and topics; the size of a topic includes its subscriptions."""
        return sum(entity.size_bytes for entity in self.entities.values() if entity.kind != "subscription")

    @property
    def backlog(self) -> list[EntityCount]:
        return [entity for entity in self.entities.values() if entity.primary is not None]


async def count_entities(host: NamespaceHost) -> EntityCounts:
    """Count the messages of all entities; raise ``StoreError`` if the store cannot be read."""
    entities: dict[str, EntityCount] = {}
    async for info in _all(host, Namespace.queues):
        entities[info.path] = _count("queue", info.path, Address.of(info.path), info)
    async for topic in _all(host, Namespace.topics):
        entities[topic.path] = _count("topic", topic.path, Address.of(topic.path), topic)
        with suppress(EntityNotFoundError):  # the topic was deleted meanwhile
            async for info in _all(host, partial(_subscriptions, topic.path)):
                path = f"{topic.path}/Subscriptions/{info.path}"
                entities[path] = _count("subscription", path, Address.of(topic.path, info.path), info)
    return EntityCounts(at_ms=host.now_ms(), entities=entities)


def _count(kind: str, path: str, address: Address, info: EntityInfo) -> EntityCount:
    return EntityCount(
        kind=kind,
        path=path,
        address=address,
        status=info.description.status.value,
        active=info.active_count,
        scheduled=info.scheduled_count,
        dead_letters=info.dead_letter_count,
        failed_transfers=info.transfer_dead_letter_count,
        size_bytes=info.size_bytes,
        arrived=info.arrived_count,
    )


_Find = Callable[[Namespace, int, int, int], Sequence[EntityInfo]]


def _subscriptions(topic: str, namespace: Namespace, now_ms: int, skip: int, top: int) -> Sequence[EntityInfo]:
    return namespace.subscriptions(topic, now_ms, skip, top)


async def _all(host: NamespaceHost, find: _Find) -> AsyncIterator[EntityInfo]:
    """Yield entities in steps, and let other tasks run between them."""
    skip = 0
    while part := find(host.use_namespace(), host.now_ms(), skip, _PER_STEP):
        for info in part:
            yield info
        if len(part) < _PER_STEP:
            return
        skip += _PER_STEP
        await asyncio.sleep(0)


class DestinationState(StrEnum):
    """The state of an entity of a primary, as its secondary infers it from the backlog."""

    DIVERTED = "diverted"
    """Messages for it are arriving in the backlog."""

    WAITING = "waiting in the backlog"
    RESTORED = "restored"
    DRILL = "drill"
    """The destination of a drill's message, and not an entity."""


@dataclass(slots=True, kw_only=True)
class BacklogDestination:
    """An entity of a primary namespace with messages in a backlog queue of this namespace."""

    primary: str
    path: str
    first_ms: int
    last_ms: int

    def state(self, now_ms: int, *, has_backlog: bool) -> DestinationState:
        if is_drill_path(self.path):
            return DestinationState.DRILL
        if not has_backlog:
            return DestinationState.RESTORED
        return DestinationState.DIVERTED if now_ms - self.last_ms < RECENT_MS else DestinationState.WAITING


class BacklogDestinations:
    """The destinations of the messages that arrived in backlog queues since the server started."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], BacklogDestination] = {}

    def __iter__(self) -> Iterator[BacklogDestination]:
        return iter(self._seen.values())

    def peek(self, host: NamespaceHost, queue: EntityCount, now_ms: int) -> None:
        """Peek the last messages of a backlog queue and record their destinations."""
        primary = queue.primary
        if primary is None:
            return
        with suppress(BrokerError):  # the queue was deleted meanwhile
            first = max(0, queue.arrived - _PEEKED + 1)
            found = host.use_namespace().peek(queue.address, first, _PEEKED, now_ms, max_bytes=_PEEKED_BYTES)
            for delivery in found:
                with suppress(TransferError):
                    self._add(primary, read_transfer(delivery.body).path, now_ms)

    def _add(self, primary: str, path: str, now_ms: int) -> None:
        key = primary.lower(), path.lower()
        seen = self._seen.get(key)
        if seen is not None:
            seen.last_ms = now_ms
        elif len(self._seen) < _MAX_DESTINATIONS:
            self._seen[key] = BacklogDestination(primary=primary, path=path, first_ms=now_ms, last_ms=now_ms)
