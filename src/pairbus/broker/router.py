"""Routing of messages: into queues, through a topic's rules, along chains of forwards, to dead-letter queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from pairbus.broker import errors
from pairbus.broker.context import BrokerContext
from pairbus.broker.descriptions import EntityDescription, QueueDescription, TopicDescription, Value
from pairbus.broker.entity import Destination, QueueEntity, ReceivableEntity, SubscriptionEntity, TopicEntity
from pairbus.broker.errors import RuleBudgetExceededError
from pairbus.broker.limits import MEGABYTE, UNLIMITED, Limits
from pairbus.broker.message import (
    NEVER,
    Amendments,
    MessageState,
    NewMessage,
    PropertyView,
    Record,
    partition_key_of,
    placed,
)
from pairbus.broker.ports import MessageEvent
from pairbus.broker.queue import PARTITION_SHIFT, Queue, partition_of
from pairbus.broker.rules import EXPRESSION_UNITS, BudgetSpentError, LazyView, Rule, RuleBudget, RuleSubject
from pairbus.broker.sql import EvaluationError, PropertyChanges, SqlAction
from pairbus.broker.validation import Unchecked

_ACTIVE: Final = MessageState.ACTIVE
_SCHEDULED: Final = MessageState.SCHEDULED
_new_tuple: Final = tuple.__new__  # calling the class would take twice as long, for each message
_UNPLACED: Final = 0
"""The sequence number or body id of a record that has none yet."""

_AMENDMENT_UNITS: Final = 300
"""About how many nanoseconds it takes to copy one changed property."""

COPY_UNITS: Final = 5_000
"""About how many nanoseconds it takes to store a copy of a message in a subscription."""

BATCH_BUDGETS: Final = 2
"""Multiple of ``rule_units`` that all messages of a batch or a transaction may take together."""

BATCH_MESSAGE_UNITS: Final = 100_000
"""Work that each message of a batch may take in any case: a full batch through ten ordinary rules is accepted."""


class Placement(NamedTuple):
    """A record, its destination queue, and the key that ties it to a partition there."""

    queue: Queue
    record: Record
    pin: str | None


class Failure(NamedTuple):
    """The reason for which a message is dead-lettered."""

    reason: str
    description: str


class Copy(NamedTuple):
    """A copy of a message for a subscription; a dead letter if the rule has failed."""

    subscription: SubscriptionEntity
    record: Record
    failure: Failure | None


class Publication(NamedTuple):
    """A message prepared for a topic, with the copies that its rules produce."""

    record: Record
    key: str | None
    """Key for duplicate detection."""

    copies: list[Copy] | None
    """``None`` for a scheduled message: its rules are evaluated when its time has come."""

    view: LazyView
    units: int
    """Work left for the rules of topics to which the copies are forwarded."""


class Router:
    """Decides where messages go, and writes them. Only ``screen``, ``publish`` and ``accept_all`` raise: the
    rest is checked before.
    """

    def __init__(
        self,
        context: BrokerContext,
        find: Callable[[str], Destination | None],
        forward_later: Callable[[ReceivableEntity], object],
    ) -> None:
        """``forward_later`` is called with an entity in which a message is about to wait until it is forwarded."""
        self._context = context
        self._find = find
        self._forward_later = forward_later
        self._forwards = 0
        """Forwards of the current message so far, all its copies together."""
        self._budget = RuleBudget()
        """Work that rules may still do for the current message, all its copies together."""
        self._granted = 0
        """Work that rules could do for the current message at first."""
        self._earlier_work = 0
        """Work done for the messages before, and for storing copies of the current one."""
        self._late_at = UNLIMITED
        """Value of ``work`` from which the current batch or transaction has used up its budget."""

    # Work

    @property
    def work(self) -> int:
        """Return the units of work that rules, and the copies that they produce, have taken since the start."""
        return self._earlier_work + self._granted - self._budget.units

    @contextmanager
    def bounded(self, messages: int) -> Iterator[None]:
        """Bound the work for so many messages of one batch or transaction together."""
        self._late_at = self.work + self._batch_units(messages)
        try:
            yield
        finally:
            self._late_at = UNLIMITED

    def _batch_units(self, messages: int) -> int:
        return max(BATCH_BUDGETS * self._context.limits.rule_units, messages * BATCH_MESSAGE_UNITS)

    @property
    def _is_late(self) -> bool:
        return self.work > self._late_at

    def _unless_late(self, units: int) -> int:
        """Return the budget for forwarding a message that was accepted: what cannot wait is dead-lettered then."""
        return 0 if self._is_late else units

    # Messages from senders

    def screen(self, entity: Destination, messages: Sequence[NewMessage], now_ms: int) -> None:
        """Raise the errors that ``accept`` cannot raise: ``RuleBudgetExceededError``, and errors of an unreadable
        store.
        """
        if isinstance(entity, TopicEntity):
            numbering = entity.intake.numbering
            try:
                self._prepare_all(entity, messages, now_ms)
            finally:
                entity.intake.numbering = numbering
        elif entity.duplicates is not None and entity.duplicates.reads_store(now_ms):
            for message in messages:
                self._is_duplicate(entity, message, now_ms)

    def publish(self, topic: TopicEntity, messages: Sequence[NewMessage], now_ms: int) -> list[int | None]:
        """Accept messages, all or none; return the sequence number of each, as ``accept`` does.

        Raises ``RuleBudgetExceededError``, or the store's error if it cannot be read.
        """
        numbering = topic.intake.numbering
        try:
            prepared = self._prepare_all(topic, messages, now_ms)
        except BaseException:
            topic.intake.numbering = numbering
            raise
        topic.touch(now_ms)
        pairs = zip(messages, prepared, strict=True)
        return [self._issue(topic, message, publication, now_ms) for message, publication in pairs]

    def _prepare_all(self, topic: TopicEntity, messages: Sequence[NewMessage], now_ms: int) -> list[Publication | None]:
        """Number messages and apply the rules to them, without writing anything."""
        if len(messages) > 1:
            self._expect_budget(topic, messages, now_ms)
        seen: set[str] = set()
        units = self._context.limits.rule_units
        prepared = []
        for message in messages:
            if self._is_late:
                raise self._batch_error(topic, len(messages))
            prepared.append(self._prepare(topic, message, seen, units, now_ms))
        return prepared

    def _expect_budget(self, topic: TopicEntity, messages: Sequence[NewMessage], now_ms: int) -> None:
        """Raise ``RuleBudgetExceededError`` if the rules take too long whatever the messages are, before trying."""
        evaluated = sum(not message.ping and not _is_scheduled(message, now_ms) for message in messages)
        units = sum(subscription.rules.units for subscription in topic.subscriptions.values())
        if self.work + evaluated * units > self._late_at:
            raise self._batch_error(topic, len(messages))

    def _batch_error(self, topic: TopicEntity, messages: int) -> RuleBudgetExceededError:
        return RuleBudgetExceededError(
            f"the rules of '{topic.path}' take more than {self._batch_units(messages)} units of work for a batch of"
            f" {messages} messages, or for the transaction that it belongs to: send fewer messages at once, or give the"
            " topic fewer subscriptions or simpler rules",
            topic.path,
        )

    def _prepare(
        self, topic: TopicEntity, message: NewMessage, seen: set[str], units: int, now_ms: int
    ) -> Publication | None:
        """Prepare one message; return ``None`` for a ping or a duplicate, including one of the ids just ``seen``."""
        if message.ping:
            return None
        duplicates = topic.duplicates
        key = None if duplicates is None else _duplicate_key(topic, message)
        if duplicates is not None and key is not None:
            if key in seen or duplicates.seen(key, now_ms):
                return None
            seen.add(key)
        is_scheduled = _is_scheduled(message, now_ms)
        record = _record(topic, message, _next_sequence(topic, message), _UNPLACED, is_scheduled, now_ms)
        view = LazyView(self._look_into, message.body)
        self._begin(units)
        copies = None if is_scheduled else self._apply_rules(topic, record, view)
        left = min(self._budget.units, self._context.limits.rule_units)
        return Publication(record, key, copies, view, left)

    def _issue(
        self, topic: TopicEntity, message: NewMessage, publication: Publication | None, now_ms: int
    ) -> int | None:
        """Write what was prepared; return the sequence number, or ``None``."""
        if publication is None:
            if not message.ping:
                self._drop(topic, _draft(message, now_ms))
            return None
        record, key, copies, view, units = publication
        self._register(topic, message, record, key, now_ms)
        if copies is None:
            topic.intake.add(record._replace(body_id=self._context.bodies.keep(message.body, 1)))
        else:
            self._begin(self._unless_late(units))
            self._admit(self._fan_out(copies, view, now_ms), message.body, now_ms)
        return record.sequence

    def accept_all(self, entity: Destination, messages: Sequence[NewMessage], now_ms: int) -> list[int | None]:
        """Accept messages of one send, all or none; return what ``accept`` returns for each.

        Raises ``RuleBudgetExceededError``, or the store's error if it cannot be read.
        """
        if len(messages) > 1:
            with self.bounded(len(messages)):
                return self._accept_bounded(entity, messages, now_ms)
        return self._accept_bounded(entity, messages, now_ms)

    def _accept_bounded(self, entity: Destination, messages: Sequence[NewMessage], now_ms: int) -> list[int | None]:
        if isinstance(entity, TopicEntity):
            return self.publish(entity, messages, now_ms)
        if entity.duplicates is not None and len(messages) > 1:
            self.screen(entity, messages, now_ms)
        entity.touch(now_ms)
        return [self.accept(entity, message, now_ms) for message in messages]

    def accept(self, entity: Destination, message: NewMessage, now_ms: int) -> int | None:
        """Accept a message; return its sequence number, or ``None`` if it is discarded (a ping, a duplicate)."""
        if isinstance(entity, TopicEntity):  # part of a transaction, which was screened
            return self._issue(entity, message, self._prepare(entity, message, set(), UNLIMITED, now_ms), now_ms)
        if message.ping:
            return None
        duplicates = entity.duplicates
        key = None if duplicates is None else _duplicate_key(entity, message)
        if duplicates is not None and key is not None and duplicates.seen(key, now_ms):
            self._drop(entity, _draft(message, now_ms))
            return None
        body = message.body
        is_scheduled = _is_scheduled(message, now_ms)
        stays = is_scheduled or not _forwards(entity) or self._waits(entity)
        body_id = self._context.bodies.keep(body, 1) if stays else _UNPLACED
        record = _record(entity, message, _next_sequence(entity, message), body_id, is_scheduled, now_ms)
        self._register(entity, message, record, key, now_ms)
        if stays:
            entity.main.add(record)
        else:
            self._begin(self._unless_late(self._context.limits.rule_units))
            placements = self._arrive(entity, record, LazyView(self._look_into, body), now_ms)
            self._admit(placements, body, now_ms)
        return record.sequence

    def _register(self, entity: Destination, message: NewMessage, record: Record, key: str | None, now_ms: int) -> None:
        """Record that a message was accepted, wherever it is routed."""
        intake, event_sink = entity.intake, self._context.event_sink
        intake.note_sequence(record.sequence)
        if key is not None and entity.duplicates is not None:
            entity.duplicates.remember(key, now_ms, record.sequence)
        if event_sink is not None:
            event_sink.note(MessageEvent.ACCEPTED, intake.address, record, message.body)
            if record.state is MessageState.SCHEDULED:
                event_sink.note(MessageEvent.SCHEDULED, intake.address, record)

    def _admit(self, placements: list[Placement], body: bytes, now_ms: int) -> None:
        if placements:
            body_id = self._context.bodies.keep(body, len(placements))
            self._place(placements, body_id, now_ms)

    def _begin(self, units: int) -> None:
        """Start with another message, for which rules may do that much work."""
        self._forwards = 0
        self._earlier_work = self.work
        self._granted = self._budget.units = units

    def transfer(
        self, via: ReceivableEntity, entity: Destination | None, message: NewMessage, now_ms: int
    ) -> int | None:
        """Accept a message sent via another entity; if its destination refuses it, it stays at that entity."""
        if message.ping:
            return None
        self._begin(self._context.limits.rule_units)
        failure = self._refusal(entity, _draft(message, now_ms))
        if failure is None and entity is not None:
            try:
                self.screen(entity, (message,), now_ms)
            except RuleBudgetExceededError as error:
                failure = _budget_failure(error)
            else:
                entity.touch(now_ms)
                return self.accept(entity, message, now_ms)
        dead_letter = _dead_letter(_draft(message, now_ms), failure)
        placement = Placement(via.transfer_dead_letters, dead_letter, partition_key_of(dead_letter))
        self._place([placement], self._context.bodies.keep(message.body, 1), now_ms)
        return None

    def place_stub(self, holders: Iterable[ReceivableEntity], stub: Record, failure: Failure, now_ms: int) -> None:
        """Dead-letter the stub of an unreadable message, with a new body."""
        body = self._context.stub_body
        self._begin(self._context.limits.rule_units)
        view = LazyView(self._look_into, body)
        self._admit(self._to_dead_letters_of(holders, stub, failure, view, now_ms), body, now_ms)

    # Messages that are stored already

    def dead_letter(
        self, holder: ReceivableEntity, queue: Queue, record: Record, failure: Failure | None, now_ms: int
    ) -> None:
        """Move a message that was taken to the dead letters of its entity, or to where these are forwarded."""
        self._begin(self._context.limits.rule_units)
        placements = self._to_dead_letters(holder, record, failure, self._stored_view(record), now_ms)
        has_expired = failure is not None and failure.reason == errors.EXPIRED
        event = MessageEvent.EXPIRED_TO_DEAD_LETTERS if has_expired else MessageEvent.DEAD_LETTERED
        self._move(queue, record, placements, now_ms, event)

    def activate(self, entity: Destination, record: Record, now_ms: int) -> None:
        """Activate a scheduled message that was taken: give it a new sequence number and route it."""
        self._begin(self._context.limits.rule_units)
        entity.touch(now_ms)
        active = record._replace(state=MessageState.ACTIVE, enqueued_ms=now_ms)
        view = self._stored_view(record)
        if isinstance(entity, QueueEntity):
            placements = self._arrive(entity, active, view, now_ms)
        else:
            placements = self._release(entity, active, view, now_ms)
        self._move(entity.intake, record, placements, now_ms)

    def forwards_from(self, holder: ReceivableEntity, queue: Queue) -> bool:
        """Return whether messages that wait in this queue of an entity are to be forwarded."""
        if queue is holder.dead_letters:
            return holder.description.forward_dead_letters_to is not None
        return queue is holder.main and holder.description.forward_to is not None

    def forward_waiting(self, holder: ReceivableEntity, queue: Queue, record: Record, now_ms: int) -> bool:
        """Forward a message that was taken, if its queue forwards; return whether it did."""
        if not self.forwards_from(holder, queue):
            return False
        self._begin(self._context.limits.rule_units)
        forward = self._forward_dead_letter if queue is holder.dead_letters else self._forward
        placements = forward(holder, record, self._stored_view(record), now_ms)
        if placements is None:
            return False
        self._move(queue, record, placements, now_ms)
        return True

    def _move(
        self,
        queue: Queue,
        record: Record,
        placements: list[Placement],
        now_ms: int,
        moment: MessageEvent = MessageEvent.MOVED,
    ) -> None:
        if self._context.event_sink is not None:
            self._context.event_sink.note(moment, queue.address, record)
        queue.remove(record)
        self._context.bodies.share(record, len(placements))
        self._place(placements, record.body_id, now_ms, origin=queue, shared=record.shared)

    # Decisions: each returns the placements of one message

    def _arrive(self, holder: ReceivableEntity, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        if _forwards(holder) and not self._waits(holder):
            return self._forward(holder, record, view, now_ms)
        if holder.description.requires_session and record.session_id is None:
            failure = Failure(errors.NO_SESSION_ID, f"'{holder.full_path}' requires sessions")
            return self._to_dead_letters(holder, record, failure, view, now_ms)
        expires_ms = expires_at(record.time_to_live_ms, holder.description, now_ms)
        if record.expires_ms != expires_ms or record.delivery_count:
            record = record._replace(expires_ms=expires_ms, delivery_count=0)
        return [Placement(holder.main, record, _partition_pin(holder, record))]

    def _waits(self, holder: ReceivableEntity) -> bool:
        """Return whether a message that is to be forwarded waits in its entity until the background work forwards it:
        the batch or transaction has used up its budget. The next messages wait behind it.
        """
        if not self._is_late or holder.main.sessions is not None:  # nothing forwards from sessions later
            return False
        self._forward_later(holder)
        return True

    def _release(self, topic: TopicEntity, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        """Apply the rules to a message that was accepted earlier; if they take too long, dead-letter it in every
        subscription.
        """
        try:
            copies = self._apply_rules(topic, record, view)
        except RuleBudgetExceededError as error:
            return self._to_dead_letters_of(topic.subscriptions.values(), record, _budget_failure(error), view, now_ms)
        return self._fan_out(copies, view, now_ms)

    def _fan_out(self, copies: list[Copy], view: LazyView, now_ms: int) -> list[Placement]:
        placements: list[Placement] = []
        for subscription, record, failure in copies:
            if failure is None:
                placements += self._arrive(subscription, record, view, now_ms)
            else:
                placements += self._to_dead_letters(subscription, record, failure, view, now_ms)
        return placements

    def _apply_rules(self, topic: TopicEntity, record: Record, view: LazyView) -> list[Copy]:
        """Return the copies for a topic's subscriptions, without changing anything.

        Raises ``RuleBudgetExceededError``.
        """
        time_to_live_ms = _shorter(record.time_to_live_ms, topic.description.default_time_to_live_ms)
        if time_to_live_ms != record.time_to_live_ms:
            record = record._replace(time_to_live_ms=time_to_live_ms)
        candidate = RuleSubject(record, view, self._budget)
        copies: list[Copy] = []
        try:
            for subscription in topic.subscriptions.values():
                self._copy(subscription, record, candidate, copies)
        except BudgetSpentError:
            maximum = self._context.limits.rule_units
            raise RuleBudgetExceededError(
                f"the rules of '{topic.path}' take more than {maximum} units of work for this message (rule_units):"
                " give the message shorter properties, or the topic fewer or simpler rules",
                topic.path,
            ) from None
        self._earlier_work += COPY_UNITS * len(copies)
        return copies

    def _copy(
        self, subscription: SubscriptionEntity, record: Record, candidate: RuleSubject, copies: list[Copy]
    ) -> None:
        """Add one copy for all matching rules without an action, and one for each matching rule with an action."""
        candidate.spend(subscription.rules.units)
        plain = False
        for rule in subscription.rules:
            if rule.action is None and plain:
                continue
            try:
                if not rule.matches(candidate):
                    continue
                copy = record if rule.action is None else self._changed(rule, rule.action, record, candidate)
            except (EvaluationError, ArithmeticError) as error:
                if subscription.description.dead_letter_on_filter_errors:
                    failure = Failure(errors.FILTER_FAILED, f"rule '{rule.description.name}': {error}")
                    copies.append(Copy(subscription, record, failure))
                continue
            plain = plain or rule.action is None
            copies.append(Copy(subscription, copy, None))

    def _changed(self, rule: Rule, action: SqlAction, record: Record, candidate: RuleSubject) -> Record:
        """Return the copy that a rule's action produces; an action cannot produce a message that a sender could not
        send.
        """
        candidate.spend(EXPRESSION_UNITS * len(action.expression))
        copy = _amend(record, action.apply(candidate), {errors.RULE_PROPERTY: rule.description.name})
        fault = fault_of(copy, self._context.limits)
        amendments = copy.amendments or Amendments()
        size = amendments_bytes(amendments)
        candidate.spend(size + _AMENDMENT_UNITS * len(amendments.user))
        if fault is None and size > self._context.limits.header_bytes:
            fault = f"it has {size} bytes of changed properties"
        if fault is not None:
            raise EvaluationError(f"its action produces a message that no entity accepts: {fault}")
        return copy

    def _forward(self, holder: ReceivableEntity, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        self._forwards += 1
        onward = record._replace(hops=record.hops + 1, enqueued_ms=now_ms)
        entity = self._find(holder.description.forward_to or "")
        failure = self._refusal(entity, onward)
        if failure is not None or entity is None:
            return self._to_dead_letters(holder, record, failure, view, now_ms)
        if self._is_duplicate(entity, onward, now_ms):
            if not self._is_forwarding_loop(entity, onward):
                self._drop(entity, onward)
                return []
            failure = Failure(errors.CAME_ROUND, f"'{entity.path}' has had this message before")
            return self._to_dead_letters(holder, record, failure, view, now_ms)
        try:
            return self._deliver_forwarded(entity, onward, view, now_ms)
        except RuleBudgetExceededError as error:
            return self._to_dead_letters(holder, record, _budget_failure(error), view, now_ms)

    def _deliver_forwarded(self, entity: Destination, onward: Record, view: LazyView, now_ms: int) -> list[Placement]:
        """Deliver a forwarded message to its destination and return its placements.

        Raises ``RuleBudgetExceededError``, having changed nothing, if the destination's rules take too long.
        """
        copies = [] if isinstance(entity, QueueEntity) else self._apply_rules(entity, onward, view)
        entity.touch(now_ms)
        self._remember(entity, onward, onward.original_sequence, now_ms)
        if isinstance(entity, QueueEntity):
            return self._arrive(entity, onward, view, now_ms)
        return self._fan_out(copies, view, now_ms)

    def _to_dead_letters(
        self, holder: ReceivableEntity, record: Record, failure: Failure | None, view: LazyView, now_ms: int
    ) -> list[Placement]:
        dead_letter = _dead_letter(record, failure)
        forwarded = self._forward_dead_letter(holder, dead_letter, view, now_ms)
        return (
            [Placement(holder.dead_letters, dead_letter, partition_key_of(dead_letter))]
            if forwarded is None
            else forwarded
        )

    def _to_dead_letters_of(
        self, holders: Iterable[ReceivableEntity], record: Record, failure: Failure, view: LazyView, now_ms: int
    ) -> list[Placement]:
        return [place for holder in holders for place in self._to_dead_letters(holder, record, failure, view, now_ms)]

    def _forward_dead_letter(
        self, holder: ReceivableEntity, dead_letter: Record, view: LazyView, now_ms: int
    ) -> list[Placement] | None:
        """Return the placements of a forwarded dead letter; ``None`` if it has to stay with its entity."""
        target = holder.description.forward_dead_letters_to
        if target is None:
            return None
        self._forwards += 1
        source = holder.dead_letter_source
        onward = dead_letter._replace(hops=dead_letter.hops + 1, enqueued_ms=now_ms, dead_letter_source=source)
        entity = self._find(target)
        if entity is None or self._refusal(entity, onward) is not None:
            return None
        if self._is_duplicate(entity, onward, now_ms):
            if self._is_forwarding_loop(entity, onward):
                return None
            self._drop(entity, onward)
            return []
        try:
            return self._deliver_forwarded(entity, onward, view, now_ms)
        except RuleBudgetExceededError:
            return None

    def _drop(self, entity: Destination, repeated: Record) -> None:
        if self._context.event_sink is not None:
            self._context.event_sink.note(MessageEvent.REPEATED, entity.intake.address, repeated)

    def _refusal(self, entity: Destination | None, record: Record) -> Failure | None:
        """Return the reason for which an entity refuses a forwarded message, or ``None``."""
        limits = self._context.limits
        if entity is None:
            return Failure(errors.DESTINATION_NOT_FOUND, "the destination does not exist")
        where = f"'{entity.path}'"
        if self._forwards > limits.forwards_per_message:
            return Failure(errors.MAX_HOPS, f"the message was already forwarded {limits.forwards_per_message} times")
        if record.hops > limits.forwarding_hops:
            return Failure(errors.MAX_HOPS, f"{where} would be more than {limits.forwarding_hops} forwards away")
        if not entity.description.status.can_send:
            return Failure(errors.DESTINATION_DISABLED, f"{where} is {entity.description.status}")
        if record.size > message_limit(entity, limits):
            return Failure(errors.DESTINATION_REFUSES_SIZE, f"{where} does not accept messages of {record.size} bytes")
        if entity.usage.size_bytes + record.size > capacity(entity, limits):
            return Failure(errors.DESTINATION_FULL, f"{where} is full")
        return None

    # Writing

    def _place(
        self,
        placements: list[Placement],
        body_id: int,
        now_ms: int,
        *,
        origin: Queue | None = None,
        shared: bool = False,
    ) -> None:
        shared = shared or len(placements) > 1
        for queue, record, pin in placements:
            # A message that only becomes active, and that no key ties to another partition, keeps its partition.
            stays = queue is origin and pin is None
            partition = record.sequence >> PARTITION_SHIFT if stays else _spread(queue, pin)
            sequence = queue.next_sequence(partition)
            queue.note_sequence(sequence)
            arrived = placed(record, sequence, now_ms, body_id, shared)
            queue.add(arrived)
            if self._context.event_sink is not None:
                self._context.event_sink.note(MessageEvent.ROUTED, queue.address, arrived)

    def _is_duplicate(self, entity: Destination, message: NewMessage | Record, now_ms: int) -> bool:
        key = _duplicate_key(entity, message)
        return entity.duplicates is not None and key is not None and entity.duplicates.seen(key, now_ms)

    def _is_forwarding_loop(self, entity: Destination, record: Record) -> bool:
        key = _duplicate_key(entity, record)
        duplicates = entity.duplicates
        return duplicates is not None and key is not None and duplicates.is_first(key, record.original_sequence)

    def _remember(self, entity: Destination, message: NewMessage | Record, sequence: int, now_ms: int) -> None:
        key = _duplicate_key(entity, message)
        if entity.duplicates is not None and key is not None:
            entity.duplicates.remember(key, now_ms, sequence)

    def _stored_view(self, record: Record) -> LazyView:
        """Return a rule's view of a message that is stored already."""
        return LazyView(lambda body_id: self._look_into(self._context.records.body(body_id)), record.body_id)

    def _look_into(self, body: bytes | None) -> PropertyView:
        if body is None:
            raise EvaluationError("the message cannot be read")
        try:
            return self._context.view(body)
        except Exception as error:
            raise EvaluationError(f"the message cannot be decoded: {error}") from error


