"""A namespace after a restart: what the store has kept, taken in piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pairbus.broker.access import Access
from pairbus.broker.address import Place
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.chronicle import Moment
from pairbus.broker.context import Context
from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.duplicates import Removal
from pairbus.broker.entity import Holder, QueueEntity, TopicEntity
from pairbus.broker.housekeeping import Grave, Housekeeping
from pairbus.broker.message import MessageState, Record, unreadable
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.queue import Queue
from pairbus.broker.sequences import Sequences


class Restoration:
    """Takes in entities (topics before their subscriptions), then rules, then the rest in any order; then ``finish``.

    What no entity claims is the rest of a deleted one, and is removed; except of entities that are to be left alone.
    Every number of an entity that is seen anywhere is taken, whatever the counters say.
    """

    def __init__(
        self,
        context: Context,
        catalogue: Catalogue,
        access: Access,
        housekeeping: Housekeeping,
        pump: Callable[[Holder], None],
        quarantine: Quarantine,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._access = access
        self._housekeeping = housekeeping
        self._pump = pump
        self._quarantine = quarantine
        self._damaged: list[tuple[Queue, int]] = []
        self._orphans: dict[Place, Sequences] = {}
        self._left_alone: set[int] = set()

    def last_ids(self, entity_id: int, body_id: int) -> None:
        """The highest numbers that were ever given; none of them is given again."""
        self._catalogue.restore_last_id(entity_id)
        self._context.bodies.restore_last_id(body_id)

    def leave_alone(self, entity_id: int) -> None:
        """An entity is there that cannot be read: nothing of it is touched."""
        self._catalogue.restore_last_id(entity_id)
        self._left_alone.add(entity_id)

    def access(self, rules: Sequence[AuthorizationRule]) -> None:
        self._access.restore(rules)

    def entity(self, record: EntityRecord) -> None:
        self._catalogue.restore(record)

    def rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> bool:
        """Whether anyone claims the rule."""
        self._catalogue.restore_last_id(entity_id)
        return self._catalogue.restore_rule(entity_id, position, rule, created_ms) or entity_id in self._left_alone

    def last_sequence(self, place: Place, partition: int, sequence: int) -> bool:
        """Whether anyone claims the counter."""
        self._catalogue.restore_last_id(place.entity_id)
        queue = self._queue_at(place)
        if queue is None:
            return place.entity_id in self._left_alone
        queue.restore_last_sequence(partition, sequence)
        return True

    def records(self, place: Place, records: Iterable[Record]) -> int:
        """The messages of one queue, in the order of their numbers; how many it has."""
        self._catalogue.restore_last_id(place.entity_id)
        queue = self._queue_at(place)
        bodies = self._context.bodies
        orphans = Sequences()
        for record in records:
            bodies.restore(record)
            if queue is not None:
                queue.restore(record)
                self._note(queue, record)
            else:
                orphans.add(record.sequence)
        if queue is None and place.entity_id not in self._left_alone:
            self._orphans[place] = orphans
        return 0 if queue is None else len(queue)

    def damaged_record(self, place: Place, sequence: int) -> bool:
        """Have ``finish`` leave a stub of a message whose record cannot be read; return whether an entity claims it."""
        queue = self._queue_at(place)
        if queue is not None:
            self._damaged.append((queue, sequence))
        return queue is not None

    def _note(self, queue: Queue, record: Record) -> None:
        chronicle = self._context.chronicle
        if chronicle is not None:
            body = self._context.records.body(record.body_id) if chronicle.wants_body(queue.address) else None
            chronicle.note(Moment.FOUND, queue.address, record, body)
            if record.state is MessageState.SCHEDULED:
                chronicle.note(Moment.SCHEDULED, queue.address, record)

    def session_state(self, entity_id: int, session_id: str, updated_ms: int) -> bool:
        """Whether anyone claims the state."""
        self._catalogue.restore_last_id(entity_id)
        entity = self._catalogue.by_id(entity_id)
        if not isinstance(entity, Holder) or entity.main.sessions is None:
            return entity_id in self._left_alone
        entity.main.sessions.open(session_id).state_updated_ms = updated_ms
        return True

    def duplicates(self, entity_id: int, history: Iterable[tuple[int, str, int]]) -> None:
        """Take in what an entity has seen: when, the id, and the number of its message."""
        self._catalogue.restore_last_id(entity_id)
        entity = self._catalogue.by_id(entity_id)
        if isinstance(entity, QueueEntity | TopicEntity) and entity.duplicates is not None:
            entity.duplicates.restore(history)
        elif entity_id not in self._left_alone:
            self._housekeeping.add(Removal(self._context.records, entity_id))

    def finish(self, now_ms: int) -> None:
        """Nobody could use an entity while there was no process, so nobody has let it lie idle."""
        for place, sequences in self._orphans.items():
            self._housekeeping.add(Grave(self._context, place, sequences))
        self._orphans.clear()
        self._catalogue.touch_all(now_ms)
        for queue, sequence in self._damaged:
            if self._context.chronicle is not None:
                self._context.chronicle.note(Moment.SET_ASIDE, queue.address, unreadable(sequence))
            self._quarantine.leave_stub(queue, sequence, None, now_ms)
        for holder in self._catalogue.holders():
            self._pump(holder)

    def _queue_at(self, place: Place) -> Queue | None:
        entity = self._catalogue.by_id(place.entity_id)
        if entity is None:
            return None
        return next((queue for queue in entity.queues() if queue.place == place), None)
