"""The messaging service of one namespace: every operation, deterministic.

Each method is one atomic request. It takes the time as an argument, brings everything up to that time first, then
either refuses with a ``BrokerError`` and changes nothing, or writes its changes through ``Records`` and answers.
Whoever calls makes these changes durable before passing the answer on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple
from uuid import UUID

from pairbus.broker.address import Address, Part, Place
from pairbus.broker.admission import check_message, check_send
from pairbus.broker.agenda import Agenda
from pairbus.broker.bodies import Bodies
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.context import Context
from pairbus.broker.descriptions import (
    EntityRecord,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entity import Destination, Holder, QueueEntity, TopicEntity
from pairbus.broker.errors import (
    EntityDisabledError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    SessionLockedError,
    SessionLockLostError,
)
from pairbus.broker.housekeeping import Grave, Housekeeping, Pump
from pairbus.broker.limits import STANDARD, Limits
from pairbus.broker.lock import Lock
from pairbus.broker.message import Delivery, Message, PropertyView, Record
from pairbus.broker.notices import Notice
from pairbus.broker.operations import Operation, Send, Settle
from pairbus.broker.queue import Queue
from pairbus.broker.records import Records
from pairbus.broker.router import Router
from pairbus.broker.rules import Rule
from pairbus.broker.runtime import EntityInfo, entity_info
from pairbus.broker.sequences import Sequences
from pairbus.broker.session import Session
from pairbus.broker.settlement import Disposition, Settlement, Verdict
from pairbus.broker.timekeeper import Timekeeper

DUE_AT_ONCE: Final = 10_000
"""How much of what has become due one request brings up to date, at most. (A receiver never gets an expired message,
however much is due.)"""

_COMPLETE: Final = Verdict()


class SessionGrant(NamedTuple):
    """A session that a receiver has now."""

    session_id: str
    session_token: bytes
    locked_until_ms: int


class Namespace:
    """The state machine. See the module's text."""

    def __init__(
        self,
        records: Records,
        *,
        limits: Limits = STANDARD,
        view: Callable[[bytes], PropertyView],
        fresh_id: Callable[[], UUID],
        fresh_token: Callable[[], bytes],
    ) -> None:
        """``view`` looks into an encoded message for rules; the ``fresh_…`` give a new value with each call."""
        self._context = Context(
            limits=limits,
            records=records,
            bodies=Bodies(records),
            agenda=Agenda(),
            view=view,
            fresh_id=fresh_id,
            fresh_token=fresh_token,
        )
        self._records = records
        self._limits = limits
        self._housekeeping = Housekeeping()
        self._catalogue = Catalogue(self._context, self._housekeeping)
        self._router = Router(self._context, self._catalogue.find)
        self._settlement = Settlement(self._context, self._router, self._catalogue.holder_of)
        timekeeper = Timekeeper(self._context, self._router, self._settlement, self._catalogue.destination_of)
        self._catalogue.on_due = timekeeper.run
        self._orphans: dict[Place, Sequences] = {}
        self._left_alone: set[int] = set()
        self._now_ms = 0

    # Time

    def advance(self, now_ms: int, limit: int = DUE_AT_ONCE) -> int:
        """Bring everything up to a time. Time does not run backwards: an earlier one counts as the latest seen."""
        self._now_ms = max(self._now_ms, now_ms)
        self._context.agenda.advance(self._now_ms, limit)
        return self._now_ms

    def next_due_ms(self) -> int | None:
        """When ``advance`` should be called at the latest."""
        return self._context.agenda.next_ms()

    def tidy(self, now_ms: int, steps: int = 1_000) -> bool:
        """Do a part of what deleting and forwarding have left to do; whether there is more."""
        return self._housekeeping.run(self.advance(now_ms), steps)

    def take_woken(self) -> list[Address]:
        """Where something can be received that could not when this was called last."""
        woken = list(self._context.woken)
        self._context.woken.clear()
        return woken

    def take_notices(self) -> list[Notice]:
        """What happened by itself since this was called last."""
        notices = list(self._context.notices)
        self._context.notices.clear()
        return notices

    # Entities

    def create_queue(self, path: str, description: QueueDescription, now_ms: int) -> EntityInfo:
        return entity_info(self._catalogue.create(path, description, self.advance(now_ms)))

    def create_topic(self, path: str, description: TopicDescription, now_ms: int) -> EntityInfo:
        return entity_info(self._catalogue.create(path, description, self.advance(now_ms)))

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        now_ms: int,
        rule: RuleDescription | None = None,
    ) -> EntityInfo:
        """A new subscription with one rule; by default one that lets everything through."""
        now_ms = self.advance(now_ms)
        return entity_info(
            self._catalogue.create_subscription(
                self._catalogue.topic(topic), name, description, rule or RuleDescription(), now_ms
            )
        )

    def update(
        self,
        address: Address,
        description: QueueDescription | TopicDescription | SubscriptionDescription,
        now_ms: int,
    ) -> EntityInfo:
        """Replace the settings of an entity. Messages that wait where it forwards now are moved on by ``tidy``."""
        now_ms = self.advance(now_ms)
        entity = self._catalogue.entity(address)
        self._catalogue.update(entity, description, now_ms)
        if isinstance(entity, Holder):
            self._pump(entity, entity.main, entity.description.forward_to)
            self._pump(entity, entity.dead_letters, entity.description.forward_dead_letters_to)
        return entity_info(entity)

    def delete(self, address: Address, now_ms: int) -> None:
        """Delete an entity with its messages; a topic takes its subscriptions with it."""
        self.advance(now_ms)
        self._catalogue.delete(self._catalogue.entity(address))

    def entity(self, address: Address, now_ms: int) -> EntityInfo:
        self.advance(now_ms)
        return entity_info(self._catalogue.entity(address))

    def queues(self, now_ms: int) -> list[EntityInfo]:
        self.advance(now_ms)
        return [entity_info(entity) for entity in self._catalogue.queues()]

    def topics(self, now_ms: int) -> list[EntityInfo]:
        self.advance(now_ms)
        return [entity_info(entity) for entity in self._catalogue.topics()]

    def subscriptions(self, topic: str, now_ms: int) -> list[EntityInfo]:
        self.advance(now_ms)
        return [entity_info(entity) for entity in self._catalogue.topic(topic).subscriptions.values()]

    def touch(self, address: Address, now_ms: int) -> None:
        """Someone has a link open to the entity: it is not idle."""
        now_ms = self.advance(now_ms)
        self._catalogue.entity(address).accessed_ms = now_ms

    # Rules

    def add_rule(self, topic: str, subscription: str, rule: RuleDescription, now_ms: int) -> Rule:
        now_ms = self.advance(now_ms)
        return self._catalogue.add_rule(self._catalogue.subscription(topic, subscription), rule, now_ms)

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription, now_ms: int) -> Rule:
        self.advance(now_ms)
        return self._catalogue.update_rule(self._catalogue.subscription(topic, subscription), rule)

    def remove_rule(self, topic: str, subscription: str, name: str, now_ms: int) -> None:
        self.advance(now_ms)
        self._catalogue.remove_rule(self._catalogue.subscription(topic, subscription), name)

    def rules(self, topic: str, subscription: str) -> list[Rule]:
        return list(self._catalogue.subscription(topic, subscription).rules)

    # Sending

    def send(self, address: Address, messages: Sequence[Message], now_ms: int) -> list[int | None]:
        """Take messages in, all or none. The sequence number of each; ``None`` for a ping or a duplicate.

        A message with a scheduled time in the future waits for it under that number.
        """
        now_ms = self.advance(now_ms)
        entity = self._sendable(address)
        self._records.admit(check_send(entity, messages, self._limits))
        entity.accessed_ms = now_ms
        accept = self._router.accept
        return [accept(entity, message, now_ms) for message in messages]

    def cancel_scheduled(self, address: Address, sequences: Sequence[int], now_ms: int) -> None:
        """Remove messages that still wait for their time, all or none."""
        now_ms = self.advance(now_ms)
        entity = self._sendable(address)
        queue = entity.intake
        for sequence in sequences:
            if sequence not in queue.scheduled:
                raise MessageNotFoundError(f"'{entity.path}' has no scheduled message {sequence}", entity.path)
        entity.accessed_ms = now_ms
        for sequence in dict.fromkeys(sequences):
            record = self._read(queue, sequence)
            if record is not None:
                queue.take(record)
                self._settlement.discard(queue, record)

    # Receiving

    def receive(
        self,
        address: Address,
        max_count: int,
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
    ) -> list[Delivery]:
        """Lock the next messages for a receiver, or give them away for good (receive-and-delete)."""
        now_ms = self.advance(now_ms)
        holder, queue = self._receivable(address)
        session = self._session(queue, session_token)
        holder.accessed_ms = now_ms
        deliveries: list[Delivery] = []
        while len(deliveries) < max_count:
            sequence = queue.next_ready(session)
            if sequence is None:
                break
            delivery = self._deliver(holder, queue, sequence, session, now_ms, delete=delete)
            if delivery is not None:
                deliveries.append(delivery)
        return deliveries

    def receive_deferred(
        self,
        address: Address,
        sequences: Sequence[int],
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
    ) -> list[Delivery]:
        """Lock, or take for good, messages that were deferred, all or none."""
        now_ms = self.advance(now_ms)
        holder, queue = self._receivable(address)
        session = self._session(queue, session_token)
        wanted = list(dict.fromkeys(sequences))
        self._expire_deferred(queue, wanted, now_ms)
        for sequence in wanted:
            if sequence not in queue.deferred or (session is not None and sequence not in session.present):
                raise MessageNotFoundError(f"'{address}' has no deferred message {sequence}", holder.full_path)
        holder.accessed_ms = now_ms
        deliveries: list[Delivery] = []
        for sequence in wanted:
            record = self._read(queue, sequence)
            if record is not None:
                queue.take(record)
                delivery = self._deliver(holder, queue, sequence, session, now_ms, delete=delete)
                if delivery is not None:
                    deliveries.append(delivery)
        return deliveries

    def peek(
        self, address: Address, from_sequence: int, max_count: int, now_ms: int, session_id: str | None = None
    ) -> list[Delivery]:
        """Look at messages in the order of their numbers, whatever their state, without a lock."""
        self.advance(now_ms)
        entity = self._catalogue.entity(address)
        queue = entity.intake if isinstance(entity, TopicEntity) else self._catalogue.queue(address)
        present = queue.present
        if session_id is not None and queue.sessions is not None:
            session = queue.sessions.get(session_id)
            present = Sequences() if session is None else session.present
        return list(islice(self._looks(queue, present.since(from_sequence)), max_count))

    def delete_messages(
        self,
        address: Address,
        max_count: int,
        now_ms: int,
        *,
        from_sequence: int = 0,
        to_sequence: int | None = None,
        enqueued_before_ms: int | None = None,
        session_token: bytes | None = None,
    ) -> int:
        """Remove messages that no one has, oldest first; how many.

        Locked, deferred and scheduled messages are left alone, and so are sessions that another receiver holds.
        """
        now_ms = self.advance(now_ms)
        holder, queue = self._receivable(address)
        session = None if session_token is None else self._session(queue, session_token)
        holder.accessed_ms = now_ms
        present = queue.present if session is None else session.present
        chosen: list[Record] = []
        for sequence in present.since(from_sequence):
            if len(chosen) == min(max_count, self._limits.messages_per_delete):
                break
            if to_sequence is not None and sequence > to_sequence:
                break
            record = self._records.record(queue.place, sequence) if queue.is_ready(sequence) else None
            if record is None or not _is_free(queue, record, session):
                continue
            if enqueued_before_ms is None or record.enqueued_ms < enqueued_before_ms:
                chosen.append(record)
            elif queue.partitions == 1:
                break
        for record in chosen:
            queue.take(record)
            self._settlement.discard(queue, record)
        return len(chosen)

    # Settling

    def settle(self, address: Address, lock_token: bytes, now_ms: int, verdict: Verdict = _COMPLETE) -> None:
        """Say what becomes of a locked message."""
        now_ms = self.advance(now_ms)
        queue, lock = self._locked(address, lock_token)
        _check_verdict(queue, verdict)
        self._settlement.settle(queue, lock, verdict, now_ms)

    def renew_lock(self, address: Address, lock_token: bytes, now_ms: int) -> int:
        """Keep a message for another lock duration; until when."""
        now_ms = self.advance(now_ms)
        queue, lock = self._locked(address, lock_token)
        if lock.session is not None:
            raise InvalidOperationError(
                "the message is locked with its session: renew the session's lock", str(address)
            )
        until_ms = now_ms + self._catalogue.holder_of(queue).description.lock_duration_ms
        queue.renew(lock, until_ms)
        return until_ms

    # Sessions

    def accept_session(self, address: Address, session_id: str | None, now_ms: int) -> SessionGrant | None:
        """Take a session, or (``None``) the next one that has messages and no holder; ``None`` if there is none."""
        now_ms = self.advance(now_ms)
        holder, queue = self._receivable(address)
        if queue.sessions is None:
            raise InvalidOperationError(f"'{address}' has no sessions", holder.full_path)
        if session_id is None:
            session = queue.sessions.next_available()
        else:
            self._check_session_id(session_id, holder)
            session = queue.sessions.open(session_id)
        if session is None:
            return None
        if session.token is not None:
            raise SessionLockedError(f"session '{session.id}' of '{address}' is held by another receiver", holder.path)
        holder.accessed_ms = now_ms
        until_ms = now_ms + holder.description.lock_duration_ms
        return SessionGrant(session.id, queue.hold(session, until_ms), until_ms)

    def renew_session(self, address: Address, session_token: bytes, now_ms: int) -> int:
        now_ms = self.advance(now_ms)
        queue, session = self._held(address, session_token)
        until_ms = now_ms + self._catalogue.holder_of(queue).description.lock_duration_ms
        queue.sessions_of().extend(session, until_ms)
        self._context.agenda.plan(queue, until_ms)
        return until_ms

    def release_session(self, address: Address, session_token: bytes, now_ms: int) -> None:
        """Let a session go. Its locked messages come back as if they had not been delivered."""
        now_ms = self.advance(now_ms)
        queue, session = self._held(address, session_token)
        for lock in queue.locks_of(session):
            self._settlement.settle(queue, lock, Verdict(disposition=Disposition.RELEASE), now_ms)
        queue.let_go(session)

    def session_state(self, address: Address, session_token: bytes, now_ms: int) -> bytes | None:
        self.advance(now_ms)
        queue, session = self._held(address, session_token)
        if session.state_updated_ms is None:
            return None
        return self._records.session_state(queue.place.entity_id, session.id)

    def set_session_state(self, address: Address, session_token: bytes, state: bytes | None, now_ms: int) -> None:
        """Keep a state with the session, messages or not; ``None`` removes it."""
        now_ms = self.advance(now_ms)
        queue, session = self._held(address, session_token)
        if state is not None and len(state) > self._limits.message_bytes:
            raise InvalidRequestError(
                f"the state has {len(state)} bytes; at most {self._limits.message_bytes} are allowed", str(address)
            )
        self._records.admit(len(state or b""))
        self._records.put_session_state(queue.place.entity_id, session.id, state, now_ms)
        session.state_updated_ms = None if state is None else now_ms

    def sessions(self, address: Address, now_ms: int, updated_after_ms: int | None = None) -> list[str]:
        """The sessions that have messages; or, from a time on, those whose state was set since."""
        self.advance(now_ms)
        queue = self._catalogue.queue(address)
        if queue.sessions is None:
            raise InvalidOperationError(f"'{address}' has no sessions", str(address))
        if updated_after_ms is None:
            return sorted(session.id for session in queue.sessions if session.present)
        return sorted(
            session.id
            for session in queue.sessions
            if session.state_updated_ms is not None and session.state_updated_ms > updated_after_ms
        )

    # Transactions

    def transact(self, operations: Sequence[Operation], now_ms: int) -> list[list[int | None]]:
        """Do all of these or none. The answer to each send; an empty one to each settlement.

        Room is judged as if all sends came first: what the settlements free counts afterwards.
        """
        now_ms = self.advance(now_ms)
        self._check_transaction(operations)
        return [self._perform(operation, now_ms) for operation in operations]

    def _check_transaction(self, operations: Sequence[Operation]) -> None:
        count = sum(len(operation.messages) if isinstance(operation, Send) else 1 for operation in operations)
        if count > self._limits.messages_per_transaction:
            raise InvalidRequestError(
                f"the transaction has {count} messages; at most {self._limits.messages_per_transaction} are allowed"
            )
        pending: dict[int, int] = {}
        tokens: set[bytes] = set()
        if count_sent := sum(
            len(message.body) for sent in operations if isinstance(sent, Send) for message in sent.messages
        ):
            self._records.admit(count_sent)
        for operation in operations:
            if isinstance(operation, Send):
                self._check_send(operation, pending)
            else:
                self._check_settle(operation, tokens)

    def _check_send(self, operation: Send, pending: dict[int, int]) -> None:
        if operation.via is not None:
            self._catalogue.holder(operation.via)
            entity = self._catalogue.find(operation.address.entity)
            if entity is not None:
                for message in operation.messages:
                    check_message(entity, message, self._limits)
            return
        entity = self._sendable(operation.address)
        before = pending.get(entity.id, 0)
        pending[entity.id] = before + check_send(entity, operation.messages, self._limits, before)

    def _check_settle(self, operation: Settle, tokens: set[bytes]) -> None:
        queue, _ = self._locked(operation.address, operation.lock_token)
        _check_verdict(queue, operation.verdict)
        if operation.lock_token in tokens:
            raise LockLostError("the transaction settles the same message twice", str(operation.address))
        tokens.add(operation.lock_token)

    def _perform(self, operation: Operation, now_ms: int) -> list[int | None]:
        if isinstance(operation, Settle):
            queue, lock = self._locked(operation.address, operation.lock_token)
            self._settlement.settle(queue, lock, operation.verdict, now_ms)
            return []
        if operation.via is not None:
            via = self._catalogue.holder(operation.via)
            entity = self._catalogue.find(operation.address.entity)
            return [self._router.transfer(via, entity, message, now_ms) for message in operation.messages]
        entity = self._sendable(operation.address)
        entity.accessed_ms = now_ms
        return [self._router.accept(entity, message, now_ms) for message in operation.messages]

    # Restart: what the store has kept, in the order entities, rules, the rest; then ``started``

    def restore_last_ids(self, entity_id: int, body_id: int) -> None:
        """The highest numbers that were ever given; none of them is given again."""
        self._catalogue.restore_last_id(entity_id)
        self._context.bodies.restore_last_id(body_id)

    def leave_alone(self, entity_id: int) -> None:
        """An entity is there that cannot be read: nothing of it is touched."""
        self._left_alone.add(entity_id)

    def restore_entity(self, record: EntityRecord) -> None:
        self._catalogue.restore(record)

    def restore_rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> None:
        self._catalogue.restore_rule(entity_id, position, rule, created_ms)

    def restore_last_sequence(self, place: Place, partition: int, sequence: int) -> None:
        queue = self._queue_at(place)
        if queue is not None:
            queue.restore_last_sequence(partition, sequence)

    def restore_records(self, place: Place, records: Iterable[Record]) -> int:
        """The messages of one queue, in the order of their numbers; how many it has."""
        queue = self._queue_at(place)
        bodies = self._context.bodies
        orphans = Sequences()
        for record in records:
            bodies.restore(record)
            if queue is not None:
                queue.restore(record)
            else:
                orphans.add(record.sequence)
        if queue is None and place.entity_id not in self._left_alone:
            self._orphans[place] = orphans
        return 0 if queue is None else len(queue)

    def restore_session_state(self, entity_id: int, session_id: str, updated_ms: int) -> bool:
        """Whether anyone claims the state."""
        entity = self._catalogue.by_id(entity_id)
        if not isinstance(entity, Holder) or entity.main.sessions is None:
            return entity_id in self._left_alone
        entity.main.sessions.open(session_id).state_updated_ms = updated_ms
        return True

    def restore_duplicates(self, entity_id: int, history: Sequence[tuple[int, str]]) -> bool:
        """What an entity has seen, in the order of time; whether anyone claims it."""
        entity = self._catalogue.by_id(entity_id)
        if not isinstance(entity, QueueEntity | TopicEntity) or entity.duplicates is None:
            return entity_id in self._left_alone
        for first_ms, key in history:
            entity.duplicates.restore(key, first_ms)
        due_ms = entity.duplicates.next_ms()
        if due_ms is not None:
            self._context.agenda.plan(entity.duplicates, due_ms)
        return True

    def started(self, now_ms: int) -> None:
        """Go on where the last process stopped. Nobody has used any entity for as long as nobody could."""
        for place, sequences in self._orphans.items():
            self._housekeeping.add(Grave(self._context, place, sequences))
        self._orphans.clear()
        self._catalogue.touch_all(now_ms)
        for holder in self._catalogue.holders():
            self._pump(holder, holder.main, holder.description.forward_to)
            self._pump(holder, holder.dead_letters, holder.description.forward_dead_letters_to)
        self.advance(now_ms)
        self._context.woken.clear()

    def _queue_at(self, place: Place) -> Queue | None:
        entity = self._catalogue.by_id(place.entity_id)
        if entity is None:
            return None
        return next((queue for queue in entity.queues() if queue.place == place), None)

    # Finding, with the errors that go with it

    def _sendable(self, address: Address) -> Destination:
        if address.subscription is not None or address.part is not Part.MAIN:
            raise InvalidOperationError(f"'{address}' cannot be sent to: send to its queue or topic", str(address))
        return self._catalogue.destination(address.entity)

    def _receivable(self, address: Address) -> tuple[Holder, Queue]:
        holder = self._catalogue.holder(address)
        description = holder.description
        if not description.status.can_receive:
            raise EntityDisabledError(f"'{address}' is {description.status}: it gives no messages", holder.full_path)
        if address.part is Part.MAIN and description.forward_to is not None:
            raise InvalidOperationError(
                f"'{address}' forwards to '{description.forward_to}': receive there", holder.full_path
            )
        return holder, self._catalogue.queue(address)

    def _session(self, queue: Queue, token: bytes | None) -> Session | None:
        if queue.sessions is None:
            if token is not None:
                raise InvalidOperationError(f"'{queue.address}' has no sessions", str(queue.address))
            return None
        if token is None:
            raise InvalidOperationError(f"'{queue.address}' requires sessions: accept one first", str(queue.address))
        session = queue.sessions.held(token)
        if session is None:
            raise SessionLockLostError(f"the lock on the session of '{queue.address}' has ended", str(queue.address))
        return session

    def _held(self, address: Address, token: bytes) -> tuple[Queue, Session]:
        queue = self._catalogue.queue(address)
        session = self._session(queue, token)
        if session is None:
            raise InvalidOperationError(f"'{address}' has no sessions", str(address))
        return queue, session

    def _locked(self, address: Address, token: bytes) -> tuple[Queue, Lock]:
        queue = self._catalogue.queue(address)
        lock = queue.lock_by_token(token)
        if lock is None:
            if queue.sessions is not None:
                raise SessionLockLostError(f"the message of '{address}' is no longer locked", str(address))
            raise LockLostError(
                f"the message of '{address}' is no longer locked: it was settled, or its lock has expired;"
                " it will be delivered again if it was not settled",
                str(address),
            )
        return queue, lock

    def _check_session_id(self, session_id: str, holder: Holder) -> None:
        if len(session_id) > self._limits.id_characters:
            raise InvalidRequestError(
                f"the session id has {len(session_id)} characters; at most {self._limits.id_characters} are allowed",
                holder.full_path,
            )

    # Reading

    def _deliver(
        self, holder: Holder, queue: Queue, sequence: int, session: Session | None, now_ms: int, *, delete: bool
    ) -> Delivery | None:
        """Hand out a message that was taken; ``None`` if it turns out that there is nothing to hand out."""
        record = self._read(queue, sequence)
        if record is None:
            return None
        if record.expires_ms <= now_ms:
            self._settlement.expire(queue, record, now_ms)
            return None
        body = self._records.body(record.body_id)
        if body is None:
            queue.set_aside(sequence, record)
            return None
        if delete:
            self._settlement.discard(queue, record)
            return Delivery(record, body)
        until_ms = now_ms + holder.description.lock_duration_ms if session is None else session.until_ms
        lock = queue.lock(record, until_ms, session)
        return Delivery(record, body, lock.token, until_ms)

    def _expire_deferred(self, queue: Queue, sequences: Iterable[int], now_ms: int) -> None:
        """A deferred message outlives its time until someone asks for it."""
        for sequence in sequences:
            record = self._read(queue, sequence) if sequence in queue.deferred else None
            if record is not None and record.expires_ms <= now_ms:
                queue.take(record)
                self._settlement.expire(queue, record, now_ms)

    def _read(self, queue: Queue, sequence: int) -> Record | None:
        record = self._records.record(queue.place, sequence)
        if record is None:
            queue.set_aside(sequence)
        return record

    def _looks(self, queue: Queue, sequences: Iterator[int]) -> Iterator[Delivery]:
        for sequence in sequences:
            record = self._records.record(queue.place, sequence)
            body = None if record is None else self._records.body(record.body_id)
            if record is not None and body is not None:
                yield Delivery(record, body)

    def _pump(self, holder: Holder, queue: Queue, target: str | None) -> None:
        if target is not None and queue.ready_count:
            self._housekeeping.add(Pump(self._router, self._context, holder, queue, self._catalogue.is_alive))


def _is_free(queue: Queue, record: Record, session: Session | None) -> bool:
    """Whether no other receiver holds the message's session."""
    if queue.sessions is None or record.session_id is None or session is not None:
        return True
    owner = queue.sessions.get(record.session_id)
    return owner is None or owner.token is None


def _check_verdict(queue: Queue, verdict: Verdict) -> None:
    if verdict.disposition is Disposition.DEAD_LETTER and queue.place.part != Part.MAIN:
        raise InvalidOperationError(
            f"'{queue.address}' holds dead letters: complete the message instead", str(queue.address)
        )
