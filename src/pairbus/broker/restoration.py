"""Restoration of a namespace after a restart, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pairbus.broker.catalogue import AuthorizationRules, Catalogue
from pairbus.broker.context import BrokerContext
from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.duplicates import DuplicateCleanup
from pairbus.broker.entity import QueueEntity, ReceivableEntity, TopicEntity
from pairbus.broker.housekeeping import DeletedEntity, Housekeeping
from pairbus.broker.message import MessageState, QueueId, Record, RecordBatch, unreadable
from pairbus.broker.ports import MessageEvent
from pairbus.broker.queue import PARTITION_SHIFT, Queue
from pairbus.broker.repair import LostMessages, Quarantine
from pairbus.broker.session import Sequences


class NamespaceRestore:
    """Loads stored records: entities (topics before their subscriptions), then rules, then the rest; then ``finish``.

    Records that no entity claims belong to a deleted one and are removed, except those of entities that are left alone.
    Every sequence number of an entity that is found anywhere counts as used, regardless of the counters.
    """

    def __init__(
        self,
        context: BrokerContext,
        catalogue: Catalogue,
        access: AuthorizationRules,
        housekeeping: Housekeeping,
        schedule_forwarding: Callable[[ReceivableEntity], None],
        quarantine: Quarantine,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._access = access
        self._housekeeping = housekeeping
        self._schedule_forwarding = schedule_forwarding
        self._quarantine = quarantine
        self._damaged: list[tuple[Queue, int]] = []
        self._lost: list[tuple[Queue, int]] = []
        self._orphans: dict[QueueId, Sequences] = {}
        self._left_alone: set[int] = set()

    def last_ids(self, entity_id: int, body_id: int) -> None:
        """Restore the highest ids that were ever assigned; none of them is reused."""
        self._catalogue.restore_last_id(entity_id)
        self._context.bodies.restore_last_id(body_id)

    def leave_alone(self, entity_id: int) -> None:
        """Leave all records of an entity untouched, because its own record cannot be read."""
        self._catalogue.restore_last_id(entity_id)
        self._left_alone.add(entity_id)

    def access(self, rules: Sequence[AuthorizationRule]) -> None:
        self._access.restore(rules)

    def entity(self, record: EntityRecord) -> None:
        self._catalogue.restore(record)

    def rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> bool:
        """Restore a rule; return whether a subscription claims it."""
        self._catalogue.restore_last_id(entity_id)
        return self._catalogue.restore_rule(entity_id, position, rule, created_ms) or entity_id in self._left_alone

    def last_sequence(self, place: QueueId, partition: int, sequence: int) -> bool:
        """Restore a sequence counter; return whether an entity claims it."""
        self._catalogue.restore_last_id(place.entity_id)
        queue = self._queue_at(place)
        if queue is None:
            return place.entity_id in self._left_alone
        queue.restore_last_sequence(partition, sequence)
        return True

    @property
    def needs_records(self) -> bool:
        """Return whether batches must have the records of all messages, because an event reports each of them."""
        event_sink = self._context.event_sink
        return event_sink is not None and event_sink.wants_found()

    def records(self, place: QueueId, batch: RecordBatch) -> int:
        """Restore the next messages of a queue; return how many there are, of a queue that exists."""
        self._catalogue.restore_last_id(place.entity_id)
        self._context.bodies.restore_last_id(batch.last_body_id)
        self._context.bodies.restore_shared(batch.shared_bodies)
        queue = self._queue_at(place)
        if queue is None:
            if place.entity_id not in self._left_alone:
                self._orphans.setdefault(place, Sequences()).extend(batch.sequences)
            return 0
        queue.restore_all(batch)
        if self.needs_records:
            for record in batch.others:
                self._note(queue, record)
        return len(batch.sequences)

    def damaged_record(self, place: QueueId, sequence: int) -> bool:
        """Make ``finish`` leave a stub of a message whose record cannot be read; return whether an entity claims it."""
        queue = self._queue_at(place)
        if queue is not None:
            self._damaged.append((queue, sequence))
        return queue is not None

    def lost_message(self, place: QueueId, sequence: int, record: Record | None) -> bool:
        """Make the background work leave a stub of a message that a repair has lost.

        ``record`` is ``None`` if its record is lost, too. Return whether an entity claims it.
        """
        self._catalogue.restore_last_id(place.entity_id)
        queue = self._queue_at(place)
        if record is not None:
            self._context.bodies.restore_last_id(record.body_id)
        if queue is None:
            return place.entity_id in self._left_alone
        if record is not None:
            queue.restore_last_sequence(sequence >> PARTITION_SHIFT, sequence)
        self._lost.append((queue, sequence))
        return True

    def _note(self, queue: Queue, record: Record) -> None:
        event_sink = self._context.event_sink
        if event_sink is not None:
            body = self._context.records.body(record.body_id) if event_sink.wants_body(queue.address) else None
            event_sink.note(MessageEvent.FOUND, queue.address, record, body)
            if record.state is MessageState.SCHEDULED:
                event_sink.note(MessageEvent.SCHEDULED, queue.address, record)

    def session_state(self, entity_id: int, session_id: str, updated_ms: int) -> bool:
        """Restore a session state; return whether an entity claims it."""
        self._catalogue.restore_last_id(entity_id)
        entity = self._catalogue.by_id(entity_id)
        if entity is None or isinstance(entity, TopicEntity) or entity.main.sessions is None:
            return entity_id in self._left_alone
        entity.main.sessions.open(session_id).state_updated_ms = updated_ms
        return True

    def duplicates(self, entity_id: int, history: Iterable[tuple[int, str, int]]) -> None:
        """Restore the duplicate history of an entity: for each entry the time, the id, and the sequence number."""
        self._catalogue.restore_last_id(entity_id)
        entity = self._catalogue.by_id(entity_id)
        if isinstance(entity, QueueEntity | TopicEntity) and entity.duplicates is not None:
            entity.duplicates.restore(history)
        elif entity_id not in self._left_alone:
            self._housekeeping.add(DuplicateCleanup(self._context.records, entity_id))

    def finish(self, now_ms: int) -> None:
        """Complete the restoration. No entity counts as idle for the time in which no process ran."""
        for place, sequences in self._orphans.items():
            self._housekeeping.add(DeletedEntity(self._context, place, sequences))
        self._orphans.clear()
        self._catalogue.touch_all(now_ms)
        for queue, sequence in self._damaged:
            if self._context.event_sink is not None:
                self._context.event_sink.note(MessageEvent.SET_ASIDE, queue.address, unreadable(sequence))
            self._quarantine.leave_stub(queue, sequence, None, now_ms)
        if self._lost:
            self._housekeeping.add_first(LostMessages(self._context, self._quarantine, self._lost))
        for holder in self._catalogue.holders():
            self._schedule_forwarding(holder)

    def _queue_at(self, place: QueueId) -> Queue | None:
        entity = self._catalogue.by_id(place.entity_id)
        if entity is None:
            return None
        return next((queue for queue in entity.queues() if queue.place == place), None)
