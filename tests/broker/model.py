"""A broker in the simplest form: lists, scans, and every rule spelled out. Slow, and easy to verify.

It shares the value classes with the broker and nothing else. Where the specification leaves a choice (which partition
takes a message without a key; which of two is first if both are due at the same millisecond) it follows the ``Clues``:
what the broker wrote while it did the same.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from pairbus.broker import SettlementKind, SettlementRequest
from pairbus.broker.descriptions import (
    CorrelationFilter,
    EntityDescription,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    QueueDescription,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    Value,
)
from pairbus.broker.entity import EntityInfo
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    HeaderSizeExceededError,
    InvalidDescriptionError,
    InvalidMessageError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.broker.limits import MEGABYTE, Limits
from pairbus.broker.message import (
    NEVER,
    Address,
    DeliveredMessage,
    MessageState,
    NewMessage,
    QueueId,
    QueuePart,
    Record,
)
from pairbus.broker.namespace import SessionGrant
from pairbus.broker.ports import EntityGone, Notice, SessionLost
from pairbus.broker.sql import MISSING, Missing
from pairbus.broker.transaction import SendOperation, SettleOperation, TransactionOperation

PARTITION_BITS: Final = 48
SENDING: Final = {EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED}
RECEIVING: Final = {EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED}
ACTIVE, DEFERRED, SCHEDULED = MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED


class AnyText(str):
    """Equals every non-empty text: the broker is free in the wording of its explanations."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other != ""

    __hash__ = str.__hash__


ANY_TEXT: Final = AnyText("(any)")


# Messages


def encode(user: Mapping[str, Value], system: Mapping[str, Value], number: int, padding: int = 0) -> bytes:
    """Return a message as these tests write it: one line of JSON, then padding. The number makes each one different."""
    head = json.dumps({"user": dict(user), "system": dict(system), "number": number})
    return head.encode() + b"\n" + b"x" * padding


class Inside:
    """The properties inside an encoded message: the broker's ``view``."""

    def __init__(self, body: bytes) -> None:
        head = json.loads(body.partition(b"\n")[0])
        self.users: dict[str, Value] = {name.lower(): value for name, value in head["user"].items()}
        self.systems: dict[str, Value] = head["system"]

    def user(self, name: str) -> Value | Missing:
        return self.users.get(name.lower(), MISSING)

    def system(self, name: str) -> Value:
        return self.systems.get(name)


@dataclass(slots=True, eq=False, kw_only=True)
class Letter:
    """One message in its queue."""

    body: bytes
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    sequence: int = 0
    original: int = 0
    enqueued_ms: int = 0
    expires_ms: int = NEVER
    state: MessageState = ACTIVE
    count: int = 0
    hops: int = 0
    source: str | None = None
    user: dict[str, Value | Missing] = field(default_factory=dict)
    system: dict[str, Value] = field(default_factory=dict)
    token: bytes | None = None
    until_ms: int = NEVER
    """Expiry of the lock on the message; ``NEVER`` under a session's lock."""

    @property
    def is_ready(self) -> bool:
        return self.state is ACTIVE and self.token is None

    @property
    def pin(self) -> str | None:
        """Return the key that ties the message to a partition."""
        return self.partition_key if self.session_id is None else self.session_id

    def copy(self) -> Letter:
        return replace(self, user=dict(self.user), system=dict(self.system), token=None, until_ms=NEVER)

    def set_user(self, name: str, value: Value | Missing) -> None:
        for other in [other for other in self.user if other.lower() == name.lower()]:
            del self.user[other]
        self.user[name] = value


class Facts(NamedTuple):
    """Everything that a receiver, or a peek, can see of a message."""

    sequence: int
    original: int
    enqueued_ms: int
    expires_ms: int
    size: int
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    state: MessageState
    delivery_count: int
    hops: int
    source: str | None
    user: dict[str, Value | Missing]
    system: dict[str, Value]
    body: bytes
    locked_until_ms: int | None = None


def facts_of(letter: Letter, locked_until_ms: int | None = None) -> Facts:
    return Facts(
        letter.sequence,
        letter.original,
        letter.enqueued_ms,
        letter.expires_ms,
        len(letter.body),
        letter.message_id,
        letter.session_id,
        letter.partition_key,
        letter.time_to_live_ms,
        letter.scheduled_ms,
        letter.state,
        letter.count,
        letter.hops,
        letter.source,
        dict(letter.user),
        dict(letter.system),
        letter.body,
        locked_until_ms,
    )


def facts_in(delivery: DeliveredMessage) -> Facts:
    record: Record = delivery.record
    amendments = record.amendments
    return Facts(
        record.sequence,
        record.original_sequence,
        record.enqueued_ms,
        record.expires_ms,
        record.size,
        record.message_id,
        record.session_id,
        record.partition_key,
        record.time_to_live_ms,
        record.scheduled_ms,
        record.state,
        record.delivery_count,
        record.hops,
        record.dead_letter_source,
        {} if amendments is None else dict(amendments.user),
        {} if amendments is None else dict(amendments.system),
        delivery.body,
        delivery.locked_until_ms,
    )


# Rules: the SQL in Python


class NoResult(Exception):  # noqa: N818 (a filter without a result is not an error)
    """The filter, or the action, cannot be evaluated."""


class Subject:
    """A message as a rule sees it: what its sender wrote, with all changes since."""

    def __init__(self, letter: Letter) -> None:
        inside = Inside(letter.body)
        self.user: dict[str, Value | Missing] = {
            **inside.users,
            **{name.lower(): value for name, value in letter.user.items()},
        }
        self.system: dict[str, Value] = {**inside.systems, **letter.system}
        self.message_id = letter.message_id
        self.session_id = letter.session_id

    def get(self, name: str) -> Value:
        value = self.user.get(name)
        return None if value is MISSING else value

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return value if isinstance(value, int | float) else None


def _quotient(subject: Subject) -> float | None:
    """Return the value of ``100 / size``."""
    size = subject.number("size")
    if size is None:
        return None
    if size == 0:
        raise NoResult
    return 100 // size if isinstance(size, int) else 100 / size


def _more(value: float | None, than: float) -> bool:
    return value is not None and value > than


Matches: TypeAlias = Callable[[Subject], bool]
FILTERS: Final[tuple[tuple[FilterDescription, Matches], ...]] = (
    (TrueFilter(), lambda _: True),
    (SqlFilterDescription("color = 'red'"), lambda subject: subject.get("color") == "red"),
    (CorrelationFilter(label="a"), lambda subject: subject.system.get("Label") == "a"),
    (SqlFilterDescription("100 / size > 40"), lambda subject: _more(_quotient(subject), 40)),
    (FalseFilter(), lambda _: False),
    (SqlFilterDescription("SIZE > 1"), lambda subject: _more(subject.number("size"), 1)),
    (SqlFilterDescription("color IS NULL"), lambda subject: subject.get("color") is None),
    (CorrelationFilter(properties={"size": 2}), lambda subject: subject.number("size") == 2),
    (
        CorrelationFilter(session_id="s1", properties={"Color": "red"}),
        lambda subject: subject.session_id == "s1" and subject.get("color") == "red",
    ),
    (CorrelationFilter(message_id="m1"), lambda subject: subject.message_id == "m1"),
    (
        SqlFilterDescription("DeadLetterReason IS NOT NULL OR sys.MessageId = 'm2'"),
        lambda subject: subject.get("deadletterreason") is not None or subject.message_id == "m2",
    ),
)


def _remove_color(letter: Letter, subject: Subject) -> None:
    if subject.user.get("color", MISSING) is not MISSING:
        letter.set_user("color", MISSING)


