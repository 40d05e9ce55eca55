"""The messaging service of one namespace: every operation, deterministic.

Each method is one atomic request. It takes the current time as an argument and first does what is due by then. It then
either raises a ``BrokerError`` and changes nothing, or writes its changes through ``Records`` and returns the result.
The caller makes these changes durable before it passes the result on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, NamedTuple
from uuid import UUID
from warnings import warn

from pairbus.broker.catalogue import AuthorizationRules, Catalogue, Lookup
from pairbus.broker.context import BrokerContext, TimerQueue
from pairbus.broker.descriptions import (
    AuthorizationRule,
    EntityRecord,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.entity import Entity, EntityInfo, ReceivableEntity, TopicEntity, entity_info
from pairbus.broker.errors import (
    EntityNotFoundError,
    InvalidOperationError,
    InvalidRequestError,
    MessageNotFoundError,
    SessionLockedError,
)
from pairbus.broker.housekeeping import ForwardingJob, Housekeeping, Timekeeper
from pairbus.broker.limits import STANDARD, Limits
from pairbus.broker.message import NEVER, Address, DeliveredMessage, NewMessage, PropertyView, QueueId, QueuePart
from pairbus.broker.ports import BodyStore, EventSink, IndexFault, MessageEvent, Notice, Records
from pairbus.broker.queue import Queue
from pairbus.broker.repair import EntityReload, IndexAudit, Quarantine, check_loaded
from pairbus.broker.restoration import NamespaceRestore
from pairbus.broker.router import Router
from pairbus.broker.rules import Rule
from pairbus.broker.session import Sequences
from pairbus.broker.settlement import Receiving, Settlement, check_verdict
from pairbus.broker.settlement_request import COMPLETE, SettlementKind, SettlementRequest
from pairbus.broker.transaction import Transaction, TransactionOperation, check_send
from pairbus.broker.validation import (
    check_address,
    check_name_text,
    check_number,
    check_numbers,
    check_settings,
    check_text,
    check_time,
)

DUE_AT_ONCE: Final = 10_000
"""Most due steps that one request executes. (A receiver never gets an expired message, however much is due.)"""


class SessionGrant(NamedTuple):
    """A session that a receiver has accepted."""

    session_id: str
    session_token: bytes
    locked_until_ms: int


class NamespaceIndex(NamedTuple):
    """The part of a namespace's records that it holds in memory."""

    entities: Sequence[EntityRecord]
    rules: Sequence[tuple[int, Rule]]
    """The rules of subscriptions, each with the id of its subscription."""

    access: tuple[AuthorizationRule, ...]
    messages: Mapping[QueueId, Iterable[int]]
    """The sequence numbers of the messages by queue, except queues that are being loaded."""

    last_sequences: Mapping[QueueId, Sequence[int]]
    """The last assigned sequence numbers by partition."""

    last_entity_id: int
    last_body_id: int


