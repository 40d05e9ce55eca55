"""Where messages lie: an entity of the namespace, and which part of it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pairbus.broker.errors import InvalidRequestError


class Part(IntEnum):
    """The queues that a queue or a subscription consists of."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


class Address(NamedTuple):
    """A queue, a topic or a subscription, or a part of one. Names compare without regard to case; see ``of``."""

    entity: str
    subscription: str | None = None
    part: Part = Part.MAIN

    @classmethod
    def of(cls, entity: str, subscription: str | None = None, part: Part = Part.MAIN) -> Address:
        """The address as the broker looks it up: two spellings that differ in case only give the same one."""
        names: tuple[object, object] = entity, subscription
        if not isinstance(names[0], str) or not isinstance(names[1], str | None):
            raise InvalidRequestError(f"{names} are no names of entities; a part of an entity is given as part=…")
        return cls(entity.lower(), None if subscription is None else subscription.lower(), part)

    def __str__(self) -> str:
        path = self.entity if self.subscription is None else subscription_path(self.entity, self.subscription)
        return path if self.part is Part.MAIN else f"{path} ({self.part.name.lower().replace('_', ' ')})"


def subscription_path(topic: str, name: str) -> str:
    """Return the path that clients receive from."""
    return f"{topic}/Subscriptions/{name}"


class Place(NamedTuple):
    """The same as numbers that never change and are never used again: what the store keys messages by."""

    entity_id: int
    part: int
