"""The client of a namespace: senders, receivers and management, for asyncio."""

from __future__ import annotations

from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_clients import QueueClient, SubscriptionClient, TopicClient
from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    EntityAlreadyExistsError,
    EntityDisabledError,
    EntityNotFoundError,
    FactoryFaultedError,
    InternalServerError,
    InvalidMessageError,
    InvalidRequestError,
    LockLostError,
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
from pairbus.client.factory import FactoryState, MessagingFactory
from pairbus.client.management.descriptions import (
    AccessRights,
    EntityStatus,
    NamespaceInfo,
    QueueDescription,
    QueueRuntimeInfo,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    SubscriptionRuntimeInfo,
    TopicDescription,
    TopicRuntimeInfo,
)
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.message import AmqpView, BodyKind, BrokeredMessage
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings, ReceiveMode, RetryPolicy, Transport
from pairbus.client.token_provider import PlainCredentials, Token, TokenProvider
from pairbus.client.tracing import trace_processing
from pairbus.dialect.connection_string import ConnectionStringError

__all__: list[str] = [
    "NO_RETRY",
    "AccessRights",
    "AmqpView",
    "BacklogUnavailableError",
    "BodyKind",
    "BrokeredMessage",
    "ClosedError",
    "ConnectionStringError",
    "CorrelationFilter",
    "Endpoint",
    "EntityAlreadyExistsError",
    "EntityDisabledError",
    "EntityNotFoundError",
    "EntityStatus",
    "FactoryFaultedError",
    "FactoryState",
    "FalseFilter",
    "InternalServerError",
    "InvalidMessageError",
    "InvalidRequestError",
    "LockLostError",
    "MessageLockLostError",
    "MessageNotFoundError",
    "MessageReceiver",
    "MessageSender",
    "MessageSession",
    "MessageSizeExceededError",
    "MessageState",
    "MessagingCommunicationError",
    "MessagingError",
    "MessagingFactory",
    "MessagingFactorySettings",
    "MessagingTimeoutError",
    "NamespaceInfo",
    "NamespaceManager",
    "PlainCredentials",
    "PreconditionFailedError",
    "QueueClient",
    "QueueDescription",
    "QueueRuntimeInfo",
    "QuotaExceededError",
    "ReceiveMode",
    "ReceivedMessage",
    "RetryPolicy",
    "RuleDescription",
    "ServerBusyError",
    "SessionCannotBeLockedError",
    "SessionLockLostError",
    "SharedAccessAuthorizationRule",
    "SqlFilter",
    "SqlRuleAction",
    "SubscriptionClient",
    "SubscriptionDescription",
    "SubscriptionRuntimeInfo",
    "Token",
    "TokenProvider",
    "TopicClient",
    "TopicDescription",
    "TopicRuntimeInfo",
    "Transport",
    "TrueFilter",
    "UnauthorizedError",
    "trace_processing",
]
