"""Resolution of the entity names and patterns of a query."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import shown
from pairbus.dialect.paths import EntityPath, split_entity_path
from pairbus.spark.errors import EntityPatternError

WILDCARDS: Final = frozenset("*?")
"""Characters that make a name a pattern; no entity name contains them."""

_MAX_LISTED: Final = 10


async def resolve_entities(patterns: Iterable[str], manager: NamespaceManager) -> tuple[str, ...]:
    """Return the matching entities, each once, in order. Names without wildcards are not looked up.

    In a pattern ``*`` matches any text without a slash, and ``?`` one character. Patterns with ``/subscriptions/``
    match subscriptions, all others match queues; a sub-queue at the end applies to each match.
    Raise ``EntityPatternError`` if a pattern matches nothing, and ``MessagingError``.
    """
    given = tuple(patterns)
    found = {name.lower(): name for name in given if not _is_pattern(name)}
    entities = _EntityLister(manager)
    for pattern in filter(_is_pattern, given):
        for name in await _look_up(pattern, entities):
            found.setdefault(name.lower(), name)
    return tuple(found[name] for name in sorted(found))


class _EntityLister:
    """The entities of a namespace, requested once each when needed."""

    def __init__(self, manager: NamespaceManager) -> None:
        self._manager = manager
        self._queues: list[str] | None = None
        self._topics: list[str] | None = None

    async def queues(self) -> list[str]:
        if self._queues is None:
            self._queues = [queue.path for queue in await self._manager.get_queues()]
        return self._queues

    async def topics(self) -> list[str]:
        if self._topics is None:
            self._topics = [topic.path for topic in await self._manager.get_topics()]
        return self._topics

    async def subscriptions(self, topic: str) -> list[str]:
        return [subscription.name for subscription in await self._manager.get_subscriptions(topic)]


async def _look_up(pattern: str, entities: _EntityLister) -> list[str]:
    path = split_entity_path(pattern)
    if path is None or path.management:
        raise EntityPatternError(f"{shown(pattern)} is not a pattern of queues or subscriptions")
    try:
        if path.subscription is None:
            found = [EntityPath(queue) for queue in _matching(path.entity, "queue", await entities.queues())]
        else:
            found = await _find_subscriptions(path.entity, path.subscription, entities)
    except UnauthorizedError as error:
        raise EntityPatternError(
            f"looking up the pattern '{pattern}' requires a key with the Manage claim;"
            f" use such a key, or name the entities one by one: {error}"
        ) from error
    return [str(EntityPath(one.entity, one.subscription, path.sub_queue)) for one in found]


async def _find_subscriptions(topic: str, subscription: str, entities: _EntityLister) -> list[EntityPath]:
    topics = _matching(topic, "topic", await entities.topics()) if _is_pattern(topic) else [topic]
    available = [EntityPath(one, name) for one in topics for name in await _subscriptions(one, entities)]
    found = [one for one in available if one.subscription is not None and _matches(subscription, one.subscription)]
    if not found:
        raise _no_match(f"subscription of '{topic}'", subscription, [str(one) for one in available])
    return found


async def _subscriptions(topic: str, entities: _EntityLister) -> list[str]:
    try:
        return await entities.subscriptions(topic)
    except EntityNotFoundError:
        raise _no_match("topic", topic, await entities.topics()) from None


def _matching(pattern: str, noun: str, names: list[str]) -> list[str]:
    found = [name for name in names if _matches(pattern, name)]
    if not found:
        raise _no_match(noun, pattern, names)
    return found


def _no_match(noun: str, pattern: str, names: list[str]) -> EntityPatternError:
    available = ", ".join(sorted(names, key=str.lower)[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return EntityPatternError(f"no {noun} matches '{pattern}'; available: {available or 'none'}{more}")


def _is_pattern(name: str) -> bool:
    return not WILDCARDS.isdisjoint(name)


def _matches(pattern: str, name: str) -> bool:
    """Match segment by segment, so that ``*`` does not match backlog queues, whose messages belong to others."""
    parts, wanted = name.lower().split("/"), pattern.lower().replace("[", "[[]").split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
