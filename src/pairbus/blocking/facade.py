"""The asyncio client without asyncio: the same classes, each call done on the event loop of the process.

Written by tests/blocking/make_facade.py; what is to change is changed there, or in the asyncio client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Self, overload

from pairbus.blocking.wrapper import ClosingWrapper, Wrapper, gathered, lent, unwrapped
from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_client import EntityClient as AsyncEntityClient
from pairbus.client.factory import FactoryState
from pairbus.client.factory import MessagingFactory as AsyncMessagingFactory
from pairbus.client.management.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.client.management.namespace_manager import NamespaceManager as AsyncNamespaceManager
from pairbus.client.management.rules import RuleDescription
from pairbus.client.management.runtime_info import (
    NamespaceInfo,
    QueueRuntimeInfo,
    SubscriptionRuntimeInfo,
    TopicRuntimeInfo,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.paired_namespace import PairedNamespaceOptions
from pairbus.client.part import Part as AsyncPart
from pairbus.client.queue_client import QueueClient as AsyncQueueClient
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver as AsyncMessageReceiver
from pairbus.client.sender import MessageSender as AsyncMessageSender
from pairbus.client.session import MessageSession as AsyncMessageSession
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.settling import Changes
from pairbus.client.subscription_client import SubscriptionClient as AsyncSubscriptionClient
from pairbus.client.token_provider import Credentials, TokenProvider
from pairbus.client.topic_client import TopicClient as AsyncTopicClient
from pairbus.pairing.drill import DrillReport
from pairbus.pairing.events import Listener, PairEvent
from pairbus.pairing.failure_rules import FAILURE_RULES, FailureRules
from pairbus.pairing.options import (
    SendAvailabilityPairedNamespaceOptions as AsyncSendAvailabilityPairedNamespaceOptions,
)
from pairbus.pairing.pair import NamespacePair as AsyncNamespacePair
from pairbus.pairing.status import PairStatus
from pairbus.pairing.syphon import IN_PROCESS, SyphonEngine, SyphonSettings

_NO_TIME = timedelta()


class Part(ClosingWrapper):
    """A sender, receiver, session or client."""

    _inner: AsyncPart

    @property
    def path(self) -> str:
        """The path of the entity."""
        return self._inner.path

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    def close(self) -> None:
        """Let go of what it holds. To close twice is fine; one that is cancelled goes on, without being waited for."""
        self._close(self._inner.close)


class MessageSender(Part):
    """Sends messages; each is confirmed when it is on the namespace's disk.

    Sends that are made at the same time go out one after the other without waiting for one another's confirmation, in
    the order in which they were made.
    """

    _inner: AsyncMessageSender

    def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several; returns when the namespace has confirmed all of them.

        Several are packed into as few batches as the entity's limit allows. Each batch arrives whole or not at all.
        If one of them fails for good the error is raised, and what comes of the others is not told.
        """
        self._call(self._inner.send, gathered(message))

    def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch: all of them arrive, or none.

        Raises ``MessageSizeExceededError`` if they do not fit into one.
        """
        self._call(self._inner.send_batch, gathered(messages))

    @overload
    def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time. Gives the sequence numbers by which that can be cancelled until then."""
        function: Callable[..., Coroutine[Any, Any, int | list[int]]] = self._inner.schedule
        return self._call(function, gathered(message), at)

    def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled; raises ``MessageNotFoundError`` if one of them is not, any more."""
        self._call(self._inner.cancel_scheduled, gathered(sequence_number))


class TopicClient(MessageSender):
    """Sends to a topic, whose subscriptions each get their copies."""

    _inner: AsyncTopicClient


class MessageReceiver(Part):
    """Receives messages and settles them.

    With a prefetch count the namespace sends so many messages ahead, and locks them, so that the next ``receive`` need
    not ask for them. Without, it sends what is asked for when it is asked for.
    """

    _inner: AsyncMessageReceiver

    @property
    def receive_mode(self) -> ReceiveMode:
        return self._inner.receive_mode

    @property
    def prefetch_count(self) -> int:
        return self._inner.prefetch_count

    def receive(self, max_message_count: int = 1, max_wait_time: timedelta | None = None) -> list[ReceivedMessage]:
        """Receive up to so many messages, waiting so long for the first one; an empty list if none has come.

        Without ``max_wait_time`` it waits for the operation time-out. Zero gives what is there now; with a prefetch
        count, what has come by now.
        """
        return self._call(self._inner.receive, max_message_count, max_wait_time)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        """The next message, whenever it comes. Rides out what is transient; ends when the receiver is closed."""
        try:
            return self._call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def complete(self, message: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Remove messages: they have been dealt with."""
        self._call(self._inner.complete, gathered(message))

    def abandon(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Give messages back at once; their delivery count goes up."""
        self._call(self._inner.abandon, gathered(message), properties_to_modify)

    def defer(
        self, message: ReceivedMessage | Iterable[ReceivedMessage], properties_to_modify: Changes | None = None
    ) -> None:
        """Put messages aside: they are received by their sequence number only."""
        self._call(self._inner.defer, gathered(message), properties_to_modify)

    def dead_letter(
        self,
        message: ReceivedMessage | Iterable[ReceivedMessage],
        reason: str | None = None,
        error_description: str | None = None,
        properties_to_modify: Changes | None = None,
    ) -> None:
        """Move messages to the dead-letter queue."""
        self._call(self._inner.dead_letter, gathered(message), reason, error_description, properties_to_modify)

    def renew_lock(self, message: ReceivedMessage) -> datetime:
        """Keep a message locked for another lock duration; gives until when."""
        return self._call(self._inner.renew_lock, message)

    def renew_locks(self, messages: Iterable[ReceivedMessage]) -> None:
        """Keep messages locked for another lock duration, in one request.

        Raises ``MessageLockLostError`` if one of them is not locked any more; the locks of the others may not have been
        renewed then.
        """
        self._call(self._inner.renew_locks, gathered(messages))

    def peek(self, max_message_count: int = 1, from_sequence_number: int | None = None) -> list[ReceivedMessage]:
        """Look at messages without locking them, in every state. Each call goes on where the last one ended."""
        return self._call(self._inner.peek, max_message_count, from_sequence_number)

    def receive_deferred(self, sequence_number: int | Iterable[int]) -> list[ReceivedMessage]:
        """Receive messages that were deferred; raises ``MessageNotFoundError`` if one of them is not there."""
        return self._call(self._inner.receive_deferred, gathered(sequence_number))


class MessageSession(MessageReceiver):
    """Holds the lock of a session, and receives its messages.

    The lock goes with the link: when that is lost, the session is open to others, and has to be accepted again.
    """

    _inner: AsyncMessageSession

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    @property
    def locked_until(self) -> datetime | None:
        """Until when the session is locked for us, unless that is renewed."""
        return self._inner.locked_until

    @property
    def is_settled(self) -> bool:
        """Whether the lock is not needed any more."""
        return self._inner.is_settled

    def renew_lock(self, message: ReceivedMessage | None = None) -> datetime:
        """Keep the session locked for another lock duration, and with it all its messages; gives until when."""
        return self._call(self._inner.renew_lock, message)

    def get_state(self) -> bytes | None:
        """What was last set as the session's state; ``None`` if there is none."""
        return self._call(self._inner.get_state)

    def set_state(self, state: bytes | None) -> None:
        """Keep something with the session, until ``None`` is set."""
        self._call(self._inner.set_state, state)


class EntityClient(MessageReceiver):
    """Receives messages, and accepts sessions."""

    _inner: AsyncEntityClient

    def accept_message_session(
        self, session_id: str | None = None, *, server_wait_time: timedelta | None = None
    ) -> MessageSession:
        """Lock a session: of that id, or the next one that is free and has messages."""
        made = self._call(self._inner.accept_message_session, session_id, server_wait_time=server_wait_time)
        return MessageSession(made, self._loop)

    def get_message_sessions(self, updated_since: datetime | None = None) -> list[str]:
        """The ids of the sessions that have messages; or of those whose state was set since a time."""
        return self._call(self._inner.get_message_sessions, updated_since)


class QueueClient(EntityClient):
    """Sends to a queue and receives from it."""

    _inner: AsyncQueueClient

    def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several, as ``MessageSender.send`` does."""
        self._call(self._inner.send, gathered(message))

    def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch, as ``MessageSender.send_batch`` does."""
        self._call(self._inner.send_batch, gathered(messages))

    @overload
    def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time, as ``MessageSender.schedule`` does."""
        function: Callable[..., Coroutine[Any, Any, int | list[int]]] = self._inner.schedule
        return self._call(function, gathered(message), at)

    def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled."""
        self._call(self._inner.cancel_scheduled, gathered(sequence_number))


class SubscriptionClient(EntityClient):
    """Receives from a subscription, and manages its rules."""

    _inner: AsyncSubscriptionClient

    @property
    def topic_path(self) -> str:
        return self._inner.topic_path

    @property
    def name(self) -> str:
        return self._inner.name

    def add_rule(self, rule: RuleDescription) -> None:
        """Add a rule; raises ``EntityAlreadyExistsError`` if there is one of that name."""
        self._call(self._inner.add_rule, rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule; raises ``EntityNotFoundError`` if there is none of that name."""
        self._call(self._inner.remove_rule, name)

    def get_rules(self) -> list[RuleDescription]:
        """The rules, in the order in which they were made."""
        return self._call(self._inner.get_rules)


class MessagingFactory(ClosingWrapper):
    """Makes senders, receivers and clients of one namespace."""

    _inner: AsyncMessagingFactory

    def __init__(self, endpoint: Endpoint, credentials: Credentials, settings: MessagingFactorySettings) -> None:
        super().__init__(AsyncMessagingFactory(endpoint, credentials, settings))

    @classmethod
    def from_connection_string(
        cls, connection_string: str, settings: MessagingFactorySettings | None = None
    ) -> MessagingFactory:
        """Create a factory for the namespace of a connection string; raises ``ValueError`` if it is none.

        What ``settings`` sets wins over ``OperationTimeout`` and ``TransportType`` of the connection string.
        """
        return cls._wrapping(AsyncMessagingFactory.from_connection_string(connection_string, settings))

    @classmethod
    def create(
        cls,
        endpoint: str | Endpoint,
        token_provider: Credentials = None,
        settings: MessagingFactorySettings | None = None,
    ) -> MessagingFactory:
        """A factory for the namespace at an address such as ``sb://contoso.servicebus.windows.net``."""
        return cls._wrapping(AsyncMessagingFactory.create(endpoint, token_provider, settings))

    @property
    def endpoint(self) -> Endpoint:
        return self._inner.endpoint

    @property
    def settings(self) -> MessagingFactorySettings:
        return self._inner.settings

    @property
    def state(self) -> FactoryState:
        return self._inner.state

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or given up."""
        return self._inner.is_closed

    @property
    def connection_string(self) -> str | None:
        """What it was made from, with the key in it; ``None`` if that was something else."""
        return self._inner.connection_string

    def create_message_sender(self, path: str) -> MessageSender:
        """A sender to a queue or a topic. It connects when it first sends."""
        made = self._call(self._inner.create_message_sender, path)
        return MessageSender(made, self._loop)

    def create_message_receiver(
        self,
        path: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageReceiver:
        """A receiver from a queue, from ``topic/Subscriptions/name``, or from ``…/$DeadLetterQueue`` of one of them.

        With ``max_auto_lock_renewal`` it keeps each message locked for so long, until the message is settled.
        """
        made = self._call(
            self._inner.create_message_receiver,
            path,
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        return MessageReceiver(made, self._loop)

    def create_queue_client(
        self,
        path: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> QueueClient:
        """Both ends of a queue."""
        made = self._call(
            self._inner.create_queue_client,
            path,
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        return QueueClient(made, self._loop)

    def create_topic_client(self, path: str) -> TopicClient:
        """The end of a topic that takes messages."""
        made = self._call(self._inner.create_topic_client, path)
        return TopicClient(made, self._loop)

    def create_subscription_client(
        self,
        topic_path: str,
        name: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> SubscriptionClient:
        """The end of a topic that gives messages out: one of its subscriptions."""
        made = self._call(
            self._inner.create_subscription_client,
            topic_path,
            name,
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        return SubscriptionClient(made, self._loop)

    def accept_message_session(
        self,
        path: str,
        session_id: str | None = None,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        server_wait_time: timedelta | None = None,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> MessageSession:
        """Lock a session of a queue or subscription: of that id, or the next one that is free and has messages.

        Waits so long for one to be free (the operation time-out, if nothing is said), then raises
        ``MessagingTimeoutError``; a session of that id that somebody else has locked raises
        ``SessionCannotBeLockedError``.
        """
        made = self._call(
            self._inner.accept_message_session,
            path,
            session_id,
            receive_mode,
            server_wait_time=server_wait_time,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )
        return MessageSession(made, self._loop)

    def pair_namespace(self, options: SendAvailabilityPairedNamespaceOptions) -> NamespacePair:
        """Pair the namespace with another one: that acts for every sender and client, made before or after.

        Returns when everything is in place. If that cannot be done it is raised, and can be tried again.
        """
        made = self._call(self._inner.pair_namespace, lent("options", options, SendAvailabilityPairedNamespaceOptions))
        return NamespacePair(made, self._loop)

    def close(self) -> None:
        """Close it, and everything that it has made. To close twice is fine."""
        self._close(self._inner.close)

    def fault(self, error: BaseException) -> None:
        """Give the factory up: it, and everything that it has made, refuses to go on because of this error."""
        self._call_function(self._inner.fault, error)


class NamespaceManager(ClosingWrapper):
    """The management of a namespace, over HTTP.

    Operations need the claim *Manage*. What fails for a reason that passes is tried again until the settings'
    ``operation_timeout``. Whatever is made or changed is answered as the namespace has it, with its defaults.
    """

    _inner: AsyncNamespaceManager

    def __init__(
        self,
        endpoint: Endpoint | str,
        token_provider: TokenProvider | None = None,
        settings: MessagingFactorySettings | None = None,
    ) -> None:
        super().__init__(AsyncNamespaceManager(endpoint, token_provider, settings))

    @classmethod
    def create(
        cls,
        endpoint: Endpoint | str,
        token_provider: TokenProvider | None = None,
        settings: MessagingFactorySettings | None = None,
    ) -> Self:
        """A manager for the namespace at an endpoint. Nothing is connected yet."""
        return cls._wrapping(AsyncNamespaceManager.create(endpoint, token_provider, settings))

    @classmethod
    def from_connection_string(cls, text: str, settings: MessagingFactorySettings | None = None) -> Self:
        """A manager for the namespace of a connection string. Raises ``ConnectionStringError``, a ``ValueError``."""
        return cls._wrapping(AsyncNamespaceManager.from_connection_string(text, settings))

    def close(self) -> None:
        """Let no further operation begin."""
        self._close(self._inner.close)

    def get_namespace_info(self) -> NamespaceInfo:
        return self._call(self._inner.get_namespace_info)

    def create_queue(self, queue: str | QueueDescription) -> QueueDescription:
        """Raises ``EntityAlreadyExistsError`` if there is a queue or topic of that path."""
        return self._call(self._inner.create_queue, queue)

    def get_queue(self, path: str) -> QueueDescription:
        return self._call(self._inner.get_queue, path)

    def update_queue(self, queue: QueueDescription) -> QueueDescription:
        """Make it what the description says. What that leaves open gets its default, so begin with ``get_queue``."""
        return self._call(self._inner.update_queue, queue)

    def delete_queue(self, path: str) -> None:
        """Delete it with all its messages."""
        self._call(self._inner.delete_queue, path)

    def get_queues(self) -> list[QueueDescription]:
        return self._call(self._inner.get_queues)

    def queue_exists(self, path: str) -> bool:
        return self._call(self._inner.queue_exists, path)

    def get_queue_runtime_info(self, path: str) -> QueueRuntimeInfo:
        return self._call(self._inner.get_queue_runtime_info, path)

    def get_queues_runtime_info(self) -> list[QueueRuntimeInfo]:
        return self._call(self._inner.get_queues_runtime_info)

    def create_topic(self, topic: str | TopicDescription) -> TopicDescription:
        """Raises ``EntityAlreadyExistsError`` if there is a queue or topic of that path."""
        return self._call(self._inner.create_topic, topic)

    def get_topic(self, path: str) -> TopicDescription:
        return self._call(self._inner.get_topic, path)

    def update_topic(self, topic: TopicDescription) -> TopicDescription:
        """Make it what the description says. What that leaves open gets its default, so begin with ``get_topic``."""
        return self._call(self._inner.update_topic, topic)

    def delete_topic(self, path: str) -> None:
        """Delete it with its subscriptions and all their messages."""
        self._call(self._inner.delete_topic, path)

    def get_topics(self) -> list[TopicDescription]:
        return self._call(self._inner.get_topics)

    def topic_exists(self, path: str) -> bool:
        return self._call(self._inner.topic_exists, path)

    def get_topic_runtime_info(self, path: str) -> TopicRuntimeInfo:
        return self._call(self._inner.get_topic_runtime_info, path)

    def get_topics_runtime_info(self) -> list[TopicRuntimeInfo]:
        return self._call(self._inner.get_topics_runtime_info)

    def create_subscription(
        self, topic_path: str, subscription: str | SubscriptionDescription, default_rule: RuleDescription | None = None
    ) -> SubscriptionDescription:
        """A subscription gets all messages, unless another rule is given for it to begin with."""
        return self._call(self._inner.create_subscription, topic_path, subscription, default_rule)

    def get_subscription(self, topic_path: str, name: str) -> SubscriptionDescription:
        return self._call(self._inner.get_subscription, topic_path, name)

    def update_subscription(self, topic_path: str, subscription: SubscriptionDescription) -> SubscriptionDescription:
        """Make it what the description says. What that leaves open gets its default."""
        return self._call(self._inner.update_subscription, topic_path, subscription)

    def delete_subscription(self, topic_path: str, name: str) -> None:
        """Delete it with its rules and all its messages."""
        self._call(self._inner.delete_subscription, topic_path, name)

    def get_subscriptions(self, topic_path: str) -> list[SubscriptionDescription]:
        return self._call(self._inner.get_subscriptions, topic_path)

    def subscription_exists(self, topic_path: str, name: str) -> bool:
        return self._call(self._inner.subscription_exists, topic_path, name)

    def get_subscription_runtime_info(self, topic_path: str, name: str) -> SubscriptionRuntimeInfo:
        return self._call(self._inner.get_subscription_runtime_info, topic_path, name)

    def get_subscriptions_runtime_info(self, topic_path: str) -> list[SubscriptionRuntimeInfo]:
        return self._call(self._inner.get_subscriptions_runtime_info, topic_path)

    def create_rule(self, topic_path: str, subscription_name: str, rule: str | RuleDescription) -> RuleDescription:
        """A rule adds to those that there are: a message that any of them lets through is received."""
        return self._call(self._inner.create_rule, topic_path, subscription_name, rule)

    def get_rule(self, topic_path: str, subscription_name: str, name: str) -> RuleDescription:
        return self._call(self._inner.get_rule, topic_path, subscription_name, name)

    def update_rule(self, topic_path: str, subscription_name: str, rule: RuleDescription) -> RuleDescription:
        return self._call(self._inner.update_rule, topic_path, subscription_name, rule)

    def delete_rule(self, topic_path: str, subscription_name: str, name: str) -> None:
        """What has been received through it stays."""
        self._call(self._inner.delete_rule, topic_path, subscription_name, name)

    def get_rules(self, topic_path: str, subscription_name: str) -> list[RuleDescription]:
        """In the order in which they were made."""
        return self._call(self._inner.get_rules, topic_path, subscription_name)

    def rule_exists(self, topic_path: str, subscription_name: str, name: str) -> bool:
        return self._call(self._inner.rule_exists, topic_path, subscription_name, name)

    @property
    def endpoint(self) -> Endpoint:
        return self._inner.endpoint

    @property
    def settings(self) -> MessagingFactorySettings:
        return self._inner.settings


class SendAvailabilityPairedNamespaceOptions(Wrapper):
    """Keeps senders going: while an entity is down, its messages go to backlog queues in the secondary namespace.

    ``secondary_namespace_manager`` makes the backlog queues and ``messaging_factory`` sends to them; both are of the
    secondary namespace, and stay the application's own.
    """

    _inner: AsyncSendAvailabilityPairedNamespaceOptions

    def __init__(
        self,
        secondary_namespace_manager: NamespaceManager,
        messaging_factory: MessagingFactory,
        backlog_queue_count: int = 10,
        failover_interval: timedelta = timedelta(minutes=1),
        enable_syphon: bool = False,
        *,
        ping_interval: timedelta = timedelta(minutes=1),
        attempt_timeout: timedelta = timedelta(seconds=5),
        primary_name: str | None = None,
        failure_rules: FailureRules = FAILURE_RULES,
        preserve_session_order: bool = False,
        syphon: SyphonSettings | None = None,
        syphon_engine: str | SyphonEngine = IN_PROCESS,
    ) -> None:
        super().__init__(
            AsyncSendAvailabilityPairedNamespaceOptions(
                unwrapped("secondary_namespace_manager", secondary_namespace_manager, NamespaceManager),
                unwrapped("messaging_factory", messaging_factory, MessagingFactory),
                backlog_queue_count,
                failover_interval,
                enable_syphon,
                ping_interval=ping_interval,
                attempt_timeout=attempt_timeout,
                primary_name=primary_name,
                failure_rules=failure_rules,
                preserve_session_order=preserve_session_order,
                syphon=syphon,
                syphon_engine=syphon_engine,
            )
        )
        self._secondary_namespace_manager = secondary_namespace_manager
        self._messaging_factory = messaging_factory
        self._needs = (secondary_namespace_manager, messaging_factory)

    @property
    def secondary_namespace_manager(self) -> NamespaceManager:
        return self._secondary_namespace_manager

    @property
    def messaging_factory(self) -> MessagingFactory:
        return self._messaging_factory

    @property
    def backlog_queue_count(self) -> int:
        """How many backlog queues there are, once the namespace is paired."""
        return self._inner.backlog_queue_count

    @property
    def failover_interval(self) -> timedelta:
        """How long nothing may succeed after a failure before messages are diverted; zero diverts at once."""
        return self._inner.failover_interval

    @property
    def enable_syphon(self) -> bool:
        """Whether this process brings messages home; at least one process of a pair should."""
        return self._inner.enable_syphon

    @property
    def ping_interval(self) -> timedelta:
        return self._inner.ping_interval

    @property
    def attempt_timeout(self) -> timedelta:
        """How long a try to send waits for an answer of either namespace, and an attempt to connect to one."""
        return self._inner.attempt_timeout

    @property
    def primary_name(self) -> str | None:
        """What the backlog queues are named after; ``None`` for the name that the primary announces, or its host."""
        return self._inner.primary_name

    @property
    def failure_rules(self) -> FailureRules:
        return self._inner.failure_rules

    @property
    def preserve_session_order(self) -> bool:
        return self._inner.preserve_session_order

    @property
    def syphon(self) -> SyphonSettings:
        return self._inner.syphon

    @property
    def syphon_engine(self) -> str | SyphonEngine:
        return self._inner.syphon_engine


class NamespacePair(Wrapper):
    """What ``MessagingFactory.pair_namespace`` gives: the pair, to be watched and switched.

    It ends with the primary factory.
    """

    _inner: AsyncNamespacePair

    @property
    def primary_name(self) -> str:
        """What the backlog queues of this pair are named after."""
        return self._inner.primary_name

    def status(self) -> PairStatus:
        """How the pair is doing, as this factory knows it."""
        return self._call_function(self._inner.status)

    def backlog_depth(self) -> dict[str, int]:
        """How many messages lie in each backlog queue, whoever has put them there; asks the secondary namespace."""
        return self._call(self._inner.backlog_depth)

    def metrics(self) -> str:
        """The status in the text format of Prometheus, with the depth of the backlog if the secondary tells it."""
        return self._call(self._inner.metrics)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a function called with each event, at once; gives what ends that. It must not take long.

        It is called on the thread of the event loop, where no blocking call can be made.
        """
        return self._call_function(self._inner.subscribe, listener)

    def events(self) -> Iterator[PairEvent]:
        """The events from now on, until the pair is closed; of those who are slow, the oldest are dropped."""
        return self._iterate(self._inner.events)

    def report(self, application: str | None = None) -> None:
        """Have both namespaces told how this pair is doing, for their consoles, until it is closed.

        ``application`` is what it is called there: the name of the program, if nothing is said. A namespace that cannot
        be told is tried again; nobody waits for that. To be told again under another name, say it again.
        """
        self._call_function(self._inner.report, application)

    def engage(self, path: str | None = None) -> None:
        """Divert the messages for an entity, or for all, until ``release``; the primary is not pinged meanwhile."""
        self._call_function(self._inner.engage, path)

    def release(self, path: str | None = None) -> None:
        """Send to the primary again, whatever has led to the backlog."""
        self._call_function(self._inner.release, path)

    def drill(
        self, primary_namespace_manager: NamespaceManager, max_wait_time: timedelta = timedelta(minutes=1)
    ) -> DrillReport:
        """Prove that the pair works: divert a marked message, have it brought home, receive it, and tell the times.

        It goes to a queue that is made for it on the primary, so that no message of the application is touched. Raises
        ``MessagingTimeoutError`` if no syphon brings it home in time.
        """
        return self._call(
            self._inner.drill,
            lent("primary_namespace_manager", primary_namespace_manager, NamespaceManager),
            max_wait_time,
        )


PairedNamespaceOptions.register(SendAvailabilityPairedNamespaceOptions)
