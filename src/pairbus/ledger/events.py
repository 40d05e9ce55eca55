"""The records of a ledger: counted operations, and lifecycle events of messages; and its tables and columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

VERSION: Final = 1
"""Version of the columns, stored in the metadata of every file under the key below."""

VERSION_KEY: Final = "pairbus.ledger.version"

OPERATIONS: Final = "operations"
LIVES: Final = "lives"
"""The two tables: directories of Parquet files below ``day=YYYY-MM-DD/hour=HH``, in UTC."""

TIME: Final = "time"
TEXT: Final = "text"
NUMBER: Final = "number"

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    OPERATIONS: {
        "at": TIME,
        "namespace": TEXT,
        "kind": TEXT,
        "stage": TEXT,
        "entity": TEXT,
        "result": TEXT,
        "who": TEXT,
        "operations": NUMBER,
        "messages": NUMBER,
        "bytes": NUMBER,
        "units": NUMBER,
        "request_units": NUMBER,
        "connections": NUMBER,
    },
    LIVES: {
        "at": TIME,
        "namespace": TEXT,
        "ordinal": NUMBER,
        "event": TEXT,
        "stage": TEXT,
        "entity": TEXT,
        "sequence": NUMBER,
        "original_sequence": NUMBER,
        "message_id": TEXT,
        "session_id": TEXT,
        "destination": TEXT,
        "size": NUMBER,
    },
}
"""Times are UTC in milliseconds, numbers have 64 bits. A row of operations counts the operations of one key within a
second; a row of lives is one lifecycle event. Only ``session_id`` and ``destination`` may be null."""

PARTITIONS: Final = ("day", "hour")

HOUR_MS: Final = 3_600_000

ALIVE_EVERY_MS: Final = 60_000
"""Time without events after which a running namespace records that it is alive."""


UNIT_BYTES: Final = 64 * 1024
"""A message is billed once for every started 64 KB."""

SUCCEEDED: Final = "ok"
"""The result of an operation that succeeded; a rejected one has the error condition as its result."""


class OperationKind(StrEnum):
    """The kind of an operation. The rate card decides which of these are billed."""

    SEND = "send"
    RECEIVE = "receive"
    """A message was delivered to a receiver."""

    EMPTY_RECEIVE = "empty receive"
    """A receive timed out without a message."""

    PEEK = "peek"
    SETTLE = "settle"
    RENEW_LOCK = "renew lock"
    SCHEDULE = "schedule"
    CANCEL = "cancel"
    PURGE = "purge"
    SESSION_STATE = "session state"
    RULES = "rules"
    """Rules of a subscription, read or changed by its receiver."""

    MANAGEMENT = "management"
    """A request to the management API."""

    FAULT = "fault"
    """A change of an injected fault; not an operation. All counts are 0, and ``result`` describes the change."""

    CONNECTION = "connection"
    """Open connections; not an operation."""


class Stage(StrEnum):
    """The role of an operation in pairing."""

    DIRECT = "direct"
    BACKLOG = "backlog"
    """A message was diverted: the first of its four charges."""

    SYPHON = "syphon"
    """A diverted message was received from its backlog queue (second charge), or sent to its destination (third)."""

    RETURNED = "returned"
    """A restored message was received from the primary: the fourth charge."""

    PING = "ping"
    IDLE = "idle"
    """A receive from a backlog queue that returned nothing."""

    MANAGEMENT = "management"


class OperationKey(NamedTuple):
    """The key under which operations are counted together."""

    kind: OperationKind
    stage: Stage
    entity: str
    """The path; empty if an operation concerns no entity, or several."""

    result: str
    key_name: str
    """The name of the key that the peer authenticated with; empty if it presented none."""


class OperationCounts:
    """Counts of operations with the same key, while they are being counted; ``OperationRow`` is the stored form.

    Units of messages are counted twice: for each message, and for each request as a whole, since rate cards differ.
    """

    __slots__ = ("bytes", "messages", "operations", "request_units", "units")

    def __init__(self) -> None:
        self.operations = 0
        self.messages = 0
        self.bytes = 0
        self.units = 0
        self.request_units = 0

    def add(self, messages: int = 0, size_bytes: int = 0, units: int = 1, request_units: int = 1) -> None:
        """Count one operation."""
        self.operations += 1
        self.messages += messages
        self.bytes += size_bytes
        self.units += units
        self.request_units += request_units

    def merge(self, other: OperationCounts) -> None:
        """Add the counts of another instance."""
        self.operations += other.operations
        self.messages += other.messages
        self.bytes += other.bytes
        self.units += other.units
        self.request_units += other.request_units


class OperationRow(NamedTuple):
    """Counts of one key as the ledger stores them: within a second, or within a longer time if the queue was full."""

    at_ms: int
    kind: OperationKind
    stage: Stage
    entity: str
    result: str
    key_name: str
    operations: int
    messages: int
    bytes: int
    units: int
    request_units: int
    connections: int
    """Maximum number of open connections; recorded under a separate key."""

    def merged(self, other: OperationRow) -> OperationRow:
        """Return this row with the counts of another one added."""
        return self._replace(
            operations=self.operations + other.operations,
            messages=self.messages + other.messages,
            bytes=self.bytes + other.bytes,
            units=self.units + other.units,
            request_units=self.request_units + other.request_units,
            connections=max(self.connections, other.connections),
        )


_CONNECTIONS: Final = OperationKey(OperationKind.CONNECTION, Stage.DIRECT, "", SUCCEEDED, "")


def operation_rows(
    second_ms: int, counted: Sequence[tuple[OperationKey, OperationCounts]], connections: int
) -> list[OperationRow]:
    """Return the rows of a second: one for each key, and one for the number of connections, unless that is 0."""
    rows = [
        OperationRow(
            second_ms, *key, counts.operations, counts.messages, counts.bytes, counts.units, counts.request_units, 0
        )
        for key, counts in counted
    ]
    if connections:
        rows.append(OperationRow(second_ms, *_CONNECTIONS, 0, 0, 0, 0, 0, connections))
    return rows


def units_of(size_bytes: int) -> int:
    """Return how many units a payload of this size is billed as."""
    return max(1, -(-size_bytes // UNIT_BYTES))


class LedgerEvent(StrEnum):
    """An event in the life of a message. Every message in an entity was accepted there, or routed to it."""

    ACCEPTED = "accepted"
    """Accepted from a sender, and durable. The sequence number is that of the entity it was sent to."""

    SCHEDULED = "scheduled"
    """Accepted for a later enqueue time; moved when that is reached."""

    REPEATED = "repeated"
    """Sent again within the duplicate detection window: acknowledged to the sender, and discarded."""

    ROUTED = "routed"
    """Put into a queue or subscription by a topic's rules or by forwarding, with a sequence number there."""

    RECEIVED = "received"
    """Delivered to a receiver."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    """Abandoned by its receiver, or its lock has expired: it can be received again."""

    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    """Moved to the dead-letter queue of its entity; later events carry the path of that queue."""

    MOVED = "moved"
    """Left its queue, or the sequence number it had while scheduled; a routed event follows at the same time."""

    EXPIRED = "expired"
    """Expired and removed. Where the entity dead-letters expired messages, the event is ``DEAD_LETTERED``."""

    REMOVED = "removed"
    """Purged, or cancelled while scheduled. With sequence number 0: the entity was deleted with all its messages."""

    SET_ASIDE = "set aside"
    """Unreadable, and not delivered any more."""

    STARTED = "started"
    """Not about a message: the namespace was loaded from its store, and reports its messages as ``found``.

    ``sequence`` is the ordinal of the last event that the store had confirmed before, 0 if there was none: all events
    up to that one belong in the ledger.
    """

    STOPPED = "stopped"
    """Not about a message: the namespace was shut down cleanly. All events up to this one belong in the ledger."""

    ALIVE = "alive"
    """Not about a message: the namespace was running, and had recorded nothing for ``ALIVE_EVERY_MS``.

    So the ledger of an idle namespace continues, while one whose last files were removed ends.
    """

    FOUND = "found"
    """Present in its queue when the namespace was started."""

    MISSED = "missed"
    """Not about a message: ``sequence`` events could not be recorded, and are missing from the ledger."""


class LifecycleEvent(NamedTuple):
    """An event as the ledger stores it."""

    at_ms: int
    ordinal: int
    """Numbers the events of a namespace in the order in which they happened."""

    event: LedgerEvent
    stage: Stage
    entity: str
    sequence: int
    original_sequence: int
    """The sequence number assigned by the entity that the message was sent to; shared by all its copies."""

    message_id: str
    session_id: str | None
    destination: str | None
    """The destination of a diverted message; set only on messages accepted in a backlog queue."""

    size: int


class EventRange(NamedTuple):
    """The time of the first event of a packed sequence, and the ordinals of all."""

    first_ms: int
    ordinals: Sequence[int]


_AT: Final = LifecycleEvent._fields.index("at_ms")
_ORDINAL: Final = LifecycleEvent._fields.index("ordinal")
_EVENT: Final = LifecycleEvent._fields.index("event")
_STAGE: Final = LifecycleEvent._fields.index("stage")
_SEQUENCE: Final = LifecycleEvent._fields.index("sequence")
_ORIGINAL: Final = LifecycleEvent._fields.index("original_sequence")


def pack_events(events: Sequence[LifecycleEvent]) -> bytes:
    """Serialize events in a form that later versions can read, too.

    Columns that have one value throughout, as most have for events of the same moment, are stored as that value.
    """
    columns: list[Sequence[object]] = [*zip(*events, strict=True)]
    columns[_ORDINAL] = [event.ordinal - index for index, event in enumerate(events)]
    columns[_ORIGINAL] = [event.original_sequence - event.sequence for event in events]
    return json.dumps([len(events), *map(_compact, columns)], separators=(",", ":")).encode()


def unpack_events(content: bytes) -> list[LifecycleEvent]:
    """Deserialize events. Raise ``ValueError`` if the content was not written by ``pack_events``."""
    try:
        count, *short = json.loads(content)
        columns = [column if isinstance(column, list) else [column] * count for column in short]
        columns[_ORDINAL] = _ordinals(columns[_ORDINAL])
        columns[_EVENT] = [*map(LedgerEvent, columns[_EVENT])]
        columns[_STAGE] = [*map(Stage, columns[_STAGE])]
        pairs = zip(columns[_ORIGINAL], columns[_SEQUENCE], strict=True)
        columns[_ORIGINAL] = [original + sequence for original, sequence in pairs]
        return [*map(LifecycleEvent._make, zip(*columns, strict=True))]
    except (TypeError, IndexError) as error:
        raise ValueError(f"not a packed sequence of events: {error}") from error


def extent_of(content: bytes) -> EventRange:
    """Return the extent of packed events without unpacking them. Raise ``ValueError`` as ``unpack_events`` does."""
    try:
        count, *columns = json.loads(content)
        times, ordinals = columns[_AT], columns[_ORDINAL]
        first_ms = int(min(times)) if isinstance(times, list) else int(times)
        return EventRange(
            first_ms, _ordinals(ordinals) if isinstance(ordinals, list) else range(ordinals, ordinals + count)
        )
    except (TypeError, IndexError) as error:
        raise ValueError(f"not a packed sequence of events: {error}") from error


def _ordinals(column: Sequence[int]) -> list[int]:
    return [ordinal + index for index, ordinal in enumerate(column)]


def _compact(column: Sequence[object]) -> object:
    first = column[0]
    return first if column.count(first) == len(column) else column
