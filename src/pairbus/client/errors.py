"""What can go wrong for an application, one class a kind; each says whether it is worth trying again.

MessagingError
├── MessagingCommunicationError    the namespace cannot be reached, or the connection was lost     (transient)
├── MessagingTimeoutError          no answer in time; also a TimeoutError                          (transient)
├── ServerBusyError                the namespace is throttling                                     (transient)
├── InternalServerError            something went wrong in the namespace                           (transient)
├── UnauthorizedError              the key or token is wrong, or lacks a claim
├── EntityNotFoundError            there is no such queue, topic, subscription or rule
├── EntityAlreadyExistsError
├── EntityDisabledError            its status does not allow this
├── QuotaExceededError             the entity or the namespace is full
├── MessageSizeExceededError       the message is larger than the entity takes
├── InvalidMessageError            a message that cannot be sent; also a ValueError
├── InvalidRequestError            what was asked for cannot be done
├── PreconditionFailedError        somebody else has changed it meanwhile
├── MessageNotFoundError           no message with that sequence number
├── LockLostError
│   ├── MessageLockLostError       the lock has ended; the message goes to the next receiver
│   └── SessionLockLostError       the session's lock has ended
├── SessionCannotBeLockedError     somebody else has the session
├── BacklogUnavailableError        a pair's backlog queues cannot be sent to                       (transient)
└── ClosedError                    the object, or the factory it was made by, has been closed
    └── FactoryFaultedError        the factory has been given up because of a fault
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class MessagingError(Exception):
    """Something went wrong between an application and a namespace."""

    transient: ClassVar[bool] = False
    advice: ClassVar[str] = ""
    """What to do about it."""

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
        """The path of the queue, topic or subscription that it happened to; ``None`` if it was none of them."""
        self.condition = condition
        """The condition that the namespace named, such as ``com.microsoft:server-busy``; ``None`` if it named none."""
        self.is_transient = self.transient if is_transient is None else is_transient
        """Whether the same may well succeed a little later. The client tries such things again by itself."""
        self.hint = self.advice if hint is None else hint
        """What to do about it; empty where the message says that."""

    def __str__(self) -> str:
        where = "" if self.entity is None or f"'{self.entity}'" in self.message else f"'{self.entity}': "
        condition = "" if self.condition is None else f" ({self.condition})"
        hint = f"; {self.hint}" if self.hint and self.hint not in self.message else ""
        return f"{where}{self.message}{condition}{hint}"

    def at(self, entity: str) -> Self:
        """This error, or one like it with the entity that it happened to, where that is not known yet."""
        return self if self.entity is not None else self.copy(entity)

    def copy(self, entity: str | None = None) -> Self:
        """One more of the same kind: what many wait for fails for each of them on its own."""
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
    """There was no answer in time. Where something kept failing until then, that is the error's cause."""

    transient = True


class ServerBusyError(MessagingError):
    """The namespace denies requests because it has too much to do."""

    transient = True
    advice = "wait at least 10 seconds before the next try"


class InternalServerError(MessagingError):
    """Something went wrong in the namespace."""

    transient = True


class UnauthorizedError(MessagingError):
    """The key or token is wrong or has ended, or does not allow this."""

    advice = "check the key or token, and that it has the claim that is needed: Send, Listen or Manage"


class EntityNotFoundError(MessagingError):
    """There is no such queue, topic, subscription or rule."""


class EntityAlreadyExistsError(MessagingError):
    """There is something of that name already."""


class EntityDisabledError(MessagingError):
    """The entity's status does not allow this."""


class QuotaExceededError(MessagingError):
    """The entity or the namespace is full."""

    advice = "receive messages"


class MessageSizeExceededError(MessagingError):
    """The message is larger than the entity takes."""


class InvalidMessageError(MessagingError, ValueError):
    """A message that cannot be sent as it is."""


class InvalidRequestError(MessagingError):
    """What was asked for cannot be done, by anyone or with this entity."""


class PreconditionFailedError(MessagingError):
    """Somebody else has changed it meanwhile."""


class MessageNotFoundError(MessagingError):
    """There is no message with that sequence number, or not in the state that is needed."""


class LockLostError(MessagingError):
    """A lock has ended before it was used."""


class MessageLockLostError(LockLostError):
    """The message's lock has ended; it is delivered again, to whoever receives next."""

    advice = "renew locks in time, or let the receiver do it (max_auto_lock_renewal)"


class SessionLockLostError(LockLostError):
    """The session's lock has ended."""

    advice = "accept the session again"


class SessionCannotBeLockedError(MessagingError):
    """Somebody else has the session."""


class BacklogUnavailableError(MessagingError):
    """A message was to go to the backlog of a pair, and none of the backlog queues has taken it."""

    transient = True
    advice = "it may be stored where no answer came; send it again later, with the same message id"

    def __init__(self, message: str, *, causes: Mapping[str, MessagingError] | None = None, **rest: Any) -> None:
        super().__init__(message, **rest)
        self.causes: Mapping[str, MessagingError] = {} if causes is None else causes
        """Why each of the backlog queues has not taken it, by their paths."""

    def copy(self, entity: str | None = None) -> Self:
        copied = super().copy(entity)
        copied.causes = self.causes
        return copied


class ClosedError(MessagingError):
    """The object has been closed, or the factory that it was made by."""


class FactoryFaultedError(ClosedError):
    """The factory has been given up because of a fault, which is the error's cause."""
