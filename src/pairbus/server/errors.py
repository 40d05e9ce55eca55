"""Errors of requests: one table from our errors to AMQP conditions and HTTP statuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.broker import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    EntityUnavailableError,
    HeaderSizeExceededError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    RuleBudgetExceededError,
    RuleQuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.store import (
    CommitInDoubtError,
    DamagedRecordError,
    NamespaceLoadingError,
    StoreError,
    StoreFullError,
    StoreStalledError,
    UnconfinedDamageError,
)
from pairbus.wire import Condition, Error, LocalProtocolError, MessageTooLargeError, ProtocolError


class ServerError(Exception):
    """Base class of the server's own errors of requests. ``entity`` names the entity, if there is one."""

    def __init__(self, reason: str, entity: str | None = None) -> None:
        super().__init__(reason)
        self.entity = entity


class UnauthorizedError(ServerError):
    """The token is missing or invalid, or lacks the required claim."""


class InvalidCredentialsError(UnauthorizedError):
    """The key or signature is wrong: it may be a guess."""


class ServerBusyError(ServerError):
    """The node is overloaded: wait at least ten seconds, then retry. ``limit`` names the limit, if one was reached."""

    def __init__(self, reason: str, entity: str | None = None, limit: str = "") -> None:
        super().__init__(reason, entity)
        self.limit = limit


class InjectedFaultError(ServerError):
    """An injected fault denies the request. Clients take it for a timeout: an entity that seems unavailable."""


class FaultsNotAllowedError(ServerError):
    """The server was not started with ``allow_faults``."""

    def __init__(self) -> None:
        super().__init__("this server does not allow faults: start it with --allow-faults to inject some")


class FaultNotFoundError(ServerError):
    """There is no injected fault with this id, or it has ended."""


class OperationTimeoutError(ServerError):
    """The operation did not complete within its timeout."""


class BadRequestError(ServerError):
    """The request cannot be parsed."""


class LimitExceededError(ServerError):
    """The connection exceeds a limit; ``limit`` names the setting."""

    def __init__(self, reason: str, limit: str) -> None:
        super().__init__(f"{reason} ({limit})")
        self.limit = limit


class NotSupportedError(ServerError):
    """This server does not support the request."""


class PreconditionFailedError(ServerError):
    """The entity has changed since the version that the request names."""


class TransactionError(ServerError):
    """The transaction does not exist, or has ended."""


class TransactionTimeoutError(TransactionError):
    """The transaction took too long, and was rolled back."""

    limit: Final = "transaction_timeout_s"