def _set_session(session_id: str | None) -> Callable[[Letter, Subject], None]:
    def apply(letter: Letter, _subject: Subject) -> None:
        letter.session_id = letter.system["SessionId"] = session_id

    return apply


def _set_message_id(letter: Letter, _subject: Subject) -> None:
    letter.message_id = "m9"
    letter.system["MessageId"] = "m9"


Apply: TypeAlias = Callable[[Letter, Subject], None]
ACTIONS: Final[tuple[tuple[SqlActionDescription, Apply], ...]] = (
    (SqlActionDescription("SET color = 'blue'"), lambda letter, _: letter.set_user("color", "blue")),
    (SqlActionDescription("SET sys.SessionId = 's1'"), _set_session("s1")),
    (SqlActionDescription("REMOVE color"), _remove_color),
    (SqlActionDescription("SET sys.Label = 'b'"), lambda letter, _: letter.system.__setitem__("Label", "b")),
    (
        SqlActionDescription("SET note = 100 / size"),
        lambda letter, subject: letter.set_user("note", _quotient(subject)),
    ),
    (SqlActionDescription("SET sys.SessionId = NULL"), _set_session(None)),
    (SqlActionDescription("SET sys.MessageId = 'm9'"), _set_message_id),
)


@dataclass(slots=True, eq=False)
class Rule:
    """A rule of a subscription; filter and action are indexes into the two tables above."""

    name: str
    filter: int
    action: int | None
    created_ms: int

    @property
    def description(self) -> RuleDescription:
        action = None if self.action is None else ACTIONS[self.action][0]
        return RuleDescription(name=self.name, filter=FILTERS[self.filter][0], action=action)

    @property
    def is_sql(self) -> bool:
        return not isinstance(FILTERS[self.filter][0], CorrelationFilter)


# Entities


_NUMBER: Final = (1 << PARTITION_BITS) - 1
"""A sequence number without the partition that assigned it."""


@dataclass(slots=True, eq=False)
class Box:
    """One part of an entity: messages in no particular order."""

    address: Address
    place: QueueId
    partitioned: bool
    letters: list[Letter] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    """The last sequence number of each partition."""

    pins: dict[str, int] = field(default_factory=dict)
    """The partition in which a key was seen."""

    @property
    def part(self) -> QueuePart:
        return self.address.part

    def in_order(self) -> list[Letter]:
        return sorted(self.letters, key=lambda letter: letter.sequence)

    def ready(self) -> list[Letter]:
        return [letter for letter in self.in_order() if letter.is_ready]


@dataclass(slots=True, eq=False)
class Session:
    """The attributes of a session besides its messages."""

    token: bytes | None = None
    until_ms: int = NEVER
    state: bytes | None = None
    updated_ms: int = 0


@dataclass(slots=True, eq=False)
class Entity:
    """A queue, a topic or a subscription."""

    number: int
    path: str
    description: EntityDescription
    boxes: dict[QueuePart, Box]
    created_ms: int
    updated_ms: int
    accessed_ms: int
    topic: Entity | None = None
    subscriptions: dict[str, Entity] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    history: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The time at which each message id was first seen, and the original sequence number of that message."""

    sessions: dict[str, Session] = field(default_factory=dict)
    available: dict[str, int] = field(default_factory=dict)
    """Available sessions with a message, and since which step."""

    @property
    def main(self) -> Box:
        return self.boxes[QueuePart.MAIN]

    @property
    def address(self) -> Address:
        return self.main.address

    @property
    def full_path(self) -> str:
        return self.path if self.topic is None else f"{self.topic.path}/{self.path}"

    @property
    def is_topic(self) -> bool:
        return isinstance(self.description, TopicDescription)

    @property
    def settings(self) -> QueueDescription | SubscriptionDescription:
        assert not isinstance(self.description, TopicDescription)
        return self.description

    @property
    def intake(self) -> QueueDescription | TopicDescription:
        assert not isinstance(self.description, SubscriptionDescription)
        return self.description

    @property
    def has_sessions(self) -> bool:
        return not self.is_topic and self.settings.requires_session

    @property
    def forward_to(self) -> str | None:
        return None if self.is_topic else self.settings.forward_to

    def touch(self, now_ms: int) -> None:
        """Record that the entity, and with a subscription its topic, is in use."""
        self.accessed_ms = max(self.accessed_ms, now_ms)
        if self.topic is not None:
            self.topic.touch(now_ms)

    def idle_end_ms(self) -> int | None:
        """Return when it is deleted as idle; an entity that forwards, or has scheduled messages, is in use."""
        idle_ms = self.description.auto_delete_on_idle_ms
        in_use = self.forward_to is not None or any(letter.state is SCHEDULED for letter in self.main.letters)
        return None if idle_ms is None or in_use else self.accessed_ms + idle_ms

    def session_names(self) -> list[str]:
        """Return the sessions that have messages."""
        return sorted({letter.session_id for letter in self.main.letters if letter.session_id is not None})

    def size(self) -> int:
        return sum(len(letter.body) for box in self.boxes.values() for letter in box.letters)

    def usage(self) -> int:
        return self.size() + sum(subscription.size() for subscription in self.subscriptions.values())


Write: TypeAlias = tuple[str, int, int, int | str]
"""The operation, the entity, the part, and the number or key."""


class Clues:
    """The broker's writes during one step, in order."""

    def __init__(self, writes: Sequence[Write] = ()) -> None:
        self._writes = [write for write in writes if write[0] != "number"]
        self._numbers = [write for write in writes if write[0] == "number"]

    def first(self, wanted: Sequence[Write | None]) -> int:
        """Return which of these was done first. One that leaves no trace may be first: it cannot be excluded."""
        found = [self._find(write) for write in wanted]
        at = min(found)
        if 0 <= at < len(self._writes):
            del self._writes[: at + 1]
        return found.index(at)

    def done(self, write: Write) -> None:
        """Remove a write that has been accounted for."""
        if write in self._writes:
            self._writes.remove(write)

    def number(self, place: QueueId) -> int | None:
        """Return the next sequence number that was assigned in a queue."""
        for at, (_, entity, part, number) in enumerate(self._numbers):
            if (entity, part) == place:
                del self._numbers[at]
                return int(number)
        return None

    def entity(self) -> int:
        """Return the id of the entity that was created."""
        return next((entity for kind, entity, _, _ in self._writes if kind == "entity"), 0)

    def _find(self, write: Write | None) -> int:
        if write is None:
            return -1
        return self._writes.index(write) if write in self._writes else len(self._writes)


class Due(NamedTuple):
    """Work that will become due."""

    at_ms: int
    owner: tuple[int, int]
    rank: int
    order: int
    trace: Write | None
    act: Callable[[int], None]


class RoutedCopy(NamedTuple):
    """A copy of a message, and its destination."""

    entity: Entity
    box: Box
    letter: Letter


