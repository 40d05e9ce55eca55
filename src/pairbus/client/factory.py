"""The way into a namespace: makes senders, receivers and clients, which share its connection."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from types import NoneType, TracebackType
from typing import Final, Self

from pairbus.client.absence import Absence
from pairbus.client.amqp.authorization import Authorization
from pairbus.client.amqp.connection import AmqpConnection
from pairbus.client.amqp.link import AmqpLink
from pairbus.client.amqp.receiving_link import ReceivingLink, Wish
from pairbus.client.amqp.request_link import RequestLink
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.amqp.slot import Slot
from pairbus.client.connection_string import connect_by
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    InvalidRequestError,
    MessagingError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.paired_namespace import P, PairedNamespaceOptions, Pairing
from pairbus.client.part import Part
from pairbus.client.queue_client import QueueClient
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.receiver import MessageReceiver
from pairbus.client.retrying import retrying
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.subscription_client import SubscriptionClient
from pairbus.client.token_provider import Credentials, PlainCredentials, TokenProvider
from pairbus.client.topic_client import TopicClient
from pairbus.client.validation import check_path, check_type, shown
from pairbus.dialect.entity_path import split_entity_path

_log = logging.getLogger(__name__)

_NO_TIME = timedelta()
_LONGEST_MS: Final = 0xFFFFFFFF
_FAREWELL_S: Final = 5.0
"""How long what a factory has made may take to close; then its connection is closed."""


class FactoryState(Enum):
    """Whether a factory works."""

    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


class _Line:
    """A connection, with the tokens that were put on it."""

    def __init__(self, connection: AmqpConnection, authorization: Authorization | None) -> None:
        self.connection = connection
        self.authorization = authorization

    @property
    def error(self) -> MessagingError | None:
        return self.connection.error

    async def close(self) -> None:
        if self.authorization is not None:
            await self.authorization.close()
        await self.connection.close()


class MessagingFactory:
    """Makes senders, receivers and clients of one namespace.

    It connects when something is first sent or received, and again, by itself, when the connection was lost. To be
    used in one event loop.
    """

    def __init__(self, endpoint: Endpoint, credentials: Credentials, settings: MessagingFactorySettings) -> None:
        check_type("endpoint", endpoint, (Endpoint,))
        check_type("token_provider", credentials, (TokenProvider, PlainCredentials, NoneType))
        check_type("settings", settings, (MessagingFactorySettings,))
        self._endpoint = endpoint
        self._credentials = credentials
        self._settings = settings
        self._state = FactoryState.OPEN
        self._fault: BaseException | None = None
        self._parts: dict[Part, None] = {}
        self._slot = Slot(self._connect)
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached: asyncio.Future[None] | None = None
        self._absence = Absence(endpoint, _log)
        self._send_attempt_s = settings.attempt_s
        self._pairing: Pairing | None = None
        self._is_pairing = False
        self._primaries = 0
        """How many factories have this one for their secondary."""

        self._ended: asyncio.Future[None] | None = None
        self._connection_string: str | None = None

    @classmethod
    def from_connection_string(
        cls, connection_string: str, settings: MessagingFactorySettings | None = None
    ) -> MessagingFactory:
        """Create a factory for the namespace of a connection string; raises ``ValueError`` if it is none.

        What ``settings`` sets wins over ``OperationTimeout`` and ``TransportType`` of the connection string.
        """
        factory = cls(*connect_by(connection_string, settings))
        factory._connection_string = connection_string
        return factory

    @classmethod
    def create(
        cls,
        endpoint: str | Endpoint,
        token_provider: Credentials = None,
        settings: MessagingFactorySettings | None = None,
    ) -> MessagingFactory:
        """A factory for the namespace at an address such as ``sb://contoso.servicebus.windows.net``."""
        where = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        return cls(where, token_provider, settings or MessagingFactorySettings())

    def __repr__(self) -> str:
        return f"<MessagingFactory of {self._endpoint}, {self._state.value}>"

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def credentials(self) -> Credentials:
        """What it shows to its namespace."""
        return self._credentials

    @property
    def settings(self) -> MessagingFactorySettings:
        return self._settings

    @property
    def state(self) -> FactoryState:
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed, or given up."""
        return self._state is not FactoryState.OPEN

    @property
    def connection_string(self) -> str | None:
        """What it was made from, with the key in it; ``None`` if that was something else."""
        return self._connection_string

    # What it makes.

    async def create_message_sender(self, path: str) -> MessageSender:
        """A sender to a queue or a topic. It connects when it first sends."""
        self.check_open()
        return MessageSender(self, self._checked(path))

    async def create_message_receiver(
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
        self.check_open()
        return MessageReceiver(
            self,
            self._checked(path),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def create_queue_client(
        self,
        path: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> QueueClient:
        """Both ends of a queue."""
        self.check_open()
        return QueueClient(
            self,
            self._checked(path),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def create_topic_client(self, path: str) -> TopicClient:
        """The end of a topic that takes messages."""
        self.check_open()
        return TopicClient(self, self._checked(path))

    async def create_subscription_client(
        self,
        topic_path: str,
        name: str,
        receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> SubscriptionClient:
        """The end of a topic that gives messages out: one of its subscriptions."""
        self.check_open()
        return SubscriptionClient(
            self,
            self._checked(topic_path),
            self._checked(name),
            receive_mode,
            prefetch_count=prefetch_count,
            max_auto_lock_renewal=max_auto_lock_renewal,
        )

    async def accept_message_session(
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
        self.check_open()
        path = self._checked(path)
        receive_mode = ReceiveMode(receive_mode)
        check_type("server_wait_time", server_wait_time, (timedelta, NoneType))
        check_type("session_id", session_id, (str, NoneType))
        wait = self._settings.operation_timeout if server_wait_time is None else server_wait_time
        wish = Wish(
            peek_lock=receive_mode is ReceiveMode.PEEK_LOCK,
            prefetch=prefetch_count,
            wants_session=True,
            session_id=session_id,
        )
        link = await self._accept(path, wish, wait.total_seconds())
        try:
            self.check_open()  # it may have been closed meanwhile, and would not close this one
            return MessageSession(
                self,
                path,
                link,
                receive_mode,
                prefetch_count=prefetch_count,
                max_auto_lock_renewal=max_auto_lock_renewal,
            )
        except BaseException:
            await link.close()
            raise

    async def _accept(self, path: str, wish: Wish, wait_s: float) -> ReceivingLink:
        """Lock a session. That there was none to give is an answer, and not tried again."""
        deadline_s = asyncio.get_running_loop().time() + wait_s

        async def attempt() -> ReceivingLink | MessagingTimeoutError:
            line = await self._authorized(path)
            left_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
            link = ReceivingLink(
                line.connection, path, replace(wish, session_wait_ms=min(math.ceil(left_s * 1_000), _LONGEST_MS))
            )
            try:
                await link.attached(left_s + self._settings.attempt_s)
            except MessagingTimeoutError as error:
                if error.condition is None:  # nobody has answered
                    raise
                return error
            return link

        accepted = await retrying(attempt, settings=self._settings, entity=path, patience_s=wait_s)
        if isinstance(accepted, MessagingTimeoutError):
            raise accepted
        return accepted

    # Its pair.

    async def pair_namespace(self, options: PairedNamespaceOptions[P]) -> P:
        """Pair the namespace with another one: that acts for every sender and client, made before or after.

        Returns when everything is in place. If that cannot be done it is raised, and can be tried again.
        """
        self.check_open()
        check_type("options", options, (PairedNamespaceOptions,))
        if self._pairing is not None or self._is_pairing:
            raise InvalidRequestError(f"the factory of {self._endpoint} has been paired already; that is done once")
        if self._primaries:
            raise InvalidRequestError(
                f"the factory of {self._endpoint} is the secondary of a pair, and not paired itself"
            )
        self._is_pairing = True
        try:
            pairing = await options.pair(self)
        finally:
            self._is_pairing = False
        self._pairing = pairing
        if self.is_closed:  # while that was done: who closed it did not know of the pair
            await pairing.close()
            self.check_open()
        for part in self._parts:
            if isinstance(part, MessageSender):
                part.pair(pairing)
        return pairing

    @property
    def pairing(self) -> Pairing | None:
        return self._pairing

    def enlist(self) -> None:
        """Be the secondary of a pair; raises ``InvalidRequestError`` for one that is paired itself."""
        self.check_open()
        if self._pairing is not None or self._is_pairing:
            raise InvalidRequestError(f"the factory of {self._endpoint} is paired itself, and cannot be a secondary")
        self._primaries += 1

    def dismiss(self) -> None:
        """The pair is no more."""
        self._primaries -= 1

    @property
    def send_attempt_s(self) -> float:
        return self._send_attempt_s

    @property
    def _attempt_s(self) -> float:
        """How many seconds one step on the way to a sending link may take: to connect, to put a token, to attach.

        All links share the connection. If one of these steps took longer than a send may, it would hold up the first
        send after an outage.
        """
        return min(self._settings.attempt_s, self._send_attempt_s)

    def limit_send_attempts(self, attempt_s: float) -> None:
        self._send_attempt_s = min(attempt_s, self._settings.operation_timeout.total_seconds())
        line = self._slot.ready
        if line is not None:
            line.connection.limit_send_attempts(self._send_attempt_s)

    # Its end.

    def ended(self) -> asyncio.Future[None]:
        """Done when it is closed or faulted."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.is_closed:
                self._ended.set_result(None)
        return asyncio.shield(self._ended)  # whoever stops waiting does not stop it for the others

    async def close(self) -> None:
        """Close it, and everything that it has made. To close twice is fine."""
        if self._state is FactoryState.OPEN:
            self._state = FactoryState.CLOSED
        await asyncio.shield(self._end())

    def fault(self, error: BaseException) -> None:
        """Give the factory up: it, and everything that it has made, refuses to go on because of this error."""
        if self._state is FactoryState.OPEN:
            self._state = FactoryState.FAULTED
            self._fault = error
            self._end()

    def _end(self) -> asyncio.Task[None]:
        """Shut down, once, even if whoever wanted that does not wait for it."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._shut_down())
            if self._ended is not None:
                self._ended.set_result(None)
        return self._ending

    async def _shut_down(self) -> None:
        closing = [asyncio.ensure_future(part.close()) for part in [*self._parts]]
        if self._pairing is not None:
            closing.append(asyncio.ensure_future(self._pairing.close()))
        if closing:  # with a peer that does not answer each would wait on its own
            await asyncio.wait(closing, timeout=_FAREWELL_S)
        line = await self._slot.clear()
        if line is not None:
            await line.close()
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("something of %s could not be closed: %s", self._endpoint, outcome)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What its parts need.

    def check_open(self) -> None:
        """Raise if it is closed or faulted."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this factory was used in another event loop; make one in each, or use pairbus.blocking")
        if self._state is FactoryState.CLOSED:
            raise ClosedError(f"the factory of {self._endpoint} has been closed")
        self.check_faulted()

    def check_faulted(self) -> None:
        """Raise if it is faulted."""
        if self._state is FactoryState.FAULTED:
            error = FactoryFaultedError(f"the factory of {self._endpoint} has been given up: {self._fault}")
            raise error from self._fault

    def _checked(self, path: str) -> str:
        """Return the path if it can be one; raise ``TypeError`` or ``ValueError`` if not.

        The namespace would read some of what no name has as the end of the path, and take the link for another entity.
        Other brokers have rules of their own for addresses: a path is checked only for a Service Bus namespace.
        """
        check_type("path", path, (str,))
        if not isinstance(self._credentials, TokenProvider):
            return path
        inner = path.strip("/")
        check_path("path", inner)
        if split_entity_path(inner) is None:
            raise ValueError(f"{shown(path)} is no path of a queue, topic or subscription")
        return inner

    def adopt(self, part: Part) -> None:
        self._parts[part] = None

    def release(self, part: Part) -> None:
        self._parts.pop(part, None)

    async def open_sending_link(self, path: str, properties: Mapping[str, object] | None = None) -> SendingLink:
        line = await self._authorized(path)
        link = SendingLink(line.connection, path, properties)
        await self._attached(link, path, self._attempt_s)
        return link

    async def open_receiving_link(self, path: str, wish: Wish) -> ReceivingLink:
        line = await self._authorized(path)
        link = ReceivingLink(line.connection, path, wish)
        await self._attached(link, path)
        return link

    async def open_request_link(self, address: str, entity: str) -> RequestLink:
        line = await self._authorized(entity)
        link = RequestLink(line.connection, address, entity)
        await self._attached(link, entity)
        return link

    async def _attached(self, link: AmqpLink, path: str, timeout_s: float | None = None) -> None:
        try:
            await link.attached(self._settings.attempt_s if timeout_s is None else timeout_s)
        except UnauthorizedError:
            self.forget_token(path)
            raise

    def forget_token(self, path: str) -> None:
        """What the key may do can have been changed: whoever asks for the entity next puts another token."""
        line = self._slot.ready
        if line is not None and line.authorization is not None:
            line.authorization.forget(path)

    async def _authorized(self, path: str) -> _Line:
        """The connection, with a token for an entity on it."""
        self.check_open()
        line = await self._slot.get()
        if line.authorization is not None:
            await line.authorization.authorize(path)
        return line

    async def greet(self, path: str) -> None:
        """Have the namespace itself answer, whatever an entity does; raises ``MessagingError``."""
        self.check_open()
        line = await self._slot.get()
        if line.authorization is not None:
            line.authorization.forget(path)
            await line.authorization.authorize(path)

    async def announced_name(self) -> str | None:
        """Return the name that the namespace announces when it is connected to; ``None`` if it announces none.

        Connects if need be, for which no key is needed; raises ``MessagingError`` if that fails.
        """
        self.check_open()
        return (await self._slot.get()).connection.announced_name

    def reached(self) -> asyncio.Future[None]:
        """Done when the namespace is reached the next time: whoever waits to try again need not wait longer."""
        if self._reached is None or self._reached.done():
            self._reached = asyncio.get_running_loop().create_future()
        return self._reached

    async def _connect(self) -> _Line:
        """Connect; an outage is told once when it begins, and once when it ends."""
        self.check_open()
        try:
            line = await self._try_to_connect()
        except MessagingError as error:
            self._absence.failed(error)
            raise
        self._absence.reached()
        line.connection.send_attempt_s = self._send_attempt_s
        line.connection.gone.add_done_callback(lambda _: self._disconnected(line.connection))
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)
        return line

    def _disconnected(self, connection: AmqpConnection) -> None:
        if self._state is FactoryState.OPEN and self._ending is None:
            self._absence.began(connection.error, "it is opened again when it is needed")

    async def _try_to_connect(self) -> _Line:
        timeout_s = self._attempt_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                connection = await AmqpConnection.open(self._endpoint, self._settings, self._credentials)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise MessagingTimeoutError(f"{self._endpoint} did not answer within {timeout_s:g} s") from error
        provider = self._credentials
        return _Line(connection, Authorization(connection, provider) if isinstance(provider, TokenProvider) else None)
