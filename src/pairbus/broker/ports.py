"""The ports of the broker: its storage, and the events that it reports.

The broker holds a compact index in memory and writes every fact that must survive a restart through ``Records``. All
writes of one operation belong together: the store makes them durable as a whole or not at all. What was written can be
read back at once, durable or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.message import Address, QueueId, Record

Location: TypeAlias = tuple[tuple[str, str | int | None], ...]
"""A place in the store, as facts: names with their values."""


class Records(Protocol):
    """The storage that the broker needs. Reads return ``None`` for records that are damaged or missing."""

    def admit(self, size_bytes: int, records: int = 1) -> None:
        """Raise one of the store's errors if there is no room for that many bytes of bodies, and that many records."""

    def record(self, place: QueueId, sequence: int) -> Record | None: ...

    def sequences(self, place: QueueId, start: int, limit: int) -> tuple[list[int], int | None]:
        """Return the sequence numbers of the records of a queue from ``start`` on, in order, readable or not.

        They are about ``limit``; the second value is where the next ones start, or ``None`` if there are no more.
        """

    def put_record(self, place: QueueId, record: Record) -> None: ...

    def remove_record(self, place: QueueId, sequence: int) -> None: ...

    def set_aside(self, place: QueueId, sequence: int) -> None:
        """Take an unreadable record out of service without deleting it."""

    def lost_record(self, place: QueueId, sequence: int) -> Record | None:
        """Return what a repair has left of a lost message that has no stub yet; ``None`` if its record is lost, too."""

    def set_aside_lost(self, place: QueueId, sequence: int, record: Record | None) -> None:
        """Note that a lost message has a stub now; its record is kept, as those of other unreadable messages are.

        It does not read the store, so it cannot fail between the stub and this note.
        """

    def set_aside_body(self, body_id: int) -> None:
        """Keep a copy of an unreadable body; the body itself is removed with its last record."""

    def location(self, place: QueueId, sequence: int, body_id: int | None) -> Location:
        """Return where the store keeps a record, or a body, that cannot be read: for the log."""

    def body(self, body_id: int) -> bytes | None: ...

    def put_body(self, body_id: int, body: bytes) -> None: ...

    def remove_body(self, body_id: int) -> None: ...

    def put_last_sequence(self, place: QueueId, partition: int, sequence: int) -> None: ...

    def remove_last_sequence(self, place: QueueId, partition: int) -> None: ...

    def put_last_entity_id(self, entity_id: int) -> None: ...

    def put_entity(self, entity: EntityRecord) -> None: ...

    def remove_entity(self, entity_id: int) -> None: ...

    def put_access(self, rules: tuple[AuthorizationRule, ...]) -> None: ...

    def put_rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> None: ...

    def remove_rule(self, entity_id: int, position: int) -> None: ...

    def session_state(self, entity_id: int, session_id: str) -> bytes | None: ...

    def put_session_state(self, entity_id: int, session_id: str, state: bytes | None, updated_ms: int) -> None: ...

    def duplicate(self, entity_id: int, key: str) -> tuple[int, int] | None:
        """Return when an id was first seen, and the sequence number of that message; ``None`` if it is unknown."""

    def duplicates(self, entity_id: int) -> Iterator[tuple[str, int]]:
        """Iterate over the ids of an entity, each with the time at which it was first seen.

        Ids written during the iteration may or may not appear, and an id may appear twice; ids written before it do
        appear.
        """

    def put_duplicate(self, entity_id: int, key: str, first_ms: int, sequence: int) -> None: ...

    def remove_duplicate(self, entity_id: int, key: str) -> None: ...


