"""The messaging service of one namespace: every operation, deterministic.

Each method is one atomic request. It takes the time as an argument, brings everything up to that time first, then
either refuses with a ``BrokerError`` and changes nothing, or writes its changes through ``Records`` and answers.
Whoever calls makes these changes durable before passing the answer on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, NamedTuple
from uuid import UUID

from pairbus.broker.access import Access
from pairbus.broker.address import Address
from pairbus.broker.admission import check_send
from pairbus.broker.agenda import Agenda
from pairbus.broker.bodies import Bodies
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.chronicle import Chronicle, Moment
from pairbus.broker.context import Context
from pairbus.broker.descriptions import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entity import Entity, Holder, TopicEntity
from pairbus.broker.errors import (
    EntityNotFoundError,
    InvalidOperationError,
    InvalidRequestError,
    MessageNotFoundError,
    SessionLockedError,
)
from pairbus.broker.housekeeping import Housekeeping, Pump
from pairbus.broker.kinds import check_name_text, check_number, check_numbers, check_settings, check_text, check_time
from pairbus.broker.limits import STANDARD, Limits
from pairbus.broker.lookup import Lookup
from pairbus.broker.message import NEVER, Delivery, Message, PropertyView
from pairbus.broker.notices import Notice
from pairbus.broker.operations import Operation
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.receiving import Receiving
from pairbus.broker.records import Records
from pairbus.broker.restoration import Restoration
from pairbus.broker.router import Router
from pairbus.broker.rules import Rule
from pairbus.broker.runtime import EntityInfo, entity_info
from pairbus.broker.sequences import Sequences
from pairbus.broker.settlement import COMPLETE, Disposition, Settlement, Verdict, check_verdict
from pairbus.broker.timekeeper import Timekeeper
from pairbus.broker.transaction import Transaction

DUE_AT_ONCE: Final = 10_000
"""How much of what has become due one request brings up to date, at most. (A receiver never gets an expired message,
however much is due.)"""


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
        stub_body: bytes = b"",
        chronicle: Chronicle | None = None,
    ) -> None:
        """``view`` looks into an encoded message for rules; the ``fresh_…`` give a new value with each call.

        ``stub_body`` is the encoded message that dead-letter queues get in place of one that cannot be read.
        """
        self._context = Context(
            limits=limits,
            records=records,
            bodies=Bodies(records),
            agenda=Agenda(),
            view=view,
            fresh_id=fresh_id,
            fresh_token=fresh_token,
            stub_body=stub_body,
            chronicle=chronicle,
        )
        self._agenda = self._context.agenda
        self._records = records
        self._limits = limits
        self._housekeeping = Housekeeping()
        self._catalogue = Catalogue(self._context, self._housekeeping)
        self._router = Router(self._context, self._catalogue.find)
        self._quarantine = Quarantine(self._context, self._router, self._catalogue.owner_of)
        self._settlement = Settlement(self._context, self._router, self._quarantine, self._catalogue.holder_of)
        self._receiving = Receiving(self._context, self._settlement, self._quarantine)
        self._lookup = Lookup(self._catalogue)
        self._access = Access(self._context, self._catalogue)
        self._transaction = Transaction(self._context, self._catalogue, self._lookup, self._router, self._settlement)
        self._timekeeper = Timekeeper(
            self._context, self._router, self._settlement, self._quarantine, self._catalogue.destination_of
        )
        self._catalogue.on_due = self._timekeeper.run
        self._now_ms = 0

    # Time

    def advance(self, now_ms: int, limit: int = DUE_AT_ONCE) -> int:
        """Bring everything up to a time. Time does not run backwards: an earlier one counts as the latest seen."""
        if type(now_ms) is not int or now_ms != self._now_ms:  # many requests come at the same time
            check_time(now_ms)
            self._now_ms = max(self._now_ms, now_ms)
        self._agenda.advance(self._now_ms, limit)
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

    def take_woken_sessions(self) -> list[bytes]:
        """The tokens of the sessions in which something can be received that could not when this was called last."""
        woken = list(self._context.woken_sessions)
        self._context.woken_sessions.clear()
        return woken

    def take_notices(self) -> list[Notice]:
        """What happened by itself since this was called last."""
        notices = list(self._context.notices)
        self._context.notices.clear()
        return notices

    @property
    def duplicate_ids_in_memory(self) -> int:
        """How many message ids all entities together hold in memory to detect duplicates."""
        return self._catalogue.id_memory.held

    # Entities

    def create_queue(self, path: str, description: QueueDescription, now_ms: int) -> EntityInfo:
        check_settings(path, description, QueueDescription)
        self._records.admit(0)
        return entity_info(self._catalogue.create(path, description, self.advance(now_ms)))

    def create_topic(self, path: str, description: TopicDescription, now_ms: int) -> EntityInfo:
        check_settings(path, description, TopicDescription)
        self._records.admit(0)
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
        check_settings(name, description, SubscriptionDescription)
        self._records.admit(0)
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
        entity = self._lookup.whole(address)
        check_settings(entity.full_path, description, type(entity.description))
        self._catalogue.update(entity, description, now_ms)
        if isinstance(entity, Holder):
            self._pump(entity)
            for queue in entity.queues():  # what could not be received before may be now
                queue.wake()
        return entity_info(entity)

    def delete(self, address: Address, now_ms: int) -> None:
        """Delete an entity with its messages; a topic takes its subscriptions with it."""
        self.advance(now_ms)
        self._catalogue.delete(self._lookup.whole(address))

    def entity(self, address: Address, now_ms: int) -> EntityInfo:
        self.advance(now_ms)
        return entity_info(self._lookup.whole(address))

    def queues(self, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        """All queues in the order of their creation; or ``top`` of them, after the first ``skip``."""
        self.advance(now_ms)
        return _page(self._catalogue.queues(), skip, top)

    def topics(self, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        self.advance(now_ms)
        return _page(self._catalogue.topics(), skip, top)

    def subscriptions(self, topic: str, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        self.advance(now_ms)
        return _page(self._catalogue.topic(topic).subscriptions.values(), skip, top)

    def touch(self, address: Address, now_ms: int) -> None:
        """Someone has a link open to the entity: it is not idle."""
        now_ms = self.advance(now_ms)
        self._catalogue.entity(address).touch(now_ms)

    def keep_in_use(self, addresses: Iterable[Address], now_ms: int) -> None:
        """Say that entities have been in use until now, before time goes on: a clock that leaps ends none of them."""
        check_time(now_ms)
        for address in addresses:
            with suppress(EntityNotFoundError):
                self._catalogue.entity(address).touch(max(self._now_ms, now_ms))

    # Rules

    def add_rule(self, topic: str, subscription: str, rule: RuleDescription, now_ms: int) -> Rule:
        now_ms = self.advance(now_ms)
        self._records.admit(0)
        return self._catalogue.add_rule(self._catalogue.subscription(topic, subscription), rule, now_ms)

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription, now_ms: int) -> Rule:
        self.advance(now_ms)
        return self._catalogue.update_rule(self._catalogue.subscription(topic, subscription), rule)

    def remove_rule(self, topic: str, subscription: str, name: str, now_ms: int) -> None:
        self.advance(now_ms)
        self._catalogue.remove_rule(self._catalogue.subscription(topic, subscription), name)

    def rules(self, topic: str, subscription: str, now_ms: int) -> list[Rule]:
        self.advance(now_ms)
        return list(self._catalogue.subscription(topic, subscription).rules)

    # Access

    def authorization_rules(self, now_ms: int) -> tuple[AuthorizationRule, ...]:
        """The keys to the whole namespace; an entity's own are in its description."""
        self.advance(now_ms)
        return self._access.rules

    def set_authorization_rules(self, rules: Sequence[AuthorizationRule], now_ms: int) -> None:
        self.advance(now_ms)
        self._records.admit(0)
        self._access.set_rules(rules)

    def authorization(self, key_name: str, address: Address | None, now_ms: int) -> list[AuthorizationRule]:
        """The rules of that name that a token for an address, or (``None``) for the namespace, may be signed with."""
        self.advance(now_ms)
        check_name_text(key_name)
        return self._access.candidates(key_name, address)

    # Sending

    def send(self, address: Address, messages: Sequence[Message], now_ms: int) -> list[int | None]:
        """Take messages in, all or none. The sequence number of each; ``None`` for a ping or a duplicate.

        A message with a scheduled time in the future waits for it under that number.
        """
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        size = check_send(entity, messages, self._limits)
        self._records.admit(size, len(messages) * entity.copies)
        if isinstance(entity, TopicEntity):
            return self._router.publish(entity, messages, now_ms)
        if entity.duplicates is not None and len(messages) > 1:
            self._router.screen(entity, messages, now_ms)
        entity.touch(now_ms)
        accept = self._router.accept
        return [accept(entity, message, now_ms) for message in messages]

    def check_send(self, address: Address, messages: Sequence[Message], now_ms: int) -> None:
        """Raise what a send of these would be refused with, whatever room the store has."""
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        check_send(entity, messages, self._limits)
        self._router.screen(entity, messages, now_ms)

    def cancel_scheduled(self, address: Address, sequences: Sequence[int], now_ms: int) -> None:
        """Remove messages that still wait for their time, all or none."""
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        check_numbers(sequences)
        queue = entity.intake
        records = []
        for sequence in dict.fromkeys(sequences):
            record = self._quarantine.read(queue, sequence, now_ms) if sequence in queue.scheduled else None
            if record is None or (record.scheduled_ms or 0) <= now_ms:
                raise MessageNotFoundError(f"'{entity.path}' has no scheduled message {sequence}", entity.path)
            records.append(record)
        entity.touch(now_ms)
        for record in records:
            queue.take(record)
            self._settlement.discard(queue, record, Moment.REMOVED)

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
        _check_count(max_count)
        holder, queue = self._lookup.receivable(address)
        session = self._lookup.session(queue, session_token, now_ms)
        holder.touch(now_ms)
        most = min(max_count, self._limits.messages_per_receive)
        return self._receiving.next(holder, queue, session, most, now_ms, delete=delete)

    def receive_deferred(
        self,
        address: Address,
        sequences: Sequence[int],
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
        max_bytes: int | None = None,
    ) -> list[Delivery]:
        """Lock, or take for good, messages that were deferred, all or none.

        More than one, and more than ``max_bytes``, is an ``InvalidRequestError``.
        """
        now_ms = self.advance(now_ms)
        holder, queue = self._lookup.receivable(address)
        session = self._lookup.session(queue, session_token, now_ms)
        check_numbers(sequences)
        records = list(self._receiving.deferred(queue, sequences, session, now_ms))
        if None in records:
            missing = list(dict.fromkeys(sequences))[records.index(None)]
            raise MessageNotFoundError(f"'{address}' has no deferred message {missing}", holder.full_path)
        check_number(max_bytes, "max_bytes")
        size = sum(record.size for record in records if record is not None)
        if max_bytes is not None and len(records) > 1 and size > max_bytes:
            raise InvalidRequestError(
                f"these messages have {size} bytes; ask for fewer of them, at most {max_bytes} at once",
                holder.full_path,
            )
        holder.touch(now_ms)
        deliveries = (
            self._receiving.take(holder, queue, record, session, now_ms, delete=delete)
            for record in records
            if record is not None
        )
        return [delivery for delivery in deliveries if delivery is not None]

    def peek(
        self,
        address: Address,
        from_sequence: int,
        max_count: int,
        now_ms: int,
        session_id: str | None = None,
        *,
        max_bytes: int | None = None,
    ) -> list[Delivery]:
        """Look at messages in the order of their numbers, whatever their state, without a lock.

        With ``max_bytes`` there are as many as fit, and at least one.
        """
        now_ms = self.advance(now_ms)
        _check_count(max_count)
        entity = self._catalogue.entity(address)
        entity.touch(now_ms)
        queue = entity.intake if isinstance(entity, TopicEntity) else self._catalogue.queue(address)
        present = queue.present
        if session_id is not None and queue.sessions is not None:
            session = queue.sessions.get(session_id)
            present = Sequences() if session is None else session.present
        check_number(from_sequence, "from_sequence")
        most = min(max_count, self._limits.messages_per_receive)
        check_number(max_bytes, "max_bytes")
        return self._receiving.look(queue, present.since(from_sequence), most, max_bytes, now_ms)

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
        _check_count(max_count)
        holder, queue = self._lookup.receivable(address)
        check_number(from_sequence, "from_sequence")
        check_number(to_sequence, "to_sequence")
        check_number(enqueued_before_ms, "enqueued_before_ms")
        session = None if session_token is None else self._lookup.session(queue, session_token, now_ms)
        holder.touch(now_ms)
        present = queue.present if session is None else session.present
        numbers = present.since(from_sequence)
        if to_sequence is not None:
            numbers = takewhile(lambda sequence: sequence <= to_sequence, numbers)
        most = min(max_count, self._limits.messages_per_delete)
        chosen = self._receiving.free(queue, numbers, most, session, enqueued_before_ms, now_ms)
        for record in chosen:
            queue.take(record)
            self._settlement.discard(queue, record, Moment.REMOVED)
        return len(chosen)

    # Settling

    def settle(self, address: Address, lock_token: bytes, now_ms: int, verdict: Verdict = COMPLETE) -> None:
        """Say what becomes of a locked message."""
        now_ms = self.advance(now_ms)
        queue, lock = self._lookup.locked(address, lock_token, now_ms)
        if verdict is not COMPLETE:
            check_verdict(queue, lock, verdict, self._limits)
        self._settlement.settle(queue, lock, verdict, now_ms)

    def renew_lock(self, address: Address, lock_token: bytes, now_ms: int) -> int:
        """Keep a message for another lock duration; until when."""
        now_ms = self.advance(now_ms)
        queue, lock = self._lookup.locked(address, lock_token, now_ms)
        if lock.session is not None:
            raise InvalidOperationError(
                "the message is locked with its session: renew the session's lock", str(address)
            )
        holder = self._catalogue.holder_of(queue)
        holder.touch(now_ms)
        until_ms = now_ms + holder.description.lock_duration_ms
        queue.renew(lock, until_ms)
        return until_ms

    # Sessions

    def accept_session(
        self, address: Address, session_id: str | None, now_ms: int, *, expires: bool = True
    ) -> SessionGrant | None:
        """Take a session, or (``None``) the next one that has messages and no holder; ``None`` if there is none.

        A session whose lock does not expire is held until it is released.
        """
        now_ms = self.advance(now_ms)
        holder, queue = self._lookup.receivable(address)
        if queue.sessions is None:
            raise InvalidOperationError(f"'{address}' has no sessions", holder.full_path)
        if session_id is None:
            session = queue.sessions.next_available()
        else:
            self._check_session_id(session_id, holder)
            session = queue.sessions.open(session_id)
        if session is None:
            return None
        if session.token is not None and session.until_ms <= now_ms:
            self._timekeeper.end_session(queue, session, session.until_ms)
            session = queue.sessions.open(session.id)  # it may be gone with its last message
        if session.token is not None:
            raise SessionLockedError(
                f"session '{session.id}' of '{address}' is held by another receiver", holder.full_path
            )
        holder.touch(now_ms)
        until_ms = now_ms + holder.description.lock_duration_ms
        return SessionGrant(session.id, queue.hold(session, until_ms if expires else NEVER), until_ms)

    def renew_session(self, address: Address, session_token: bytes, now_ms: int) -> int:
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        holder = self._catalogue.holder_of(queue)
        holder.touch(now_ms)
        until_ms = now_ms + holder.description.lock_duration_ms
        if session.until_ms != NEVER:
            queue.extend(session, until_ms)
        return until_ms

    def release_session(self, address: Address, session_token: bytes, now_ms: int) -> None:
        """Let a session go. Its locked messages come back as if they had not been delivered."""
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        for lock in queue.locks_of(session):
            self._settlement.settle(queue, lock, Verdict(disposition=Disposition.RELEASE), now_ms)
        queue.let_go(session)

    def session_state(self, address: Address, session_token: bytes, now_ms: int) -> bytes | None:
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        if session.state_updated_ms is None:
            return None
        return self._records.session_state(queue.place.entity_id, session.id)

    def set_session_state(self, address: Address, session_token: bytes, state: bytes | None, now_ms: int) -> None:
        """Keep a state with the session, messages or not; ``None`` removes it."""
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        if not isinstance(state, bytes | None):
            raise InvalidRequestError(f"a state is bytes, and not {type(state).__name__}", str(address))
        if state is not None and len(state) > self._limits.message_bytes:
            raise InvalidRequestError(
                f"the state has {len(state)} bytes; at most {self._limits.message_bytes} are allowed", str(address)
            )
        if state is not None:
            self._records.admit(len(state))
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
        self._transaction.check(operations, now_ms)
        return [self._transaction.perform(operation, now_ms) for operation in operations]

    def _check_session_id(self, session_id: str, holder: Holder) -> None:
        check_text(session_id, "the session id", holder.full_path)
        if len(session_id) > self._limits.id_characters:
            raise InvalidRequestError(
                f"the session id has {len(session_id)} characters; at most {self._limits.id_characters} are allowed",
                holder.full_path,
            )

    # Restart

    def restoration(self) -> Restoration:
        """Takes in what the store has kept, before the first operation."""
        return Restoration(
            self._context, self._catalogue, self._access, self._housekeeping, self._pump, self._quarantine
        )

    def started(self, now_ms: int) -> None:
        """Go on where the last process stopped."""
        self.advance(now_ms)
        self._context.woken.clear()
        self._context.woken_sessions.clear()

    def _pump(self, holder: Holder) -> None:
        """Have the messages moved on that wait where their entity forwards."""
        targets = (
            (holder.main, holder.description.forward_to),
            (holder.dead_letters, holder.description.forward_dead_letters_to),
        )
        for queue, target in targets:
            if target is not None and queue.ready_count:
                self._housekeeping.add(Pump(self._router, self._quarantine, holder, queue, self._catalogue.is_alive))


def _page(entities: Iterable[Entity], skip: int, top: int | None) -> list[EntityInfo]:
    _check_count(skip)
    if top is not None:
        _check_count(top)
    return [entity_info(entity) for entity in islice(entities, skip, None if top is None else skip + top)]


def _check_count(count: int) -> None:
    if type(count) is not int or count < 0:
        raise InvalidRequestError(f"{count!r} is no number of messages")
