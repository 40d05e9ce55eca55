"""A message of the backlog: its destination, its restored form, and why it may be undeliverable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, TypeAlias

from pairbus.client.errors import (
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingError,
)
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.paths import takes_messages
from pairbus.dialect.sent import read_enqueued
from pairbus.dialect.transfer import DivertedMessage, TransferError, read_transfer, restore
from pairbus.pairing.syphon.interface import TimeToLive, destination_key

Line: TypeAlias = tuple[str, str]
"""The key of a destination and a session id: messages of one line are delivered in order."""

_MAX_DESCRIPTION: Final = 2_000


class InvalidDestinationError(TransferError):
    """The destination of a message cannot be the path of a queue or topic."""


class DeadLetterReason(Enum):
    """The reason of a dead letter in a backlog queue."""

    NO_DESTINATION = "PairbusNoDestination"
    """The message has no destination."""
    UNREADABLE = "PairbusUnreadable"
    """A property of the diverted form cannot be read, or has the wrong type."""
    INVALID_DESTINATION = "PairbusInvalidDestination"
    """The destination cannot be the path of an entity."""
    ENTITY_NOT_FOUND = "PairbusEntityNotFound"
    MESSAGE_SIZE_EXCEEDED = "PairbusMessageSizeExceeded"
    INVALID_MESSAGE = "PairbusInvalidMessage"
    EXPIRED = "TTLExpiredException"
    """The message expired in the backlog; the service uses the same name."""
    REFUSED = "PairbusRefused"


def reason_of(error: MessagingError | TransferError) -> DeadLetterReason:
    match error:
        case InvalidDestinationError():
            return DeadLetterReason.INVALID_DESTINATION
        case TransferError(path=None):
            return DeadLetterReason.NO_DESTINATION
        case TransferError():
            return DeadLetterReason.UNREADABLE
        case EntityNotFoundError():
            return DeadLetterReason.ENTITY_NOT_FOUND
        case MessageSizeExceededError():
            return DeadLetterReason.MESSAGE_SIZE_EXCEEDED
        case InvalidMessageError() | InvalidRequestError():
            return DeadLetterReason.INVALID_MESSAGE
    return DeadLetterReason.REFUSED


def one_line(text: str) -> str:
    """Return a text without control characters and of limited length: errors may quote parts of a message."""
    return "".join(one if one.isprintable() else " " for one in text)[:_MAX_DESCRIPTION]


def read_diverted(payload: bytes) -> DivertedMessage:
    """Read the diverted form of a message. Raise ``TransferError`` if it has no valid destination."""
    transfer = read_transfer(payload)
    if not takes_messages(transfer.path.strip("/")):
        raise InvalidDestinationError("not the path of a queue or topic", transfer.path)
    return transfer


def line_of(transfer: DivertedMessage) -> Line | None:
    """Return the line of a message; ``None`` if it has no session."""
    return None if transfer.session_id is None else (destination_key(transfer.path), transfer.session_id)


class BacklogMessage:
    """A message of a backlog queue that is locked for this process."""

    __slots__ = ("is_deferred", "is_dropped", "line", "message", "path", "sequence", "transfer")

    def __init__(self, message: ReceivedMessage, *, is_deferred: bool = False) -> None:
        """Raise ``TransferError`` or ``InvalidMessageError`` if the message has no valid destination."""
        self.message = message
        self.transfer = read_diverted(message.payload)
        self.path = self.transfer.path
        self.sequence = message.sequence_number
        self.line = line_of(self.transfer)
        self.is_deferred = is_deferred
        """True if the message was deferred, and is deferred again when it is given back."""

        self.is_dropped = False
        """True once its lock is not needed any longer, although the message is not settled."""

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def locked_until(self) -> datetime | None:
        return self.message.locked_until

    @property
    def is_settled(self) -> bool:
        return self.is_dropped or self.message.is_settled


@dataclass(frozen=True, slots=True, eq=False)
class UndeliverableMessage:
    """A locked message that can never be delivered."""

    message: ReceivedMessage
    path: str | None
    """The destination, if there is one."""

    reason: DeadLetterReason
    description: str
    is_deferred: bool = False

    @property
    def sequence(self) -> int:
        return read_enqueued(self.message.payload).sequence_number or 0

    @classmethod
    def because(
        cls, message: ReceivedMessage, error: TransferError | InvalidMessageError, *, is_deferred: bool = False
    ) -> UndeliverableMessage:
        path = error.path if isinstance(error, TransferError) else None
        reason = reason_of(error) if isinstance(error, TransferError) else DeadLetterReason.UNREADABLE
        where = "" if path is None else f"the message for '{path}': "
        return cls(message, path, reason, one_line(f"{where}{error}"), is_deferred)


def restore_message(message: BacklogMessage, time_to_live: TimeToLive, age: timedelta) -> bytes | UndeliverableMessage:
    """Return the message as it was before it was diverted, or why it cannot be delivered.

    ``age`` is the time that it has spent in the backlog, which counts with ``TimeToLive.REMAINING``.
    """
    transfer = message.transfer
    left_ms = transfer.time_to_live_ms
    if left_ms is not None and time_to_live is TimeToLive.REMAINING:
        left_ms -= int(age.total_seconds() * 1_000)
        if left_ms <= 0:
            text = f"the message for '{transfer.path}' expired in the backlog"
            return UndeliverableMessage(message.message, transfer.path, DeadLetterReason.EXPIRED, one_line(text))
    try:
        return restore(message.payload, transfer, time_to_live_ms=left_ms)
    except TransferError as error:
        return UndeliverableMessage.because(message.message, error)
