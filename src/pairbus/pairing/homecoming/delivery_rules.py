"""Which messages of the backlog are tried again, and which can never be delivered, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from pairbus.client.errors import (
    ClosedError,
    EntityDisabledError,
    EntityNotFoundError,
    InternalServerError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)


class Fate(Enum):
    """What becomes of a message that its destination did not take."""

    LATER = "later"
    """It stays in the backlog until the destination takes it."""
    NEVER = "never"
    """It goes to the dead-letter queue of the backlog."""


DELIVERY_RULES: Final[Mapping[type[MessagingError], Fate]] = MappingProxyType(
    {
        MessagingError: Fate.NEVER,
        # These pass by themselves.
        MessagingCommunicationError: Fate.LATER,
        MessagingTimeoutError: Fate.LATER,
        ServerBusyError: Fate.LATER,
        InternalServerError: Fate.LATER,
        # These pass when somebody does something about them.
        QuotaExceededError: Fate.LATER,
        EntityDisabledError: Fate.LATER,
        UnauthorizedError: Fate.LATER,
        ClosedError: Fate.LATER,
        # There is nowhere to deliver it to, or nobody would take it.
        EntityNotFoundError: Fate.NEVER,
        MessageSizeExceededError: Fate.NEVER,
        InvalidMessageError: Fate.NEVER,
        InvalidRequestError: Fate.NEVER,
    }
)
"""The most specific class that an error belongs to decides; one that is told to be transient passes."""


def fate_of(error: MessagingError) -> Fate:
    """Later or never."""
    if error.is_transient:
        return Fate.LATER
    return next(DELIVERY_RULES[kind] for kind in type(error).__mro__ if kind in DELIVERY_RULES)


def is_silence(error: MessagingError) -> bool:
    """Whether nobody has answered, so that the whole namespace may be away."""
    return isinstance(error, MessagingCommunicationError | MessagingTimeoutError | ClosedError)
