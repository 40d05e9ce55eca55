"""Where a message goes: into a queue, through a topic's rules, along a chain of forwards, to the dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from pairbus.broker import reasons
from pairbus.broker.candidate import Budget, BudgetSpentError, Candidate, LazyView
from pairbus.broker.chronicle import Moment
from pairbus.broker.context import Context
from pairbus.broker.descriptions import EntityDescription, QueueDescription, TopicDescription
from pairbus.broker.entity import Destination, Holder, QueueEntity, SubscriptionEntity, TopicEntity
from pairbus.broker.errors import RuleBudgetExceededError
from pairbus.broker.limits import MEGABYTE, UNLIMITED, Limits
from pairbus.broker.message import NEVER, Amendments, Message, MessageState, PropertyView, Record
from pairbus.broker.queue import PARTITION_SHIFT, Queue
from pairbus.broker.rules import EXPRESSION_UNITS, Rule
from pairbus.broker.sql import Changes, EvaluationError, SqlAction
from pairbus.broker.values import Value

_UNPLACED: Final = 0
"""The number of a record, or a body, before it has one."""

_AMENDMENT_UNITS: Final = 300
"""About how many nanoseconds it takes to copy one changed property."""


class Placement(NamedTuple):
    """A record, the queue that it belongs into, and what ties it to a partition there."""

    queue: Queue
    record: Record
    pin: str | None


class Failure(NamedTuple):
    """Why a message cannot be where it should."""

    reason: str
    description: str


class Copy(NamedTuple):
    """What a rule gives to a subscription: a message, or a dead letter if the rule has failed."""

    subscription: SubscriptionEntity
    record: Record
    failure: Failure | None


class Publication(NamedTuple):
    """A message that a topic is to take in, and what its rules make of it."""

    record: Record
    key: str | None
    """What duplicates of it are found by."""

    copies: list[Copy] | None
    """``None`` for a scheduled message: rules look at it when its time has come."""

    view: LazyView
    units: int
    """What is left for the rules of topics that the copies are forwarded to."""


class Router:
    """Decides, and then writes. Only ``screen`` and ``publish`` refuse: all else is checked before it comes here."""

    def __init__(self, context: Context, find: Callable[[str], Destination | None]) -> None:
        self._context = context
        self._find = find
        self._forwards = 0
        """How often the message in hand, with all its copies, was to be forwarded."""
        self._budget = Budget()
        """What the rules may still do for the message in hand, with all its copies."""

    # Messages from outside

    def screen(self, entity: Destination, messages: Sequence[Message], now_ms: int) -> None:
        """Raise what ``accept`` cannot: ``RuleBudgetExceededError``, or what the store raises that cannot be read."""
        if isinstance(entity, TopicEntity):
            numbering = entity.intake.numbering
            try:
                self._prepare_all(entity, messages, now_ms)
            finally:
                entity.intake.numbering = numbering
        elif entity.duplicates is not None and entity.duplicates.reads_store(now_ms):
            for message in messages:
                self._is_duplicate(entity, message, now_ms)

    def publish(self, topic: TopicEntity, messages: Sequence[Message], now_ms: int) -> list[int | None]:
        """Take messages in, all or none; the sequence number of each, as ``accept`` gives it.

        Raises ``RuleBudgetExceededError``, or what the store raises that cannot be read.
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

    def _prepare_all(self, topic: TopicEntity, messages: Sequence[Message], now_ms: int) -> list[Publication | None]:
        """Number messages and apply the rules to them; nothing is written."""
        seen: set[str] = set()
        units = self._context.limits.rule_units
        return [self._prepare(topic, message, seen, units, now_ms) for message in messages]

    def _prepare(
        self, topic: TopicEntity, message: Message, seen: set[str], units: int, now_ms: int
    ) -> Publication | None:
        """``None`` for a ping and a duplicate, also of one of the ids that were ``seen`` just now."""
        if message.ping:
            return None
        duplicates = topic.duplicates
        key = None if duplicates is None else _duplicate_key(topic, message)
        if duplicates is not None and key is not None:
            if key in seen or duplicates.seen(key, now_ms):
                return None
            seen.add(key)
        is_scheduled = message.scheduled_ms is not None and message.scheduled_ms > now_ms
        record = _record(topic, message, _next_sequence(topic, message), _UNPLACED, is_scheduled, now_ms)
        view = LazyView(self._look_into, message.body)
        self._begin(units)
        copies = None if is_scheduled else self._apply_rules(topic, record, view)
        return Publication(record, key, copies, view, self._budget.units)

    def _issue(self, topic: TopicEntity, message: Message, publication: Publication | None, now_ms: int) -> int | None:
        """Write what was prepared."""
        if publication is None:
            if not message.ping:
                self._drop(topic, _draft(message, now_ms))
            return None
        record, key, copies, view, units = publication
        self._register(topic, message, record, key, now_ms)
        if copies is None:
            topic.intake.add(record._replace(body_id=self._context.bodies.keep(message.body, 1)))
        else:
            self._begin(units)
            self._admit(self._fan_out(copies, view, now_ms), message.body, now_ms)
        return record.sequence

    def accept(self, entity: Destination, message: Message, now_ms: int) -> int | None:
        """Take a message in; its sequence number, or ``None`` where it vanishes (a ping, a duplicate)."""
        if isinstance(entity, TopicEntity):  # a part of a transaction, which was screened
            return self._issue(entity, message, self._prepare(entity, message, set(), UNLIMITED, now_ms), now_ms)
        if message.ping:
            return None
        duplicates = entity.duplicates
        key = None if duplicates is None else _duplicate_key(entity, message)
        if duplicates is not None and key is not None and duplicates.seen(key, now_ms):
            self._drop(entity, _draft(message, now_ms))
            return None
        body = message.body
        is_scheduled = message.scheduled_ms is not None and message.scheduled_ms > now_ms
        stays = is_scheduled or not _forwards(entity)
        body_id = self._context.bodies.keep(body, 1) if stays else _UNPLACED
        record = _record(entity, message, _next_sequence(entity, message), body_id, is_scheduled, now_ms)
        self._register(entity, message, record, key, now_ms)
        if stays:
            entity.main.add(record)
        else:
            self._begin(self._context.limits.rule_units)
            placements = self._arrive(entity, record, LazyView(self._look_into, body), now_ms)
            self._admit(placements, body, now_ms)
        return record.sequence

    def _register(self, entity: Destination, message: Message, record: Record, key: str | None, now_ms: int) -> None:
        """Note that a message was taken in, wherever it goes."""
        intake, chronicle = entity.intake, self._context.chronicle
        intake.note_sequence(record.sequence)
        if key is not None and entity.duplicates is not None:
            entity.duplicates.remember(key, now_ms, record.sequence)
        if chronicle is not None:
            chronicle.note(Moment.ACCEPTED, intake.address, record, message.body)
            if record.state is MessageState.SCHEDULED:
                chronicle.note(Moment.SCHEDULED, intake.address, record)

    def _admit(self, placements: list[Placement], body: bytes, now_ms: int) -> None:
        if placements:
            body_id = self._context.bodies.keep(body, len(placements))
            self._place(placements, body_id, now_ms)

    def _begin(self, units: int) -> None:
        """Take another message in hand, for which rules may do so much work."""
        self._forwards = 0
        self._budget.units = units

    def transfer(self, via: Holder, entity: Destination | None, message: Message, now_ms: int) -> int | None:
        """Take a message in that is sent through another entity: what its destination refuses stays there."""
        if message.ping:
            return None
        self._begin(self._context.limits.rule_units)
        failure = self._obstacle(entity, _draft(message, now_ms))
        if failure is None and entity is not None:
            try:
                self.screen(entity, (message,), now_ms)
            except RuleBudgetExceededError as error:
                failure = _too_costly(error)
            else:
                entity.touch(now_ms)
                return self.accept(entity, message, now_ms)
        letter = _dead_letter(_draft(message, now_ms), failure)
        placement = Placement(via.transfer_dead_letters, letter, _pin(letter))
        self._place([placement], self._context.bodies.keep(message.body, 1), now_ms)
        return None

    def place_stub(self, holders: Iterable[Holder], stub: Record, failure: Failure, now_ms: int) -> None:
        """Dead-letter the stub of a message that cannot be read, with a body of its own."""
        body = self._context.stub_body
        self._begin(self._context.limits.rule_units)
        view = LazyView(self._look_into, body)
        self._admit(self._bury_in(holders, stub, failure, view, now_ms), body, now_ms)

    # Messages that are here and move on

    def dead_letter(self, holder: Holder, queue: Queue, record: Record, failure: Failure | None, now_ms: int) -> None:
        """Move a message that was taken to the dead letters of its entity, or wherever these are forwarded."""
        self._begin(self._context.limits.rule_units)
        letters = self._bury(holder, record, failure, self._stored_view(record), now_ms)
        self._move(queue, record, letters, now_ms, Moment.DEAD_LETTERED)

    def activate(self, entity: Destination, record: Record, now_ms: int) -> None:
        """The time of a scheduled message that was taken has come: it gets a new number and goes on."""
        self._begin(self._context.limits.rule_units)
        entity.touch(now_ms)
        active = record._replace(state=MessageState.ACTIVE, enqueued_ms=now_ms)
        view = self._stored_view(record)
        if isinstance(entity, QueueEntity):
            placements = self._arrive(entity, active, view, now_ms)
        else:
            placements = self._release(entity, active, view, now_ms)
        self._move(entity.intake, record, placements, now_ms)

    def forwards_from(self, holder: Holder, queue: Queue) -> bool:
        """Return whether messages that wait in this queue of an entity are to move on."""
        if queue is holder.dead_letters:
            return holder.description.forward_dead_letters_to is not None
        return queue is holder.main and holder.description.forward_to is not None

    def forward_waiting(self, holder: Holder, queue: Queue, record: Record, now_ms: int) -> bool:
        """Move a message that was taken on, if its queue forwards; whether it did."""
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
        moment: Moment = Moment.MOVED,
    ) -> None:
        if self._context.chronicle is not None:
            self._context.chronicle.note(moment, queue.address, record)
        queue.remove(record)
        self._context.bodies.share(record, len(placements))
        self._place(placements, record.body_id, now_ms, home=queue, shared=record.shared)

    # Decisions: each gives the list of places that one message ends up in

    def _arrive(self, holder: Holder, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        if _forwards(holder):
            return self._forward(holder, record, view, now_ms)
        if holder.description.requires_session and record.session_id is None:
            failure = Failure(reasons.NO_SESSION_ID, f"'{holder.full_path}' requires sessions")
            return self._bury(holder, record, failure, view, now_ms)
        expires_ms = expires_at(record.time_to_live_ms, holder.description, now_ms)
        pin = _partition_pin(holder, record)
        return [Placement(holder.main, record._replace(expires_ms=expires_ms, delivery_count=0), pin)]

    def _release(self, topic: TopicEntity, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        """Apply the rules to a message that was taken in before; if they take too long, dead-letter it everywhere."""
        try:
            copies = self._apply_rules(topic, record, view)
        except RuleBudgetExceededError as error:
            return self._bury_in(topic.subscriptions.values(), record, _too_costly(error), view, now_ms)
        return self._fan_out(copies, view, now_ms)

    def _fan_out(self, copies: list[Copy], view: LazyView, now_ms: int) -> list[Placement]:
        placements: list[Placement] = []
        for subscription, record, failure in copies:
            if failure is None:
                placements += self._arrive(subscription, record, view, now_ms)
            else:
                placements += self._bury(subscription, record, failure, view, now_ms)
        return placements

    def _apply_rules(self, topic: TopicEntity, record: Record, view: LazyView) -> list[Copy]:
        """Make the copies that a topic's subscriptions get, and change nothing.

        Raises ``RuleBudgetExceededError``.
        """
        time_to_live_ms = _shorter(record.time_to_live_ms, topic.description.default_time_to_live_ms)
        if time_to_live_ms != record.time_to_live_ms:
            record = record._replace(time_to_live_ms=time_to_live_ms)
        candidate = Candidate(record, view, self._budget)
        try:
            return [
                copy
                for subscription in topic.subscriptions.values()
                for copy in self._copies(subscription, record, candidate)
            ]
        except BudgetSpentError:
            most = self._context.limits.rule_units
            raise RuleBudgetExceededError(
                f"the rules of '{topic.path}' take more than {most} units of work for this message: give the message"
                " shorter properties, or the topic fewer or simpler rules",
                topic.path,
            ) from None

    def _copies(self, subscription: SubscriptionEntity, record: Record, candidate: Candidate) -> Iterator[Copy]:
        """All rules without an action give one copy together; each rule with one gives its own."""
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
                    failure = Failure(reasons.FILTER_FAILED, f"rule '{rule.description.name}': {error}")
                    yield Copy(subscription, record, failure)
                continue
            plain = plain or rule.action is None
            yield Copy(subscription, copy, None)

    def _changed(self, rule: Rule, action: SqlAction, record: Record, candidate: Candidate) -> Record:
        """The copy that a rule with an action makes; what no sender could send, no action can make."""
        candidate.spend(EXPRESSION_UNITS * len(action.expression))
        copy = _amend(record, action.apply(candidate), {reasons.RULE_PROPERTY: rule.description.name})
        fault = fault_of(copy, self._context.limits)
        amendments = copy.amendments or Amendments()
        size = amendments_bytes(amendments)
        candidate.spend(size + _AMENDMENT_UNITS * len(amendments.user))
        if fault is None and size > self._context.limits.header_bytes:
            fault = f"it has {size} bytes of changed properties"
        if fault is not None:
            raise EvaluationError(f"its action makes a message that no entity takes: {fault}")
        return copy

    def _forward(self, holder: Holder, record: Record, view: LazyView, now_ms: int) -> list[Placement]:
        self._forwards += 1
        onward = record._replace(hops=record.hops + 1, enqueued_ms=now_ms)
        entity = self._find(holder.description.forward_to or "")
        failure = self._obstacle(entity, onward)
        if failure is not None or entity is None:
            return self._bury(holder, record, failure, view, now_ms)
        if self._is_duplicate(entity, onward, now_ms):
            if not self._has_come_round(entity, onward):
                self._drop(entity, onward)
                return []
            failure = Failure(reasons.CAME_ROUND, f"'{entity.path}' has had this very message before")
            return self._bury(holder, record, failure, view, now_ms)
        try:
            return self._go_on(entity, onward, view, now_ms)
        except RuleBudgetExceededError as error:
            return self._bury(holder, record, _too_costly(error), view, now_ms)

    def _go_on(self, entity: Destination, onward: Record, view: LazyView, now_ms: int) -> list[Placement]:
        """Raise ``RuleBudgetExceededError``, having changed nothing, if the destination's rules take too long."""
        copies = [] if isinstance(entity, QueueEntity) else self._apply_rules(entity, onward, view)
        entity.touch(now_ms)
        self._remember(entity, onward, onward.original_sequence, now_ms)
        if isinstance(entity, QueueEntity):
            return self._arrive(entity, onward, view, now_ms)
        return self._fan_out(copies, view, now_ms)

    def _bury(
        self, holder: Holder, record: Record, failure: Failure | None, view: LazyView, now_ms: int
    ) -> list[Placement]:
        letter = _dead_letter(record, failure)
        forwarded = self._forward_dead_letter(holder, letter, view, now_ms)
        return [Placement(holder.dead_letters, letter, _pin(letter))] if forwarded is None else forwarded

    def _bury_in(
        self, holders: Iterable[Holder], record: Record, failure: Failure, view: LazyView, now_ms: int
    ) -> list[Placement]:
        return [place for holder in holders for place in self._bury(holder, record, failure, view, now_ms)]

    def _forward_dead_letter(
        self, holder: Holder, letter: Record, view: LazyView, now_ms: int
    ) -> list[Placement] | None:
        """Where a dead letter is forwarded to; ``None`` if it has to stay with its entity."""
        target = holder.description.forward_dead_letters_to
        if target is None:
            return None
        self._forwards += 1
        source = holder.dead_letter_source
        onward = letter._replace(hops=letter.hops + 1, enqueued_ms=now_ms, dead_letter_source=source)
        entity = self._find(target)
        if entity is None or self._obstacle(entity, onward) is not None:
            return None
        if self._is_duplicate(entity, onward, now_ms):
            if self._has_come_round(entity, onward):
                return None
            self._drop(entity, onward)
            return []
        try:
            return self._go_on(entity, onward, view, now_ms)
        except RuleBudgetExceededError:
            return None

    def _drop(self, entity: Destination, repeated: Record) -> None:
        if self._context.chronicle is not None:
            self._context.chronicle.note(Moment.REPEATED, entity.intake.address, repeated)

    def _obstacle(self, entity: Destination | None, record: Record) -> Failure | None:
        """Why an entity does not take a message that is forwarded to it."""
        limits = self._context.limits
        if entity is None:
            return Failure(reasons.DESTINATION_NOT_FOUND, "the destination does not exist")
        where = f"'{entity.path}'"
        if self._forwards > limits.forwards_per_message:
            return Failure(reasons.MAX_HOPS, f"the message was forwarded {limits.forwards_per_message} times already")
        if record.hops > limits.forwarding_hops:
            return Failure(reasons.MAX_HOPS, f"{where} would be more than {limits.forwarding_hops} forwards away")
        if not entity.description.status.can_send:
            return Failure(reasons.DESTINATION_DISABLED, f"{where} is {entity.description.status}")
        if record.size > message_limit(entity, limits):
            return Failure(reasons.DESTINATION_REFUSES_SIZE, f"{where} takes no message of {record.size} bytes")
        if entity.usage.size_bytes + record.size > capacity(entity, limits):
            return Failure(reasons.DESTINATION_FULL, f"{where} is full")
        return None

    # Writing

    def _place(
        self,
        placements: list[Placement],
        body_id: int,
        now_ms: int,
        *,
        home: Queue | None = None,
        shared: bool = False,
    ) -> None:
        shared = shared or len(placements) > 1
        for queue, record, pin in placements:
            # A message that only becomes active, and that no key ties to another partition, stays where it is.
            stays = queue is home and pin is None
            partition = record.sequence >> PARTITION_SHIFT if stays else _spread(queue, pin)
            sequence = queue.next_sequence(partition)
            queue.note_sequence(sequence)
            placed = record._replace(
                sequence=sequence,
                enqueued_ms=now_ms,
                original_sequence=record.original_sequence or sequence,
                body_id=body_id,
                shared=shared,
            )
            queue.add(placed)
            if self._context.chronicle is not None:
                self._context.chronicle.note(Moment.ROUTED, queue.address, placed)

    def _is_duplicate(self, entity: Destination, message: Message | Record, now_ms: int) -> bool:
        key = _duplicate_key(entity, message)
        return entity.duplicates is not None and key is not None and entity.duplicates.seen(key, now_ms)

    def _has_come_round(self, entity: Destination, record: Record) -> bool:
        key = _duplicate_key(entity, record)
        duplicates = entity.duplicates
        return duplicates is not None and key is not None and duplicates.is_first(key, record.original_sequence)

    def _remember(self, entity: Destination, message: Message | Record, sequence: int, now_ms: int) -> None:
        key = _duplicate_key(entity, message)
        if entity.duplicates is not None and key is not None:
            entity.duplicates.remember(key, now_ms, sequence)

    def _stored_view(self, record: Record) -> LazyView:
        """What a rule sees of a message that is kept already."""
        return LazyView(lambda body_id: self._look_into(self._context.records.body(body_id)), record.body_id)

    def _look_into(self, body: bytes | None) -> PropertyView:
        if body is None:
            raise EvaluationError("the message cannot be read")
        try:
            return self._context.view(body)
        except Exception as error:
            raise EvaluationError(f"the message cannot be looked into: {error}") from error


def _too_costly(error: RuleBudgetExceededError) -> Failure:
    return Failure(reasons.RULE_BUDGET, str(error))


def expires_at(time_to_live_ms: int | None, description: EntityDescription, now_ms: int) -> int:
    lifetime_ms = _shorter(time_to_live_ms, description.default_time_to_live_ms)
    return NEVER if lifetime_ms is None else min(now_ms + lifetime_ms, NEVER)


def fault_of(message: Message | Record, limits: Limits) -> str | None:
    """What is wrong with a message whichever entity it is for, apart from its size."""
    message_id = message.message_id
    if (
        type(message_id) is str
        and len(message_id) <= limits.id_characters
        and message.session_id is None
        and message.partition_key is None
        and message.time_to_live_ms is None
        and message.scheduled_ms is None
    ):
        return None  # nearly always
    texts: tuple[tuple[str, object], ...] = (
        ("message id", message.message_id),
        ("session id", message.session_id),
        ("partition key", message.partition_key),
    )
    for name, value in texts:
        if value is None:
            continue
        if not isinstance(value, str):
            return f"the {name} is {value!r}; it has to be text"
        if len(value) > limits.id_characters:
            return f"the {name} has {len(value)} characters; at most {limits.id_characters} are allowed"
    if message.partition_key is not None and message.session_id not in {None, message.partition_key}:
        return "the partition key differs from the session id"
    for name, time_ms in (("time to live", message.time_to_live_ms), ("scheduled time", message.scheduled_ms)):
        if time_ms is not None and not (isinstance(time_ms, int) and 0 <= time_ms <= NEVER):
            return f"the {name} is {time_ms!r}; it has to be whole milliseconds"
    return None


def message_limit(entity: Destination, limits: Limits) -> int:
    """The largest message that an entity takes."""
    return entity.description.max_message_bytes or limits.message_bytes


def capacity(entity: Destination, limits: Limits) -> int:
    """How many bytes an entity holds at most."""
    return capacity_of(entity.description, limits)


def capacity_of(description: QueueDescription | TopicDescription, limits: Limits) -> int:
    partitions = limits.partitions if description.partitioned else 1
    return description.max_size_megabytes * MEGABYTE * partitions


def _shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _forwards(holder: Holder) -> bool:
    """Whether a message that arrives goes on at once; if others still wait to go on, it waits behind them."""
    return holder.description.forward_to is not None and not holder.main.has_waiting


def _duplicate_key(entity: Destination, message: Message | Record) -> str | None:
    """What tells duplicates; without an id no message is another's."""
    if entity.duplicates is None or not message.message_id:
        return None
    pin = _pin(message) if entity.description.partitioned else None
    return message.message_id if pin is None else f"{message.message_id}\0{pin}"


def _pin(message: Message | Record) -> str | None:
    """What ties a message to a partition."""
    return message.partition_key if message.session_id is None else message.session_id


def _partition_pin(holder: Holder | TopicEntity, message: Message | Record) -> str | None:
    """What ties a message to a partition of an entity: its key, or its id where that is to be seen only once."""
    pin = _pin(message)
    if pin is None and not isinstance(holder, SubscriptionEntity) and getattr(holder, "duplicates", None) is not None:
        return message.message_id or None
    return pin


def _next_sequence(entity: Destination, message: Message) -> int:
    intake = entity.intake
    return intake.next_sequence(0 if intake.partitions == 1 else _spread(intake, _partition_pin(entity, message)))


def _spread(queue: Queue, key: str | None) -> int:
    """The partition of a key; without one, each in turn."""
    if queue.partitions == 1:
        return 0
    if key is None:
        return queue.next_partition()
    return crc32(key.encode("utf-8", "surrogatepass")) % queue.partitions


def _record(
    entity: Destination, message: Message, sequence: int, body_id: int, is_scheduled: bool, now_ms: int
) -> Record:
    """What is kept of a message that an entity takes in."""
    return Record(
        sequence,
        now_ms,
        NEVER if is_scheduled else expires_at(message.time_to_live_ms, entity.description, now_ms),
        len(message.body),
        body_id,
        message.message_id,
        message.session_id,
        message.partition_key,
        message.time_to_live_ms,
        message.scheduled_ms,
        sequence,
        MessageState.SCHEDULED if is_scheduled else MessageState.ACTIVE,
        returned=message.returned,
    )


def _draft(message: Message, now_ms: int) -> Record:
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
    """The record as it lies among the dead letters: nothing there expires."""
    changes = (
        {}
        if failure is None
        else {
            reasons.REASON_PROPERTY: failure.reason,
            reasons.DESCRIPTION_PROPERTY: failure.description,
        }
    )
    return amended(record, changes)._replace(expires_ms=NEVER, state=MessageState.ACTIVE)


def amendments_bytes(amendments: Amendments) -> int:
    """About how much changed properties take."""
    return sum(
        len(name) + (len(value) if isinstance(value, str | bytes) else 16)
        for values in (amendments.user, amendments.system)
        for name, value in values.items()
    )


def amended(record: Record, user: Mapping[str, Value]) -> Record:
    """The record with properties set."""
    return _amend(record, Changes(user={}, system={}), user) if user else record


def _amend(record: Record, changes: Changes, user: Mapping[str, Value]) -> Record:
    before = record.amendments or Amendments()
    names = {name.lower() for name in (*changes.user, *user)}
    kept = {name: value for name, value in before.user.items() if name.lower() not in names}
    amendments = Amendments(user={**kept, **changes.user, **user}, system={**before.system, **changes.system})
    return _follow(record._replace(amendments=amendments), changes)


def _follow(record: Record, changes: Changes) -> Record:
    """Let the broker's own knowledge of a message follow what an action has set."""
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
