"""Errors of @azure/service-bus, as the suite's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.compatibility.node import NodeError
from tests.compatibility.values import Reason, SdkError

_REASONS: Final = {
    "GeneralError": Reason.GENERAL,
    "MessageEntityAlreadyExistsError": Reason.ALREADY_EXISTS,
    "MessageEntityNotFoundError": Reason.NOT_FOUND,
    "MessageLockLost": Reason.LOCK_LOST,
    "MessageNotFound": Reason.MESSAGE_NOT_FOUND,
    "MessageSizeExceeded": Reason.SIZE_EXCEEDED,
    "MessagingEntityAlreadyExists": Reason.ALREADY_EXISTS,
    "MessagingEntityDisabled": Reason.DISABLED,
    "MessagingEntityNotFound": Reason.NOT_FOUND,
    "QuotaExceeded": Reason.QUOTA_EXCEEDED,
    "QuotaExceededError": Reason.QUOTA_EXCEEDED,
    "ServerBusyError": Reason.BUSY,
    "ServiceBusy": Reason.BUSY,
    "ServiceCommunicationProblem": Reason.CONNECTION,
    "ServiceError": Reason.GENERAL,
    "ServiceTimeout": Reason.TIMEOUT,
    "SessionCannotBeLocked": Reason.SESSION_CANNOT_BE_LOCKED,
    "SessionLockLost": Reason.SESSION_LOCK_LOST,
    "UnauthorizedAccess": Reason.UNAUTHORIZED,
    "UnauthorizedRequestError": Reason.UNAUTHORIZED,
}
"""By the SDK's codes."""

_ALREADY_SETTLED: Final = "already settled"


@contextmanager
def translated() -> Iterator[None]:
    """Raise the SDK's errors as the suite's."""
    try:
        yield
    except NodeError as error:
        reason = _REASONS.get(error.code or "", Reason.INVALID)
        if _ALREADY_SETTLED in error.message:
            reason = Reason.ALREADY_SETTLED
        raise SdkError(reason, str(error)) from error
