"""The message broker as a state machine: queues, topics, subscriptions, locks, sessions and rules, without I/O or
clock.

``Namespace`` implements every operation; ``Records`` is the port through which it stores what must survive a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.broker.address import Address, QueueId, QueuePart
from pairbus.broker.descriptions import (
    DEFAULT_RULE,
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    EntityRecord,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    Instant,
    QueueDescription,
    Right,
    RuleDescription,
    Span,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    Value,
    ZonelessInstant,
)
from pairbus.broker.entity import EntityInfo
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    EntityUnavailableError,
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
    RuleQuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    SessionRequiredError,
)
from pairbus.broker.events import (
    AccessChanged,
    EntityGone,
    EventSink,
    IndexFault,
    IndexReloaded,
    MessageEvent,
    Notice,
    Quarantined,
    SessionLost,
)
from pairbus.broker.limits import PREMIUM, RELAXED, STANDARD, Limits
from pairbus.broker.message import (
    NEVER,
    NO_PROPERTIES,
    Amendments,
    DeliveredMessage,
    MessageState,
    NewMessage,
    PropertyView,
    Record,
)
from pairbus.broker.namespace import Namespace, SessionGrant
from pairbus.broker.records import Records
from pairbus.broker.repair import IndexAudit
from pairbus.broker.restoration import NamespaceRestore
from pairbus.broker.rules import Rule
from pairbus.broker.settlement import COMPLETE, SettlementKind, SettlementRequest
from pairbus.broker.sql import MISSING, EvaluationError, Missing
from pairbus.broker.transaction import SendOperation, SettleOperation, TransactionOperation
from pairbus.renamed import renamed

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
    "CorrelationFilter",
    "DeliveredMessage",
    "EntityDescription",
    "EntityDisabledError",
    "EntityExistsError",
    "EntityGone",
    "EntityInfo",
    "EntityNotFoundError",
    "EntityRecord",
    "EntityStatus",
    "EntityUnavailableError",
    "EvaluationError",
    "EventSink",
    "FalseFilter",
    "FilterDescription",
    "HeaderSizeExceededError",
    "IndexAudit",
    "IndexFault",
    "IndexReloaded",
    "Instant",
    "InvalidDescriptionError",
    "InvalidExpressionError",
    "InvalidMessageError",
    "InvalidNameError",
    "InvalidOperationError",
    "InvalidRequestError",
    "Limits",
    "LockLostError",
    "MessageEvent",
    "MessageNotFoundError",
    "MessageSizeExceededError",
    "MessageState",
    "Missing",
    "Namespace",
    "NamespaceRestore",
    "NewMessage",
    "Notice",
    "PropertyView",
    "Quarantined",
    "QueueDescription",
    "QueueId",
    "QueuePart",
    "QuotaExceededError",
    "Record",
    "Records",
    "Right",
    "Rule",
    "RuleBudgetExceededError",
    "RuleDescription",
    "RuleQuotaExceededError",
    "SendOperation",
    "SessionGrant",
    "SessionLockLostError",
    "SessionLockedError",
    "SessionLost",
    "SessionRequiredError",
    "SettleOperation",
    "SettlementKind",
    "SettlementRequest",
    "Span",
    "SqlActionDescription",
    "SqlFilterDescription",
    "SubscriptionDescription",
    "TopicDescription",
    "TransactionOperation",
    "TrueFilter",
    "Value",
    "ZonelessInstant",
]

if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = renamed(
        __name__,
        {
            "Chronicle": "EventSink",
            "Delivery": "DeliveredMessage",
            "Disposition": "SettlementKind",
            "Message": "NewMessage",
            "Moment": "MessageEvent",
            "Operation": "TransactionOperation",
            "Part": "QueuePart",
            "Place": "QueueId",
            "Restoration": "NamespaceRestore",
            "Send": "SendOperation",
            "Settle": "SettleOperation",
            "Verdict": "SettlementRequest",
        },
    )