def _is_scheduled(message: NewMessage, now_ms: int) -> bool:
    return message.scheduled_ms is not None and message.scheduled_ms > now_ms


def _budget_failure(error: RuleBudgetExceededError) -> Failure:
    return Failure(errors.RULE_BUDGET, str(error))


def expires_at(time_to_live_ms: int | None, description: EntityDescription, now_ms: int) -> int:
    lifetime_ms = _shorter(time_to_live_ms, description.default_time_to_live_ms)
    return NEVER if lifetime_ms is None else min(now_ms + lifetime_ms, NEVER)


def fault_of(message: Unchecked, limits: Limits) -> str | None:
    """Return what makes a message invalid for every entity, apart from its size; ``None`` if it is valid."""
    message_id = message.message_id
    if (
        type(message_id) is str
        and len(message_id) <= limits.id_characters
        and message.session_id is None
        and message.partition_key is None
        and message.time_to_live_ms is None
        and message.scheduled_ms is None
    ):
        return None  # the common case
    texts: tuple[tuple[str, object], ...] = (
        ("message id", message.message_id),
        ("session id", message.session_id),
        ("partition key", message.partition_key),
    )
    for name, value in texts:
        if value is None:
            continue
        if not isinstance(value, str):
            return f"the {name} must be text, got {value!r}"
        if len(value) > limits.id_characters:
            return f"the {name} has {len(value)} characters; at most {limits.id_characters} are allowed"
    if message.partition_key is not None and message.session_id not in {None, message.partition_key}:
        return "the partition key differs from the session id"
    for name, time_ms in (("time to live", message.time_to_live_ms), ("scheduled time", message.scheduled_ms)):
        if time_ms is not None and not (isinstance(time_ms, int) and 0 <= time_ms <= NEVER):
            return f"the {name} must be whole milliseconds >= 0, got {time_ms!r}"
    return None


