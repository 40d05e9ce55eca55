"""The mapping from AMQP conditions to the errors of the client."""

from __future__ import annotations

from typing import Final

from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityDisabledError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    PreconditionFailedError,
    QuotaExceededError,
    ServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
    UnauthorizedError,
)
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.wire import Condition, Error

ERRORS: Final[dict[str, type[MessagingError]]] = {
    ServiceBusCondition.ARGUMENT_ERROR: InvalidRequestError,
    "com.microsoft:argument-out-of-range": InvalidRequestError,
    ServiceBusCondition.AUTH_FAILED: UnauthorizedError,
    ServiceBusCondition.ENTITY_ALREADY_EXISTS: EntityAlreadyExistsError,
    ServiceBusCondition.ENTITY_DISABLED: EntityDisabledError,
    "com.microsoft:entity-not-found": EntityNotFoundError,
    ServiceBusCondition.MESSAGE_LOCK_LOST: MessageLockLostError,
    ServiceBusCondition.MESSAGE_NOT_FOUND: MessageNotFoundError,
    ServiceBusCondition.OPERATION_CANCELLED: InternalServerError,
    "com.microsoft:precondition-failed": PreconditionFailedError,
    ServiceBusCondition.SERVER_BUSY: ServerBusyError,
    ServiceBusCondition.SESSION_CANNOT_BE_LOCKED: SessionCannotBeLockedError,
    ServiceBusCondition.SESSION_LOCK_LOST: SessionLockLostError,
    ServiceBusCondition.SESSION_NOT_FOUND: SessionCannotBeLockedError,
    ServiceBusCondition.TIMEOUT: MessagingTimeoutError,
    Condition.INTERNAL_ERROR: InternalServerError,
    Condition.INVALID_FIELD: InvalidRequestError,
    Condition.MESSAGE_SIZE_EXCEEDED: MessageSizeExceededError,
    Condition.NOT_ALLOWED: InvalidRequestError,
    Condition.NOT_FOUND: EntityNotFoundError,
    Condition.NOT_IMPLEMENTED: InvalidRequestError,
    Condition.PRECONDITION_FAILED: PreconditionFailedError,
    Condition.RESOURCE_DELETED: EntityNotFoundError,
    Condition.RESOURCE_LIMIT_EXCEEDED: QuotaExceededError,
    Condition.UNAUTHORIZED_ACCESS: UnauthorizedError,
    # These end a link, a session or a connection without answering a request: they are opened again.
    Condition.CONNECTION_FORCED: MessagingCommunicationError,
    Condition.DETACH_FORCED: MessagingCommunicationError,
    Condition.ERRANT_LINK: MessagingCommunicationError,
    Condition.FRAMING_ERROR: MessagingCommunicationError,
    Condition.HANDLE_IN_USE: MessagingCommunicationError,
    Condition.ILLEGAL_STATE: MessagingCommunicationError,
    Condition.RESOURCE_LOCKED: MessagingCommunicationError,
    Condition.STOLEN: MessagingCommunicationError,
    Condition.TRANSFER_LIMIT_EXCEEDED: MessagingCommunicationError,
    Condition.UNATTACHED_HANDLE: MessagingCommunicationError,
    Condition.WINDOW_VIOLATION: MessagingCommunicationError,
}

_STATUSES: Final[dict[int, type[MessagingError]]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: QuotaExceededError,
    404: EntityNotFoundError,
    409: EntityAlreadyExistsError,
    410: MessageLockLostError,
    412: PreconditionFailedError,
    429: ServerBusyError,
    500: InternalServerError,
    503: ServerBusyError,
}
"""Errors for responses without a condition."""


def error_from(reason: Error, entity: str | None = None) -> MessagingError:
    """Return the error for a refusal by the namespace."""
    condition = str(reason.condition)
    kind = ERRORS.get(condition, MessagingError)
    return kind(reason.description or f"refused as {condition}", entity=entity, condition=condition)


def error_from_status(
    status: int, description: str, condition: str | None = None, entity: str | None = None
) -> MessagingError:
    """Return the error for the status of a response."""
    kind = ERRORS.get(condition or "") or _STATUSES.get(status) or MessagingError
    return kind(description or f"refused with status {status}", entity=entity, condition=condition)


def lost(reason: Error | None, what: str) -> MessagingError:
    """Return the error for a session or connection ended by the peer; a new one may succeed.

    A namespace without room for another connection reports that it is busy; that is not an outage.
    """
    if reason is None:
        return MessagingCommunicationError(f"the namespace closed {what}")
    if reason.condition == ServiceBusCondition.SERVER_BUSY:
        return error_from(reason)
    description = reason.description or reason.condition
    return MessagingCommunicationError(f"the namespace closed {what}: {description}", condition=str(reason.condition))
