"""The entities of a namespace at run time: their settings, queues and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pairbus.broker.descriptions import (
    EntityDescription,
    EntityRecord,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.duplicates import Duplicates
from pairbus.broker.message import Address, subscription_path
from pairbus.broker.queue import Queue, Usage
from pairbus.broker.rules import Rules


class _MessageHolder:
    """The common part of queues and subscriptions, each of which has a ``description`` of its own type."""

    __slots__ = (
        "accessed_ms", "created_ms", "dead_letters", "id", "main", "path", "transfer_dead_letters", "updated_ms",
        "usage",
    )  # fmt: skip

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
        """Return the path that dead letters carry when they are forwarded."""
        return self.path

    def queues(self) -> Iterator[Queue]:
        return iter((self.main, self.dead_letters, self.transfer_dead_letters))

    def touch(self, now_ms: int) -> None:
        """Record that the entity is in use. What was due before a restart is done later than it was due."""
        self.accessed_ms = max(self.accessed_ms, now_ms)


class QueueEntity(_MessageHolder):
    """A queue of the namespace."""

    __slots__ = ("description", "duplicates")

    def __init__(
        self,
        record: EntityRecord,
        description: QueueDescription,
        usage: Usage,
        queues: tuple[Queue, Queue, Queue],
        duplicates: Duplicates | None,
    ) -> None:
        main, dead_letters, transfer_dead_letters = queues
        super().__init__(record, usage, main, dead_letters, transfer_dead_letters)
        self.description = description
        self.duplicates = duplicates

    @property
    def intake(self) -> Queue:
        return self.main

    @property
    def copies(self) -> int:
        """Return the usual maximum number of records per message."""
        return 1


class SubscriptionEntity(_MessageHolder):
    """A subscription: a queue that a topic fills through rules."""

    __slots__ = ("description", "rules", "topic")

    def __init__(
        self,
        record: EntityRecord,
        description: SubscriptionDescription,
        topic: TopicEntity,
        queues: tuple[Queue, Queue, Queue],
    ) -> None:
        main, dead_letters, transfer_dead_letters = queues
        super().__init__(record, topic.usage, main, dead_letters, transfer_dead_letters)
        self.description = description
        self.topic = topic
        self.rules = Rules()

    @property
    def full_path(self) -> str:
        return subscription_path(self.topic.path, self.path)

    @property
    def dead_letter_source(self) -> str:
        return f"{self.topic.path}/{self.path}"

    def touch(self, now_ms: int) -> None:
        """Record that the subscription, and so its topic, is in use."""
        super().touch(now_ms)
        self.topic.touch(now_ms)


class TopicEntity:
    """A topic. Messages pass through it; it only holds scheduled ones."""

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
        """Return the usual maximum number of records per message."""
        return 1 + len(self.subscriptions)

    def queues(self) -> Iterator[Queue]:
        return iter((self.intake,))

    def touch(self, now_ms: int) -> None:
        """Record that the topic is in use."""
        self.accessed_ms = max(self.accessed_ms, now_ms)


ReceivableEntity = QueueEntity | SubscriptionEntity
"""An entity that holds messages for receivers, with its two sub-queues."""

Entity = QueueEntity | TopicEntity | SubscriptionEntity
Destination = QueueEntity | TopicEntity
"""An entity that accepts sends."""


class IdleTimer:
    """The idle timer of one entity. An entity that forwards, or holds scheduled messages, is never idle."""

    __slots__ = ("_delete", "_entity", "_in_use_ms", "_is_alive", "planned_ms")

    def __init__(self, entity: Entity, delete: Callable[[Entity], None], is_alive: Callable[[Entity], bool]) -> None:
        self._entity = entity
        self._delete = delete
        self._is_alive = is_alive
        self._in_use_ms = 0
        self.planned_ms: int | None = None

    def next_ms(self) -> int | None:
        idle_ms = self._entity.description.auto_delete_on_idle_ms
        return (
            None
            if idle_ms is None or not self._is_alive(self._entity)
            else max(self._entity.accessed_ms, self._in_use_ms) + idle_ms
        )

    def run(self, at_ms: int, _limit: int) -> int:
        due_ms = self.next_ms()
        if due_ms is not None and due_ms <= at_ms:
            if self._is_in_use():
                self._in_use_ms = at_ms
            else:
                self._delete(self._entity)
        return 1

    def _is_in_use(self) -> bool:
        if isinstance(self._entity, TopicEntity):
            return bool(self._entity.intake.scheduled)
        return self._entity.description.forward_to is not None or bool(self._entity.main.scheduled)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityInfo:
    """An entity's settings and its counts, exact at the time of the request."""

    path: str
    description: EntityDescription
    created_ms: int
    updated_ms: int
    accessed_ms: int
    size_bytes: int
    """For a queue, with its dead letters; for a topic, with all its subscriptions; for a subscription, its own
    messages.
    """

    arrived_count: int = 0
    """Number of messages that ever arrived; minus the counts below, it gives the number that have left."""

    ready_count: int = 0
    locked_count: int = 0
    deferred_count: int = 0
    scheduled_count: int = 0
    dead_letter_count: int = 0
    transfer_dead_letter_count: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0

    @property
    def active_count(self) -> int:
        """Return the number of ready, locked and deferred messages."""
        return self.ready_count + self.locked_count + self.deferred_count

    @property
    def message_count(self) -> int:
        """Return the number of all messages, dead letters included."""
        return self.active_count + self.scheduled_count + self.dead_letter_count + self.transfer_dead_letter_count


def entity_info(entity: Entity) -> EntityInfo:
    if isinstance(entity, TopicEntity):
        return _topic_info(entity)
    size = sum(queue.size_bytes for queue in entity.queues())
    main = entity.main
    rules = entity.rules if isinstance(entity, SubscriptionEntity) else Rules()
    return EntityInfo(
        path=entity.path,
        description=entity.description,
        created_ms=entity.created_ms,
        updated_ms=entity.updated_ms,
        accessed_ms=entity.accessed_ms,
        size_bytes=size,
        arrived_count=main.arrived_count,
        ready_count=main.ready_count,
        locked_count=main.locked_count,
        deferred_count=len(main.deferred),
        scheduled_count=len(main.scheduled),
        dead_letter_count=len(entity.dead_letters),
        transfer_dead_letter_count=len(entity.transfer_dead_letters),
        sql_filter_count=rules.sql_count,
        correlation_filter_count=rules.correlation_count,
    )


def _topic_info(topic: TopicEntity) -> EntityInfo:
    rules = [subscription.rules for subscription in topic.subscriptions.values()]
    return EntityInfo(
        path=topic.path,
        description=topic.description,
        created_ms=topic.created_ms,
        updated_ms=topic.updated_ms,
        accessed_ms=topic.accessed_ms,
        size_bytes=topic.usage.size_bytes,
        arrived_count=topic.intake.arrived_count,
        scheduled_count=len(topic.intake.scheduled),
        subscription_count=len(topic.subscriptions),
        sql_filter_count=sum(each.sql_count for each in rules),
        correlation_filter_count=sum(each.correlation_count for each in rules),
    )
