"""Addresses of queues, and messages: as senders send them, as the broker stores them, and as receivers get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from pairbus.broker.descriptions import Value
from pairbus.broker.errors import InvalidRequestError
from pairbus.broker.sql import MISSING, Missing


class QueuePart(IntEnum):
    """The queues that a queue or a subscription consists of."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


class Address(NamedTuple):
    """A queue, a topic or a subscription, or a part of one. Names compare without regard to case; see ``of``."""

    entity: str
    subscription: str | None = None
    part: QueuePart = QueuePart.MAIN

    @classmethod
    def of(cls, entity: str, subscription: str | None = None, part: QueuePart = QueuePart.MAIN) -> Address:
        """Return the normalised address: spellings that differ only in case give the same address."""
        names: tuple[object, object] = entity, subscription
        if not isinstance(names[0], str) or not isinstance(names[1], str | None):
            raise InvalidRequestError(f"entity names must be text, got {names}; pass a part of an entity as part=…")
        return cls(entity.lower(), None if subscription is None else subscription.lower(), part)

    def is_within(self, other: Address) -> bool:
        """Return whether this is the entity of another address, a part of it, or a subscription of it."""
        return self.entity == other.entity and other.subscription in {None, self.subscription}

    def __str__(self) -> str:
        path = self.entity if self.subscription is None else subscription_path(self.entity, self.subscription)
        return path if self.part is QueuePart.MAIN else f"{path} ({self.part.name.lower().replace('_', ' ')})"


def subscription_path(topic: str, name: str) -> str:
    """Return the path that clients receive from."""
    return f"{topic}/Subscriptions/{name}"


class QueueId(NamedTuple):
    """A queue, identified by numbers that never change and are never reused: the store's key for its messages."""

    entity_id: int
    part: int


NEVER: Final = 2**63 - 1
"""A time in milliseconds that never comes."""


class MessageState(IntEnum):
    """The state that a message waits in. A locked message keeps the state that it was locked in."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class NewMessage(NamedTuple):
    """A message to send. ``body`` is the whole encoded message; the broker stores it without decoding it."""

    body: bytes
    message_id: str = ""
    session_id: str | None = None
    partition_key: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    header_bytes: int = 0
    """Bytes of the body that are properties."""

    ping: bool = False
    """True for a ping: accepted like any message, then discarded."""

    returned: bool = False
    """True if it comes from a backlog. The broker keeps this for cost reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendments:
    """Properties that differ from those in the body: set or removed by a receiver, by a rule, or by dead-lettering."""

    user: Mapping[str, Value | Missing] = field(default_factory=dict)
    system: Mapping[str, Value] = field(default_factory=dict)


class Record(NamedTuple):
    """The stored metadata of a message, without its body."""

    sequence: int
    enqueued_ms: int
    expires_ms: int
    """Expiry in this queue; ``NEVER`` if the message does not expire."""

    size: int
    body_id: int
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    """As the sender set it, for the queue to which the message may be forwarded."""

    scheduled_ms: int | None
    original_sequence: int
    """The first sequence number of the message, assigned by the entity to which it was sent."""

    state: MessageState = MessageState.ACTIVE
    delivery_count: int = 0
    """Number of failed deliveries."""

    hops: int = 0
    shared: bool = False
    """True if other records may refer to the same body."""

    dead_letter_source: str | None = None
    amendments: Amendments | None = None
    returned: bool = False
    """True if it came from a backlog."""


class RecordBatch:
    """Stored records of one queue, in the order of their sequence numbers, with what its index needs of each.

    Most messages are ready: active, and in no session. Of these only numbers are kept, and of all others the records.
    """

    __slots__ = ("expiries", "last_body_id", "others", "ready", "sequences", "shared_bodies", "size_bytes")

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.size_bytes = 0
        self.expiries: list[tuple[int, int]] = []
        """The expiry and the sequence number of each message that expires."""
        self.last_body_id = 0
        """The highest one."""
        self.shared_bodies: list[int] = []
        self.ready: list[int] = []
        self.others: list[Record] = []


def placed(record: Record, sequence: int, enqueued_ms: int, body_id: int, shared: bool) -> Record:
    """Return the record of a message as a queue stores it. ``_replace`` would take more than twice as long."""
    (
        _, _, expires_ms, size, _, message_id, session_id, partition_key, time_to_live_ms, scheduled_ms,
        original_sequence, state, delivery_count, hops, _, source, amendments, returned,
    ) = record  # fmt: skip
    return Record._make(
        (
            sequence, enqueued_ms, expires_ms, size, body_id, message_id, session_id, partition_key, time_to_live_ms,
            scheduled_ms, original_sequence or sequence, state, delivery_count, hops, shared, source, amendments,
            returned,
        )
    )  # fmt: skip


def partition_key_of(message: NewMessage | Record) -> str | None:
    """Return the key that ties a message to a partition, if it has one."""
    return message.partition_key if message.session_id is None else message.session_id


def unreadable(sequence: int) -> Record:
    """Return a placeholder for a message whose record cannot be read."""
    return Record(sequence, 0, NEVER, 0, 0, "", None, None, None, None, 0)


class DeliveredMessage(NamedTuple):
    """A message as a receiver gets it. Without a lock it was removed from the queue, or only peeked."""

    record: Record
    body: bytes
    lock_token: bytes | None = None
    locked_until_ms: int | None = None


class PropertyView(Protocol):
    """The properties inside an encoded message, for rules to read.

    If a method raises any error, the rule that called it counts as failed for this message.
    """

    def user(self, name: str) -> Value | Missing:
        """Return the application property of that name, which compares without regard to case."""

    def system(self, name: str) -> Value:
        """Return a property set by the sender: ``CorrelationId``, ``ContentType``, ``Label``, ``To``, ``ReplyTo`` and
        so on.
        """


class _NoProperties:
    def __repr__(self) -> str:
        return "NO_PROPERTIES"

    def user(self, _name: str) -> Missing:
        return MISSING

    def system(self, _name: str) -> None:
        return None


NO_PROPERTIES: Final[PropertyView] = _NoProperties()
"""The view of messages that no rule reads."""
