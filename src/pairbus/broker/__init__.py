"""What happens to messages: queues, topics, subscriptions, locks, sessions and rules, without I/O and without a clock.

``Namespace`` is the whole service as a state machine; ``Records`` is what it needs to have kept.
"""

from __future__ import annotations

from pairbus.broker.address import Address, Part, Place
from pairbus.broker.chronicle import Chronicle, Moment
from pairbus.broker.descriptions import (
    DEFAULT_RULE,
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    EntityRecord,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    HeaderSizeExceededError,
    InvalidDescriptionError,
    InvalidExpressionError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOperationError,
    InvalidRequestError,
    LockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    RuleBudgetExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.broker.limits import PREMIUM, RELAXED, STANDARD, Limits
from pairbus.broker.message import (
    NEVER,
    NO_PROPERTIES,
    Amendments,
    Delivery,
    Message,
    MessageState,
    PropertyView,
    Record,
)
from pairbus.broker.namespace import Namespace, SessionGrant
from pairbus.broker.notices import AccessChanged, EntityGone, Notice, Quarantined, SessionLost
from pairbus.broker.operations import Operation, Send, Settle
from pairbus.broker.records import Records
from pairbus.broker.restoration import Restoration
from pairbus.broker.rules import Rule
from pairbus.broker.runtime import EntityInfo
from pairbus.broker.settlement import COMPLETE, Disposition, Verdict
from pairbus.broker.sql import MISSING, EvaluationError, Missing
from pairbus.broker.values import Instant, Span, Value, ZonelessInstant

__all__ = [
    "COMPLETE",
    "DEFAULT_RULE",
    "MISSING",
    "NEVER",
    "NO_PROPERTIES",
    "PREMIUM",
    "RELAXED",
    "STANDARD",
    "AccessChanged",
    "Address",
    "Amendments",
    "AuthorizationRule",
    "BrokerError",
    "Chronicle",
    "CorrelationFilter",
    "Delivery",
    "Disposition",
    "EntityDescription",
    "EntityDisabledError",
    "EntityExistsError",
    "EntityGone",
    "EntityInfo",
    "EntityNotFoundError",
    "EntityRecord",
    "EntityStatus",
    "EvaluationError",
    "FalseFilter",
    "FilterDescription",
    "HeaderSizeExceededError",
    "Instant",
    "InvalidDescriptionError",
    "InvalidExpressionError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidOperationError",
    "InvalidRequestError",
    "Limits",
    "LockLostError",
    "Message",
    "MessageNotFoundError",
    "MessageSizeExceededError",
    "MessageState",
    "Missing",
    "Moment",
    "Namespace",
    "Notice",
    "Operation",
    "Part",
    "Place",
    "PropertyView",
    "Quarantined",
    "QueueDescription",
    "QuotaExceededError",
    "Record",
    "Records",
    "Restoration",
    "Right",
    "Rule",
    "RuleBudgetExceededError",
    "RuleDescription",
    "Send",
    "SessionGrant",
    "SessionLockLostError",
    "SessionLockedError",
    "SessionLost",
    "SessionRequiredError",
    "Settle",
    "Span",
    "SqlActionDescription",
    "SqlFilterDescription",
    "SubscriptionDescription",
    "TopicDescription",
    "TrueFilter",
    "Value",
    "Verdict",
    "ZonelessInstant",
]
