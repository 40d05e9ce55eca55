"""Why the syphon dead-letters a message, in the words that operators look for."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pairbus.client.errors import (
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingError,
)
from pairbus.dialect.transfer import TransferError
from pairbus.pairing.homecoming.bound import InvalidDestinationError

_LONGEST_DESCRIPTION: Final = 2_000


class DeadLetterReason(Enum):
    """What a dead letter of a backlog queue has as its reason."""

    NO_DESTINATION = "PairbusNoDestination"
    """It does not say where it goes."""
    UNREADABLE = "PairbusUnreadable"
    """What the transfer has kept of it cannot be read, or is of the wrong type."""
    INVALID_DESTINATION = "PairbusInvalidDestination"
    """Where it goes can be no entity."""
    ENTITY_NOT_FOUND = "PairbusEntityNotFound"
    MESSAGE_SIZE_EXCEEDED = "PairbusMessageSizeExceeded"
    INVALID_MESSAGE = "PairbusInvalidMessage"
    EXPIRED = "TTLExpiredException"
    """It has outlived its time to live in the backlog; the service calls it the same."""
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
    """What a message brings may be anything, and this is read in logs and tables."""
    return "".join(one if one.isprintable() else " " for one in text)[:_LONGEST_DESCRIPTION]
