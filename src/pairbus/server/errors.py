"""What a request is refused with: one table from our errors to AMQP conditions and HTTP statuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.broker import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    HeaderSizeExceededError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.store import DamagedRecordError, StoreError, StoreFullError
from pairbus.wire import Condition, Error, LocalProtocolError, MessageTooLargeError, ProtocolError


class ServerError(Exception):
    """A request that the server itself refuses. ``entity`` names the entity, where there is one."""

    def __init__(self, reason: str, entity: str | None = None) -> None:
        super().__init__(reason)
        self.entity = entity


class UnauthorizedError(ServerError):
    """No token, one that does not hold, or one without the claim that is needed."""


class InvalidCredentialsError(UnauthorizedError):
    """A key or a signature that is wrong: it may be a guess."""


class ServerBusyError(ServerError):
    """The node has too much to do: wait at least ten seconds, then send again."""


class OperationTimeoutError(ServerError):
    """What was asked for did not come up in the time that was given."""


class BadRequestError(ServerError):
    """A request that cannot be read."""


class NotSupportedError(ServerError):
    """A request for something that this server does not offer."""


class PreconditionFailedError(ServerError):
    """The entity has changed since the version that the request names."""


class TransactionError(ServerError):
    """There is no such transaction, or no more."""


class TransactionTimeoutError(TransactionError):
    """The transaction took too long, and was rolled back."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How a request is refused, over AMQP and over HTTP."""

    condition: str
    status: int
    description: str

    @property
    def error(self) -> Error:
        return Error(self.condition, self.description)


# The most specific class that is listed counts. PROTOCOL: which condition raises which exception in the SDKs.
_REFUSALS: Final[dict[type[Exception], tuple[str, int]]] = {
    UnauthorizedError: (Condition.UNAUTHORIZED_ACCESS, 401),
    ServerBusyError: (ServiceBusCondition.SERVER_BUSY, 503),
    OperationTimeoutError: (ServiceBusCondition.TIMEOUT, 408),
    BadRequestError: (ServiceBusCondition.ARGUMENT_ERROR, 400),
    NotSupportedError: (Condition.NOT_IMPLEMENTED, 501),
    PreconditionFailedError: (Condition.PRECONDITION_FAILED, 412),
    TransactionError: (Condition.UNKNOWN_TRANSACTION, 400),
    TransactionTimeoutError: (Condition.TRANSACTION_TIMEOUT, 400),
    InvalidRequestError: (ServiceBusCondition.ARGUMENT_ERROR, 400),
    MessageSizeExceededError: (Condition.MESSAGE_SIZE_EXCEEDED, 403),
    HeaderSizeExceededError: (Condition.MESSAGE_SIZE_EXCEEDED, 403),
    SessionRequiredError: (Condition.NOT_ALLOWED, 400),
    InvalidOperationError: (Condition.NOT_ALLOWED, 400),
    EntityNotFoundError: (Condition.NOT_FOUND, 404),
    EntityExistsError: (ServiceBusCondition.ENTITY_ALREADY_EXISTS, 409),
    EntityDisabledError: (ServiceBusCondition.ENTITY_DISABLED, 403),
    QuotaExceededError: (Condition.RESOURCE_LIMIT_EXCEEDED, 403),
    LockLostError: (ServiceBusCondition.MESSAGE_LOCK_LOST, 410),
    SessionLockLostError: (ServiceBusCondition.SESSION_LOCK_LOST, 410),
    SessionLockedError: (ServiceBusCondition.SESSION_CANNOT_BE_LOCKED, 410),
    MessageNotFoundError: (ServiceBusCondition.MESSAGE_NOT_FOUND, 404),
    BrokerError: (Condition.INTERNAL_ERROR, 500),
    StoreFullError: (Condition.RESOURCE_LIMIT_EXCEEDED, 403),
    StoreError: (Condition.INTERNAL_ERROR, 500),
}

REFUSABLE: Final = (ServerError, BrokerError, StoreError, ProtocolError)
"""What a request can fail with; anything else is a defect of ours."""


def refusal_of(error: Exception) -> Refusal:
    """Look an error up in the table. What a peer encoded wrongly is told in AMQP's own words."""
    if isinstance(error, ProtocolError):
        return Refusal(error.condition, 400, error.description)
    if isinstance(error, MessageTooLargeError):
        return Refusal(Condition.MESSAGE_SIZE_EXCEEDED, 403, str(error))
    if isinstance(error, LocalProtocolError):  # what the peer takes is too small for what it asks
        return Refusal(Condition.FRAME_SIZE_TOO_SMALL, 400, str(error))
    for kind in type(error).__mro__:
        found = _REFUSALS.get(kind)
        if found is not None:
            return Refusal(*found, _description(error))
    return Refusal(Condition.INTERNAL_ERROR, 500, "the server failed; its log says why")


_THERE_IS_NO: Final = "there is no "


def _description(error: Exception) -> str:
    if isinstance(error, EntityNotFoundError):
        # The JavaScript SDK knows a missing entity by this sentence. What only says the same is left out.
        said = str(error)
        rest = "Create it, or check its name" if said.startswith(_THERE_IS_NO) else said
        return f"The messaging entity '{error.entity}' could not be found. {rest}"
    if isinstance(error, StoreFullError):
        return "the disk of the namespace is full: receive messages, or try again when its operator has made room"
    if isinstance(error, DamagedRecordError):
        return "what was stored is damaged on the disk of the namespace and cannot be read: write it again"
    if isinstance(error, StoreError):  # what it says in full is for the operator, who finds it in the log
        return "the namespace could not write to its disk, or read from it; nothing was changed"
    return str(error)
