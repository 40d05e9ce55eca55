"""Addresses of queues: an entity of the namespace, and a part of it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pairbus.broker.errors import InvalidRequestError


class QueuePart(IntEnum):
    """The queues that a queue or a subscription consists of."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


class Address(NamedTuple):
    """A queue, a topic or a subscription, or a part of one. Names compare without regard to case; see ``of``."""

    entity: str
    subscription: str | None = None
    part: QueuePart = QueuePart.MAIN

    @classmethod
    def of(cls, entity: str, subscription: str | None = None, part: QueuePart = QueuePart.MAIN) -> Address:
        """Return the normalised address: spellings that differ only in case give the same address."""
        names: tuple[object, object] = entity, subscription
        if not isinstance(names[0], str) or not isinstance(names[1], str | None):
            raise InvalidRequestError(f"entity names must be text, got {names}; pass a part of an entity as part=…")
        return cls(entity.lower(), None if subscription is None else subscription.lower(), part)

    def is_within(self, other: Address) -> bool:
        """Return whether this is the entity of another address, a part of it, or a subscription of it."""
        return self.entity == other.entity and other.subscription in {None, self.subscription}

    def __str__(self) -> str:
        path = self.entity if self.subscription is None else subscription_path(self.entity, self.subscription)
        return path if self.part is QueuePart.MAIN else f"{path} ({self.part.name.lower().replace('_', ' ')})"


def subscription_path(topic: str, name: str) -> str:
    """Return the path that clients receive from."""
    return f"{topic}/Subscriptions/{name}"


class QueueId(NamedTuple):
    """A queue, identified by numbers that never change and are never reused: the store's key for its messages."""

    entity_id: int
    part: int
