"""The errors of the client, one class per kind; each states whether a retry may succeed.

MessagingError
├── MessagingCommunicationError    the namespace cannot be reached, or the connection was lost     (transient)
├── MessagingTimeoutError          no response in time; also a TimeoutError                        (transient)
├── ServerBusyError                the namespace is throttling                                     (transient)
├── InternalServerError            an internal error of the namespace                              (transient)
├── UnauthorizedError              the key or token is invalid, or lacks a claim
├── EntityNotFoundError            the queue, topic, subscription or rule does not exist
├── EntityAlreadyExistsError
├── EntityDisabledError            its status does not allow this
├── QuotaExceededError             the entity or the namespace is full
├── MessageSizeExceededError       the message exceeds the size limit of the entity
├── InvalidMessageError            a message that cannot be sent; also a ValueError
├── InvalidRequestError            the request is invalid or not supported
├── PreconditionFailedError        the entity was changed concurrently
├── MessageNotFoundError           no message with that sequence number
├── LockLostError
│   ├── MessageLockLostError       the lock expired; the message goes to the next receiver
│   └── SessionLockLostError       the lock of the session expired
├── SessionCannotBeLockedError     another receiver holds the session
├── BacklogUnavailableError        no backlog queue of a pair accepted the message                 (transient)
└── ClosedError                    the object, or the factory that created it, is closed
    └── FactoryFaultedError        the factory is faulted
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class MessagingError(Exception):
    """Base class of all errors of the client."""

    transient: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    """The remedy: advice for the application."""

    def __init__(
        self,
        message: str,
        *,
        entity: str | None = None,
        condition: str | None = None,
        is_transient: bool | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.entity = entity
        """The path of the queue, topic or subscription; ``None`` if the error concerns none of them."""
        self.condition = condition
        """The AMQP condition from the namespace, such as ``com.microsoft:server-busy``; ``None`` if it sent none."""
        self.is_transient = self.transient if is_transient is None else is_transient
        """True if a retry may succeed. The client retries such operations automatically."""
        self.hint = self.advice if hint is None else hint
        """The remedy: advice for the application; empty if the message includes it."""

    def __str__(self) -> str:
        where = "" if self.entity is None or f"'{self.entity}'" in self.message else f"'{self.entity}': "
        condition = "" if self.condition is None else f" ({self.condition})"
        hint = f"; {self.hint}" if self.hint and self.hint not in self.message else ""
        return f"{where}{self.message}{condition}{hint}"

    def at(self, entity: str) -> Self:
        """Return this error, or a copy with the entity set if it was unknown."""
        return self if self.entity is not None else self.copy(entity)

    def caused_by(self, cause: BaseException | None) -> Self:
        """Return this error with its cause: compiled code drops what follows the ``from`` of a ``raise``."""
        self.__cause__ = cause
        return self

    def copy(self, entity: str | None = None) -> Self:
        """Return a new error of the same kind, so that each of several waiting callers raises its own."""
        copied = type(self)(
            self.message,
            entity=self.entity if self.entity is not None else entity,
            condition=self.condition,
            is_transient=self.is_transient,
            hint=self.hint,
        )
        copied.__cause__ = self.__cause__
        return copied.with_traceback(self.__traceback__)


class MessagingCommunicationError(MessagingError):
    """The namespace cannot be reached, or the connection to it was lost."""

    transient = True


class MessagingTimeoutError(MessagingError, TimeoutError):
    """There was no response in time. If earlier attempts failed, the last error is the cause."""

    transient = True


class ServerBusyError(MessagingError):
    """The namespace is throttling requests."""

    transient = True
    advice = "wait at least 10 seconds before the next attempt"


class InternalServerError(MessagingError):
    """An internal error occurred in the namespace."""

    transient = True


class UnauthorizedError(MessagingError):
    """The key or token is invalid or expired, or lacks the required claim."""

    advice = "check the key or token, and that it has the required claim: Send, Listen or Manage"


class EntityNotFoundError(MessagingError):
    """The queue, topic, subscription or rule does not exist."""


class EntityAlreadyExistsError(MessagingError):
    """An entity with this name already exists."""


class EntityDisabledError(MessagingError):
    """The entity's status does not allow this."""


class QuotaExceededError(MessagingError):
    """The entity or the namespace is full."""

    advice = "receive messages"


class MessageSizeExceededError(MessagingError):
    """The message exceeds the size limit of the entity."""


class InvalidMessageError(MessagingError, ValueError):
    """A message that cannot be sent, because one of its values is invalid."""


class InvalidRequestError(MessagingError):
    """The request is invalid, or the entity does not support it."""


class PreconditionFailedError(MessagingError):
    """The entity was changed concurrently."""


class MessageNotFoundError(MessagingError):
    """No message with this sequence number exists, or it is not in the required state."""


class LockLostError(MessagingError):
    """A lock expired before it was used."""


class MessageLockLostError(LockLostError):
    """The lock of a message expired; the message is delivered again, to the next receiver."""

    advice = "renew locks in time, or let the receiver do it (max_auto_lock_renewal)"


class SessionLockLostError(LockLostError):
    """The lock of a session expired."""

    advice = "accept the session again"


class SessionCannotBeLockedError(MessagingError):
    """Another receiver holds the session."""


class BacklogUnavailableError(MessagingError):
    """A message could not be diverted to the backlog of a pair, because no backlog queue accepted it."""

    transient = True
    advice = "a queue that sent no response may have stored it; send it again later, with the same message id"

    def __init__(self, message: str, *, causes: Mapping[str, MessagingError] | None = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.causes: Mapping[str, MessagingError] = {} if causes is None else causes
        """The error of each backlog queue, by path."""

    def copy(self, entity: str | None = None) -> Self:
        copied = super().copy(entity)
        copied.causes = self.causes
        return copied


class ClosedError(MessagingError):
    """The object, or the factory that created it, is closed."""


class FactoryFaultedError(ClosedError):
    """The factory is faulted; the fault is the error's cause."""
