"""What an entity holds at the moment."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.broker.descriptions import EntityDescription
from pairbus.broker.entity import Entity, SubscriptionEntity, TopicEntity
from pairbus.broker.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityInfo:
    """An entity's settings and its counts, exact at the time of asking."""

    path: str
    description: EntityDescription
    created_ms: int
    updated_ms: int
    accessed_ms: int
    size_bytes: int
    """Of a queue with its dead letters; of a topic with all its subscriptions; of a subscription alone."""

    arrived_count: int = 0
    """How many messages ever came in; with the counts that follow it says how many have left."""

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
        """What is to be received, or is being received, or was put off."""
        return self.ready_count + self.locked_count + self.deferred_count

    @property
    def message_count(self) -> int:
        """All messages, dead letters included."""
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
