"""The entities of a namespace: made, changed, found, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pairbus.broker.address import Address, Part, Place, subscription_path
from pairbus.broker.context import Context
from pairbus.broker.descriptions import (
    DEFAULT_RULE,
    AuthorizationRule,
    EntityDescription,
    EntityRecord,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.duplicates import Duplicates, IdMemory
from pairbus.broker.entity import Destination, Entity, Holder, QueueEntity, SubscriptionEntity, TopicEntity
from pairbus.broker.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidDescriptionError,
    InvalidOperationError,
    InvalidRequestError,
    QuotaExceededError,
)
from pairbus.broker.housekeeping import Grave, Housekeeping
from pairbus.broker.idle import Idle
from pairbus.broker.kinds import check_address, check_name_text, check_rule
from pairbus.broker.limits import RELAXED, UNLIMITED
from pairbus.broker.notices import AccessChanged, EntityGone
from pairbus.broker.queue import OnDue, Queue, Usage
from pairbus.broker.rules import Rule, is_sql_filter, make_rule
from pairbus.broker.validation import check_description, check_name, check_path, check_update

_WHATEVER_IS_THERE: Final = replace(RELAXED, expression_characters=UNLIMITED, statements_per_action=UNLIMITED)


def _nothing_due(_queue: Queue, _at_ms: int, _limit: int) -> int:
    return 0


class Catalogue:
    """Finds entities by path and by number, and writes every change of them."""

    def __init__(self, context: Context, housekeeping: Housekeeping) -> None:
        self._context = context
        self._housekeeping = housekeeping
        self._destinations: dict[str, Destination] = {}
        self._by_id: dict[int, Entity] = {}
        self._queues: dict[Address, Queue] = {}
        """Of queues and subscriptions, every part."""

        self._idle: dict[int, Idle] = {}
        self._last_id = 0
        self.id_memory = IdMemory(context.limits.duplicate_ids_in_memory)
        self.on_due: OnDue = _nothing_due

    # Finding

    def find(self, path: str) -> Destination | None:
        return self._destinations.get(path.lower())

    def destination(self, path: str) -> Destination:
        entity = self._destinations.get(path.lower())
        if entity is None:
            raise EntityNotFoundError(f"there is no queue or topic '{path}'", path)
        return entity

    def topic(self, path: str) -> TopicEntity:
        check_name_text(path)
        entity = self._destinations.get(path.lower())
        if not isinstance(entity, TopicEntity):
            raise EntityNotFoundError(f"there is no topic '{path}'", path)
        return entity

    def subscription(self, topic: str, name: str) -> SubscriptionEntity:
        check_name_text(name)
        subscription = self.topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            path = subscription_path(topic, name)
            raise EntityNotFoundError(f"there is no subscription '{name}' of '{topic}'", path)
        return subscription

    def entity(self, address: Address) -> Entity:
        """Whatever the case of its letters."""
        check_address(address)
        if address.subscription is None:
            return self.destination(address.entity)
        return self.subscription(address.entity, address.subscription)

    def holder(self, address: Address) -> Holder:
        """The queue or subscription at an address."""
        entity = self.entity(address)
        if isinstance(entity, TopicEntity):
            raise InvalidOperationError(f"'{entity.path}' is a topic: receive from its subscriptions", entity.path)
        return entity

    def queue(self, address: Address) -> Queue:
        queue = self._queues.get(address)
        if queue is not None:
            return queue
        holder = self.holder(address)
        if address.part is Part.MAIN:
            return holder.main
        return holder.dead_letters if address.part is Part.DEAD_LETTER else holder.transfer_dead_letters

    def holder_of(self, queue: Queue) -> Holder:
        holder = self._by_id[queue.place.entity_id]
        assert isinstance(holder, Holder)  # noqa: S101 (topics keep only what is scheduled)
        return holder

    def owner_of(self, queue: Queue) -> Entity:
        return self._by_id[queue.place.entity_id]

    def destination_of(self, queue: Queue) -> Destination:
        entity = self._by_id[queue.place.entity_id]
        assert not isinstance(entity, SubscriptionEntity)  # noqa: S101 (nothing is scheduled in a subscription)
        return entity

    def by_id(self, entity_id: int) -> Entity | None:
        return self._by_id.get(entity_id)

    def is_alive(self, entity: Entity | Holder) -> bool:
        return entity.id in self._by_id

    def holders(self) -> list[Holder]:
        return [entity for entity in self._by_id.values() if isinstance(entity, Holder)]

    def touch_all(self, now_ms: int) -> None:
        for entity in self._by_id.values():
            entity.accessed_ms = now_ms

    def queues(self) -> Iterator[QueueEntity]:
        return (entity for entity in self._destinations.values() if isinstance(entity, QueueEntity))

    def topics(self) -> Iterator[TopicEntity]:
        return (entity for entity in self._destinations.values() if isinstance(entity, TopicEntity))

    # Making

    def create(self, path: str, description: QueueDescription | TopicDescription, now_ms: int) -> Destination:
        check_path(path, self._context.limits)
        check_description(path, description, self._context.limits)
        if path.lower() in self._destinations:
            raise EntityExistsError(f"there is a queue or topic '{path}' already", path)
        if len(self._destinations) >= self._context.limits.entities:
            raise QuotaExceededError(f"a namespace has at most {self._context.limits.entities} queues and topics", path)
        entity = self.restore(self._new_record(path, self._with_targets(path, description), now_ms))
        assert not isinstance(entity, SubscriptionEntity)  # noqa: S101 (made of another description)
        return entity

    def create_subscription(
        self, topic: TopicEntity, name: str, description: SubscriptionDescription, rule: RuleDescription, now_ms: int
    ) -> SubscriptionEntity:
        limits = self._context.limits
        check_name(name, limits)
        path = subscription_path(topic.path, name)
        check_description(path, description, limits)
        if name.lower() in topic.subscriptions:
            raise EntityExistsError(f"there is a subscription '{name}' of '{topic.path}' already", path)
        if len(topic.subscriptions) >= limits.subscriptions_per_topic:
            raise QuotaExceededError(f"a topic has at most {limits.subscriptions_per_topic} subscriptions", topic.path)
        first = self._new_rule(path, rule, 1, now_ms)
        self._check_rule_count(topic, rule)
        entity = self.restore(self._new_record(name, self._with_targets(path, description), now_ms, topic.id))
        assert isinstance(entity, SubscriptionEntity)  # noqa: S101 (made of its description)
        self._put_rule(entity, first)
        topic.touch(now_ms)
        return entity

    def restore_last_id(self, entity_id: int) -> None:
        self._last_id = max(self._last_id, entity_id)

    def restore(self, record: EntityRecord) -> Entity:
        """Bring an entity to life from what is kept of it."""
        self._last_id = max(self._last_id, record.entity_id)
        description = record.description
        if isinstance(description, SubscriptionDescription):
            entity: Entity = self._restore_subscription(record, description)
        else:
            entity = self._restore_destination(record, description)
        self._by_id[entity.id] = entity
        if isinstance(entity, Holder):
            self._queues.update((queue.address, queue) for queue in entity.queues())
        self._watch(entity)
        return entity

    def _restore_subscription(self, record: EntityRecord, description: SubscriptionDescription) -> SubscriptionEntity:
        topic = self._by_id[record.topic_id or 0]
        assert isinstance(topic, TopicEntity)  # noqa: S101 (topics are restored first)
        queues = self._make_queues(
            Address.of(topic.path, record.path), record, topic.usage, topic.description.partitioned
        )
        entity = SubscriptionEntity(record, description, topic, queues)
        topic.subscriptions[record.path.lower()] = entity
        return entity

    def _restore_destination(
        self, record: EntityRecord, description: QueueDescription | TopicDescription
    ) -> Destination:
        usage = Usage()
        queues = self._make_queues(Address.of(record.path), record, usage, description.partitioned)
        duplicates = None
        if description.requires_duplicate_detection:
            duplicates = Duplicates(
                record.entity_id,
                description.duplicate_window_ms,
                self._context,
                self.id_memory,
                self._housekeeping.add,
            )
        entity: Destination
        if isinstance(description, QueueDescription):
            entity = QueueEntity(record, description, usage, queues, duplicates)
        else:
            entity = TopicEntity(record, description, usage, queues[0], duplicates)
        self._destinations[record.path.lower()] = entity
        return entity

    def _make_queues(
        self, address: Address, record: EntityRecord, usage: Usage, partitioned: bool
    ) -> tuple[Queue, Queue, Queue]:
        partitions = self._context.limits.partitions if partitioned else 1
        has_sessions = getattr(record.description, "requires_session", False)

        def queue(part: Part) -> Queue:
            return Queue(
                address._replace(part=part),
                Place(record.entity_id, part),
                usage,
                self._context,
                self._run_due,
                partitions=partitions,
                has_sessions=has_sessions and part is Part.MAIN,
            )

        return queue(Part.MAIN), queue(Part.DEAD_LETTER), queue(Part.TRANSFER_DEAD_LETTER)

    def _run_due(self, queue: Queue, at_ms: int, limit: int) -> int:
        return self.on_due(queue, at_ms, limit)

    def _new_record(
        self, path: str, description: EntityDescription, now_ms: int, topic_id: int | None = None
    ) -> EntityRecord:
        record = EntityRecord(
            entity_id=self._last_id + 1,
            path=path,
            topic_id=topic_id,
            description=description,
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        self._context.records.put_entity(record)
        self._context.records.put_last_entity_id(record.entity_id)
        return record

    # Changing

    def update(self, entity: Entity, description: EntityDescription, now_ms: int) -> None:
        check_update(entity.full_path, entity.description, description)
        check_description(entity.full_path, description, self._context.limits)
        _check_sessions_are_empty(entity, description)
        description = self._with_targets(entity.full_path, description)
        topic_id = entity.topic.id if isinstance(entity, SubscriptionEntity) else None
        self._context.records.put_entity(
            EntityRecord(
                entity_id=entity.id,
                path=entity.path,
                topic_id=topic_id,
                description=description,
                created_ms=entity.created_ms,
                updated_ms=now_ms,
            )
        )
        if _keys_of(entity.description) != _keys_of(description):
            self._context.notices.append(AccessChanged())
        entity.updated_ms = now_ms
        entity.description = description
        self._follow(entity, now_ms)

    def _follow(self, entity: Entity, now_ms: int) -> None:
        """Let what is already there obey the new settings."""
        if not isinstance(entity, SubscriptionEntity) and entity.duplicates is not None:
            entity.duplicates.set_window(entity.description.duplicate_window_ms, now_ms)
        entity.accessed_ms = now_ms
        self._watch(entity)

    def _with_targets(self, path: str, description: EntityDescription) -> EntityDescription:
        """Return the description with its forwarding targets spelled as they were created; they must exist.

        A queue that does not exist yet cannot be its own target. An update may make it that, as in the service: the
        limit on hops then moves its messages to the dead-letter queue.
        """
        if isinstance(description, TopicDescription):
            return description
        return replace(
            description,
            forward_to=self._target(path, description.forward_to),
            forward_dead_letters_to=self._target(path, description.forward_dead_letters_to),
        )

    def _target(self, path: str, target: str | None) -> str | None:
        if not target:
            return None
        entity = self.find(target)
        if entity is None:
            raise InvalidDescriptionError(f"'{path}' cannot forward to '{target}': there is no such entity", path)
        return entity.path

    # Rules

    def add_rule(self, subscription: SubscriptionEntity, description: RuleDescription, now_ms: int) -> Rule:
        check_rule(subscription.full_path, description)
        if subscription.rules.get(description.name) is not None:
            raise EntityExistsError(f"there is a rule '{description.name}' already", subscription.full_path)
        self._check_rule_count(subscription.topic, description)
        rule = self._new_rule(subscription.full_path, description, subscription.rules.next_position(), now_ms)
        self._put_rule(subscription, rule)
        subscription.touch(now_ms)
        return rule

    def update_rule(self, subscription: SubscriptionEntity, description: RuleDescription) -> Rule:
        check_rule(subscription.full_path, description)
        before = self.rule(subscription, description.name)
        self._check_rule_count(subscription.topic, description, before)
        rule = self._make_rule(subscription.full_path, description, before.position, before.created_ms)
        self._put_rule(subscription, rule)
        return rule

    def rule(self, subscription: SubscriptionEntity, name: str) -> Rule:
        check_name_text(name)
        rule = subscription.rules.get(name)
        if rule is None:
            raise EntityNotFoundError(
                f"there is no rule '{name}' of '{subscription.full_path}'", subscription.full_path
            )
        return rule

    def remove_rule(self, subscription: SubscriptionEntity, name: str) -> None:
        rule = self.rule(subscription, name)
        subscription.rules.remove(rule)
        self._context.records.remove_rule(subscription.id, rule.position)

    def restore_rule(self, entity_id: int, position: int, description: RuleDescription, created_ms: int) -> bool:
        """Whether there is a subscription for it."""
        subscription = self._by_id.get(entity_id)
        if not isinstance(subscription, SubscriptionEntity):
            return False
        # What was allowed when the rule was made is allowed still.
        subscription.rules.add(make_rule(description, position, created_ms, _WHATEVER_IS_THERE, self._context.fresh_id))
        return True

    def _put_rule(self, subscription: SubscriptionEntity, rule: Rule) -> None:
        self._context.records.put_rule(subscription.id, rule.position, rule.description, rule.created_ms)
        subscription.rules.add(rule)

    def _new_rule(self, path: str, description: RuleDescription, position: int, created_ms: int) -> Rule:
        check_rule(path, description)
        if description.name != DEFAULT_RULE:
            check_name(description.name, self._context.limits)
        return self._make_rule(path, description, position, created_ms)

    def _make_rule(self, path: str, description: RuleDescription, position: int, created_ms: int) -> Rule:
        check_rule(path, description)
        try:
            return make_rule(description, position, created_ms, self._context.limits, self._context.fresh_id)
        except InvalidRequestError as error:
            error.entity = path
            raise

    def _check_rule_count(self, topic: TopicEntity, description: RuleDescription, replaced: Rule | None = None) -> None:
        limits = self._context.limits
        is_sql = is_sql_filter(description.filter)
        everyone = [subscription.rules for subscription in topic.subscriptions.values()]
        alike = sum(rules.sql_count if is_sql else rules.correlation_count for rules in everyone)
        alike -= replaced is not None and replaced.is_sql == is_sql
        most = limits.sql_filters_per_topic if is_sql else limits.correlation_filters_per_topic
        if alike >= most:
            kind = "SQL" if is_sql else "correlation"
            raise QuotaExceededError(f"'{topic.path}' has {alike} {kind} filters; more are not allowed", topic.path)

    # Deleting

    def delete(self, entity: Entity) -> None:
        """Strike the entity off; its messages are removed bit by bit."""
        if isinstance(entity, TopicEntity):
            for subscription in list(entity.subscriptions.values()):
                self.delete(subscription)
        if isinstance(entity, SubscriptionEntity):
            del entity.topic.subscriptions[entity.path.lower()]
            for rule in list(entity.rules):
                self._context.records.remove_rule(entity.id, rule.position)
        else:
            del self._destinations[entity.path.lower()]
        del self._by_id[entity.id]
        self._idle.pop(entity.id, None)
        self._context.records.remove_entity(entity.id)
        self._context.notices.append(EntityGone(entity.address))
        if _keys_of(entity.description):
            self._context.notices.append(AccessChanged())
        if self._context.chronicle is not None:
            self._context.chronicle.note_gone(entity.address)
        self._bury(entity)

    def _bury(self, entity: Entity) -> None:
        for queue in entity.queues():
            self._queues.pop(queue.address, None)
            queue.retire()
            queue.usage.size_bytes -= queue.size_bytes
            self._housekeeping.add(Grave(self._context, queue.place, queue.present))
            if queue.sessions is not None:
                for session in queue.sessions:
                    if session.state_updated_ms is not None:
                        self._context.records.put_session_state(entity.id, session.id, None, 0)
        if not isinstance(entity, SubscriptionEntity) and entity.duplicates is not None:
            self._housekeeping.add(entity.duplicates)

    def _watch(self, entity: Entity) -> None:
        idle_ms = entity.description.auto_delete_on_idle_ms
        if idle_ms is not None:
            idle = self._idle.setdefault(entity.id, Idle(entity, self.delete, self.is_alive))
            self._context.agenda.plan(idle, entity.accessed_ms + idle_ms)


def _keys_of(description: EntityDescription) -> tuple[AuthorizationRule, ...]:
    """The keys of an entity; those of a subscription are its topic's."""
    return () if isinstance(description, SubscriptionDescription) else description.authorization_rules


def _check_sessions_are_empty(entity: Entity, description: EntityDescription) -> None:
    """Refuse to start forwarding while messages wait in sessions: nobody could receive them there any more.

    An entity that requires sessions may be created with a target; what it takes in then goes on at once.
    """
    if not isinstance(entity, Holder) or isinstance(description, TopicDescription):
        return
    sessions = entity.main.sessions
    if sessions is None or description.forward_to is None or entity.description.forward_to is not None:
        return
    waiting = sum(len(session.ready) for session in sessions)
    if waiting:
        raise InvalidDescriptionError(
            f"'{entity.full_path}' cannot forward yet: {waiting} messages wait in its sessions; receive them first",
            entity.full_path,
        )