class BodyStore:
    """Numbers message bodies, and removes each with its last record.

    Only bodies that a topic has shared between subscriptions are reference-counted; every other body belongs to one
    record.
    """

    __slots__ = ("_copies", "_last_id", "_records")

    def __init__(self, records: Records) -> None:
        self._records = records
        self._copies: dict[int, int] = {}
        self._last_id = 0

    def keep(self, body: bytes, copies: int) -> int:
        self._last_id += 1
        self._records.put_body(self._last_id, body)
        if copies > 1:
            self._copies[self._last_id] = copies
        return self._last_id

    def share(self, record: Record, copies: int) -> None:
        """Prepare for one record to be replaced by ``copies`` records of the same body."""
        if copies == 0:
            self.release(record)
        elif copies > 1:
            self._copies[record.body_id] = self._copies.get(record.body_id, 1) + copies - 1

    def release(self, record: Record) -> None:
        """Release the reference of a removed record to its body; remove the body with its last reference."""
        left = self._copies.get(record.body_id, 1) - 1 if record.shared else 0
        if left:
            self._copies[record.body_id] = left
        else:
            self._copies.pop(record.body_id, None)
            self._records.remove_body(record.body_id)

    @property
    def last_id(self) -> int:
        """Return the highest id that was ever assigned."""
        return self._last_id

    def restore_last_id(self, body_id: int) -> None:
        self._last_id = max(self._last_id, body_id)

    def restore_shared(self, body_ids: Iterable[int]) -> None:
        """Count the references of records to bodies that others may refer to as well."""
        copies = self._copies
        for body_id in body_ids:
            copies[body_id] = copies.get(body_id, 0) + 1


class MessageEvent(Enum):
    """An event in the lifecycle of a message."""

    ACCEPTED = auto()
    SCHEDULED = auto()
    """Accepted, and waiting for its scheduled time."""

    REPEATED = auto()
    """Accepted from the sender as a duplicate, and dropped."""

    ROUTED = auto()
    """Placed in a queue that it was not sent to, or given its final sequence number."""

    RECEIVED = auto()
    COMPLETED = auto()
    ABANDONED = auto()
    """Abandoned by the receiver, or its lock expired."""

    DEFERRED = auto()
    DEAD_LETTERED = auto()
    EXPIRED_TO_DEAD_LETTERS = auto()
    """Dead-lettered because it has expired."""

    MOVED = auto()
    """Removed from a queue to be routed elsewhere."""

    FOUND = auto()
    """Found in a queue that was read from the store."""

    EXPIRED = auto()
    REMOVED = auto()
    SET_ASIDE = auto()


class EventSink(Protocol):
    """A receiver of lifecycle events. It is called before an event is durable: to store the event, wait for the commit.

    No method may raise or block.
    """

    def note(self, event: MessageEvent, address: Address, record: Record, body: bytes | None = None, /) -> None:
        """Record an event of a message in a queue. ``body`` is given for an accepted message, and for a found one if
        ``wants_body`` asks for it.
        """

    def wants_found(self) -> bool:
        """Return whether events of messages that are found in the store are needed: their records are decoded then."""

    def wants_body(self, address: Address, /) -> bool:
        """Return whether the bodies of messages that are found in a queue are needed."""

    def note_gone(self, address: Address, /) -> None:
        """Record that an entity was deleted, with all its messages."""


class SessionLost(NamedTuple):
    """The lock on a session has expired."""

    address: Address
    session_id: str
    session_token: bytes


class EntityGone(NamedTuple):
    """The entity was deleted, by request or because it was idle."""

    address: Address


class Quarantined(NamedTuple):
    """A message could not be read and was quarantined."""

    address: Address
    sequence: int
    message_id: str
    """Empty if the record that holds it cannot be read either."""

    damaged: str
    """The damaged part of the message: its record or its body."""

    location: Location = ()
    """The position of the damage in the store."""


class IndexFault(NamedTuple):
    """The index of an entity is inconsistent: ``Namespace.reload`` loads it from the store again."""

    address: Address
    reason: str


class IndexReloaded(NamedTuple):
    """The index of an entity was loaded from the store again, and its messages can be received."""

    address: Address
    messages: int


class AccessChanged(NamedTuple):
    """Keys of the namespace or of an entity were changed or removed: access granted with them must be checked again."""


Notice: TypeAlias = SessionLost | EntityGone | Quarantined | IndexFault | IndexReloaded | AccessChanged