def message_limit(entity: Destination, limits: Limits) -> int:
    """Return the largest message size that an entity accepts."""
    return entity.description.max_message_bytes or limits.message_bytes


def capacity(entity: Destination, limits: Limits) -> int:
    """Return the most bytes that an entity may hold."""
    return capacity_of(entity.description, limits)


def capacity_of(description: QueueDescription | TopicDescription, limits: Limits) -> int:
    partitions = limits.partitions if description.partitioned else 1
    return description.max_size_megabytes * MEGABYTE * partitions


def _shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _forwards(holder: ReceivableEntity) -> bool:
    """Return whether an arriving message is forwarded at once; it waits behind others that wait to be forwarded."""
    return holder.description.forward_to is not None and not holder.main.has_waiting


def _duplicate_key(entity: Destination, message: NewMessage | Record) -> str | None:
    """Return the key that duplicates share; a message without an id is never a duplicate."""
    if entity.duplicates is None or not message.message_id:
        return None
    pin = partition_key_of(message) if entity.description.partitioned else None
    return message.message_id if pin is None else f"{message.message_id}\0{pin}"


def _partition_pin(holder: ReceivableEntity | TopicEntity, message: NewMessage | Record) -> str | None:
    """Return the key that ties a message to an entity's partition: its own, or its id if duplicates are detected."""
    pin = partition_key_of(message)
    if pin is None and not isinstance(holder, SubscriptionEntity) and getattr(holder, "duplicates", None) is not None:
        return message.message_id or None
    return pin