class Model:
    """The whole namespace. Each operation has the name and the arguments of the broker's.

    ``answer`` is the broker's result, ``error`` its error: tokens are taken from there, and so are random choices.
    """

    def __init__(self, limits: Limits, now_ms: int) -> None:
        self.limits = limits
        self.now_ms = now_ms
        self.entities: dict[str, Entity] = {}
        self.pumps: list[tuple[Entity, QueuePart]] = []
        self._in_hand: Letter | None = None
        """The message that is being moved: it does not wait any more."""

        self.has_graves = False
        self.notices: list[Notice] = []
        self.touched: set[QueueId] = set()
        self.clues = Clues()
        self.answer: object = None
        self.error: BrokerError | None = None
        self._step = 0
        self._committed = pickle.dumps(self.entities)

    # Durability

    def commit(self) -> None:
        self._committed = pickle.dumps(self.entities)

    def restart(self, now_ms: int, *, lose: bool) -> None:
        """Start a new process: no receiver holds anything. Without a commit, everything after the last one is lost."""
        if lose:
            self.entities = pickle.loads(self._committed)  # noqa: S301 (our own)
        self.notices.clear()
        self.has_graves = True
        self._step += 1
        self.now_ms = max(self.now_ms, now_ms)
        everyone = sorted(self.everyone(), key=lambda entity: (entity.topic is not None, entity.number))
        for entity in everyone:
            entity.accessed_ms = self.now_ms
            for box in entity.boxes.values():
                for letter in box.letters:
                    letter.token, letter.until_ms = None, NEVER
            entity.sessions = {name: session for name, session in entity.sessions.items() if session.state is not None}
            for session in entity.sessions.values():
                session.token, session.until_ms = None, NEVER
            entity.available.clear()
            self._note_sessions(entity)
        self.pumps = [pump for entity in everyone if not entity.is_topic for pump in self._new_pumps(entity)]
        self.advance(now_ms)

    # Lookup

    def everyone(self) -> list[Entity]:
        found: list[Entity] = []
        for entity in self.entities.values():
            found += [entity, *entity.subscriptions.values()]
        return found

    def boxes(self) -> Iterator[Box]:
        for entity in self.everyone():
            yield from entity.boxes.values()

    def _destination(self, path: str) -> Entity:
        found = self.entities.get(path.lower())
        if found is None:
            raise EntityNotFoundError(path)
        return found

    def _topic(self, path: str) -> Entity:
        found = self._destination(path)
        if not found.is_topic:
            raise EntityNotFoundError(path)
        return found

    def _subscription(self, topic: str, name: str) -> Entity:
        found = self._topic(topic).subscriptions.get(name.lower())
        if found is None:
            raise EntityNotFoundError(name)
        return found

    def _entity(self, address: Address) -> Entity:
        if address.subscription is None:
            return self._destination(address.entity)
        return self._subscription(address.entity, address.subscription)

    def _box(self, address: Address) -> tuple[Entity, Box]:
        entity = self._entity(address)
        if entity.is_topic:
            raise InvalidOperationError("a topic")
        return entity, entity.boxes[address.part]

    def _sendable(self, address: Address) -> Entity:
        if address.subscription is not None or address.part is not QueuePart.MAIN:
            raise InvalidOperationError("not a destination")
        return self._destination(address.entity)

    def _receivable(self, address: Address) -> tuple[Entity, Box]:
        entity, box = self._box(address)
        if entity.description.status not in RECEIVING:
            raise EntityDisabledError("disabled")
        if box.part is QueuePart.MAIN and entity.forward_to is not None:
            raise InvalidOperationError("forwards")
        return entity, box

    def _session(self, entity: Entity, box: Box, token: bytes | None) -> str | None:
        """Return the session that a token is for, by name."""
        if not entity.has_sessions or box.part is not QueuePart.MAIN:
            if token is not None:
                raise InvalidOperationError("no sessions")
            return None
        if token is None:
            raise InvalidOperationError("sessions only")
        for name, session in entity.sessions.items():
            if session.token == token:
                return name
        raise SessionLockLostError("session")

    def _held(self, address: Address, token: bytes) -> tuple[Entity, Box, str, Session]:
        entity, box = self._box(address)
        name = self._session(entity, box, token)
        assert name is not None
        return entity, box, name, entity.sessions[name]

    def _locked(self, address: Address, token: bytes) -> tuple[Entity, Box, Letter]:
        entity, box = self._box(address)
        for letter in box.letters:
            if letter.token == token:
                return entity, box, letter
        raise (
            SessionLockLostError("lock")
            if entity.has_sessions and box.part is QueuePart.MAIN
            else LockLostError("lock")
        )

    # Time

    def advance(self, now_ms: int) -> int:
        self.now_ms = max(self.now_ms, now_ms)
        last_ms = -1
        while True:
            due = [event for event in self._due() if event.at_ms <= self.now_ms]
            if not due:
                return self.now_ms
            at_ms = min(event.at_ms for event in due)
            if at_ms != last_ms:  # simultaneous events have no order
                self._step += 1
                last_ms = at_ms
            self._happen([event for event in due if event.at_ms == at_ms], at_ms)

    def next_due_ms(self, *, with_ids: bool = True) -> int | None:
        return min((event.at_ms for event in self._due() if with_ids or not _is_of_id(event)), default=None)

    def _happen(self, due: list[Due], at_ms: int) -> None:
        """Execute one of the events that are due at the same time."""
        firsts: dict[tuple[int, int], list[Due]] = {}
        for event in sorted(due, key=lambda event: (event.rank, event.order)):
            same = firsts.setdefault(event.owner, [event])
            if same[0] is not event and (event.rank, event.order) == (same[0].rank, same[0].order):
                same.append(event)
        candidates = [event for events in firsts.values() for event in events]
        candidates[self.clues.first([event.trace for event in candidates])].act(at_ms)

    def _due(self) -> Iterator[Due]:
        for entity in self.everyone():
            for box in entity.boxes.values():
                for letter in box.letters:
                    event = self._letter_due(entity, box, letter)
                    if event is not None:
                        yield event
            yield from self._sessions_due(entity)
            yield from self._entity_due(entity)

    def _letter_due(self, entity: Entity, box: Box, letter: Letter) -> Due | None:
        trace: Write = ("record", *box.place, letter.sequence)
        if letter.token is not None:
            if letter.until_ms == NEVER:
                return None
            return Due(
                letter.until_ms,
                box.place,
                0,
                letter.sequence,
                trace,
                lambda at_ms: self._end_lock(entity, box, letter, at_ms),
            )
        if letter.state is SCHEDULED:
            due_ms = letter.scheduled_ms or 0
            return Due(
                due_ms, box.place, 2, letter.sequence, trace, lambda at_ms: self._activate(entity, box, letter, at_ms)
            )
        if letter.state is ACTIVE and letter.expires_ms != NEVER:
            return Due(
                letter.expires_ms,
                box.place,
                3,
                letter.sequence,
                trace,
                lambda at_ms: self._expire(entity, box, letter, at_ms),
            )
        return None

    def _sessions_due(self, entity: Entity) -> Iterator[Due]:
        for name, session in entity.sessions.items():
            if session.token is not None:
                locked = [letter.sequence for letter in entity.main.letters if self._is_locked_in(letter, name)]
                trace: Write | None = ("record", *entity.main.place, min(locked)) if locked else None

                def end(at_ms: int, name: str = name) -> None:
                    self._end_session(entity, name, at_ms)

                yield Due(session.until_ms, entity.main.place, 1, 0, trace, end)

    def _entity_due(self, entity: Entity) -> Iterator[Due]:
        if not isinstance(entity.description, SubscriptionDescription):
            for key, (first_ms, _) in entity.history.items():
                trace: Write = ("seen", entity.number, 0, key)

                def forget(_at_ms: int, key: str = key) -> None:
                    del entity.history[key]

                yield Due(
                    first_ms + entity.description.duplicate_window_ms, (entity.number, 10), 0, first_ms, trace, forget
                )
        idle_end_ms = entity.idle_end_ms()
        if idle_end_ms is not None:
            yield Due(
                idle_end_ms,
                (entity.number, 11),
                0,
                0,
                ("gone", entity.number, 0, 0),
                lambda _at_ms: self._delete(entity),
            )

    def _end_lock(self, entity: Entity, box: Box, letter: Letter, at_ms: int) -> None:
        letter.token, letter.until_ms = None, NEVER
        self._fail(entity, box, letter, at_ms)

    def _end_session(self, entity: Entity, name: str, at_ms: int) -> None:
        token = entity.sessions[name].token
        for letter in entity.main.in_order():
            if self._is_locked_in(letter, name):
                self._end_lock(entity, entity.main, letter, at_ms)
        self._let_go(entity, name)
        assert token is not None
        self.notices.append(SessionLost(entity.address, name, token))

    def _let_go(self, entity: Entity, name: str) -> None:
        session = entity.sessions[name]
        session.token, session.until_ms = None, NEVER
        if session.state is None:
            del entity.sessions[name]
        self._note_sessions(entity)

    @staticmethod
    def _is_locked_in(letter: Letter, name: str) -> bool:
        return letter.token is not None and letter.session_id == name

    def _activate(self, entity: Entity, box: Box, letter: Letter, at_ms: int) -> None:
        copy = letter.copy()
        copy.state, copy.enqueued_ms = ACTIVE, at_ms
        entity.touch(at_ms)
        self._move(entity, box, letter, lambda: self._enter(entity, copy, at_ms), at_ms)

    # Entities

    def create_queue(self, path: str, description: QueueDescription, now_ms: int) -> EntityInfo:
        return self._create(path, description, now_ms)

    def create_topic(self, path: str, description: TopicDescription, now_ms: int) -> EntityInfo:
        return self._create(path, description, now_ms)

    def _create(self, path: str, description: QueueDescription | TopicDescription, now_ms: int) -> EntityInfo:
        now_ms = self._begin(now_ms)
        self._check_description(description)
        if path.lower() in self.entities:
            raise EntityExistsError(path)
        settled = self._with_targets(description)
        assert not isinstance(settled, SubscriptionDescription)
        parts = (QueuePart.MAIN,) if isinstance(settled, TopicDescription) else tuple(QueuePart)
        entity = self._new(path, Address.of(path), settled, parts, settled.partitioned, now_ms)
        self.entities[path.lower()] = entity
        return self._info(entity)

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        now_ms: int,
        rule: tuple[str, int, int | None] | None = None,
    ) -> EntityInfo:
        now_ms = self._begin(now_ms)
        parent = self._topic(topic)
        self._check_description(description)
        if name.lower() in parent.subscriptions:
            raise EntityExistsError(name)
        first = Rule(*(rule or ("$Default", 0, None)), now_ms)
        self._check_rules(parent, first, None)
        settled = self._with_targets(description)
        partitioned = isinstance(parent.description, TopicDescription) and parent.description.partitioned
        entity = self._new(name, Address.of(topic, name), settled, tuple(QueuePart), partitioned, now_ms)
        entity.topic = parent
        entity.rules.append(first)
        parent.subscriptions[name.lower()] = entity
        parent.accessed_ms = now_ms
        return self._info(entity)

    def _new(
        self,
        path: str,
        address: Address,
        description: EntityDescription,
        parts: tuple[QueuePart, ...],
        partitioned: bool,
        now_ms: int,
    ) -> Entity:
        number = self.clues.entity()
        boxes = {part: Box(address._replace(part=part), QueueId(number, part), partitioned) for part in parts}
        return Entity(number, path, description, boxes, now_ms, now_ms, now_ms)

    def _check_description(self, description: EntityDescription) -> None:
        if isinstance(description, TopicDescription):
            return
        if not self.limits.min_lock_ms <= description.lock_duration_ms <= self.limits.max_lock_ms:
            raise InvalidDescriptionError("lock duration")

    def _with_targets(self, description: EntityDescription) -> EntityDescription:
        if isinstance(description, TopicDescription):
            return description
        return replace(
            description,
            forward_to=self._target(description.forward_to),
            forward_dead_letters_to=self._target(description.forward_dead_letters_to),
        )

    def _target(self, target: str | None) -> str | None:
        if target is None:
            return None
        if target.lower() not in self.entities:
            raise InvalidDescriptionError(target)
        return self.entities[target.lower()].path

    def update(self, address: Address, description: EntityDescription, now_ms: int) -> EntityInfo:
        now_ms = self._begin(now_ms)
        entity = self._entity(address)
        before = entity.description
        if type(before) is not type(description):
            raise InvalidDescriptionError("kind")
        for name in ("requires_session", "requires_duplicate_detection", "partitioned"):
            if getattr(before, name, None) != getattr(description, name, None):
                raise InvalidDescriptionError(name)
        self._check_description(description)
        begins = not entity.is_topic and entity.forward_to is None and getattr(description, "forward_to", None)
        if begins and entity.has_sessions and any(letter.is_ready for letter in entity.main.letters):
            raise InvalidDescriptionError("messages wait in sessions")
        entity.description = self._with_targets(description)
        entity.updated_ms = entity.accessed_ms = now_ms
        if not entity.is_topic:
            self.pumps += self._new_pumps(entity)
        return self._info(entity)

    def _new_pumps(self, entity: Entity) -> list[tuple[Entity, QueuePart]]:
        """Return the queues that forward now and have waiting messages."""
        targets = {QueuePart.MAIN: entity.forward_to, QueuePart.DEAD_LETTER: entity.settings.forward_dead_letters_to}
        return [
            (entity, part)
            for part, target in targets.items()
            if target is not None and any(letter.is_ready for letter in entity.boxes[part].letters)
        ]

    def delete(self, address: Address, now_ms: int) -> None:
        self._begin(now_ms)
        self._delete(self._entity(address))

    def _delete(self, entity: Entity) -> None:
        for subscription in list(entity.subscriptions.values()):
            self._delete(subscription)
        if entity.topic is None:
            del self.entities[entity.path.lower()]
        else:
            del entity.topic.subscriptions[entity.path.lower()]
        self.has_graves = True
        self.notices.append(EntityGone(entity.address))

    def touch(self, address: Address, now_ms: int) -> None:
        now_ms = self._begin(now_ms)
        self._entity(address).touch(now_ms)

    def entity(self, address: Address, now_ms: int) -> EntityInfo:
        self._begin(now_ms)
        return self._info(self._entity(address))

    def infos(self) -> dict[Address, EntityInfo]:
        return {entity.address: self._info(entity) for entity in self.everyone()}

    def _info(self, entity: Entity) -> EntityInfo:
        rules = [rule for owner in (entity, *entity.subscriptions.values()) for rule in owner.rules]
        sql = sum(rule.is_sql for rule in rules)
        main = entity.main.letters
        return EntityInfo(
            path=entity.path,
            description=entity.description,
            created_ms=entity.created_ms,
            updated_ms=entity.updated_ms,
            accessed_ms=entity.accessed_ms,
            size_bytes=entity.usage(),
            arrived_count=sum(number & _NUMBER for number in entity.main.last.values()),
            ready_count=sum(letter.is_ready for letter in main),
            locked_count=sum(letter.token is not None for letter in main),
            deferred_count=sum(letter.token is None and letter.state is DEFERRED for letter in main),
            scheduled_count=sum(letter.state is SCHEDULED for letter in main),
            dead_letter_count=0 if entity.is_topic else len(entity.boxes[QueuePart.DEAD_LETTER].letters),
            transfer_dead_letter_count=0
            if entity.is_topic
            else len(entity.boxes[QueuePart.TRANSFER_DEAD_LETTER].letters),
            subscription_count=len(entity.subscriptions),
            sql_filter_count=sql,
            correlation_filter_count=len(rules) - sql,
        )

    # Rules

    def add_rule(self, topic: str, subscription: str, rule: tuple[str, int, int | None], now_ms: int) -> None:
        now_ms = self._begin(now_ms)
        entity = self._subscription(topic, subscription)
        if self._rule(entity, rule[0]) is not None:
            raise EntityExistsError(rule[0])
        self._check_rules(entity.topic, Rule(*rule, now_ms), None)
        entity.rules.append(Rule(*rule, now_ms))
        entity.touch(now_ms)

    def update_rule(self, topic: str, subscription: str, rule: tuple[str, int, int | None], now_ms: int) -> None:
        self._begin(now_ms)
        entity = self._subscription(topic, subscription)
        found = self._rule(entity, rule[0])
        if found is None:
            raise EntityNotFoundError(rule[0])
        self._check_rules(entity.topic, Rule(*rule, 0), found)
        found.name, found.filter, found.action = rule

    def remove_rule(self, topic: str, subscription: str, name: str, now_ms: int) -> None:
        self._begin(now_ms)
        entity = self._subscription(topic, subscription)
        found = self._rule(entity, name)
        if found is None:
            raise EntityNotFoundError(name)
        entity.rules.remove(found)

    def _check_rules(self, topic: Entity | None, rule: Rule, replaced: Rule | None) -> None:
        assert topic is not None
        rules = [other for owner in topic.subscriptions.values() for other in owner.rules if other is not replaced]
        alike = [other for other in rules if other.is_sql == rule.is_sql]
        limits = self.limits
        if len(alike) >= (limits.sql_filters_per_topic if rule.is_sql else limits.correlation_filters_per_topic):
            raise QuotaExceededError("rules")

    @staticmethod
    def _rule(entity: Entity, name: str) -> Rule | None:
        return next((rule for rule in entity.rules if rule.name.lower() == name.lower()), None)

    # Sending

    def send(self, address: Address, messages: Sequence[NewMessage], now_ms: int) -> list[int | None]:
        now_ms = self._begin(now_ms)
        entity = self._sendable(address)
        self._check_send(entity, messages, 0)
        entity.touch(now_ms)
        return [self._accept(entity, message, now_ms) for message in messages]

    def _check_send(self, entity: Entity, messages: Sequence[NewMessage], pending: int) -> int:
        if entity.description.status not in SENDING:
            raise EntityDisabledError("disabled")
        for message in messages:
            self._check_message(entity, message)
        total = sum(len(message.body) for message in messages)
        if len(messages) > 1 and total > self.limits.batch_bytes:
            raise MessageSizeExceededError("batch")
        if entity.usage() + pending + total > self._capacity(entity):
            raise QuotaExceededError("full")
        return total

    def _check_message(self, entity: Entity | None, message: NewMessage) -> None:
        """Check a message for errors, in general and for its destination."""
        if len(message.body) > (self.limits.message_bytes if entity is None else self._most(entity)):
            raise MessageSizeExceededError("message")
        if message.header_bytes > self.limits.header_bytes:
            raise HeaderSizeExceededError("header")
        if message.session_id is None and entity is not None and entity.has_sessions and not message.ping:
            raise SessionRequiredError("session")
        if None not in {message.session_id, message.partition_key} and message.session_id != message.partition_key:
            raise InvalidMessageError("key")
        names = (message.message_id, message.session_id or "", message.partition_key or "")
        if any(len(name) > self.limits.id_characters for name in names):
            raise InvalidMessageError("id")
        if any(time_ms is not None and time_ms < 0 for time_ms in (message.time_to_live_ms, message.scheduled_ms)):
            raise InvalidMessageError("time")

    def _most(self, entity: Entity) -> int:
        return entity.intake.max_message_bytes or self.limits.message_bytes

    def _capacity(self, entity: Entity) -> int:
        description = entity.intake
        return description.max_size_megabytes * MEGABYTE * (self.limits.partitions if description.partitioned else 1)

    def _accept(self, entity: Entity, message: NewMessage, now_ms: int) -> int | None:
        letter = _letter(message, now_ms)
        if message.ping or self._is_duplicate(entity, letter, now_ms):
            return None
        letter.original = letter.sequence = self._number(entity, entity.main, letter)
        self._remember(entity, letter, now_ms)
        if message.scheduled_ms is not None and message.scheduled_ms > now_ms:
            letter.state = SCHEDULED
            self._put(entity, entity.main, letter)
        elif not entity.is_topic and not self._forwards(entity):
            letter.expires_ms = _end_of_life(letter, entity, now_ms)
            self._put(entity, entity.main, letter)
        else:
            for landing in self._enter(entity, letter, now_ms):
                self._land(landing, now_ms)
        return letter.sequence

    def _seen(self, entity: Entity, letter: Letter) -> str | None:
        """Return the duplicate key in this entity; ``None`` if there is none."""
        description = entity.intake
        if not description.requires_duplicate_detection or not letter.message_id:
            return None
        pinned = description.partitioned and letter.pin is not None
        return f"{letter.message_id}\0{letter.pin}" if pinned else letter.message_id

    def _is_duplicate(self, entity: Entity, letter: Letter, now_ms: int) -> bool:
        key = self._seen(entity, letter)
        if key is None or key not in entity.history:
            return False
        return now_ms < entity.history[key][0] + entity.intake.duplicate_window_ms

    def _has_come_round(self, entity: Entity, letter: Letter) -> bool:
        key = self._seen(entity, letter)
        return key is not None and entity.history[key][1] == letter.original

    def _remember(self, entity: Entity, letter: Letter, now_ms: int) -> None:
        key = self._seen(entity, letter)
        if key is not None:
            entity.history[key] = (now_ms, letter.original)

    def _forwards(self, entity: Entity) -> bool:
        """Return whether an arriving message is forwarded at once; it queues behind those that wait to be forwarded."""
        waiting = any(letter.is_ready and letter is not self._in_hand for letter in entity.main.letters)
        return entity.forward_to is not None and not waiting

    def _number(self, entity: Entity, box: Box, letter: Letter) -> int:
        """Return the next sequence number. The key decides the partition; without a key, any is possible."""
        if not box.partitioned:
            box.last[0] = box.last.get(0, 0) + 1
            return box.last[0]
        given = self.clues.number(box.place)
        assert given is not None, f"{box.address} gave no number to a message that it took"
        partition = given >> PARTITION_BITS
        assert 0 <= partition < self.limits.partitions
        expected = box.last.get(partition, partition << PARTITION_BITS) + 1
        assert given == expected, f"{box.address} gave the number {given:#x} after {expected - 1:#x}"
        box.last[partition] = given
        key = letter.pin
        if key is None and not isinstance(entity.description, SubscriptionDescription):
            is_once = entity.intake.requires_duplicate_detection and box.part is QueuePart.MAIN
            key = letter.message_id or None if is_once else None
        if key is not None:
            pinned = box.pins.setdefault(key, partition)
            assert pinned == partition, f"{box.address} has the key {key!r} in partitions {pinned} and {partition}"
        return given

    def _put(self, entity: Entity, box: Box, letter: Letter) -> None:
        box.letters.append(letter)
        self.clues.done(("record", *box.place, letter.sequence))
        self.touched.add(box.place)
        self._note_sessions(entity)

    def _remove(self, entity: Entity, box: Box, letter: Letter) -> None:
        box.letters.remove(letter)
        self.touched.add(box.place)
        self._note_sessions(entity)

    def _land(self, landing: RoutedCopy, now_ms: int) -> None:
        entity, box, letter = landing
        letter.sequence = self._number(entity, box, letter)
        letter.original = letter.original or letter.sequence
        letter.enqueued_ms = now_ms
        self._put(entity, box, letter)

    def _move(
        self, entity: Entity, box: Box, letter: Letter, way: Callable[[], list[RoutedCopy] | None], now_ms: int
    ) -> bool:
        """Move a message to where its route leads; ``None`` is no route."""
        self._in_hand = letter
        landings = way()
        self._in_hand = None
        if landings is None:
            return False
        self._remove(entity, box, letter)
        for landing in landings:
            self._land(landing, now_ms)
        return True

    def cancel_scheduled(self, address: Address, sequences: Sequence[int], now_ms: int) -> None:
        now_ms = self._begin(now_ms)
        entity = self._sendable(address)
        waiting = {letter.sequence: letter for letter in entity.main.letters if letter.state is SCHEDULED}
        if any(sequence not in waiting for sequence in sequences):
            raise MessageNotFoundError("scheduled")
        entity.touch(now_ms)
        for sequence in set(sequences):
            self._remove(entity, entity.main, waiting[sequence])

    # Routes of a message: each returns the copies that one becomes, and changes nothing but the history of ids

    def _enter(self, entity: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy]:
        if not entity.is_topic:
            return self._arrive(entity, letter, now_ms)
        letter.time_to_live_ms = _shorter(letter.time_to_live_ms, entity.description.default_time_to_live_ms)
        landings: list[RoutedCopy] = []
        for subscription in entity.subscriptions.values():
            landings += self._offer(subscription, letter, now_ms)
        return landings

    def _offer(self, subscription: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy]:
        landings: list[RoutedCopy] = []
        subject = Subject(letter)
        has_plain = False
        for rule in subscription.rules:
            if rule.action is None and has_plain:
                continue
            copy = letter.copy()
            try:
                if not FILTERS[rule.filter][1](subject):
                    continue
                if rule.action is not None:
                    ACTIONS[rule.action][1](copy, subject)
                    copy.set_user("RuleName", rule.name)
                    _check_copy(copy)
            except NoResult:
                settings = subscription.settings
                if isinstance(settings, SubscriptionDescription) and settings.dead_letter_on_filter_errors:
                    landings += self._bury(subscription, letter.copy(), "FilterEvaluationException", now_ms)
                continue
            has_plain = has_plain or rule.action is None
            landings += self._arrive(subscription, copy, now_ms)
        return landings

    def _arrive(self, entity: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy]:
        if self._forwards(entity):
            return self._forward(entity, letter, now_ms)
        if entity.has_sessions and letter.session_id is None:
            return self._bury(entity, letter, "Session ID is null.", now_ms)
        letter.count = 0
        letter.expires_ms = _end_of_life(letter, entity, now_ms)
        return [RoutedCopy(entity, entity.main, letter)]

    def _forward(self, entity: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy]:
        target = self.entities.get((entity.forward_to or "").lower())
        obstacle = self._obstacle(target, letter, letter.hops + 1)
        if target is None or obstacle is not None:
            return self._bury(entity, letter, obstacle, now_ms)
        onward = letter.copy()
        onward.hops += 1
        landings = self._take_over(target, onward, now_ms)
        return self._bury(entity, letter, "ForwardedInCircle", now_ms) if landings is None else landings

    def _bury(self, entity: Entity, letter: Letter, reason: str | None, now_ms: int) -> list[RoutedCopy]:
        letter = letter.copy()
        letter.expires_ms, letter.state = NEVER, ACTIVE
        if reason is not None:
            letter.set_user("DeadLetterReason", reason)
            letter.set_user("DeadLetterErrorDescription", ANY_TEXT)
        forwarded = self._forward_dead(entity, letter, now_ms)
        return [RoutedCopy(entity, entity.boxes[QueuePart.DEAD_LETTER], letter)] if forwarded is None else forwarded

    def _forward_dead(self, entity: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy] | None:
        """Return the copies of a forwarded dead letter; ``None`` if it stays."""
        target = self.entities.get((entity.settings.forward_dead_letters_to or "").lower())
        if target is None or self._obstacle(target, letter, letter.hops + 1) is not None:
            return None
        onward = letter.copy()
        onward.hops += 1
        onward.source = entity.full_path
        return self._take_over(target, onward, now_ms)

    def _take_over(self, target: Entity, letter: Letter, now_ms: int) -> list[RoutedCopy] | None:
        """Deliver a message to a target; return ``None`` if it is the same message that was there before."""
        if self._is_duplicate(target, letter, now_ms):
            return None if self._has_come_round(target, letter) else []
        target.touch(now_ms)
        self._remember(target, letter, now_ms)
        return self._enter(target, letter, now_ms)

    def _obstacle(self, target: Entity | None, letter: Letter, hops: int) -> str | None:
        if target is None:
            return "DestinationNotFound"
        if hops > self.limits.forwarding_hops:
            return "MaxTransferHopCountExceeded"
        if target.description.status not in SENDING:
            return "DestinationDisabled"
        if len(letter.body) > self._most(target):
            return "DestinationMessageSizeExceeded"
        if target.usage() + len(letter.body) > self._capacity(target):
            return "DestinationQuotaExceeded"
        return None

    # Receiving

    def receive(
        self,
        address: Address,
        max_count: int,
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
    ) -> list[Facts]:
        now_ms = self._begin(now_ms)
        _check_count(max_count)
        entity, box = self._receivable(address)
        name = self._session(entity, box, session_token)
        entity.touch(now_ms)
        given = _deliveries(self.answer)
        facts: list[Facts] = []
        while len(facts) < max_count:
            clue = given[len(facts)] if len(facts) < len(given) else None
            letter = _next_letter(box, name, None if clue is None else clue.record.sequence)
            if letter is None:
                break
            facts.append(self._hand_out(entity, box, letter, name, now_ms, delete, clue))
        return facts

    def _hand_out(
        self,
        entity: Entity,
        box: Box,
        letter: Letter,
        name: str | None,
        now_ms: int,
        delete: bool,
        clue: DeliveredMessage | None,
    ) -> Facts:
        if delete:
            self._remove(entity, box, letter)
            return facts_of(letter)
        letter.token = b"?" if clue is None else clue.lock_token
        if name is None:
            until_ms = letter.until_ms = now_ms + entity.settings.lock_duration_ms
        else:
            until_ms = entity.sessions[name].until_ms
        return facts_of(letter, until_ms)

    def receive_deferred(
        self,
        address: Address,
        sequences: Sequence[int],
        now_ms: int,
        *,
        delete: bool = False,
        session_token: bytes | None = None,
    ) -> list[Facts]:
        now_ms = self._begin(now_ms)
        entity, box = self._receivable(address)
        name = self._session(entity, box, session_token)
        waiting = {
            letter.sequence: letter
            for letter in box.letters
            if letter.state is DEFERRED and letter.token is None and (name is None or letter.session_id == name)
        }
        wanted = [waiting.get(sequence) for sequence in dict.fromkeys(sequences)]
        found = [letter for letter in wanted if letter is not None and letter.expires_ms > now_ms]
        for letter in wanted:
            if letter is not None and letter not in found:
                self._expire(entity, box, letter, now_ms)
        if len(found) < len(wanted):
            raise MessageNotFoundError("deferred")
        entity.touch(now_ms)
        clues: list[DeliveredMessage | None] = [*_deliveries(self.answer), *[None] * len(found)]
        return [
            self._hand_out(entity, box, letter, name, now_ms, delete, clue)
            for letter, clue in zip(found, clues, strict=False)
        ]

    def peek(
        self, address: Address, from_sequence: int, max_count: int, now_ms: int, session_id: str | None = None
    ) -> list[Facts]:
        now_ms = self._begin(now_ms)
        _check_count(max_count)
        entity = self._entity(address)
        entity.touch(now_ms)
        box = entity.main if entity.is_topic else entity.boxes[address.part]
        letters = [letter for letter in box.in_order() if letter.sequence >= from_sequence]
        if session_id is not None and entity.has_sessions and box.part is QueuePart.MAIN:
            letters = [letter for letter in letters if letter.session_id == session_id]
        return [facts_of(letter) for letter in letters[:max_count]]

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
        now_ms = self._begin(now_ms)
        _check_count(max_count)
        entity, box = self._receivable(address)
        name = None if session_token is None else self._session(entity, box, session_token)
        entity.touch(now_ms)
        chosen = [
            letter
            for letter in box.ready()
            if from_sequence <= letter.sequence <= (NEVER if to_sequence is None else to_sequence)
            and (enqueued_before_ms is None or letter.enqueued_ms < enqueued_before_ms)
            and (self._is_free(entity, box, letter) if name is None else letter.session_id == name)
        ][: min(max_count, self.limits.messages_per_delete)]
        for letter in chosen:
            self._remove(entity, box, letter)
        return len(chosen)

    @staticmethod
    def _is_free(entity: Entity, box: Box, letter: Letter) -> bool:
        session = entity.sessions.get(letter.session_id or "") if box.part is QueuePart.MAIN else None
        return session is None or session.token is None

    # Settling

    def settle(self, address: Address, lock_token: bytes, now_ms: int, verdict: SettlementRequest) -> None:
        now_ms = self._begin(now_ms)
        found = self._settleable(address, lock_token, verdict)
        self._settle(*found, verdict, now_ms)

    def _settleable(
        self, address: Address, lock_token: bytes, verdict: SettlementRequest
    ) -> tuple[Entity, Box, Letter]:
        entity, box, letter = self._locked(address, lock_token)
        if verdict.disposition is SettlementKind.DEAD_LETTER and box.part is not QueuePart.MAIN:
            raise InvalidOperationError("dead already")
        return entity, box, letter

    def _settle(self, entity: Entity, box: Box, letter: Letter, verdict: SettlementRequest, now_ms: int) -> None:
        letter.token, letter.until_ms = None, NEVER
        self.touched.add(box.place)
        if verdict.disposition not in {SettlementKind.COMPLETE, SettlementKind.RELEASE}:
            for name, value in verdict.properties.items():
                letter.set_user(name, value)
        match verdict.disposition:
            case SettlementKind.COMPLETE:
                self._remove(entity, box, letter)
            case SettlementKind.ABANDON:
                self._fail(entity, box, letter, now_ms)
            case SettlementKind.RELEASE:
                self._rest(entity, box, letter, now_ms)
            case SettlementKind.DEFER:
                letter.state = DEFERRED
                self._note_sessions(entity)
            case SettlementKind.DEAD_LETTER:
                if verdict.reason is not None:
                    letter.set_user("DeadLetterReason", verdict.reason)
                if verdict.description is not None:
                    letter.set_user("DeadLetterErrorDescription", verdict.description)
                self._move(entity, box, letter, lambda: self._bury(entity, letter, None, now_ms), now_ms)

    def _fail(self, entity: Entity, box: Box, letter: Letter, now_ms: int) -> None:
        letter.count += 1
        self.touched.add(box.place)
        if box.part is QueuePart.MAIN and letter.count >= entity.settings.max_delivery_count:
            reason = "MaxDeliveryCountExceeded"
            self._move(entity, box, letter, lambda: self._bury(entity, letter, reason, now_ms), now_ms)
        else:
            self._rest(entity, box, letter, now_ms)

    def _rest(self, entity: Entity, box: Box, letter: Letter, now_ms: int) -> None:
        """Make a message available again, unless it has expired or its queue forwards by now."""
        if letter.state is ACTIVE and letter.expires_ms <= now_ms:
            self._expire(entity, box, letter, now_ms)
        elif letter.state is ACTIVE:
            self._move_on(entity, box, letter, now_ms)
        self._note_sessions(entity)

    def _move_on(self, entity: Entity, box: Box, letter: Letter, now_ms: int) -> bool:
        if box.part is QueuePart.MAIN and entity.forward_to is not None:
            return self._move(entity, box, letter, lambda: self._forward(entity, letter.copy(), now_ms), now_ms)
        if box.part is QueuePart.DEAD_LETTER:
            return self._move(entity, box, letter, lambda: self._forward_dead(entity, letter, now_ms), now_ms)
        return False

    def _expire(self, entity: Entity, box: Box, letter: Letter, now_ms: int) -> None:
        def way() -> list[RoutedCopy]:
            if not entity.settings.dead_letter_on_expiration:
                return []
            return self._bury(entity, letter, "TTLExpiredException", now_ms)

        self._move(entity, box, letter, way, now_ms)

    def renew_lock(self, address: Address, lock_token: bytes, now_ms: int) -> int:
        now_ms = self._begin(now_ms)
        entity, _, letter = self._locked(address, lock_token)
        if letter.until_ms == NEVER:
            raise InvalidOperationError("renew the session")
        letter.until_ms = now_ms + entity.settings.lock_duration_ms
        entity.touch(now_ms)
        return letter.until_ms

    # Sessions

    def _note_sessions(self, entity: Entity) -> None:
        """Record which sessions are available, and since when."""
        if not entity.has_sessions:
            return
        waiting = {letter.session_id for letter in entity.main.letters if letter.is_ready}
        held = {name for name, session in entity.sessions.items() if session.token is not None}
        now_there = {name for name in waiting - held if name is not None}
        kept = {name: since for name, since in entity.available.items() if name in now_there}
        entity.available = {**dict.fromkeys(now_there, self._step), **kept}

    def accept_session(self, address: Address, session_id: str | None, now_ms: int) -> SessionGrant | None:
        now_ms = self._begin(now_ms)
        entity, box = self._receivable(address)
        if not entity.has_sessions or box.part is not QueuePart.MAIN:
            raise InvalidOperationError("no sessions")
        if session_id is not None and len(session_id) > self.limits.id_characters:
            raise InvalidRequestError("session id")
        grant = self.answer if isinstance(self.answer, SessionGrant) else None
        name = session_id if session_id is not None else self._oldest_session(entity, grant)
        if name is None:
            return None
        session = entity.sessions.setdefault(name, Session())
        if session.token is not None:
            raise SessionLockedError(name)
        session.token = b"?" if grant is None else grant.session_token
        session.until_ms = now_ms + entity.settings.lock_duration_ms
        entity.touch(now_ms)
        self._note_sessions(entity)
        return SessionGrant(name, session.token, session.until_ms)

    @staticmethod
    def _oldest_session(entity: Entity, grant: SessionGrant | None) -> str | None:
        """Return the session that has waited longest; of several such sessions, the one that was granted."""
        if not entity.available:
            return None
        longest = min(entity.available.values())
        names = [name for name, since in entity.available.items() if since == longest]
        return grant.session_id if grant is not None and grant.session_id in names else names[0]

    def renew_session(self, address: Address, session_token: bytes, now_ms: int) -> int:
        now_ms = self._begin(now_ms)
        entity, _, _, session = self._held(address, session_token)
        session.until_ms = now_ms + entity.settings.lock_duration_ms
        entity.touch(now_ms)
        return session.until_ms

    def release_session(self, address: Address, session_token: bytes, now_ms: int) -> None:
        now_ms = self._begin(now_ms)
        entity, box, name, _ = self._held(address, session_token)
        for letter in box.in_order():
            if self._is_locked_in(letter, name):
                self._settle(entity, box, letter, SettlementRequest(disposition=SettlementKind.RELEASE), now_ms)
        self._let_go(entity, name)

    def session_state(self, address: Address, session_token: bytes, now_ms: int) -> bytes | None:
        self._begin(now_ms)
        return self._held(address, session_token)[3].state

    def set_session_state(self, address: Address, session_token: bytes, state: bytes | None, now_ms: int) -> None:
        now_ms = self._begin(now_ms)
        session = self._held(address, session_token)[3]
        if state is not None and len(state) > self.limits.message_bytes:
            raise InvalidRequestError("state")
        session.state, session.updated_ms = state, now_ms

    def sessions(self, address: Address, now_ms: int, updated_after_ms: int | None = None) -> list[str]:
        self._begin(now_ms)
        entity, box = self._box(address)
        if not entity.has_sessions or box.part is not QueuePart.MAIN:
            raise InvalidOperationError("no sessions")
        if updated_after_ms is None:
            return entity.session_names()
        return sorted(
            name
            for name, session in entity.sessions.items()
            if session.state is not None and session.updated_ms > updated_after_ms
        )

    # Transactions

    def transact(self, operations: Sequence[TransactionOperation], now_ms: int) -> list[list[int | None]]:
        now_ms = self._begin(now_ms)
        self._check_transaction(operations)
        return [self._perform(operation, now_ms) for operation in operations]

    def _check_transaction(self, operations: Sequence[TransactionOperation]) -> None:
        """Raise an error if any operation is invalid. The broker is free to name any of several."""
        refusals = list(self._refusals(operations))
        if refusals:
            raise next((error for error in refusals if type(error) is type(self.error)), refusals[0])

    def _refusals(self, operations: Sequence[TransactionOperation]) -> Iterator[BrokerError]:
        sizes = [len(operation.messages) if isinstance(operation, SendOperation) else 1 for operation in operations]
        if sum(sizes) > self.limits.messages_per_transaction:
            yield InvalidRequestError("too many")
        pending: dict[int, int] = {}
        tokens: list[bytes] = []
        for operation in operations:
            try:
                if isinstance(operation, SendOperation):
                    self._check_sent(operation, pending)
                else:
                    self._settleable(operation.address, operation.lock_token, operation.verdict)
            except BrokerError as error:
                yield error
            if isinstance(operation, SettleOperation):
                if operation.lock_token in tokens:
                    yield LockLostError("twice")
                tokens.append(operation.lock_token)

    def _check_sent(self, operation: SendOperation, pending: dict[int, int]) -> None:
        if operation.via is None:
            entity = self._sendable(operation.address)
            before = pending.get(entity.number, 0)
            pending[entity.number] = before + self._check_send(entity, operation.messages, before)
            return
        self._box(operation.via)
        target = self.entities.get(operation.address.entity)
        for message in operation.messages:
            self._check_message(target, message)

    def _perform(self, operation: TransactionOperation, now_ms: int) -> list[int | None]:
        if isinstance(operation, SettleOperation):
            self._settle(*self._locked(operation.address, operation.lock_token), operation.verdict, now_ms)
            return []
        if operation.via is not None:
            via = self._entity(operation.via)
            target = self.entities.get(operation.address.entity)
            return [self._transfer(via, target, message, now_ms) for message in operation.messages]
        entity = self._sendable(operation.address)
        entity.touch(now_ms)
        return [self._accept(entity, message, now_ms) for message in operation.messages]

    def _transfer(self, via: Entity, target: Entity | None, message: NewMessage, now_ms: int) -> int | None:
        if message.ping:
            return None
        letter = _letter(message, now_ms)
        obstacle = self._obstacle(target, letter, 0)
        if target is not None and obstacle is None:
            target.touch(now_ms)
            return self._accept(target, message, now_ms)
        letter.set_user("DeadLetterReason", obstacle)
        letter.set_user("DeadLetterErrorDescription", ANY_TEXT)
        self._land(RoutedCopy(via, via.boxes[QueuePart.TRANSFER_DEAD_LETTER], letter), now_ms)
        return None

    # Background work

    def tidy(self, now_ms: int, steps: int = 1_000_000) -> bool:
        """Forward messages that wait in forwarding queues. (Deleted messages are not visible.)"""
        now_ms = self._begin(now_ms)
        while self.pumps and steps > 0:
            steps -= 1
            entity, part = self.pumps[0]
            if entity not in self.everyone() or not self._pump(entity, entity.boxes[part], now_ms):
                del self.pumps[0]
        if steps > 0:
            self.has_graves = False
        return bool(self.pumps)

    def _pump(self, entity: Entity, box: Box, now_ms: int) -> bool:
        fronts = _fronts(box, box.ready())
        if not fronts:
            return False
        chosen = self.clues.first([("record", *box.place, letter.sequence) for letter in fronts])
        return self._move_on(entity, box, fronts[chosen], now_ms)

    # Receivable messages

    def receivable(self) -> dict[Address, set[int | str]]:
        """Return everything that a receiver could get now: messages by number, sessions by name."""
        found: dict[Address, set[int | str]] = {}
        for entity in self.everyone():
            if entity.is_topic or entity.description.status not in RECEIVING:
                continue
            for box in entity.boxes.values():
                if box.part is not QueuePart.MAIN or entity.forward_to is None:
                    found[box.address] = {letter.sequence for letter in box.letters if letter.is_ready}
            if entity.has_sessions and entity.forward_to is None:
                found[entity.address] |= set(entity.available)
        return found

    def _begin(self, now_ms: int) -> int:
        now_ms = self.advance(now_ms)
        self._step += 1
        return now_ms