class StopTimeoutError(Exception):
    """A server was stopped, and its storage did not answer in time; everything confirmed is on disk.

    ``parts`` names what could not be closed: ``store``, ``side buffer`` or ``ledger``; ``unconfirmed_sends`` is the
    number of sends in progress, which may or may not be stored at the next start. The directories stay locked until the
    storage answers, or the process ends.
    """

    def __init__(self, name: str, parts: Sequence[str], unconfirmed_sends: int, waited_s: float) -> None:
        super().__init__(
            f"'{name}' has stopped, but its storage has not answered for {waited_s:.1f} seconds: {' and '.join(parts)}"
            f" could not be closed, and {unconfirmed_sends} sends are not confirmed. What was confirmed is on"
            " disk. Check the disk and the system's log before you start it again"
        )
        self.parts = tuple(parts)
        self.unconfirmed_sends = unconfirmed_sends
        self.waited_s = waited_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error response of a request, over AMQP and over HTTP."""

    condition: str
    status: int
    description: str
    limit: str = ""
    """Name of the limit that caused it, as it is counted."""

    @property
    def error(self) -> Error:
        return Error(self.condition, self.description)


# The most specific listed class counts. PROTOCOL: which condition raises which exception in the SDKs.
_REFUSALS: Final[dict[type[Exception], tuple[str, int]]] = {
    UnauthorizedError: (Condition.UNAUTHORIZED_ACCESS, 401),
    ServerBusyError: (ServiceBusCondition.SERVER_BUSY, 503),
    OperationTimeoutError: (ServiceBusCondition.TIMEOUT, 408),
    InjectedFaultError: (ServiceBusCondition.TIMEOUT, 408),
    FaultsNotAllowedError: (Condition.NOT_ALLOWED, 400),
    FaultNotFoundError: (Condition.NOT_FOUND, 404),
    BadRequestError: (ServiceBusCondition.ARGUMENT_ERROR, 400),
    LimitExceededError: (Condition.RESOURCE_LIMIT_EXCEEDED, 403),
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
    EntityUnavailableError: (ServiceBusCondition.SERVER_BUSY, 503),
    QuotaExceededError: (Condition.RESOURCE_LIMIT_EXCEEDED, 403),
    LockLostError: (ServiceBusCondition.MESSAGE_LOCK_LOST, 410),
    SessionLockLostError: (ServiceBusCondition.SESSION_LOCK_LOST, 410),
    SessionLockedError: (ServiceBusCondition.SESSION_CANNOT_BE_LOCKED, 410),
    MessageNotFoundError: (ServiceBusCondition.MESSAGE_NOT_FOUND, 404),
    BrokerError: (Condition.INTERNAL_ERROR, 500),
    StoreFullError: (Condition.RESOURCE_LIMIT_EXCEEDED, 403),
    StoreStalledError: (ServiceBusCondition.SERVER_BUSY, 503),
    CommitInDoubtError: (ServiceBusCondition.SERVER_BUSY, 503),
    UnconfinedDamageError: (ServiceBusCondition.SERVER_BUSY, 503),
    NamespaceLoadingError: (ServiceBusCondition.SERVER_BUSY, 503),
    StoreError: (Condition.INTERNAL_ERROR, 500),
}

_BROKER_LIMITS: Final[dict[type[Exception], str]] = {
    RuleBudgetExceededError: "rule_budget_ms",
    RuleQuotaExceededError: "max_rules_per_subscription",
}

REFUSABLE: Final = (ServerError, BrokerError, StoreError, ProtocolError)
"""Errors with which a request can fail; any other is a defect of ours."""


def refusal_of(error: Exception) -> Refusal:
    """Look an error up in the table. A peer's encoding error is reported with AMQP's own conditions."""
    if isinstance(error, ProtocolError):
        return Refusal(error.condition, 400, error.description, error.bound)
    if isinstance(error, MessageTooLargeError):
        return Refusal(Condition.MESSAGE_SIZE_EXCEEDED, 403, str(error))
    if isinstance(error, LocalProtocolError):  # the peer accepts less than it asks for
        return Refusal(Condition.FRAME_SIZE_TOO_SMALL, 400, str(error))
    for kind in type(error).__mro__:
        found = _REFUSALS.get(kind)
        if found is not None:
            limit = getattr(error, "limit", None) or _BROKER_LIMITS.get(type(error), "")
            return Refusal(*found, _description(error), limit)
    return Refusal(Condition.INTERNAL_ERROR, 500, "the server failed; its log says why")


_THERE_IS_NO: Final = "there is no "


def _description(error: Exception) -> str:
    if isinstance(error, EntityNotFoundError):
        # The JavaScript SDK recognises a missing entity by this sentence. Repetitions of it are dropped.
        text = str(error)
        rest = "Create it, or check its name" if text.startswith(_THERE_IS_NO) else text
        return f"The messaging entity '{error.entity}' could not be found. {rest}"
    if isinstance(error, StoreFullError):
        return "the disk of the namespace is full: receive messages, or try again when its operator has freed space"
    if isinstance(error, DamagedRecordError):
        return "the stored data is damaged on the disk of the namespace and cannot be read: write it again"
    if isinstance(error, CommitInDoubtError):
        return (
            "the disk of the namespace has failed, and it is not known yet whether the request was stored; send it"
            " again with the same message id, in 10 seconds or later"
        )
    if isinstance(error, UnconfinedDamageError):
        return "the disk of the namespace is damaged; nothing was changed, try again in 10 seconds or later"
    if isinstance(error, StoreStalledError):
        return "the disk of the namespace does not answer; nothing was changed, try again in 10 seconds or later"
    if isinstance(error, NamespaceLoadingError):
        return (
            "the namespace is being loaded again from its disk; nothing was changed, try again in 10 seconds or later"
        )
    if isinstance(error, StoreError):  # its full text is for the operator, who finds it in the log
        return "the namespace could not write to its disk, or read from it; nothing was changed"
    return str(error)
