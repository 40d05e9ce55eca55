"""Events that the broker reports: lifecycle events of messages, and notices for the server."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from pairbus.broker.address import Address
from pairbus.broker.message import Record


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

    location: str = ""
    """Where the damaged part is in the store."""


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
