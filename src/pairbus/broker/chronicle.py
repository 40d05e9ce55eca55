"""What happens to messages, told to whoever keeps a record of it."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from pairbus.broker.address import Address
from pairbus.broker.message import Record


class Moment(Enum):
    """A point in the life of a message."""

    ACCEPTED = auto()
    SCHEDULED = auto()
    """It was accepted, and waits for its time."""

    REPEATED = auto()
    """A duplicate was taken from its sender, and dropped."""

    ROUTED = auto()
    """It is in a queue now that it was not sent to, or has its final number."""

    RECEIVED = auto()
    COMPLETED = auto()
    ABANDONED = auto()
    """Given back, or its lock has ended."""

    DEFERRED = auto()
    DEAD_LETTERED = auto()
    MOVED = auto()
    """It has left a queue to be routed."""

    FOUND = auto()
    """It is in a queue that was read from the store."""

    EXPIRED = auto()
    REMOVED = auto()
    SET_ASIDE = auto()


class Chronicle(Protocol):
    """Is told as it happens, before it is durable: whoever keeps it waits for the commit.

    None of it may raise, or wait.
    """

    def note(self, moment: Moment, address: Address, record: Record, body: bytes | None = None, /) -> None:
        """Something has happened to a message in a queue. What was accepted comes with its body, and so does what was
        found, if that is wanted.
        """

    def wants_body(self, address: Address, /) -> bool:
        """Whether it matters what is in the messages that are found in a queue."""

    def note_gone(self, address: Address, /) -> None:
        """An entity was deleted, with all messages in it."""
