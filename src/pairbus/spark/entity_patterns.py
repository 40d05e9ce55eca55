"""Which entities of a namespace the names and patterns of a query mean."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from pairbus.client.errors import EntityNotFoundError, UnauthorizedError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.validation import shown
from pairbus.dialect.entity_path import EntityPath, split_entity_path
from pairbus.spark.errors import EntityPatternError

WILDCARDS: Final = frozenset("*?")
"""What makes a pattern of a name; no entity has one of them in its name."""

_SHOWN: Final = 10


async def resolve_entities(patterns: Iterable[str], manager: NamespaceManager) -> tuple[str, ...]:
    """The entities that are meant, each once, in order. Names are taken at their word: nobody is asked for them.

    In a pattern ``*`` is any text without a slash, and ``?`` one character. Those with ``/subscriptions/`` are patterns
    of subscriptions, all others of queues; a sub-queue at the end is that of each.
    Raises ``EntityPatternError`` for a pattern that nothing answers to, and ``MessagingError``.
    """
    given = tuple(patterns)
    found = {name.lower(): name for name in given if not _is_pattern(name)}
    catalogue = _Catalogue(manager)
    for pattern in filter(_is_pattern, given):
        for name in await _look_up(pattern, catalogue):
            found.setdefault(name.lower(), name)
    return tuple(found[name] for name in sorted(found))


class _Catalogue:
    """What there is in a namespace, asked for when it is needed, and once."""

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


async def _look_up(pattern: str, catalogue: _Catalogue) -> list[str]:
    path = split_entity_path(pattern)
    if path is None or path.management:
        raise EntityPatternError(f"{shown(pattern)} is no pattern of queues or subscriptions")
    try:
        if path.subscription is None:
            found = [EntityPath(queue) for queue in _matching(path.entity, "queue", await catalogue.queues())]
        else:
            found = await _find_subscriptions(path.entity, path.subscription, catalogue)
    except UnauthorizedError as error:
        raise EntityPatternError(
            f"the pattern '{pattern}' is looked up in the namespace, which needs a key with the claim Manage;"
            f" use such a key, or name the entities one by one: {error}"
        ) from error
    return [str(EntityPath(one.entity, one.subscription, path.sub_queue)) for one in found]


async def _find_subscriptions(topic: str, subscription: str, catalogue: _Catalogue) -> list[EntityPath]:
    topics = _matching(topic, "topic", await catalogue.topics()) if _is_pattern(topic) else [topic]
    there = [EntityPath(one, name) for one in topics for name in await _subscriptions(one, catalogue)]
    found = [one for one in there if one.subscription is not None and _matches(subscription, one.subscription)]
    if not found:
        raise _nothing(f"subscription of '{topic}'", subscription, [str(one) for one in there])
    return found


async def _subscriptions(topic: str, catalogue: _Catalogue) -> list[str]:
    try:
        return await catalogue.subscriptions(topic)
    except EntityNotFoundError:
        raise _nothing("topic", topic, await catalogue.topics()) from None


def _matching(pattern: str, noun: str, names: list[str]) -> list[str]:
    found = [name for name in names if _matches(pattern, name)]
    if not found:
        raise _nothing(noun, pattern, names)
    return found


def _nothing(noun: str, pattern: str, names: list[str]) -> EntityPatternError:
    there = ", ".join(sorted(names, key=str.lower)[:_SHOWN])
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return EntityPatternError(f"no {noun} is called '{pattern}'; there are {there or 'none'}{more}")


def _is_pattern(name: str) -> bool:
    return not WILDCARDS.isdisjoint(name)


def _matches(pattern: str, name: str) -> bool:
    """Part by part: ``*`` is no way to the backlog queues of a pair, whose messages are on their way to others."""
    parts, wanted = name.lower().split("/"), pattern.lower().replace("[", "[[]").split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