def _next_sequence(entity: Destination, message: NewMessage) -> int:
    intake = entity.intake
    return intake.next_sequence(0 if intake.partitions == 1 else _spread(intake, _partition_pin(entity, message)))


def _spread(queue: Queue, key: str | None) -> int:
    """Return the partition of a key; without a key, the next one in turn."""
    if queue.partitions == 1:
        return 0
    if key is None:
        return queue.next_partition()
    return partition_of(key, queue.partitions)


def _record(
    entity: Destination, message: NewMessage, sequence: int, body_id: int, is_scheduled: bool, now_ms: int
) -> Record:
    """Return the record of a message that an entity accepts."""
    body, message_id, session_id, partition_key, time_to_live_ms, scheduled_ms, _, _, returned = message
    expires_ms = NEVER if is_scheduled else expires_at(time_to_live_ms, entity.description, now_ms)
    return _new_tuple(
        Record,
        (
            sequence, now_ms, expires_ms, len(body), body_id, message_id, session_id, partition_key, time_to_live_ms,
            scheduled_ms, sequence, _SCHEDULED if is_scheduled else _ACTIVE, 0, 0, False, None, None, returned,
        ),
    )  # fmt: skip


def _draft(message: NewMessage, now_ms: int) -> Record:
    return Record(
        _UNPLACED,
        now_ms,
        NEVER,
        len(message.body),
        _UNPLACED,
        message.message_id,
        message.session_id,
        message.partition_key,
        message.time_to_live_ms,
        message.scheduled_ms,
        _UNPLACED,
        returned=message.returned,
    )


