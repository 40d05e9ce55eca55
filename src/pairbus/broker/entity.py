"""The entities of a namespace as they live: their settings, their queues, their books."""

from __future__ import annotations

from collections.abc import Iterator

from pairbus.broker.address import Address, subscription_path
from pairbus.broker.descriptions import (
    EntityRecord,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.duplicates import Duplicates
from pairbus.broker.queue import Queue, Usage
from pairbus.broker.rules import Rules


class Holder:
    """What messages lie in and receivers take from: a queue or a subscription, with its two sub-queues."""

    __slots__ = (
        "accessed_ms", "created_ms", "dead_letters", "id", "main", "path", "transfer_dead_letters", "updated_ms",
        "usage",
    )  # fmt: skip

    description: QueueDescription | SubscriptionDescription

    def __init__(
        self, record: EntityRecord, usage: Usage, main: Queue, dead_letters: Queue, transfer_dead_letters: Queue
    ) -> None:
        self.id = record.entity_id
        self.path = record.path
        self.created_ms = self.accessed_ms = record.created_ms
        self.updated_ms = record.updated_ms
        self.usage = usage
        self.main = main
        self.dead_letters = dead_letters
        self.transfer_dead_letters = transfer_dead_letters

    @property
    def address(self) -> Address:
        return self.main.address

    @property
    def full_path(self) -> str:
        return self.path

    @property
    def dead_letter_source(self) -> str:
        """Return the path that dead letters keep when they are forwarded."""
        return self.path

    def queues(self) -> Iterator[Queue]:
        return iter((self.main, self.dead_letters, self.transfer_dead_letters))

    def touch(self, now_ms: int) -> None:
        """Someone uses the entity; what was due before a restart is done later than it was due."""
        self.accessed_ms = max(self.accessed_ms, now_ms)


class QueueEntity(Holder):
    """A queue."""

    __slots__ = ("description", "duplicates")

    def __init__(
        self,
        record: EntityRecord,
        description: QueueDescription,
        usage: Usage,
        queues: tuple[Queue, Queue, Queue],
        duplicates: Duplicates | None,
    ) -> None:
        super().__init__(record, usage, *queues)
        self.description: QueueDescription = description
        self.duplicates = duplicates

    @property
    def intake(self) -> Queue:
        return self.main

    @property
    def copies(self) -> int:
        """How many records a message makes, usually at most."""
        return 1


class SubscriptionEntity(Holder):
    """A subscription: a queue that a topic fills through rules."""

    __slots__ = ("description", "rules", "topic")

    def __init__(
        self,
        record: EntityRecord,
        description: SubscriptionDescription,
        topic: TopicEntity,
        queues: tuple[Queue, Queue, Queue],
    ) -> None:
        super().__init__(record, topic.usage, *queues)
        self.description: SubscriptionDescription = description
        self.topic = topic
        self.rules = Rules()

    @property
    def full_path(self) -> str:
        return subscription_path(self.topic.path, self.path)

    @property
    def dead_letter_source(self) -> str:
        return f"{self.topic.path}/{self.path}"

    def touch(self, now_ms: int) -> None:
        """Someone uses the subscription, and so its topic."""
        super().touch(now_ms)
        self.topic.touch(now_ms)


class TopicEntity:
    """A topic. Messages pass through it; only scheduled ones wait here."""

    __slots__ = (
        "accessed_ms", "created_ms", "description", "duplicates", "id", "intake", "path", "subscriptions", "updated_ms",
        "usage",
    )  # fmt: skip

    def __init__(
        self,
        record: EntityRecord,
        description: TopicDescription,
        usage: Usage,
        scheduled: Queue,
        duplicates: Duplicates | None,
    ) -> None:
        self.id = record.entity_id
        self.path = record.path
        self.created_ms = self.accessed_ms = record.created_ms
        self.updated_ms = record.updated_ms
        self.description = description
        self.usage = usage
        self.intake = scheduled
        self.duplicates = duplicates
        self.subscriptions: dict[str, SubscriptionEntity] = {}

    @property
    def address(self) -> Address:
        return self.intake.address

    @property
    def full_path(self) -> str:
        return self.path

    @property
    def copies(self) -> int:
        """How many records a message makes, usually at most."""
        return 1 + len(self.subscriptions)

    def queues(self) -> Iterator[Queue]:
        return iter((self.intake,))

    def touch(self, now_ms: int) -> None:
        """Someone uses the topic."""
        self.accessed_ms = max(self.accessed_ms, now_ms)


Entity = QueueEntity | TopicEntity | SubscriptionEntity
Destination = QueueEntity | TopicEntity
"""What can be sent to."""
