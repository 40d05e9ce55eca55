"""The entities of a namespace: creation, changes, lookup and deletion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pairbus.broker.context import BrokerContext
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
from pairbus.broker.entity import (
    Destination,
    Entity,
    IdleTimer,
    QueueEntity,
    ReceivableEntity,
    SubscriptionEntity,
    TopicEntity,
)
from pairbus.broker.errors import (
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    InvalidDescriptionError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    QuotaExceededError,
    RuleQuotaExceededError,
    SessionLockLostError,
)
from pairbus.broker.housekeeping import DeletedEntity, Housekeeping
from pairbus.broker.limits import RELAXED, UNLIMITED
from pairbus.broker.message import Address, QueueId, QueuePart, subscription_path
from pairbus.broker.ports import AccessChanged, EntityGone
from pairbus.broker.queue import OnDue, Queue, Usage
from pairbus.broker.rules import Rule, is_sql_filter, make_rule
from pairbus.broker.session import Lock, QueueSession
from pairbus.broker.validation import (
    Unchecked,
    check_address,
    check_description,
    check_keys,
    check_list,
    check_name,
    check_name_text,
    check_path,
    check_rule,
    check_token,
    check_update,
    is_authorization_rule,
)

_NO_EXPRESSION_LIMITS: Final = replace(RELAXED, expression_characters=UNLIMITED, statements_per_action=UNLIMITED)


def _nothing_due(_queue: Queue, _at_ms: int, _limit: int) -> int:
    return 0


class Catalogue:
    """The index of entities by path and by id. It writes every change of an entity to the records."""

    def __init__(self, context: BrokerContext, housekeeping: Housekeeping) -> None:
        self._context = context
        self._housekeeping = housekeeping
        self._destinations: dict[str, Destination] = {}
        self._by_id: dict[int, Entity] = {}
        self._queues: dict[Address, Queue] = {}
        """Every part of every queue and subscription."""

        self._idle: dict[int, IdleTimer] = {}
        self._last_id = 0
        self.id_memory = IdMemory(context.limits.duplicate_ids_in_memory)
        self.on_due: OnDue = _nothing_due

    # Lookup

    def find(self, path: str) -> Destination | None:
        return self._destinations.get(path.lower())

    def destination(self, path: str) -> Destination:
        entity = self._destinations.get(path.lower())
        if entity is None:
            raise EntityNotFoundError(f"there is no queue or topic '{path}'", path)
        return entity

    def topic(self, path: Unchecked) -> TopicEntity:
        check_name_text(path)
        entity = self._destinations.get(path.lower())
        if not isinstance(entity, TopicEntity):
            raise EntityNotFoundError(f"there is no topic '{path}'", path)
        return entity

    def subscription(self, topic: Unchecked, name: Unchecked) -> SubscriptionEntity:
        check_name_text(name)
        subscription = self.topic(topic).subscriptions.get(name.lower())
        if subscription is None:
            path = subscription_path(topic, name)
            raise EntityNotFoundError(f"there is no subscription '{name}' of '{topic}'", path)
        return subscription

    def entity(self, address: Unchecked) -> Entity:
        """Return the entity at an address; names compare without regard to case."""
        check_address(address)
        if address.subscription is None:
            return self.destination(address.entity)
        return self.subscription(address.entity, address.subscription)

    def holder(self, address: Unchecked) -> ReceivableEntity:
        """Return the queue or subscription at an address."""
        entity = self.entity(address)
        if isinstance(entity, TopicEntity):
            raise InvalidOperationError(f"'{entity.path}' is a topic: receive from its subscriptions", entity.path)
        return entity

    def queue(self, address: Unchecked) -> Queue:
        queue = self._queues.get(address)
        if queue is not None:
            return queue
        holder = self.holder(address)
        if address.part is QueuePart.MAIN:
            return holder.main
        return holder.dead_letters if address.part is QueuePart.DEAD_LETTER else holder.transfer_dead_letters

    def find_queue(self, address: Unchecked) -> Queue | None:
        """Return a part of a queue or subscription; ``None`` if there is none at the address."""
        return self._queues.get(address)

    def all_queues(self) -> Iterator[Queue]:
        """Iterate over the queues of all entities that exist at the start; entities may change meanwhile."""
        for entity in [*self._by_id.values()]:
            yield from entity.queues()

    def holder_of(self, queue: Queue) -> ReceivableEntity:
        holder = self._by_id[queue.place.entity_id]
        assert isinstance(holder, ReceivableEntity)  # noqa: S101 (topics only hold scheduled messages)
        return holder

    def owner_of(self, queue: Queue) -> Entity:
        return self._by_id[queue.place.entity_id]

    def destination_of(self, queue: Queue) -> Destination:
        entity = self._by_id[queue.place.entity_id]
        assert not isinstance(entity, SubscriptionEntity)  # noqa: S101 (nothing is scheduled in a subscription)
        return entity

    def by_id(self, entity_id: int) -> Entity | None:
        return self._by_id.get(entity_id)

    def is_alive(self, entity: Entity | ReceivableEntity) -> bool:
        return entity.id in self._by_id

    def holders(self) -> list[ReceivableEntity]:
        return [entity for entity in self._by_id.values() if isinstance(entity, ReceivableEntity)]

    def touch_all(self, now_ms: int) -> None:
        for entity in self._by_id.values():
            entity.accessed_ms = now_ms

    def queues(self) -> Iterator[QueueEntity]:
        return (entity for entity in self._destinations.values() if isinstance(entity, QueueEntity))

    def topics(self) -> Iterator[TopicEntity]:
        return (entity for entity in self._destinations.values() if isinstance(entity, TopicEntity))

    # Creation

    def create(self, path: Unchecked, description: QueueDescription | TopicDescription, now_ms: int) -> Destination:
        check_path(path, self._context.limits)
        check_description(path, description, self._context.limits)
        if path.lower() in self._destinations:
            raise EntityExistsError(f"a queue or topic '{path}' already exists", path)
        if len(self._destinations) >= self._context.limits.entities:
            raise QuotaExceededError(
                f"the namespace already has {self._context.limits.entities} queues and topics, the maximum", path
            )
        entity = self.restore(self._new_record(path, self._with_targets(path, description), now_ms))
        assert not isinstance(entity, SubscriptionEntity)  # noqa: S101 (created from another kind of description)
        return entity

    def create_subscription(
        self, topic: TopicEntity, name: Unchecked, description: SubscriptionDescription, rule: Unchecked, now_ms: int
    ) -> SubscriptionEntity:
        limits = self._context.limits
        check_name(name, limits)
        path = subscription_path(topic.path, name)
        check_description(path, description, limits)
        if name.lower() in topic.subscriptions:
            raise EntityExistsError(f"a subscription '{name}' of '{topic.path}' already exists", path)
        if len(topic.subscriptions) >= limits.subscriptions_per_topic:
            raise QuotaExceededError(
                f"'{topic.path}' already has {limits.subscriptions_per_topic} subscriptions, the maximum", topic.path
            )
        first = self._new_rule(path, rule, 1, now_ms)
        self._check_rule_count(topic, rule)
        entity = self.restore(self._new_record(name, self._with_targets(path, description), now_ms, topic.id))
        assert isinstance(entity, SubscriptionEntity)  # noqa: S101 (created from its description)
        self._put_rule(entity, first)
        topic.touch(now_ms)
        return entity

    @property
    def last_id(self) -> int:
        """Return the highest id that was ever assigned."""
        return self._last_id

    def entity_records(self) -> Iterator[EntityRecord]:
        """Iterate over the records of all entities."""
        return map(_record_of, self._by_id.values())

    def subscription_rules(self) -> Iterator[tuple[int, Rule]]:
        """Iterate over the rules of all subscriptions, each with the id of its subscription."""
        for entity in self._by_id.values():
            if isinstance(entity, SubscriptionEntity):
                yield from ((entity.id, rule) for rule in entity.rules)

    def restore_last_id(self, entity_id: int) -> None:
        self._last_id = max(self._last_id, entity_id)

    def restore(self, record: EntityRecord) -> Entity:
        """Rebuild an entity from its record and return it."""
        self._last_id = max(self._last_id, record.entity_id)
        description = record.description
        if isinstance(description, SubscriptionDescription):
            entity: Entity = self._restore_subscription(record, description)
        else:
            entity = self._restore_destination(record, description)
        self._by_id[entity.id] = entity
        if isinstance(entity, ReceivableEntity):
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

        def queue(part: QueuePart) -> Queue:
            return Queue(
                address._replace(part=part),
                QueueId(record.entity_id, part),
                usage,
                self._context,
                self._run_due,
                partitions=partitions,
                has_sessions=has_sessions and part is QueuePart.MAIN,
            )

        return queue(QueuePart.MAIN), queue(QueuePart.DEAD_LETTER), queue(QueuePart.TRANSFER_DEAD_LETTER)

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

    # Updates

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
        """Apply the new settings to what the entity already holds."""
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

    def add_rule(self, subscription: SubscriptionEntity, description: Unchecked, now_ms: int) -> Rule:
        check_rule(subscription.full_path, description)
        if subscription.rules.get(description.name) is not None:
            raise EntityExistsError(f"a rule '{description.name}' already exists", subscription.full_path)
        self._check_room_for_rule(subscription)
        self._check_rule_count(subscription.topic, description)
        rule = self._new_rule(subscription.full_path, description, subscription.rules.next_position(), now_ms)
        self._put_rule(subscription, rule)
        subscription.touch(now_ms)
        return rule

    def update_rule(self, subscription: SubscriptionEntity, description: Unchecked) -> Rule:
        check_rule(subscription.full_path, description)
        before = self.rule(subscription, description.name)
        self._check_rule_count(subscription.topic, description, before)
        rule = self._make_rule(subscription.full_path, description, before.position, before.created_ms)
        self._put_rule(subscription, rule)
        return rule

    def rule(self, subscription: SubscriptionEntity, name: Unchecked) -> Rule:
        check_name_text(name)
        rule = subscription.rules.get(name)
        if rule is None:
            raise EntityNotFoundError(
                f"there is no rule '{name}' of '{subscription.full_path}'", subscription.full_path
            )
        return rule

    def remove_rule(self, subscription: SubscriptionEntity, name: Unchecked) -> None:
        rule = self.rule(subscription, name)
        subscription.rules.remove(rule)
        self._context.records.remove_rule(subscription.id, rule.position)

    def restore_rule(self, entity_id: int, position: int, description: RuleDescription, created_ms: int) -> bool:
        """Rebuild a rule from its record; return whether its subscription exists."""
        subscription = self._by_id.get(entity_id)
        if not isinstance(subscription, SubscriptionEntity):
            return False
        # A rule that was within the limits when it was created stays valid.
        subscription.rules.add(
            make_rule(description, position, created_ms, _NO_EXPRESSION_LIMITS, self._context.fresh_id)
        )
        return True

    def _put_rule(self, subscription: SubscriptionEntity, rule: Rule) -> None:
        self._context.records.put_rule(subscription.id, rule.position, rule.description, rule.created_ms)
        subscription.rules.add(rule)

    def _new_rule(self, path: str, description: Unchecked, position: int, created_ms: int) -> Rule:
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

    def _check_room_for_rule(self, subscription: SubscriptionEntity) -> None:
        maximum = self._context.limits.rules_per_subscription
        if len(subscription.rules) >= maximum:
            path = subscription.full_path
            raise RuleQuotaExceededError(f"'{path}' has {maximum} rules, the maximum (rules_per_subscription)", path)

    def _check_rule_count(self, topic: TopicEntity, description: RuleDescription, replaced: Rule | None = None) -> None:
        limits = self._context.limits
        is_sql = is_sql_filter(description.filter)
        all_rules = [subscription.rules for subscription in topic.subscriptions.values()]
        count = sum(rules.sql_count if is_sql else rules.correlation_count for rules in all_rules)
        count -= replaced is not None and replaced.is_sql == is_sql
        maximum = limits.sql_filters_per_topic if is_sql else limits.correlation_filters_per_topic
        if count >= maximum:
            kind = "SQL" if is_sql else "correlation"
            raise QuotaExceededError(f"'{topic.path}' already has {count} {kind} filters, the maximum", topic.path)

    # Deletion

    def delete(self, entity: Entity) -> None:
        """Delete the entity at once; its messages are removed step by step."""
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
        if self._context.event_sink is not None:
            self._context.event_sink.note_gone(entity.address)
        self._retire(entity)

    def _retire(self, entity: Entity) -> None:
        for queue in entity.queues():
            self._queues.pop(queue.address, None)
            queue.retire()
            queue.usage.size_bytes -= queue.size_bytes
            self._housekeeping.add(DeletedEntity(self._context, queue.place, queue.present))
            if queue.sessions is not None:
                for session in queue.sessions:
                    if session.state_updated_ms is not None:
                        self._context.records.put_session_state(entity.id, session.id, None, 0)
        if not isinstance(entity, SubscriptionEntity) and entity.duplicates is not None:
            self._housekeeping.add(entity.duplicates)

    def _watch(self, entity: Entity) -> None:
        idle_ms = entity.description.auto_delete_on_idle_ms
        if idle_ms is not None:
            idle = self._idle.setdefault(entity.id, IdleTimer(entity, self.delete, self.is_alive))
            self._context.timers.plan(idle, entity.accessed_ms + idle_ms)


def _record_of(entity: Entity) -> EntityRecord:
    return EntityRecord(
        entity_id=entity.id,
        path=entity.path,
        topic_id=entity.topic.id if isinstance(entity, SubscriptionEntity) else None,
        description=entity.description,
        created_ms=entity.created_ms,
        updated_ms=entity.updated_ms,
    )


def _keys_of(description: EntityDescription) -> tuple[AuthorizationRule, ...]:
    """Return the keys of an entity; a subscription has those of its topic."""
    return () if isinstance(description, SubscriptionDescription) else description.authorization_rules


def _check_sessions_are_empty(entity: Entity, description: EntityDescription) -> None:
    """Raise ``InvalidDescriptionError`` if forwarding would start while messages wait in sessions, where no receiver
    could get them any more.

    An entity that requires sessions may be created with a target: it forwards every message on arrival.
    """
    if not isinstance(entity, ReceivableEntity) or isinstance(description, TopicDescription):
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


_NAMESPACE = "the namespace"


class AuthorizationRules:
    """The authorization rules of the namespace, and the lookup of those that a token can be checked against.

    The broker knows which key grants which rights; the server verifies that a token was signed with a key.
    """

    def __init__(self, context: BrokerContext, catalogue: Catalogue) -> None:
        self._context = context
        self._catalogue = catalogue
        self.rules: tuple[AuthorizationRule, ...] = ()

    def set_rules(self, rules: Unchecked) -> None:
        check_list(rules, "authorization rules")
        if not all(is_authorization_rule(rule) for rule in rules):
            raise InvalidDescriptionError("rules must be a list of AuthorizationRule", _NAMESPACE)
        maximum = self._context.limits.authorization_rules
        if len(rules) > maximum:
            raise InvalidDescriptionError(f"a namespace has at most {maximum} authorization rules", _NAMESPACE)
        check_keys(_NAMESPACE, rules)
        self._context.records.put_access(tuple(rules))
        self._context.notices.append(AccessChanged())
        self.rules = tuple(rules)

    def restore(self, rules: Sequence[AuthorizationRule]) -> None:
        self.rules = tuple(rules)

    def candidates(self, key_name: str, address: Any) -> list[AuthorizationRule]:
        """Return the rules of that name that grant access to an address: the entity's own, then the namespace's.

        An entity that does not exist has no rules, so an unauthorized caller cannot find out whether it exists.
        """
        name = key_name.lower()
        return [rule for rule in (*self._entity_rules(address), *self.rules) if rule.name.lower() == name]

    def _entity_rules(self, address: Any) -> tuple[AuthorizationRule, ...]:
        if address is None:
            return ()
        try:
            entity = self._catalogue.entity(address)
        except EntityNotFoundError:
            return ()
        holder = entity.topic if isinstance(entity, SubscriptionEntity) else entity  # the topic's keys grant access
        return holder.description.authorization_rules


class Lookup:
    """The lookup of entities, queues, sessions and locks by address or token, with checks that the use is allowed."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def entity_itself(self, address: Unchecked) -> Entity:
        """Return the entity at an address; raise ``InvalidOperationError`` if the address names a part of one."""
        check_address(address)
        if address.part is not QueuePart.MAIN:
            raise InvalidOperationError(
                f"'{address}' is a part of an entity; name the entity, or use delete_messages to empty the part",
                str(address),
            )
        return self._catalogue.entity(address)

    def sendable(self, address: Unchecked) -> Destination:
        check_address(address)
        if address.subscription is not None or address.part is not QueuePart.MAIN:
            raise InvalidOperationError(f"'{address}' cannot be sent to: send to its queue or topic", str(address))
        return self._catalogue.destination(address.entity)

    def receivable(self, address: Unchecked) -> tuple[ReceivableEntity, Queue]:
        check_address(address)
        queue = self._catalogue.queue(address)
        holder = self._catalogue.holder_of(queue)
        description = holder.description
        if not description.status.can_receive:
            raise EntityDisabledError(
                f"'{address}' is {description.status}: messages cannot be received from it", holder.full_path
            )
        if address.part is QueuePart.MAIN and description.forward_to is not None:
            raise InvalidOperationError(_why_not_here(address, holder, description.forward_to), holder.full_path)
        return holder, queue

    def session(self, queue: Queue, token: Unchecked, now_ms: int) -> QueueSession | None:
        """Return the session that a token belongs to; ``None`` if the queue has no sessions."""
        if queue.sessions is None:
            if token is not None:
                raise InvalidOperationError(f"'{queue.address}' has no sessions", str(queue.address))
            return None
        if token is None:
            raise InvalidOperationError(f"'{queue.address}' requires sessions: accept one first", str(queue.address))
        check_token(token)
        session = queue.sessions.held(token)
        if session is None or session.until_ms <= now_ms:
            raise SessionLockLostError(
                f"the lock on the session of '{queue.address}' has ended: accept the session again", str(queue.address)
            )
        return session

    def held(self, address: Unchecked, token: Unchecked, now_ms: int) -> tuple[Queue, QueueSession]:
        queue = self._catalogue.queue(address)
        session = self.session(queue, token, now_ms)
        if session is None:
            raise InvalidOperationError(f"'{address}' has no sessions", str(address))
        return queue, session

    def locked(self, address: Unchecked, token: Unchecked, now_ms: int) -> tuple[Queue, Lock]:
        check_token(token)
        queue = self._catalogue.queue(address)
        lock = queue.lock_by_token(token)
        # An expired lock may still be here if much else became due at the same time.
        if lock is not None and (lock.until_ms if lock.session is None else lock.session.until_ms) > now_ms:
            return queue, lock
        if queue.sessions is not None:
            raise SessionLockLostError(
                f"the message of '{address}' is no longer locked: it was settled, or the lock on its session has ended",
                str(address),
            )
        raise LockLostError(
            f"the message of '{address}' is no longer locked: it was settled, or its lock has expired and it will be"
            " delivered again",
            str(address),
        )


def _why_not_here(address: Address, holder: ReceivableEntity, target: str) -> str:
    if isinstance(holder, QueueEntity) and target == holder.path:
        return f"'{target}' forwards to itself: its messages are in its dead-letter queue; clear forward_to to receive"
    return f"'{address}' forwards to '{target}': receive there"
