"""The entities of the primary namespace that messages are sent to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.broker import QueueDescription, SubscriptionDescription, TopicDescription
from tests.faults.namespace import VirtualNamespace

_DELIVERIES: Final = 1_000_000
"""A receiver that is cut off again and again is no reason to give a message up."""

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A queue or a topic, and where its messages are received."""

    path: str
    is_unique: bool = False
    """True if it detects duplicates, over a day, which is longer than any run."""
    has_sessions: bool = False
    subscriptions: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """Return the entities that messages are received from."""
        return tuple(f"{self.path}/Subscriptions/{name}" for name in self.subscriptions) or (self.path,)

    def create(self, namespace: VirtualNamespace) -> None:
        if not self.subscriptions:
            namespace.create_queue(self.path, self._queue)
            return
        topic = TopicDescription(requires_duplicate_detection=self.is_unique, duplicate_window_ms=_DAY_MS)
        namespace.create_topic(self.path, description=topic)
        for name in self.subscriptions:
            subscription = SubscriptionDescription(requires_session=self.has_sessions, max_delivery_count=_DELIVERIES)
            namespace.create_subscription(self.path, name, subscription)

    @property
    def _queue(self) -> QueueDescription:
        return QueueDescription(
            requires_duplicate_detection=self.is_unique,
            duplicate_window_ms=_DAY_MS,
            requires_session=self.has_sessions,
            max_delivery_count=_DELIVERIES,
        )


ENTITIES: Final = (
    Entity(path="plain"),
    Entity(path="unique", is_unique=True),
    Entity(path="visits", has_sessions=True),
    Entity(path="unique-visits", is_unique=True, has_sessions=True),
    Entity(path="news", subscriptions=("first", "second")),
    Entity(path="unique-news", is_unique=True, subscriptions=("first", "second")),
    Entity(path="visit-news", has_sessions=True, subscriptions=("first", "second")),
)