class Namespace:
    """The broker of one namespace, a deterministic state machine."""

    def __init__(
        self,
        records: Records,
        *,
        limits: Limits = STANDARD,
        view: Callable[[bytes], PropertyView],
        fresh_id: Callable[[], UUID],
        fresh_token: Callable[[], bytes],
        stub_body: bytes = b"",
        event_sink: EventSink | None = None,
        chronicle: EventSink | None = None,
    ) -> None:
        """Create an empty namespace on ``records``.

        ``view`` decodes the properties of an encoded message for rules; ``fresh_id`` and ``fresh_token`` return a new
        value with each call. ``stub_body`` is the encoded message that replaces an unreadable one in a dead-letter
        queue. ``event_sink`` receives the lifecycle events of messages; ``chronicle`` is its former name.
        """
        if chronicle is not None:
            warn("the argument chronicle of Namespace is now called event_sink", DeprecationWarning, stacklevel=2)
            event_sink = chronicle
        self._context = BrokerContext(
            limits=limits,
            records=records,
            bodies=BodyStore(records),
            timers=TimerQueue(),
            view=view,
            fresh_id=fresh_id,
            fresh_token=fresh_token,
            stub_body=stub_body,
            event_sink=event_sink,
        )
        self._timers = self._context.timers
        self._records = records
        self._limits = limits
        self._housekeeping = Housekeeping()
        self._catalogue = Catalogue(self._context, self._housekeeping)
        self._router = Router(self._context, self._catalogue.find, self._forward_later)
        self._quarantine = Quarantine(self._context, self._router, self._catalogue.owner_of)
        self._settlement = Settlement(self._context, self._router, self._quarantine, self._catalogue.holder_of)
        self._receiving = Receiving(self._context, self._settlement, self._quarantine)
        self._lookup = Lookup(self._catalogue)
        self._access = AuthorizationRules(self._context, self._catalogue)
        self._transaction = Transaction(self._context, self._catalogue, self._lookup, self._router, self._settlement)
        self._timekeeper = Timekeeper(
            self._context, self._router, self._settlement, self._quarantine, self._catalogue.destination_of
        )
        self._catalogue.on_due = self._timekeeper.run
        self._now_ms = 0

    # Time

    def advance(self, now_ms: int, limit: int = DUE_AT_ONCE) -> int:
        """Do what is due by ``now_ms`` and return the current time. Time never runs backwards: an earlier time is
        ignored.
        """
        if type(now_ms) is not int or now_ms != self._now_ms:  # many requests arrive at the same time
            check_time(now_ms)
            self._now_ms = max(self._now_ms, now_ms)
        self._timers.advance(self._now_ms, limit)
        if self._timers.faults:
            self._report_faults()
        return self._now_ms

    def _report_faults(self) -> None:
        for item, error in self._timers.faults:
            address = item.address if isinstance(item, Queue) else None
            if address is not None:
                self._context.notices.append(IndexFault(address, f"its timers failed with {type(error).__name__}"))
        self._timers.faults.clear()

    def next_due_ms(self) -> int | None:
        """Return the latest time at which ``advance`` should be called next, or ``None``."""
        return self._context.timers.next_ms()

    def tidy(self, now_ms: int, steps: int = 1_000) -> bool:
        """Do part of the work that deletions and forwards have left; return whether there is more."""
        now_ms, enough = self.advance(now_ms), self._router.work + self._limits.rule_units
        return self._housekeeping.run(now_ms, steps, lambda: self._router.work > enough)

    def take_woken(self) -> list[Address]:
        """Return the addresses at which something has become receivable since the last call."""
        woken = list(self._context.woken)
        self._context.woken.clear()
        return woken

    def take_woken_sessions(self) -> list[bytes]:
        """Return the tokens of the sessions in which something has become receivable since the last call."""
        woken = list(self._context.woken_sessions)
        self._context.woken_sessions.clear()
        return woken

    def take_notices(self) -> list[Notice]:
        """Return the notices of background work since the last call."""
        notices = list(self._context.notices)
        self._context.notices.clear()
        return notices

    @property
    def duplicate_ids_in_memory(self) -> int:
        """Return the number of message ids that all entities together hold in memory to detect duplicates."""
        return self._catalogue.id_memory.held

    def inspect(
        self, now_ms: int, start: tuple[QueueId, int] | None = None, steps: int = 50
    ) -> tuple[QueueId, int] | None:
        """Read some messages, and quarantine those that cannot be read; return where to continue, ``None`` at the end.

        Nothing else changes: the messages count as neither received nor peeked.
        """
        now_ms = self.advance(now_ms)
        place, first = start or (QueueId(0, 0), 0)
        for queue in sorted(self._catalogue.all_queues(), key=lambda queue: queue.place):
            if queue.place < place:
                continue
            sequences = list(islice(queue.present.since(first if queue.place == place else 0), steps))
            if sequences:
                self._receiving.look(queue, sequences, steps, None, now_ms)
                return queue.place, sequences[-1] + 1
        return None

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
        """Create a subscription with one rule; by default a rule that matches everything."""
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
        """Replace the settings of an entity. If it forwards now, ``tidy`` forwards the messages that wait in it."""
        now_ms = self.advance(now_ms)
        entity = self._lookup.entity_itself(address)
        check_settings(entity.full_path, description, type(entity.description))
        self._catalogue.update(entity, description, now_ms)
        if not isinstance(entity, TopicEntity):
            self._schedule_forwarding(entity)
            for queue in entity.queues():  # what could not be received before may be receivable now
                queue.wake()
        return entity_info(entity)

    def delete(self, address: Address, now_ms: int) -> None:
        """Delete an entity with its messages; deleting a topic deletes its subscriptions."""
        self.advance(now_ms)
        self._catalogue.delete(self._lookup.entity_itself(address))

    def entity(self, address: Address, now_ms: int) -> EntityInfo:
        self.advance(now_ms)
        return entity_info(self._lookup.entity_itself(address))

    def queues(self, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        """Return the queues in the order of their creation: all, or ``top`` of them after the first ``skip``."""
        self.advance(now_ms)
        return _page(self._catalogue.queues(), skip, top)

    def topics(self, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        self.advance(now_ms)
        return _page(self._catalogue.topics(), skip, top)

    def subscriptions(self, topic: str, now_ms: int, skip: int = 0, top: int | None = None) -> list[EntityInfo]:
        self.advance(now_ms)
        return _page(self._catalogue.topic(topic).subscriptions.values(), skip, top)

    def touch(self, address: Address, now_ms: int) -> None:
        """Record that a link to the entity is open: it is not idle."""
        now_ms = self.advance(now_ms)
        self._catalogue.entity(address).touch(now_ms)

    def keep_in_use(self, addresses: Iterable[Address], now_ms: int) -> None:
        """Mark entities as in use until now, before time advances: a clock jump must not delete them as idle."""
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
        """Return the keys to the whole namespace; an entity's own are in its description."""
        self.advance(now_ms)
        return self._access.rules

    def set_authorization_rules(self, rules: Sequence[AuthorizationRule], now_ms: int) -> None:
        self.advance(now_ms)
        self._records.admit(0)
        self._access.set_rules(rules)

    def authorization(self, key_name: str, address: Address | None, now_ms: int) -> list[AuthorizationRule]:
        """Return the rules of that name that a token for an address, or for the namespace (``None``), may be signed
        with.
        """
        self.advance(now_ms)
        check_name_text(key_name)
        return self._access.candidates(key_name, address)

    # Sending

    def send(self, address: Address, messages: Sequence[NewMessage], now_ms: int) -> list[int | None]:
        """Accept messages, all or none. Return the sequence number of each; ``None`` for a ping or a duplicate.

        A message with a scheduled time in the future waits for it under that number.
        """
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        size = check_send(entity, messages, self._limits)
        self._records.admit(size, len(messages) * entity.copies)
        return self._router.accept_all(entity, messages, now_ms)

    def check_send(self, address: Address, messages: Sequence[NewMessage], now_ms: int) -> None:
        """Raise what ``send`` would raise for these messages, regardless of the store's free space."""
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        check_send(entity, messages, self._limits)
        with self._router.bounded(len(messages)):
            self._router.screen(entity, messages, now_ms)

    def cancel_scheduled(self, address: Address, sequences: Sequence[int], now_ms: int) -> None:
        """Remove messages that still wait for their scheduled time, all or none."""
        now_ms = self.advance(now_ms)
        entity = self._lookup.sendable(address)
        check_numbers(sequences)
        queue = entity.intake
        check_loaded(queue)
        records = []
        for sequence in dict.fromkeys(sequences):
            record = self._quarantine.read(queue, sequence, now_ms) if sequence in queue.scheduled else None
            if record is None or (record.scheduled_ms or 0) <= now_ms:
                raise MessageNotFoundError(f"'{entity.path}' has no scheduled message {sequence}", entity.path)
            records.append(record)
        entity.touch(now_ms)
        for record in records:
            queue.take(record)
            self._settlement.discard(queue, record, MessageEvent.REMOVED)

    # Receiving

    def receive(
        self,
        address: Address,
        max_count: int,
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
    ) -> list[DeliveredMessage]:
        """Lock the next messages for a receiver, or remove and return them (receive-and-delete)."""
        now_ms = self.advance(now_ms)
        _check_count(max_count)
        holder, queue = self._lookup.receivable(address)
        session = self._lookup.session(queue, session_token, now_ms)
        holder.touch(now_ms)
        count_limit = min(max_count, self._limits.messages_per_receive)
        return self._receiving.next(holder, queue, session, count_limit, now_ms, delete=delete)

    def receive_deferred(
        self,
        address: Address,
        sequences: Sequence[int],
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
        max_bytes: int | None = None,
    ) -> list[DeliveredMessage]:
        """Lock deferred messages, or remove and return them, all or none.

        Raises ``InvalidRequestError`` if there are several and together they exceed ``max_bytes``.
        """
        now_ms = self.advance(now_ms)
        holder, queue = self._lookup.receivable(address)
        session = self._lookup.session(queue, session_token, now_ms)
        check_numbers(sequences)
        check_loaded(queue)
        records = list(self._receiving.deferred(queue, sequences, session, now_ms))
        if None in records:
            missing = list(dict.fromkeys(sequences))[records.index(None)]
            raise MessageNotFoundError(f"'{address}' has no deferred message {missing}", holder.full_path)
        check_number(max_bytes, "max_bytes")
        size = sum(record.size for record in records if record is not None)
        if max_bytes is not None and len(records) > 1 and size > max_bytes:
            raise InvalidRequestError(
                f"these messages have {size} bytes; ask for fewer of them, at most {max_bytes} bytes at once",
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
    ) -> list[DeliveredMessage]:
        """Return messages in the order of their sequence numbers, in any state, without locking them.

        With ``max_bytes``, return as many as fit, and at least one.
        """
        now_ms = self.advance(now_ms)
        _check_count(max_count)
        entity = self._catalogue.entity(address)
        entity.touch(now_ms)
        queue = entity.intake if isinstance(entity, TopicEntity) else self._catalogue.queue(address)
        check_loaded(queue)
        present = queue.present
        if session_id is not None and queue.sessions is not None:
            session = queue.sessions.get(session_id)
            present = Sequences() if session is None else session.present
        check_number(from_sequence, "from_sequence")
        count_limit = min(max_count, self._limits.messages_per_receive)
        check_number(max_bytes, "max_bytes")
        return self._receiving.look(queue, present.since(from_sequence), count_limit, max_bytes, now_ms)

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
        """Remove messages that no receiver holds, oldest first; return their number.

        Locked, deferred and scheduled messages stay, and so do messages of sessions that another receiver holds.
        """
        now_ms = self.advance(now_ms)
        _check_count(max_count)
        holder, queue = self._lookup.receivable(address)
        check_loaded(queue)
        check_number(from_sequence, "from_sequence")
        check_number(to_sequence, "to_sequence")
        check_number(enqueued_before_ms, "enqueued_before_ms")
        session = None if session_token is None else self._lookup.session(queue, session_token, now_ms)
        holder.touch(now_ms)
        present = queue.present if session is None else session.present
        numbers = present.since(from_sequence)
        if to_sequence is not None:
            numbers = takewhile(lambda sequence: sequence <= to_sequence, numbers)
        count_limit = min(max_count, self._limits.messages_per_delete)
        chosen = self._receiving.free(queue, numbers, count_limit, session, enqueued_before_ms, now_ms)
        for record in chosen:
            queue.take(record)
            self._settlement.discard(queue, record, MessageEvent.REMOVED)
        return len(chosen)

    def quarantine(self, address: Address, sequence: int, now_ms: int) -> None:
        """Take a message out of service as if its body were damaged: a stub of it goes to the dead-letter queue.

        What was stored is kept, out of reach of receivers. The message must not be locked.
        """
        now_ms = self.advance(now_ms)
        check_numbers([sequence])
        queue = self._catalogue.queue(address)
        if sequence not in queue.present:
            raise MessageNotFoundError(f"'{address}' has no message {sequence}", str(address))
        if queue.lock_of(sequence) is not None:
            raise InvalidOperationError(
                f"message {sequence} of '{address}' is locked: wait until it is settled, or its lock expires",
                str(address),
            )
        record = self._quarantine.read(queue, sequence, now_ms)
        if record is not None:
            self._quarantine.add(queue, sequence, record, now_ms)

    # Settling

    def settle(self, address: Address, lock_token: bytes, now_ms: int, verdict: SettlementRequest = COMPLETE) -> None:
        """Settle a locked message: complete, abandon, defer, dead-letter or release it."""
        now_ms = self.advance(now_ms)
        queue, lock = self._lookup.locked(address, lock_token, now_ms)
        if verdict is not COMPLETE:
            check_verdict(queue, lock, verdict, self._limits)
        self._settlement.settle(queue, lock, verdict, now_ms)

    def renew_lock(self, address: Address, lock_token: bytes, now_ms: int) -> int:
        """Extend a message lock by the lock duration; return the new expiry."""
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
        """Lock a session, or the next one that has messages and no holder (``None``); return ``None`` if there is none.

        A session whose lock does not expire is held until it is released.
        """
        now_ms = self.advance(now_ms)
        holder, queue = self._lookup.receivable(address)
        if queue.sessions is None:
            raise InvalidOperationError(f"'{address}' has no sessions", holder.full_path)
        if session_id is None:
            session = None if queue.is_suspended else queue.sessions.next_available()
        else:
            self._check_session_id(session_id, holder)
            session = queue.sessions.open(session_id)
        if session is None:
            return None
        if session.token is not None and session.until_ms <= now_ms:
            self._timekeeper.end_session(queue, session, session.until_ms)
            session = queue.sessions.open(session.id)  # it may have been removed with its last message
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
        """Release a session. Its locked messages become available again as if they had not been delivered."""
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        for lock in queue.locks_of(session):
            self._settlement.settle(queue, lock, SettlementRequest(disposition=SettlementKind.RELEASE), now_ms)
        queue.let_go(session)

    def session_state(self, address: Address, session_token: bytes, now_ms: int) -> bytes | None:
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        if session.state_updated_ms is None:
            return None
        return self._records.session_state(queue.place.entity_id, session.id)

    def set_session_state(self, address: Address, session_token: bytes, state: bytes | None, now_ms: int) -> None:
        """Store a state with the session, whether or not it has messages; ``None`` removes it."""
        now_ms = self.advance(now_ms)
        queue, session = self._lookup.held(address, session_token, now_ms)
        if not isinstance(state, bytes | None):
            raise InvalidRequestError(f"a session state must be bytes, got {type(state).__name__}", str(address))
        if state is not None and len(state) > self._limits.message_bytes:
            raise InvalidRequestError(
                f"the session state has {len(state)} bytes; at most {self._limits.message_bytes} are allowed",
                str(address),
            )
        if state is not None:
            self._records.admit(len(state))
        self._records.put_session_state(queue.place.entity_id, session.id, state, now_ms)
        session.state_updated_ms = None if state is None else now_ms

    def sessions(self, address: Address, now_ms: int, updated_after_ms: int | None = None) -> list[str]:
        """Return the sessions that have messages; with ``updated_after_ms``, those whose state was set since."""
        self.advance(now_ms)
        queue = self._catalogue.queue(address)
        if queue.sessions is None:
            raise InvalidOperationError(f"'{address}' has no sessions", str(address))
        check_loaded(queue)
        if updated_after_ms is None:
            return sorted(session.id for session in queue.sessions if session.present)
        return sorted(
            session.id
            for session in queue.sessions
            if session.state_updated_ms is not None and session.state_updated_ms > updated_after_ms
        )

    # Transactions

    def transact(self, operations: Sequence[TransactionOperation], now_ms: int) -> list[list[int | None]]:
        """Execute all operations or none. Return the result of each send, and an empty list for each settlement.

        Free space is checked as if all sends came first: what the settlements free counts afterwards.
        """
        now_ms = self.advance(now_ms)
        count = self._transaction.check(operations, now_ms)
        with self._router.bounded(count):
            return [self._transaction.perform(operation, now_ms) for operation in operations]

    def _check_session_id(self, session_id: str, holder: ReceivableEntity) -> None:
        check_text(session_id, "the session id", holder.full_path)
        if len(session_id) > self._limits.id_characters:
            raise InvalidRequestError(
                f"the session id has {len(session_id)} characters; at most {self._limits.id_characters} are allowed",
                holder.full_path,
            )

    # Repair

    def index(self) -> NamespaceIndex:
        """Return what is in memory: for a store that has lost a part of its records."""
        queues = [*self._catalogue.all_queues()]
        return NamespaceIndex(
            entities=[*self._catalogue.entity_records()],
            rules=[*self._catalogue.subscription_rules()],
            access=self._access.rules,
            messages={queue.place: queue.present for queue in queues if not queue.is_suspended},
            last_sequences={queue.place: queue.numbering[0] for queue in queues},
            last_entity_id=self._catalogue.last_id,
            last_body_id=self._context.bodies.last_id,
        )

    def audit(self, is_exempt: Callable[[int], bool] = lambda _entity_id: False) -> IndexAudit:
        """Return a comparison of the index of all entities with their counts and with the store.

        ``is_exempt`` returns whether the entity with an id must not be compared, because its records are damaged.
        """
        return IndexAudit(self._catalogue.all_queues, self._context, is_exempt)

    def entity_id(self, address: Address) -> int | None:
        """Return the number under which the store has an entity; ``None`` if it does not exist."""
        check_address(address)
        try:
            return self._catalogue.entity(address).id
        except EntityNotFoundError:
            return None

    def entity_path(self, entity_id: int) -> str | None:
        """Return the path of the entity with a number; ``None`` if it does not exist."""
        entity = self._catalogue.by_id(entity_id)
        return None if entity is None else entity.full_path

    def reload(self, address: Address, now_ms: int) -> None:
        """Discard the index of an entity, and load it from the store again: ``tidy`` does it step by step.

        Locks on its messages and sessions end. Until it is loaded, messages are accepted and none is delivered.
        """
        now_ms = self.advance(now_ms)
        entity = self._catalogue.entity(address)
        if any(queue.is_suspended for queue in entity.queues()):  # it is being loaded already
            return
        entity.touch(now_ms)
        self._housekeeping.add_first(
            EntityReload(self._context, self._quarantine, entity, self._catalogue.is_alive, self._schedule_forwarding)
        )

    def suspend(self, address: Address, now_ms: int) -> None:
        """Deliver no more messages of an entity, because its index is inconsistent again and again.

        Messages are still accepted. A restart loads the entity from the store, and delivers them.
        """
        self.advance(now_ms)
        for queue in self._catalogue.entity(address).queues():
            queue.is_suspended = True

    def can_deliver(self, address: Address) -> bool:
        """Return whether messages of a queue or subscription wait that any receiver may get, without a session."""
        queue = self._receivable(address)
        return queue is not None and queue.has_waiting

    def can_grant(self, address: Address) -> bool:
        """Return whether a session with messages waits for a receiver that takes any session."""
        queue = self._receivable(address)
        return queue is not None and queue.sessions is not None and queue.sessions.next_available() is not None

    def can_deliver_in(self, address: Address, session_token: bytes) -> bool:
        """Return whether messages wait in a session for the receiver that holds it."""
        queue = self._receivable(address)
        session = None if queue is None or queue.sessions is None else queue.sessions.held(session_token)
        return session is not None and len(session.ready) > 0

    def _receivable(self, address: Address) -> Queue | None:
        """Return the queue at an address, if messages can be received from it now."""
        check_address(address)
        queue = self._catalogue.find_queue(address)
        if queue is None or queue.is_suspended:
            return None
        holder = self._catalogue.owner_of(queue)
        if isinstance(holder, TopicEntity):
            return None
        description = holder.description
        forwards = address.part is QueuePart.MAIN and description.forward_to is not None
        return queue if description.status.can_receive and not forwards else None

    # Restart

    def restoration(self) -> NamespaceRestore:
        """Return a loader for the stored state; use it before the first operation."""
        return NamespaceRestore(
            self._context,
            self._catalogue,
            self._access,
            self._housekeeping,
            self._schedule_forwarding,
            self._quarantine,
        )

    def started(self, now_ms: int) -> None:
        """Resume after a restart: take up the work that the last process left."""
        self.advance(now_ms)
        self._context.woken.clear()
        self._context.woken_sessions.clear()

    def _schedule_forwarding(self, holder: ReceivableEntity) -> None:
        """Schedule forwarding of the messages that wait in an entity that forwards."""
        targets = (
            (holder.main, holder.description.forward_to),
            (holder.dead_letters, holder.description.forward_dead_letters_to),
        )
        for queue, target in targets:
            if target is not None and queue.ready_count:
                self._add_forwarding(holder, queue)

    def _forward_later(self, holder: ReceivableEntity) -> None:
        self._add_forwarding(holder, holder.main)

    def _add_forwarding(self, holder: ReceivableEntity, queue: Queue) -> None:
        self._housekeeping.add(ForwardingJob(self._router, self._quarantine, holder, queue, self._catalogue.is_alive))


def _page(entities: Iterable[Entity], skip: int, top: int | None) -> list[EntityInfo]:
    _check_count(skip)
    if top is not None:
        _check_count(top)
    return [entity_info(entity) for entity in islice(entities, skip, None if top is None else skip + top)]


def _check_count(count: int) -> None:
    if type(count) is not int or count < 0:
        raise InvalidRequestError(f"a count must be a whole number >= 0, got {count!r}")
