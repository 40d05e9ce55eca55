"""Errors of our own client, as the suite's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pairbus
from tests.compatibility.values import Reason, SdkError

_REASONS: Final[dict[type[Exception], Reason]] = {
    pairbus.ClosedError: Reason.INVALID,
    pairbus.EntityAlreadyExistsError: Reason.ALREADY_EXISTS,
    pairbus.EntityDisabledError: Reason.DISABLED,
    pairbus.EntityNotFoundError: Reason.NOT_FOUND,
    pairbus.InvalidMessageError: Reason.INVALID,
    pairbus.MessageLockLostError: Reason.LOCK_LOST,
    pairbus.MessageNotFoundError: Reason.MESSAGE_NOT_FOUND,
    pairbus.MessageSizeExceededError: Reason.SIZE_EXCEEDED,
    pairbus.MessagingCommunicationError: Reason.CONNECTION,
    pairbus.MessagingTimeoutError: Reason.TIMEOUT,
    pairbus.QuotaExceededError: Reason.QUOTA_EXCEEDED,
    pairbus.ServerBusyError: Reason.BUSY,
    pairbus.SessionCannotBeLockedError: Reason.SESSION_CANNOT_BE_LOCKED,
    pairbus.SessionLockLostError: Reason.SESSION_LOCK_LOST,
    pairbus.UnauthorizedError: Reason.UNAUTHORIZED,
    pairbus.MessagingError: Reason.GENERAL,
    # Names and settings that no namespace takes: the SDKs leave it to the namespace to refuse them.
    ValueError: Reason.GENERAL,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise the client's errors as the suite's."""
    try:
        yield
    except tuple(_REASONS) as error:
        reason = next(_REASONS[kind] for kind in type(error).__mro__ if kind in _REASONS)
        raise SdkError(reason, f"{type(error).__name__}: {error}") from error