def _letter(message: NewMessage, now_ms: int) -> Letter:
    return Letter(
        body=message.body,
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        time_to_live_ms=message.time_to_live_ms,
        scheduled_ms=message.scheduled_ms,
        enqueued_ms=now_ms,
    )


def _check_copy(letter: Letter) -> None:
    """Check that an action has not produced a message that a sender could not send."""
    if None not in {letter.session_id, letter.partition_key} and letter.session_id != letter.partition_key:
        raise NoResult


def _check_count(count: int) -> None:
    if count < 0:
        raise InvalidRequestError("count")


def _shorter(one_ms: int | None, other_ms: int | None) -> int | None:
    given = [time_ms for time_ms in (one_ms, other_ms) if time_ms is not None]
    return min(given, default=None)


def _end_of_life(letter: Letter, entity: Entity, now_ms: int) -> int:
    lifetime_ms = _shorter(letter.time_to_live_ms, entity.description.default_time_to_live_ms)
    return NEVER if lifetime_ms is None else now_ms + lifetime_ms


def _is_of_id(event: Due) -> bool:
    return event.trace is not None and event.trace[0] == "seen"


def _fronts(box: Box, letters: Sequence[Letter]) -> list[Letter]:
    """Return the first message of each partition."""
    fronts: dict[int, Letter] = {}
    for letter in letters:
        fronts.setdefault(letter.sequence >> PARTITION_BITS if box.partitioned else 0, letter)
    return list(fronts.values())


def _next_letter(box: Box, session: str | None, clue: int | None) -> Letter | None:
    """Return the next message of a receiver: the oldest; with several partitions, the oldest of the one whose turn it
    is.
    """
    fronts = _fronts(box, [letter for letter in box.ready() if session is None or letter.session_id == session])
    return next((letter for letter in fronts if letter.sequence == clue), fronts[0] if fronts else None)


def _deliveries(answer: object) -> list[DeliveredMessage]:
    return [found for found in answer if isinstance(found, DeliveredMessage)] if isinstance(answer, list) else []


__all__ = [
    "ACTIONS",
    "FILTERS",
    "BrokerError",
    "Clues",
    "Facts",
    "Inside",
    "Letter",
    "Model",
    "Write",
    "encode",
    "facts_in",
    "facts_of",
]
