"""Errors of the broker, one class per reason. A request that raises has changed nothing.

::

    BrokerError
    ├── InvalidRequestError             the request is invalid; retrying does not help
    │   ├── InvalidNameError            an invalid entity name
    │   ├── InvalidDescriptionError     a setting out of range, or one that cannot be changed later
    │   ├── InvalidExpressionError      a filter or an action that cannot be parsed
    │   └── InvalidMessageError         a message that no entity accepts
    │       ├── MessageSizeExceededError
    │       ├── HeaderSizeExceededError
    │       ├── SessionRequiredError    a message without a session id for an entity that requires sessions
    │       └── RuleBudgetExceededError a message, or a batch, that the rules of a topic take too long to evaluate
    ├── InvalidOperationError           unsupported by the entity: receive where it forwards, dead-letter twice …
    ├── EntityNotFoundError
    ├── EntityExistsError
    ├── EntityDisabledError
    ├── EntityUnavailableError          the entity is being loaded from the store again; retry in a few seconds
    ├── QuotaExceededError              the entity, or the namespace, is full
    │   └── RuleQuotaExceededError      the subscription has the maximum number of rules
    ├── LockLostError                   the lock has ended, or never existed
    ├── SessionLockLostError
    ├── SessionLockedError              another receiver holds the session
    ├── MessageNotFoundError            no such deferred or scheduled message
    └── EvaluationError                 a rule cannot be evaluated for a message; senders never see it
"""

from __future__ import annotations

from typing import Final


class BrokerError(Exception):
    """Base class of the broker's errors. ``entity`` names the entity, if there is one."""

    def __init__(self, reason: str, entity: str | None = None) -> None:
        super().__init__(reason)
        self.entity = entity


class InvalidRequestError(BrokerError):
    """The request is invalid; retrying does not help."""


class InvalidNameError(InvalidRequestError):
    """The name is not a valid entity name."""


class InvalidDescriptionError(InvalidRequestError):
    """A setting is out of range, contradicts another one, or cannot be changed later."""


class InvalidExpressionError(InvalidRequestError):
    """A filter or an action cannot be parsed; ``position`` counts characters from 0."""

    def __init__(self, reason: str, expression: str, position: int) -> None:
        super().__init__(f"{reason} at position {position} of: {expression}")
        self.reason = reason
        self.expression = expression
        self.position = position


class InvalidMessageError(InvalidRequestError):
    """The message is one that no entity accepts."""


class MessageSizeExceededError(InvalidMessageError):
    """The message, or the batch, is larger than the entity accepts."""


class HeaderSizeExceededError(InvalidMessageError):
    """The properties of the message are larger than allowed."""


class SessionRequiredError(InvalidMessageError):
    """The entity requires sessions, and the message has no session id."""


class RuleBudgetExceededError(InvalidMessageError):
    """The rules of the topic need more work for the message, or for its batch, than ``rule_units`` allows."""


class InvalidOperationError(BrokerError):
    """The entity does not support this operation."""


class EntityNotFoundError(BrokerError):
    """There is no such queue, topic, subscription or rule."""


class EntityExistsError(BrokerError):
    """The name is already in use."""


class EntityDisabledError(BrokerError):
    """The entity's status does not allow the operation."""


class EntityUnavailableError(BrokerError):
    """The index of the entity is inconsistent, and is being loaded from the store again; retry in a few seconds."""


class QuotaExceededError(BrokerError):
    """The entity, or the namespace, is full."""


class RuleQuotaExceededError(QuotaExceededError):
    """The subscription has the maximum number of rules (``rules_per_subscription``)."""


class LockLostError(BrokerError):
    """The lock on the message has ended: it expired, or the message was settled."""


class SessionLockLostError(BrokerError):
    """The lock on the session has ended: it expired, or was released."""


class SessionLockedError(BrokerError):
    """Another receiver holds the session."""


class MessageNotFoundError(BrokerError):
    """No deferred, or no scheduled, message has this sequence number."""


REASON_PROPERTY: Final = "DeadLetterReason"
DESCRIPTION_PROPERTY: Final = "DeadLetterErrorDescription"
RULE_PROPERTY: Final = "RuleName"
"""Name of the rule whose action produced this copy of a message."""

EXPIRED: Final = "TTLExpiredException"
MAX_DELIVERY_COUNT: Final = "MaxDeliveryCountExceeded"
MAX_HOPS: Final = "MaxTransferHopCountExceeded"
NO_SESSION_ID: Final = "Session ID is null."
CAME_ROUND: Final = "ForwardedInCircle"
FILTER_FAILED: Final = "FilterEvaluationException"
RULE_BUDGET: Final = "RuleBudgetExceeded"
DESTINATION_NOT_FOUND: Final = "DestinationNotFound"
DESTINATION_DISABLED: Final = "DestinationDisabled"
DESTINATION_FULL: Final = "DestinationQuotaExceeded"
DESTINATION_REFUSES_SIZE: Final = "DestinationMessageSizeExceeded"
DAMAGED: Final = "MessageDamaged"
"""The message can no longer be read: its dead letter is a stub with what is known about it."""