def _dead_letter(record: Record, failure: Failure | None) -> Record:
    """Return the record as a dead letter, which never expires."""
    changes = (
        {}
        if failure is None
        else {
            errors.REASON_PROPERTY: failure.reason,
            errors.DESCRIPTION_PROPERTY: failure.description,
        }
    )
    return amended(record, changes)._replace(expires_ms=NEVER, state=MessageState.ACTIVE)


def amendments_bytes(amendments: Amendments) -> int:
    """Return roughly how many bytes changed properties take."""
    return sum(
        len(name) + (len(value) if isinstance(value, str | bytes) else 16)
        for values in (amendments.user, amendments.system)
        for name, value in values.items()
    )


def amended(record: Record, user: Mapping[str, Value]) -> Record:
    """Return the record with properties set."""
    return _amend(record, PropertyChanges(user={}, system={}), user) if user else record


def _amend(record: Record, changes: PropertyChanges, user: Mapping[str, Value]) -> Record:
    before = record.amendments
    if before is None:
        amendments = Amendments(user={**changes.user, **user}, system={**changes.system})
    else:
        names = {name.lower() for name in (*changes.user, *user)}
        kept = {name: value for name, value in before.user.items() if name.lower() not in names}
        amendments = Amendments(user={**kept, **changes.user, **user}, system={**before.system, **changes.system})
    return _follow(record._replace(amendments=amendments), changes)


def _follow(record: Record, changes: PropertyChanges) -> Record:
    """Update the broker's own fields of a message with what an action has set."""
    system = changes.system
    if not system:
        return record
    return record._replace(
        message_id=_text(system.get("MessageId", record.message_id)) or "",
        session_id=_text(system.get("SessionId", record.session_id)),
        partition_key=_text(system.get("PartitionKey", record.partition_key)),
        time_to_live_ms=_milliseconds(system.get("TimeToLive", record.time_to_live_ms)),
    )


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _milliseconds(value: Value) -> int | None:
    return int(value) if isinstance(value, int) else None
