"""What the broker refuses, one class per reason. Whatever is raised, nothing has changed.

::

    BrokerError
    ├── InvalidRequestError             the request itself is wrong; sending it again will not help
    │   ├── InvalidNameError            a name that no entity may have
    │   ├── InvalidDescriptionError     a setting out of range, or one that cannot be changed later
    │   ├── InvalidExpressionError      a filter or an action that cannot be read
    │   └── InvalidMessageError         a message that no entity takes
    │       ├── MessageSizeExceededError
    │       ├── HeaderSizeExceededError
    │       ├── SessionRequiredError    a message without a session id for an entity that requires sessions
    │       └── RuleBudgetExceededError a message that the rules of a topic take too long for
    ├── InvalidOperationError           the entity does not offer this: receive where it forwards, dead-letter twice …
    ├── EntityNotFoundError
    ├── EntityExistsError
    ├── EntityDisabledError
    ├── QuotaExceededError              the entity, or the namespace, is full
    ├── LockLostError                   the lock has ended, or never was
    ├── SessionLockLostError
    ├── SessionLockedError              another receiver holds the session
    ├── MessageNotFoundError            no such deferred or scheduled message
    └── EvaluationError                 a rule cannot make sense of a message; senders never see it
"""

from __future__ import annotations


class BrokerError(Exception):
    """A request that the broker refuses. ``entity`` names the entity, where there is one."""

    def __init__(self, reason: str, entity: str | None = None) -> None:
        super().__init__(reason)
        self.entity = entity


class InvalidRequestError(BrokerError):
    """The request itself is wrong; sending it again will not help."""


class InvalidNameError(InvalidRequestError):
    """A name that no entity may have."""


class InvalidDescriptionError(InvalidRequestError):
    """A setting is out of range, contradicts another one, or cannot be changed later."""


class InvalidExpressionError(InvalidRequestError):
    """A filter or an action cannot be read; ``position`` counts characters from 0."""

    def __init__(self, reason: str, expression: str, position: int) -> None:
        super().__init__(f"{reason} at position {position} of: {expression}")
        self.reason = reason
        self.expression = expression
        self.position = position


class InvalidMessageError(InvalidRequestError):
    """A message that no entity takes."""


class MessageSizeExceededError(InvalidMessageError):
    """The message, or the batch, is larger than the entity takes."""


class HeaderSizeExceededError(InvalidMessageError):
    """The properties of the message are larger than allowed."""


class SessionRequiredError(InvalidMessageError):
    """The entity requires sessions, and the message has no session id."""


class RuleBudgetExceededError(InvalidMessageError):
    """The rules of the topic take more work for the message than ``rule_units`` allows."""


class InvalidOperationError(BrokerError):
    """The entity does not offer this operation."""


class EntityNotFoundError(BrokerError):
    """There is no such queue, topic, subscription or rule."""


class EntityExistsError(BrokerError):
    """The name is taken."""


class EntityDisabledError(BrokerError):
    """The entity's status forbids it."""


class QuotaExceededError(BrokerError):
    """The entity, or the namespace, is full."""


class LockLostError(BrokerError):
    """The lock on the message has ended: it expired, or the message was settled."""


class SessionLockLostError(BrokerError):
    """The lock on the session has ended: it expired, or was released."""


class SessionLockedError(BrokerError):
    """Another receiver holds the session."""


class MessageNotFoundError(BrokerError):
    """No deferred, or no scheduled, message has this sequence number."""
