"""A message on its way: as a sender hands it in, as it is kept, and as a receiver gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from pairbus.broker.sql import MISSING, Missing
from pairbus.broker.values import Value

NEVER: Final = 2**63 - 1
"""The point in time that does not come, in milliseconds."""


class MessageState(IntEnum):
    """What a message waits for. While it is locked it keeps the state that it was locked in."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Message(NamedTuple):
    """What a sender hands in. The body is the whole encoded message; the broker keeps it and never looks inside."""

    body: bytes
    message_id: str = ""
    session_id: str | None = None
    partition_key: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None
    header_bytes: int = 0
    """How much of the body are properties."""

    ping: bool = False
    """Accepted like any message, and gone (C13)."""

    returned: bool = False
    """Whether it comes from a backlog. The broker keeps that for those who ask what a message has cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendments:
    """Properties that differ from those in the body: set or removed by a receiver, by a rule, or by dead-lettering."""

    user: Mapping[str, Value | Missing] = field(default_factory=dict)
    system: Mapping[str, Value] = field(default_factory=dict)


class Record(NamedTuple):
    """What is kept of a message besides its body."""

    sequence: int
    enqueued_ms: int
    expires_ms: int
    """When it expires in this queue; ``NEVER`` where nothing ends its life."""

    size: int
    body_id: int
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    """As the sender set it, for the queue that the message may be forwarded to."""

    scheduled_ms: int | None
    original_sequence: int
    """The number that the message was given first, by the entity it was sent to."""

    state: MessageState = MessageState.ACTIVE
    delivery_count: int = 0
    """How many deliveries have failed."""

    hops: int = 0
    shared: bool = False
    """Whether other records may have the same body."""

    dead_letter_source: str | None = None
    amendments: Amendments | None = None
    returned: bool = False
    """Whether it came from a backlog."""


def unreadable(sequence: int) -> Record:
    """What is known of a message whose record cannot be read."""
    return Record(sequence, 0, NEVER, 0, 0, "", None, None, None, None, 0)


class Delivery(NamedTuple):
    """A message as a receiver gets it. Without a lock it is gone from the queue, or was only looked at."""

    record: Record
    body: bytes
    lock_token: bytes | None = None
    locked_until_ms: int | None = None


class PropertyView(Protocol):
    """The properties inside an encoded message, for rules to look at.

    Whatever error it raises, the rule that asked counts as failed for this message.
    """

    def user(self, name: str) -> Value | Missing:
        """The application property with that name, whatever its case."""

    def system(self, name: str) -> Value:
        """What the sender set of ``CorrelationId``, ``ContentType``, ``Label``, ``To``, ``ReplyTo`` and the like."""


class _NoProperties:
    def __repr__(self) -> str:
        return "NO_PROPERTIES"

    def user(self, _name: str) -> Missing:
        return MISSING

    def system(self, _name: str) -> None:
        return None


NO_PROPERTIES: Final[PropertyView] = _NoProperties()
"""The view of messages that no rule looks into."""
