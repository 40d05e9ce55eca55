"""What every entity holds, counted a few at a time so that nobody has to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from pairbus.broker import Address, EntityInfo, EntityNotFoundError, Namespace
from pairbus.dialect.backlog_path import TRANSFER, is_backlog_path
from pairbus.server.host import NamespaceHost

_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCount:
    """An entity and how many messages it has."""

    kind: str
    path: str
    """With the topic before a subscription."""

    address: Address
    status: str
    active: int
    scheduled: int
    dead_letters: int
    failed_transfers: int
    size_bytes: int
    arrived: int
    """How many ever came in."""

    @property
    def message_count(self) -> int:
        """How many are here, dead letters left out."""
        return self.active + self.scheduled

    @property
    def left(self) -> int:
        """How many are here no more: received, expired, removed, dead-lettered or passed on."""
        return self.arrived - self.message_count

    @property
    def primary(self) -> str | None:
        """The namespace whose backlog queue it is; ``None`` where it is none."""
        if self.kind != "queue" or not is_backlog_path(self.path):
            return None
        return self.path.rpartition("/")[0][: -len(TRANSFER) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """All entities at about one time."""

    at_ms: int
    entities: dict[str, EntityCount]
    """By path, in the order of their creation, subscriptions behind their topic."""

    @property
    def active(self) -> int:
        return sum(entity.active for entity in self.entities.values())

    @property
    def dead_letters(self) -> int:
        return sum(entity.dead_letters + entity.failed_transfers for entity in self.entities.values())

    @property
    def size_bytes(self) -> int:
        """A topic's size has that of its subscriptions in it."""
        return sum(entity.size_bytes for entity in self.entities.values() if entity.kind != "subscription")

    @property
    def backlog(self) -> list[EntityCount]:
        return [entity for entity in self.entities.values() if entity.primary is not None]


async def take_census(host: NamespaceHost) -> Census:
    """Count; raises ``StoreError`` while the store cannot be read."""
    entities: dict[str, EntityCount] = {}
    async for info in _all(host, Namespace.queues):
        entities[info.path] = count_of("queue", info.path, Address.of(info.path), info)
    async for topic in _all(host, Namespace.topics):
        entities[topic.path] = count_of("topic", topic.path, Address.of(topic.path), topic)
        with suppress(EntityNotFoundError):  # it was deleted meanwhile
            async for info in _all(host, partial(_subscriptions, topic.path)):
                path = f"{topic.path}/Subscriptions/{info.path}"
                entities[path] = count_of("subscription", path, Address.of(topic.path, info.path), info)
    return Census(at_ms=host.now_ms(), entities=entities)


def count_of(kind: str, path: str, address: Address, info: EntityInfo) -> EntityCount:
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
    """Entities in parts; in between others have their turn."""
    skip = 0
    while part := find(host.namespace, host.now_ms(), skip, _AT_ONCE):
        for info in part:
            yield info
        if len(part) < _AT_ONCE:
            return
        skip += _AT_ONCE
        await asyncio.sleep(0)
